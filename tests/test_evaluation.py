"""The evaluator against scikit-learn, with the paper's positives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

from dubito import Prediction, evaluation
from dubito.measures import MEASURES

GENERATOR = torch.Generator().manual_seed(0)
ID = 1 + 20 * torch.rand(200, 4, generator=GENERATOR) ** 3
OOD = 1 + 5 * torch.rand(150, 4, generator=GENERATOR) ** 3
LABELS = torch.where(torch.rand(200, generator=GENERATOR) < 0.8, ID.argmax(-1), 0)


def test_in_distribution_is_positive() -> None:
    result = evaluation.ood_detection(ID, OOD)
    assert list(result) == list(MEASURES)
    truth = np.r_[np.ones(200), np.zeros(150)]
    for name, measure in MEASURES.items():
        sign = 1 if measure.rises_with == "confidence" else -1
        scores = sign * np.r_[measure(ID).numpy(), measure(OOD).numpy()]
        assert result[name]["aupr"] == pytest.approx(
            average_precision_score(truth, scores), abs=1e-6
        )
        assert result[name]["auroc"] == pytest.approx(roc_auc_score(truth, scores), abs=1e-6)
        assert 0 <= result[name]["fpr95"] <= 1
    assert result["alpha0"]["auroc"] > 0.7


def test_correct_is_positive() -> None:
    result = evaluation.misclassification(ID, LABELS)
    truth = (ID.argmax(-1) == LABELS).numpy()
    scores = Prediction.from_alpha(ID).max_prob.numpy()
    assert result["max_prob"]["aupr"] == pytest.approx(
        average_precision_score(truth, scores), abs=1e-6
    )
    assert result["max_prob"]["auroc"] == pytest.approx(roc_auc_score(truth, scores), abs=1e-6)


def test_calibration() -> None:
    result = evaluation.calibration(ID, LABELS)
    probs = Prediction.from_alpha(ID).probs.double().numpy()
    probs = probs / probs.sum(-1, keepdims=True)
    onehot = np.eye(4)[LABELS.numpy()]
    assert result["nll"] == pytest.approx(log_loss(LABELS.numpy(), probs), rel=1e-5)
    assert result["brier"] == pytest.approx(((probs - onehot) ** 2).sum(-1).mean(), rel=1e-5)
    assert 0 < result["ece"] < 1


def test_arrays_tensors_and_predictions_are_the_same() -> None:
    expected = evaluation.ood_detection(ID, OOD)
    assert evaluation.ood_detection(ID.numpy(), OOD.numpy()) == expected
    assert evaluation.ood_detection(Prediction.from_alpha(ID), OOD) == expected
    assert evaluation.calibration(ID.numpy(), LABELS.numpy()) == evaluation.calibration(ID, LABELS)


def test_what_a_softmax_lacks_is_absent() -> None:
    inside, outside = (Prediction.from_probs(x.softmax(-1)) for x in (ID, OOD))
    assert set(evaluation.ood_detection(inside, outside)) == {"max_prob", "entropy_of_mean"}
