"""Evaluation against scikit-learn, for both tasks."""

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, recall_score, roc_auc_score

from dubito import evaluation, metrics
from dubito.calibration import Calibration
from dubito.distributions import Categorical, Dirichlet, Distribution, NormalInverseGamma
from dubito.tasks import Classification, Regression, Task

GENERATOR = torch.Generator().manual_seed(0)
ALPHA = 1 + 20 * torch.rand(200, 4, generator=GENERATOR) ** 3
OOD_ALPHA = 1 + 5 * torch.rand(150, 4, generator=GENERATOR) ** 3
LABELS = torch.where(torch.rand(200, generator=GENERATOR) < 0.8, ALPHA.argmax(-1), 0)
CLASSES = Classification(classes=("a", "b", "c", "d"))

PARAMETERS = torch.rand(4, 200, 2, generator=GENERATOR) + 0.2
NUMBERS = NormalInverseGamma(*PARAMETERS)
VALUES = NUMBERS.mean + 0.3 * NUMBERS.variance.sqrt() * torch.randn(200, 2, generator=GENERATOR)
TWO = Regression(names=("x", "y"), mean=(0.0, 0.0), std=(1.0, 1.0), tolerance=(0.5, 1.0))

CASES: dict[str, tuple[Task, Distribution, torch.Tensor]] = {
    "classification": (CLASSES, Dirichlet(ALPHA), LABELS),
    "regression": (TWO, NUMBERS, VALUES),
    "mixture of classes": (CLASSES, Dirichlet(ALPHA[:, None].repeat(1, 3, 1)).mixture(), LABELS),
    "softmax": (CLASSES, Categorical(ALPHA), LABELS),
}


def reference(positive: np.ndarray, confidence: np.ndarray) -> dict[str, float]:
    return {
        "aupr": float(average_precision_score(positive, confidence)),
        "auroc": float(roc_auc_score(positive, confidence)),
    }


def test_in_distribution_is_positive() -> None:
    dist, ood = Dirichlet(ALPHA), Dirichlet(OOD_ALPHA)
    result = evaluation.ood_detection(dist, ood)
    assert set(result) == set(dist.scores) - {"dissonance"}
    truth = np.r_[np.ones(200), np.zeros(150)]
    for name, values in result.items():
        sign = 1 if dist.higher(name) == "confidence" else -1
        confidence = sign * np.r_[dist.score(name).numpy(), ood.score(name).numpy()]
        for metric, value in reference(truth, confidence).items():
            assert values[metric] == pytest.approx(value, abs=1e-6)
        assert 0 <= values["fpr95"] <= 1
    assert result["alpha0"]["auroc"] > 0.7


def test_expensive_scores_on_request() -> None:
    dist, ood = Dirichlet(ALPHA), Dirichlet(OOD_ALPHA)
    assert list(evaluation.ood_detection(dist, ood, ["dissonance"])) == ["dissonance"]
    assert "dissonance" not in evaluation.ood_detection(dist, ood)


@pytest.mark.parametrize("case", CASES)
def test_correct_is_positive(case: str) -> None:
    task, dist, target = CASES[case]
    errors = task.errors(task.point(dist), target)
    assert 0 < errors.sum() < 200
    for name, values in evaluation.error_detection(dist, errors, ["total", "epistemic"]).items():
        confidence = dist.confidence(name).numpy()
        for metric, value in reference(~errors.numpy(), confidence).items():
            assert values[metric] == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_evaluate(case: str) -> None:
    task, dist, target = CASES[case]
    calibration = Calibration.fit(dist, target)
    result = evaluation.evaluate(task, dist, target, ["total"], calibration)
    errors = task.errors(task.point(dist), target)
    assert result["samples"] == 200
    assert result["metrics"] == task.metrics(dist.predictive, target)
    assert result["calibrated"]["nll"] < result["metrics"]["nll"]
    assert result["error_rate"] == pytest.approx(errors.double().mean().item())
    assert result["error_detection"] == evaluation.error_detection(dist, errors, ["total"])
    assert result["aurc"] == {"total": metrics.aurc(dist.confidence("total"), ~errors).item()}
    assert json.loads(json.dumps(result)) == result
    if task.kind == "regression":
        assert result["interval_coverage"]["0.9"] == pytest.approx(0.9, abs=0.02)


