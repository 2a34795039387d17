"""Evaluate predictions: out-of-distribution detection, misclassification, calibration.

In-distribution and correct samples are the positives, and every figure is a fraction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from dubito import _checks, metrics
from dubito.measures import MEASURES
from dubito.prediction import Prediction

__all__ = [
    "DETECTION",
    "calibration",
    "misclassification",
    "ood_detection",
    "reliability",
    "risk_coverage",
]

Alpha: TypeAlias = "Prediction | Tensor | np.ndarray"
Detection = dict[str, dict[str, float]]

RELIABILITY_BINS, POINTS = 15, 101
#: name -> metric of scores and a mask of positives
DETECTION = {"aupr": metrics.aupr, "auroc": metrics.auroc, "fpr95": metrics.fpr95}


def _tensor(values: Tensor | np.ndarray) -> Tensor:
    return values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))


def _prediction(alpha: Alpha) -> Prediction:
    return alpha if isinstance(alpha, Prediction) else Prediction.from_alpha(_tensor(alpha))


def _detection(scores: dict[str, Tensor], positive: Tensor) -> Detection:
    return {
        name: {metric: function(s, positive).item() for metric, function in DETECTION.items()}
        for name, s in scores.items()
    }


def ood_detection(
    id_alpha: Alpha, ood_alpha: Alpha, measures: Iterable[str] | None = None
) -> Detection:
    """How well each measure tells in-distribution (positive) from out-of-distribution.

    Takes alpha (N, K) and (M, K), or two `Prediction`s; gives {measure: {"aupr", "auroc",
    "fpr95"}}.

    >>> sure, unsure = torch.tensor([[9.0, 1.0], [1.0, 7.0]]), torch.tensor([[1.0, 1.5]])
    >>> ood_detection(sure, unsure, ["vacuity"])
    {'vacuity': {'aupr': 1.0, 'auroc': 1.0, 'fpr95': 0.0}}
    """
    inside, outside = _prediction(id_alpha), _prediction(ood_alpha)
    if inside.probs.shape[-1] != outside.probs.shape[-1]:
        raise ValueError(
            f"id_alpha has {inside.probs.shape[-1]} classes and ood_alpha "
            f"{outside.probs.shape[-1]}: both must come from one model"
        )
    names = inside.available if measures is None else tuple(measures)
    scores = {
        name: torch.cat([inside.confidence(name).flatten(), outside.confidence(name).flatten()])
        for name in names
    }
    count = inside.label.numel()
    positive = torch.arange(count + outside.label.numel(), device=inside.label.device) < count
    return _detection(scores, positive)


def misclassification(
    alpha: Alpha, labels: Tensor | np.ndarray, measures: Iterable[str] | None = None
) -> Detection:
    """How well each measure tells correct (positive) from wrong predictions.

    Takes alpha (N, K), or a `Prediction`, and labels (N,); gives {measure: {"aupr", "auroc",
    "fpr95"}}.

    >>> alpha = torch.tensor([[9.0, 1.0], [1.0, 7.0], [2.0, 1.0]])
    >>> misclassification(alpha, torch.tensor([0, 1, 1]), ["max_prob"])
    {'max_prob': {'aupr': 1.0, 'auroc': 1.0, 'fpr95': 0.0}}
    """
    said = _prediction(alpha)
    correct = (said.label == _labels(labels, said)).flatten()
    names = said.available if measures is None else tuple(measures)
    return _detection({name: said.confidence(name).flatten() for name in names}, correct)


def calibration(alpha: Alpha, labels: Tensor | np.ndarray, bins: int = 15) -> dict[str, float]:
    """{"ece", "brier", "nll"} of the expected probabilities.

    Takes alpha (N, K), or a `Prediction`, and labels (N,).

    >>> calibration(torch.tensor([[3.0, 1.0], [1.0, 3.0]]), torch.tensor([0, 1]))
    {'ece': 0.25, 'brier': 0.125, 'nll': 0.2876...}
    """
    said = _prediction(alpha)
    probs, target = said.probs.flatten(0, -2), _labels(labels, said).flatten()
    return {
        "ece": metrics.ece(probs, target, bins=bins).item(),
        "brier": metrics.brier(probs, target).item(),
        "nll": metrics.nll(probs, target).item(),
    }


def _labels(labels: Tensor | np.ndarray, said: Prediction) -> Tensor:
    shape, need = said.label.shape, f"the predictions {tuple(said.label.shape)}"
    checked = _checks.labels(_tensor(labels), shape, said.probs.shape[-1], need)
    return checked.to(said.label.device)


def reliability(probs: Tensor, labels: Tensor) -> dict[str, list[float]]:
    """Mean confidence, accuracy and number of samples in 15 bins of confidence, as ECE has them.

    Shapes: probs (N, K), labels (N,). An empty bin has the count 0, and zeros for the others.
    """
    confidence, label = probs.max(-1)
    edges = (torch.arange(1, RELIABILITY_BINS, dtype=torch.float64) / RELIABILITY_BINS).to(
        confidence
    )
    place = torch.bucketize(confidence.contiguous(), edges)
    right = (label == labels.long()).double()
    count = torch.bincount(place, minlength=RELIABILITY_BINS)
    sums = [
        torch.zeros(RELIABILITY_BINS, dtype=torch.float64).index_add_(0, place, values)
        for values in (confidence.double(), right)
    ]
    mean, accuracy = (one / count.clamp_min(1) for one in sums)
    return {
        "confidence": mean.tolist(),
        "accuracy": accuracy.tolist(),
        "count": count.tolist(),
    }


def risk_coverage(
    measures: Mapping[str, Tensor], correct: Tensor
) -> dict[str, dict[str, list[float]]]:
    """The error rate of the surest samples, as more of them are answered, for each measure.

    Samples that a measure does not tell apart come as if shuffled: their errors are spread evenly.

    >>> risk_coverage({"max_prob": torch.tensor([0.9, 0.6])}, torch.tensor([True, False]))
    {'max_prob': {'coverage': [0.5, 1.0], 'risk': [0.0, 0.5]}}
    """
    wrong = (~correct).double().numpy()
    kept = np.unique(np.linspace(1, len(wrong), min(POINTS, len(wrong))).round())
    found: dict[str, dict[str, list[float]]] = {}
    for name, values in measures.items():
        sure = MEASURES[name].as_confidence(values).double().numpy()
        order = np.argsort(-sure, kind="stable")
        ends = np.append(np.flatnonzero(sure[order][1:] != sure[order][:-1]), len(sure) - 1)
        errors = np.interp(kept, [0, *(ends + 1)], [0, *wrong[order].cumsum()[ends]])
        found[name] = {
            "coverage": (kept / len(wrong)).tolist(),
            "risk": (errors / kept).tolist(),
        }
    return found
