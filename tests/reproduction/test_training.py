import math

import pytest
import torch
from scipy.stats import spearmanr

from dubito.calibration import Calibration
from dubito.distributions import Dirichlet
from reproduction.training import _correlations, _densities, _scaled, plain


def test_rank_correlation_agrees_with_scipy() -> None:
    generator = torch.Generator().manual_seed(0)
    people = torch.randint(5, (200,), generator=generator).double()  # many ties
    scores = {"a": people + torch.randn(200, generator=generator), "constant": torch.ones(200)}
    result = _correlations(scores, people)
    expected = spearmanr(scores["a"].numpy(), people.numpy()).statistic
    assert result["a"]["spearman"] == pytest.approx(expected)
    assert set(result) == {"a", "samples"}


def test_densities_have_mean_one_and_distance_of_separated_sets() -> None:
    sets = {"test": {"max_prob": torch.ones(4)}, "other": {"max_prob": torch.zeros(2)}}
    result = _densities(sets)
    assert sum(result["densities"]["other"]["max_prob"]) / 101 == pytest.approx(1)
    assert result["energy_distance"]["other"]["max_prob"] == pytest.approx(math.sqrt(2))


def test_scaled_evidence_has_the_calibrated_probabilities() -> None:
    dist = Dirichlet(1 + 20 * torch.rand(50, 4, generator=torch.Generator().manual_seed(0)))
    calibration = Calibration(theta=(0.7, 0.2))
    predictive = calibration(dist)
    scaled = _scaled(calibration, dist)
    assert isinstance(scaled, Dirichlet)
    torch.testing.assert_close(scaled.probs, predictive.probs.float(), rtol=1e-5, atol=1e-6)


def test_infinite_results_become_text_and_nan_is_an_error() -> None:
    assert plain({"nll": [1.23456789, math.inf]}, 3) == {"nll": [1.23, "inf"]}
    with pytest.raises(ValueError, match="NaN"):
        plain({"nll": math.nan})
