"""Binomial tail probabilities in float64, without SciPy."""

import math
from functools import lru_cache

import numpy as np
import torch

from dubito.types import Array

__all__: list[str] = []

#: Standard deviations from the mean, and trials more, beyond which 1e-12 is left
DEVIATIONS, MORE = 8, 12


def tails(trials: Array, rate: float) -> tuple[Array, Array]:
    """Compute P(Bin(n, rate) <= x) for each n, from where it is negligible to the mean or beyond.

    Args:
        trials: Numbers n of trials, (R,).
        rate: Success probability of one trial, in (0, 1).

    Returns:
        The first x of each row (R,), and the probabilities of x, x + 1, ... (R, W).

    >>> tails(np.array([1, 2]), 0.5)
    (array([0, 0]), array([[0.5 , 1.  ],
           [0.25, 0.75]]))
    """
    mean = trials * rate
    first = np.floor(mean - DEVIATIONS * np.sqrt(mean * (1 - rate)) - MORE).clip(0).astype(int)
    x = first[:, None] + np.arange(int((np.floor(mean) - first).max()) + 1)
    n = trials[:, None]
    mass = np.where(x <= n, _pmf(x.clip(max=n), n, rate), 0.0)
    return first, mass.cumsum(1)


def crossing(trials: Array, bounds: Array, rate: float) -> float:
    """Compute P(at most `bounds` successes in the first `trials`, for at least one pair).

    Args:
        trials: Numbers of trials, strictly increasing, (R,).
        bounds: Numbers of successes, strictly increasing, (R,).
        rate: Success probability of one trial, in (0, 1).

    >>> crossing(np.array([1, 3]), np.array([0, 1]), 0.5)  # 1/2, and 1 0 0 of three trials
    0.625
    """
    # mass[i]: probability of `least + i` successes so far without a crossing
    mass, least, before, crossed = np.ones(1), 0, 0, 0.0
    for count, bound in zip(trials.tolist(), bounds.tolist(), strict=True):
        mass = np.convolve(mass, _kernel(count - before, rate))
        done = max(bound + 1 - least, 0)
        crossed += float(mass[:done].sum())
        mass, least, before = mass[done : _most(count, rate) + 1 - least], least + done, count
        if not len(mass):
            break
    return crossed


@lru_cache(maxsize=4096)
def _kernel(trials: int, rate: float) -> Array:
    """Return P(Bin(trials, rate) = x) for x = 0, 1, ... as far as it matters."""
    return _pmf(np.arange(min(trials, _most(trials, rate)) + 1), trials, rate)


def _most(trials: int, rate: float) -> int:
    """Return a number of successes that is practically never exceeded."""
    mean = trials * rate
    return math.ceil(mean + DEVIATIONS * math.sqrt(mean * (1 - rate))) + MORE


def _pmf(x: Array, n: Array | int, rate: float) -> Array:
    """Compute P(Bin(n, rate) = x)."""
    log_choose = _log_factorial(np.asarray(n)) - _log_factorial(x) - _log_factorial(n - x)
    return np.exp(log_choose + x * math.log(rate) + (n - x) * math.log1p(-rate))


def _log_factorial(values: Array) -> Array:
    return torch.lgamma(torch.from_numpy(np.asarray(values + 1.0))).numpy()
