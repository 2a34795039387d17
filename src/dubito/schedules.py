"""Schedules for the weight of a loss term: from the epoch (from 0) to the weight.

The published code uses `Linear(10)`; the paper's algorithm states `Linear(T)` over all T epochs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dubito import _checks

__all__ = ["SCHEDULES", "Constant", "Linear", "Schedule"]

Schedule = Callable[[int], float]


@dataclass(frozen=True)
class Constant:
    """The same weight always.

    >>> Constant(0.5)(3)
    0.5
    """

    weight: float = 1.0

    def __post_init__(self) -> None:
        _checks.non_negative(self.weight, "weight")

    def __call__(self, epoch: int) -> float:
        """The weight at `epoch`."""
        return self.weight


@dataclass(frozen=True)
class Linear:
    """weight * min(1, epoch/epochs): rises from 0 and stays.

    >>> [Linear(10)(epoch) for epoch in (0, 5, 20)]
    [0.0, 0.5, 1.0]
    """

    epochs: int = 10
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"epochs must be at least 1, not {self.epochs}")
        _checks.non_negative(self.weight, "weight")

    def __call__(self, epoch: int) -> float:
        """The weight at `epoch`."""
        return self.weight * min(1.0, epoch / self.epochs)


#: name -> schedule of the KL weight
SCHEDULES: dict[str, Callable[..., Schedule]] = {"constant": Constant, "linear": Linear}
