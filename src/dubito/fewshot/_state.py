"""What L-BFGS for many problems goes by, and where the problems are."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

from torch import Tensor

#: what a problem does next: begins a round, looks for a bracket, narrows it, nothing
START, BRACKET, ZOOM, DONE = range(4)
ARMIJO, CURVATURE = 1e-4, 0.9  # of the Wolfe conditions
LEAST = 1e-10  # of s.y, for a step that is worth remembering


@dataclass(frozen=True)
class Solver:
    """The protocol: `rounds` of at most `iterations`, and of 5/4 as many evaluations.

    The defaults are those of the published code but for the end of a round. There it comes when no
    entry of the gradient exceeds 1e-5, of thousands of entries of a mean over ten episodes; here
    when the gradient of an episode is shorter than 1e-3, which does not depend on the coordinates
    and stops at about the same place.
    """

    rounds: int = 10
    iterations: int = 10
    history: int = 20
    tolerance_grad: float = 1e-3
    tolerance_change: float = 1e-9

    def __post_init__(self) -> None:
        for name in ("rounds", "iterations", "history"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")

    @property
    def evaluations(self) -> int:
        """Evaluations after which a round begins no other iteration."""
        return self.iterations * 5 // 4


class State(SimpleNamespace):
    """Where E problems are: vectors (E, R K), numbers and counters (E,), and what they remember."""

    x: Tensor
    d: Tensor
    g: Tensor
    old_g: Tensor
    """the gradient where the direction before was taken"""
    t: Tensor
    """the step to try"""
    f: Tensor
    s: Tensor
    """value and slope where the search began"""
    low_t: Tensor
    low_f: Tensor
    low_s: Tensor
    low_g: Tensor
    """the better end of the bracket, and before there is one the trial before"""
    high_t: Tensor
    high_f: Tensor
    high_s: Tensor
    high_g: Tensor
    first: Tensor
    """the first step"""
    last_t: Tensor
    longest: Tensor
    """the largest entry of d"""
    stuck: Tensor
    phase: Tensor
    round: Tensor
    iteration: Tensor
    total: Tensor
    evals: Tensor
    search: Tensor
    limit: Tensor
    stored: Tensor
    gamma: Tensor
    pairs: Tensor
    """(E, 2 M, R K), steps and then differences of gradients"""
    inverse: Tensor
    changes: Tensor
    """(E, M, M), products of the differences"""
    diagonal: Tensor
    """(E, M), products of a step with its own difference"""
    ids: Tensor
    design: Tensor
    ramp: Tensor
    """(E, rounds), what the KL term weighs"""


def column(values: Tensor) -> Tensor:
    """(E,) -> (E, 1)."""
    return values.unsqueeze(-1)