def test_evaluate_without_errors_or_without_their_definition() -> None:
    perfect = evaluation.evaluate(CLASSES, Dirichlet(ALPHA), ALPHA.argmax(-1))
    assert perfect["error_rate"] == 0
    assert "error_detection" not in perfect  # a ranking needs both
    undefined = evaluation.evaluate(TWO.model_copy(update={"tolerance": None}), NUMBERS, VALUES)
    assert set(undefined) == {"samples", "metrics"}


@pytest.mark.parametrize("case", CASES)
def test_risk_coverage_ends_at_the_error_rate(case: str) -> None:
    task, dist, target = CASES[case]
    errors = task.errors(task.point(dist), target)
    curve = evaluation.risk_coverage(dist, errors, ["total"])["total"]
    assert len(curve["coverage"]) == 101
    assert curve["coverage"][-1] == 1
    assert curve["risk"][-1] == pytest.approx(errors.double().mean().item())
    order = dist.score("total").argsort()[:100]  # the first half, without ties
    half = curve["coverage"].index(0.5)
    assert curve["risk"][half] == pytest.approx(errors[order].double().mean().item())


def test_risk_coverage_spreads_the_errors_of_ties() -> None:
    dist = Dirichlet(torch.tensor([[5.0, 1.0], [3.0, 1.0], [3.0, 1.0], [3.0, 1.0]]))
    errors = torch.tensor([False, True, False, False])
    curve = evaluation.risk_coverage(dist, errors, ["max_prob"])["max_prob"]
    assert curve["risk"] == pytest.approx([0, 1 / 6, 2 / 9, 1 / 4])


def test_dense_batches_are_flattened() -> None:
    dist, ood = Dirichlet(ALPHA.reshape(10, 20, 4)), Dirichlet(OOD_ALPHA)
    errors = (ALPHA.argmax(-1) != LABELS).reshape(10, 20)
    flat = Dirichlet(ALPHA)
    assert evaluation.ood_detection(dist, ood) == evaluation.ood_detection(flat, ood)
    expected = evaluation.error_detection(flat, errors.flatten())
    assert evaluation.error_detection(dist, errors) == expected


def test_bad_arguments_are_named() -> None:
    dist = Dirichlet(ALPHA)
    with pytest.raises(ValueError, match="must come from one model"):
        evaluation.ood_detection(dist, Dirichlet(OOD_ALPHA[:, :3]))
    with pytest.raises(TypeError, match=r"errors must be bool, .* not torch.int64"):
        evaluation.error_detection(dist, LABELS)
    with pytest.raises(ValueError, match="no score 'vacuity'"):
        evaluation.ood_detection(NUMBERS, NUMBERS, ["vacuity"])
    with pytest.raises(ValueError, match="no negatives"):
        evaluation.error_detection(dist, torch.zeros(200, dtype=torch.bool))


def test_recall_by_class_is_that_of_scikit_learn() -> None:
    result = evaluation.evaluate(CLASSES, Dirichlet(ALPHA), LABELS)
    expected = recall_score(LABELS, ALPHA.argmax(-1), average=None)
    assert list(result["recall"].values()) == pytest.approx(expected.tolist())
    absent = evaluation.evaluate(CLASSES, Dirichlet(ALPHA[:3]), torch.tensor([0, 2, 2]))
    assert list(absent["recall"]) == ["a", "c"]
    assert "recall" not in evaluation.evaluate(TWO, NUMBERS, VALUES)
