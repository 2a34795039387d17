"""What figures are drawn from: densities, reliability, risk-coverage, and the extreme samples.

Everything here is small: histograms and a hundred points, of predictions of ten thousand samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dubito import metrics
from dubito.measures import MEASURES

__all__ = ["densities", "extremes", "reliability", "risk_coverage", "rounded"]

DENSITY_BINS, RELIABILITY_BINS, POINTS, EACH = 101, 15, 101, 5
DATA_UNCERTAINTY = "expected_entropy"
Measures = Mapping[str, Tensor]


def rounded(values: Any) -> Any:
    """The same with floats rounded to 6 significant digits.

    >>> rounded({"a": [0.123456789, 3]})
    {'a': [0.123457, 3]}
    """
    if isinstance(values, dict):
        return {key: rounded(value) for key, value in values.items()}
    if isinstance(values, list):
        return [rounded(value) for value in values]
    return float(f"{values:.6g}") if isinstance(values, float) else values


def densities(sets: Mapping[str, Measures]) -> dict[str, Any]:
    """Each measure's density on each set, and its energy distance from the set "test".

    Values are normalised to [0, 1] by the least and the largest of all sets together; a density is
    of 101 bins of equal width, with the mean 1.

    >>> sets = {"test": {"max_prob": torch.ones(2)}, "other": {"max_prob": torch.zeros(2)}}
    >>> found = densities(sets)
    >>> found["densities"]["test"]["max_prob"][-1], found["energy_distance"]["other"]["max_prob"]
    (101.0, 1.4142...)
    """
    held: dict[str, dict[str, list[float]]] = {name: {} for name in sets}
    apart: dict[str, dict[str, float]] = {name: {} for name in sets if name != "test"}
    for measure in sets["test"]:
        values = _normalised({name: one[measure] for name, one in sets.items()})
        for name, one in values.items():
            counts = torch.histc(one, DENSITY_BINS, 0.0, 1.0)
            held[name][measure] = (counts * (DENSITY_BINS / len(one))).tolist()
        for name, distances in apart.items():
            distances[measure] = metrics.energy_distance(values["test"], values[name]).item()
    return {"densities": held, "energy_distance": apart}


def _normalised(sets: Mapping[str, Tensor]) -> dict[str, Tensor]:
    every = torch.cat([values.double() for values in sets.values()])
    low, high = every.min(), every.max()
    span = torch.where(high > low, high - low, 1.0)  # values that are all the same have no scale
    return {name: (values.double() - low) / span for name, values in sets.items()}


def reliability(probs: Tensor, labels: Tensor) -> dict[str, list[float]]:
    """Mean confidence, accuracy and number of samples in 15 bins of confidence, as ECE has them.

    Shapes: probs (N, K), labels (N,). An empty bin has the count 0, and zeros for the others.
    """
    confidence, label = probs.max(-1)
    edges = (torch.arange(1, RELIABILITY_BINS, dtype=torch.float64) / RELIABILITY_BINS).to(
        confidence
    )
    place = torch.bucketize(confidence.contiguous(), edges)
    right = (label == labels).double()
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


def risk_coverage(measures: Measures, correct: Tensor) -> dict[str, dict[str, list[float]]]:
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
        ends = np.append(np.flatnonzero(np.diff(sure[order])), len(sure) - 1)
        errors = np.interp(kept, [0, *(ends + 1)], [0, *wrong[order].cumsum()[ends]])
        found[name] = {
            "coverage": (kept / len(wrong)).tolist(),
            "risk": (errors / kept).tolist(),
        }
    return found


def extremes(measures: Measures, labels: Tensor, classes: tuple[str, ...]) -> dict[str, Any]:
    """The test samples of each class with the most and the least data uncertainty, by index.

    Where there is no expected entropy there are none of these.
    """
    if DATA_UNCERTAINTY not in measures:
        return {}
    entropy = measures[DATA_UNCERTAINTY]
    found: dict[str, dict[str, list[int]]] = {}
    for number, name in enumerate(classes):
        own = (labels == number).nonzero().flatten()
        if len(own):
            order = own[entropy[own].sort(stable=True).indices].tolist()
            found[name] = {"hard": order[::-1][:EACH], "easy": order[:EACH]}
    return {"data_uncertainty": found}
