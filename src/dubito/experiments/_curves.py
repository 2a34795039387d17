"""What figures are drawn from: densities, and the extreme samples.

Everything here is small: histograms of predictions of ten thousand samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dubito import metrics

__all__ = ["densities", "extremes", "rounded"]

DENSITY_BINS, EACH = 101, 5
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
