"""Episodes from features to metrics."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from dubito import Dirichlet
from dubito.errors import DubitoError
from dubito.fewshot import Features
from dubito.fewshot._engine import Engine, evaluate_scores, summarize
from dubito.fewshot._episodes import Setting
from dubito.methods import METHODS
from tests.fewshot.samples import draw_features

PAPER = {"scale": "paper"}
LOGDET = {"fisher_weight": 0.01, "scale": "paper"}
NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "iedl": ("iedl", LOGDET),
    "i_mse": ("iedl", {"fisher_weight": 0.0, "scale": "paper"}),
    "mse_logdet": ("edl", LOGDET),
    "edl": ("edl", PAPER),
    "redl": ("redl", PAPER),
    "kl_pn": ("kl_pn", {}),
    "rkl_pn": ("rkl_pn", {}),
    "softmax": ("softmax", {}),
    "label_smoothing": ("label_smoothing", {}),
}
#: of the first edition, 100 4-way episodes: mean and interval of accuracy, OOD AUPR, AUPR of the
#: confidence, the latter two by max_prob
FIRST_EDITION = {
    ("iedl", 1): (0.8067, 0.0164, 0.7235, 0.0145, 0.9488, 0.0089),
    ("iedl", 5): (0.9638, 0.0062, 0.8960, 0.0097, 0.9976, 0.0007),
    ("edl", 1): (0.7888, 0.0183, 0.7152, 0.0139, 0.9404, 0.0098),
    ("i_mse", 5): (0.9625, 0.0068, 0.8975, 0.0081, 0.9971, 0.0010),
    ("mse_logdet", 1): (0.7982, 0.0164, 0.7122, 0.0148, 0.9443, 0.0089),
    ("redl", 5): (0.9513, 0.0075, 0.8566, 0.0117, 0.9951, 0.0013),
    ("kl_pn", 1): (0.8105, 0.0160, 0.7412, 0.0153, 0.9503, 0.0079),
    ("rkl_pn", 5): (0.9427, 0.0079, 0.8574, 0.0107, 0.9947, 0.0016),
    ("softmax", 5): (0.9667, 0.0054, 0.9018, 0.0091, 0.9981, 0.0006),
    ("label_smoothing", 1): (0.8108, 0.0160, 0.7425, 0.0154, 0.9494, 0.0080),
}


@pytest.mark.parametrize(("name", "shots"), FIRST_EDITION)
def test_figures_are_those_of_the_first_edition(name, shots):
    method, options = NAMES[name]
    setting = Setting(ways=4, shots=shots)
    features, ood = draw_features(), draw_features(5, 60, 64, 1)
    engine = Engine(METHODS.build(method, **options), features, ood, setting=setting)
    values = summarize(engine.values(0, 100))
    expected = iter(FIRST_EDITION[name, shots])
    for metric in ("accuracy", "ood/max_prob/aupr", "confidence/max_prob/aupr"):
        mean, interval = next(expected), next(expected)
        assert values[metric]["mean"] == pytest.approx(mean, abs=interval + 1e-4), metric


def test_fedl_needs_no_code_of_its_own():
    engine = Engine(METHODS.build("fedl"), draw_features(), setting=Setting(ways=4, shots=5))
    values = summarize(engine.values(0, 100))
    assert values["accuracy"]["mean"] > 0.9
    assert values["ood/variance/aupr"]["mean"] > 0.7


def test_values_do_not_depend_on_the_range():
    engine = Engine(METHODS.build("iedl"), draw_features(), setting=Setting(ways=4, shots=2))
    counts: list[int] = []
    together = engine.values(0, 60, counts.append)
    assert sum(counts) == 60
    apart = [engine.values(0, 25), engine.values(25, 60)]
    for name, values in together.items():
        joined = np.concatenate([part[name] for part in apart])
        np.testing.assert_allclose(joined, values, atol=0.15)  # rounding moves single queries
        assert np.nanmean(joined) == pytest.approx(np.nanmean(values), abs=0.01)


def test_metrics_are_those_of_scikit_learn():
    drawn = torch.Generator().manual_seed(1)
    alpha = 1 + 3 * torch.rand(6, 40, 4, generator=drawn)
    labels = torch.arange(4).repeat_interleave(5)
    dist = Dirichlet(alpha)
    values = evaluate_scores(dist, labels)
    for i in range(6):
        correct = (alpha[i, :20].argmax(-1) == labels).numpy()
        score = dist.confidence("mutual_information")[i].numpy()
        inside = np.arange(40) < 20
        expected = {
            "accuracy": correct.mean(),
            "confidence/mutual_information/auroc": roc_auc_score(correct, score[:20]),
            "confidence/mutual_information/aupr": average_precision_score(correct, score[:20]),
            "ood/mutual_information/aupr": average_precision_score(inside, score),
        }
        for name, value in expected.items():
            assert values[name][i].item() == pytest.approx(value, abs=1e-6), name


def test_metrics_of_episodes_without_errors_or_successes():
    alpha = torch.tensor([[[9.0, 1.0], [7.0, 1.0], [1.0, 1.0]], [[1.0, 9.0], [1.0, 7.0], [1, 1]]])
    values = evaluate_scores(Dirichlet(alpha), torch.tensor([0, 0]))
    assert values["accuracy"].tolist() == [1, 0]
    aupr, auroc = (values[f"confidence/max_prob/{name}"] for name in ("aupr", "auroc"))
    assert aupr[0] == 1
    assert aupr[1].isnan()
    assert auroc.isnan().all()


@pytest.mark.parametrize("name", ["ensemble", "mc_dropout", "der"])
def test_other_methods_are_errors(name):
    with pytest.raises(DubitoError, match="need a method of classification without members"):
        Engine(METHODS.build(name), draw_features())


def test_short_features_are_a_warning():
    data = draw_features()
    short = Features(0.01 * data.values, data.labels, data.classes, "short")
    with pytest.warns(UserWarning, match="multiply all features by 100"):
        Engine(METHODS.build("iedl"), short, setting=Setting(ways=4))


def test_metric_that_no_episode_has_is_none():
    found = summarize({"a": np.array([np.nan], np.float32)})["a"]
    assert found == {"mean": None, "interval": None, "episodes": 0}
