"""The parts of a record: curves, people, extremes, plain values."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from dubito import evaluation, metrics
from dubito._legacy import Prediction, reliability
from dubito.data.files import Blob
from dubito.data.humans import human_counts, read_counts
from dubito.experiments import _cell, _curves, _humans


def said(count: int = 500, seed: int = 0) -> tuple[Prediction, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    alpha = 1 + 5 * torch.rand(count, 4, generator=generator)
    return Prediction.from_alpha(alpha), torch.randint(4, (count,), generator=generator)


def test_densities_are_those_of_numpy() -> None:
    one, two = said()[0], said(300, seed=1)[0]
    sets = {"test": {"alpha0": one.alpha0}, "other": {"alpha0": two.alpha0}}
    found = _curves.densities(sets)
    both = torch.cat([one.alpha0, two.alpha0]).double().numpy()
    span = (both.min(), both.max())
    for name, values in sets.items():
        held = found["densities"][name]["alpha0"]
        expected, _ = np.histogram(values["alpha0"].double().numpy(), 101, span, density=True)
        assert len(held) == 101
        assert np.mean(held) == pytest.approx(1)
        # a value on an edge may fall to either side
        np.testing.assert_allclose(held, expected * (span[1] - span[0]), atol=101 / 300 + 1e-9)
        assert np.count_nonzero(np.abs(held - expected * (span[1] - span[0])) > 1e-9) <= 2
    normal = [(v["alpha0"].double().numpy() - span[0]) / (span[1] - span[0]) for v in sets.values()]
    distance = scipy.stats.energy_distance(*normal)
    assert found["energy_distance"]["other"]["alpha0"] == pytest.approx(distance, rel=1e-6)


def test_a_measure_that_is_the_same_everywhere_has_a_density() -> None:
    same = {"alpha0": torch.full((5,), 3.0)}
    found = _curves.densities({"test": same, "other": same})
    assert found["densities"]["test"]["alpha0"][0] == 101
    assert found["energy_distance"]["other"]["alpha0"] == 0


def test_reliability_has_the_bins_of_ece() -> None:
    prediction, labels = said()
    found = reliability(prediction, labels)
    count, sure, right = (np.array(found[key]) for key in ("count", "confidence", "accuracy"))
    assert count.sum() == 500
    ece = (count * np.abs(right - sure)).sum() / 500
    assert ece == pytest.approx(metrics.ece(prediction.probs, labels).item(), abs=1e-6)
    edges = np.arange(16) / 15
    held = count > 0
    assert (sure[held] > edges[:-1][held]).all()
    assert (sure[held] <= edges[1:][held]).all()


@pytest.mark.parametrize("digits", [1, 6])
def test_risk_is_aurc_s_and_ties_are_spread(digits: int) -> None:
    prediction, labels = said(80)
    prediction = Prediction.from_alpha((prediction.alpha * 10**digits).round() / 10**digits)
    correct = prediction.label == labels
    found = evaluation.risk_coverage(prediction.distribution, ~correct, ["vacuity"])["vacuity"]
    assert len(found["coverage"]) == 80
    area = metrics.aurc(-prediction.vacuity, correct).item()
    assert np.mean(found["risk"]) == pytest.approx(area, rel=1e-5)
    assert found["risk"][-1] == pytest.approx(1 - correct.double().mean().item())


def test_curves_of_many_samples_have_a_hundred_points() -> None:
    prediction, labels = said(5000)
    found = evaluation.risk_coverage(
        prediction.distribution, prediction.label != labels, ["alpha0"]
    )
    assert len(found["alpha0"]["risk"]) == 101
    assert found["alpha0"]["coverage"][-1] == 1


def test_extremes_are_of_the_class_and_in_order() -> None:
    prediction, labels = said(100)
    entropy = prediction.expected_entropy
    found = _curves.extremes({"expected_entropy": entropy}, labels, ("a", "b", "c", "d"))
    for number, name in enumerate("abcd"):
        held = found["data_uncertainty"][name]
        assert (labels[held["hard"] + held["easy"]] == number).all()
        own = entropy[labels == number].sort().values
        assert torch.equal(entropy[held["easy"]], own[:5])
        assert torch.equal(entropy[held["hard"]], own.flip(0)[:5])
    assert _curves.extremes({"max_prob": entropy}, labels, ("a",)) == {}


def test_people_by_scipy() -> None:
    prediction, _ = said(200)
    counts = torch.randint(0, 3, (200, 4)) + torch.tensor([1, 0, 0, 0])
    found = _humans.against_people(
        {"expected_entropy": prediction.expected_entropy, "alpha0": torch.ones(200)}, counts
    )
    assert set(found) == {"expected_entropy", "samples"}  # what never changes has no rank
    entropy = scipy.stats.entropy(counts.numpy(), axis=1)
    ranks = [
        scipy.stats.rankdata(values)
        for values in (prediction.expected_entropy.numpy(), entropy.round(12))
    ]
    expected = np.corrcoef(*ranks)[0, 1]
    assert found["expected_entropy"]["spearman"] == pytest.approx(expected, abs=1e-9)
    with pytest.raises(ValueError, match="asked about 200 samples"):
        _humans.against_people({"alpha0": torch.ones(3)}, counts)


def _npy(tmp_path, array) -> Blob:  # type: ignore[no-untyped-def]
    path = tmp_path / "counts.npy"
    np.save(path, array, allow_pickle=True)
    return Blob(path, path.read_bytes())


def test_counts_are_read_without_unpickling(tmp_path) -> None:  # type: ignore[no-untyped-def]
    counts = np.arange(20).reshape(2, 10)
    assert read_counts(_npy(tmp_path, counts)).tolist() == counts.tolist()
    for wrong in (counts * 0.5, -counts, counts * 0, counts[0]):
        with pytest.raises(ValueError, match="should hold whole numbers"):
            read_counts(_npy(tmp_path, wrong))
    with pytest.raises(ValueError, match=r"no \.npy file of plain numbers"):
        read_counts(_npy(tmp_path, np.array([{}])))


@pytest.mark.filterwarnings("ignore:.*is not the published file")
def test_counts_of_another_size_are_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "cifar-10h").mkdir()
    np.save(tmp_path / "cifar-10h" / "cifar10h-counts.npy", np.ones((3, 10), int))
    with pytest.raises(ValueError, match=r"shape \(3, 10\), not \(10000, 10\)"):
        human_counts(tmp_path, download=False)
    whole = np.ones((10_000, 10), int)
    np.save(tmp_path / "cifar-10h" / "cifar10h-counts.npy", whole)
    assert human_counts(tmp_path, download=False).shape == (10_000, 10)


def test_what_json_lacks() -> None:
    assert _cell.plain({"a": [float("inf"), -float("inf"), 1]}) == {"a": ["inf", "-inf", 1]}
    with pytest.raises(ValueError, match=r"result\.a\[1\] is not a number"):
        _cell.plain({"a": [1.0, float("nan")]})
