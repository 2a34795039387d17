"""Binomial tail probabilities in float64, without SciPy."""

import math
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]


def cdf(successes: int, trials: int, rate: float) -> float:
    """Compute P(Bin(trials, rate) <= successes).

    Args:
        successes: Number from 0 to `trials`.
        trials: Number of trials, >= 1.
        rate: Success probability of one trial, in (0, 1).

    >>> cdf(1, 2, 0.5)
    0.75
    """
    if successes >= trials:
        return 1.0
    return float(_pmf(np.arange(successes + 1), np.full(successes + 1, trials), rate).sum())


def running_cdf(successes: Array, first: int, rate: float) -> Array:
    """Compute P(Bin(k, rate) <= x_k) for k = first, first + 1, ...

    Each trial changes the probability by one term, so that all of them take linear time. The
    absolute error is below 1e-8 for a million trials.

    Args:
        successes: Number of successes x_k among the first k trials, (N,).
        first: The first k, >= 1.
        rate: Success probability of one trial, in (0, 1).

    >>> running_cdf(np.array([0, 0, 1]), 1, 0.5)
    array([0.5 , 0.25, 0.5 ])
    """
    start = cdf(int(successes[0]), first, rate)
    x, k = successes[:-1], np.arange(first, first + len(successes) - 1)
    failed = successes[1:] == x
    step = np.where(failed, -rate * _pmf(x, k, rate), (1 - rate) * _pmf(x + 1, k, rate))
    return np.append(start, start + step.cumsum())


def upper_bound(successes: int, trials: int, delta: float) -> float:
    """Compute the Clopper-Pearson upper bound on a rate.

    Args:
        successes: Observed number of successes.
        trials: Number of trials; the bound is 1 if there are none.
        delta: Probability that the rate exceeds the bound, in (0, 1).

    >>> round(upper_bound(0, 59, 0.05), 4)
    0.0495
    """
    if successes >= trials:
        return 1.0
    low, high = 0.0, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if cdf(successes, trials, middle) > delta else (low, middle)
    return high


def _pmf(x: Array, n: Array, rate: float) -> Array:
    """Compute P(Bin(n, rate) = x); 0 for x = n + 1."""
    log_choose = _log_factorial(n) - _log_factorial(x) - _log_factorial(n - x)
    return np.exp(log_choose + x * math.log(rate) + (n - x) * math.log1p(-rate))


def _log_factorial(values: Array) -> Array:
    return torch.lgamma(torch.from_numpy(values + 1.0)).numpy()
