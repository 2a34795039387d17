"""The table of uncertainty measures, each with its direction.

| name | what it measures | rises with |
| --- | --- | --- |
| max_prob | the largest expected probability | confidence |
| max_alpha | the largest alpha | confidence |
| alpha0 | all evidence and the prior | confidence |
| differential_entropy | spread of the Dirichlet: distributional uncertainty | uncertainty |
| mutual_information | label and probabilities: distributional uncertainty | uncertainty |
| expected_entropy | entropy that more evidence would not remove: data uncertainty | uncertainty |
| entropy_of_mean | total uncertainty | uncertainty |
| vacuity | lack of evidence | uncertainty |
| dissonance | conflict between classes | uncertainty |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from dubito import _checks, dirichlet

__all__ = ["MEASURES", "Measure", "confidence", "measure"]


@dataclass(frozen=True)
class Measure:
    """One measure: its name, its label in tables, its function of alpha and its direction."""

    name: str
    label: str
    function: Callable[[Tensor], Tensor]
    rises_with: Literal["confidence", "uncertainty"]

    def __call__(self, alpha: Tensor) -> Tensor:
        """The measure of alpha: (..., K) -> (...)."""
        return self.function(alpha)

    def as_confidence(self, values: Tensor) -> Tensor:
        """The values with the sign that makes higher mean more confident."""
        return values if self.rises_with == "confidence" else -values


def _max_prob(alpha: Tensor) -> Tensor:
    return dirichlet.mean(alpha).amax(-1)


def _max_alpha(alpha: Tensor) -> Tensor:
    return _checks.concentration(alpha).amax(-1)


def _alpha0(alpha: Tensor) -> Tensor:
    return _checks.concentration(alpha).sum(-1)


#: name -> measure
MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure("max_prob", "Max.P", _max_prob, "confidence"),
        Measure("max_alpha", "Max.α", _max_alpha, "confidence"),
        Measure("alpha0", "α₀", _alpha0, "confidence"),
        Measure("differential_entropy", "D.Ent.", dirichlet.differential_entropy, "uncertainty"),
        Measure("mutual_information", "M.I.", dirichlet.mutual_information, "uncertainty"),
        Measure("expected_entropy", "E.Ent.", dirichlet.expected_entropy, "uncertainty"),
        Measure("entropy_of_mean", "Ent.", dirichlet.entropy_of_mean, "uncertainty"),
        Measure("vacuity", "Vacuity", dirichlet.vacuity, "uncertainty"),
        Measure("dissonance", "Dissonance", dirichlet.dissonance, "uncertainty"),
    )
}


def measure(name: str, alpha: Tensor) -> Tensor:
    """The named measure of alpha: (..., K) -> (...).

    >>> import torch
    >>> measure("vacuity", torch.tensor([3.0, 1.0]))
    tensor(0.5000)
    """
    return _checks.entry(MEASURES, name, "measure")(alpha)


def confidence(name: str, alpha: Tensor) -> Tensor:
    """The named measure, its sign such that higher means more confident: (..., K) -> (...).

    >>> import torch
    >>> confidence("vacuity", torch.tensor([3.0, 1.0]))
    tensor(-0.5000)
    """
    entry = _checks.entry(MEASURES, name, "measure")
    return entry.as_confidence(entry(alpha))
