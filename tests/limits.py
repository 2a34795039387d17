"""Calibrations and policies that were not fitted, for tests."""

from __future__ import annotations

import math

from dubito._legacy import MEASURES
from dubito.calibration import Calibration
from dubito.policy import Guarantee, Policy, Threshold, Validation

Bound = tuple[str, float]


def scaling(factor: float = 3.0, power: float = 1.5) -> Calibration:
    """Scale the evidence of a Dirichlet with a prior."""
    return Calibration(theta=(math.log(factor), math.log(power)))


def temperature(value: float) -> Calibration:
    """Divide the logarithms of probabilities."""
    return Calibration(theta=(-math.log(value),))


def threshold(score: str, value: float) -> Threshold:
    """Create a threshold of one of the old measures."""
    return Threshold(score=score, higher=MEASURES[score].rises_with, value=value)


def policy(
    sure: Bound, familiar: Bound | None = None, error: float = 0.1, samples: int | None = None
) -> Policy:
    """Create a policy from the last values that pass."""
    return Policy(
        threshold=threshold(*sure),
        ood_threshold=None if familiar is None else threshold(*familiar),
        guarantee=Guarantee(controls="error", level=error, confidence=0.95),
        validation=None if samples is None else Validation(samples=samples, coverage=0.0),
    )
