"""Binomial tails against SciPy."""

from itertools import product

import numpy as np
import pytest
from scipy.special import bdtr
from scipy.stats import binom

from dubito import binomial


@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.05, 0.5, 0.97])
def test_tails_equal_scipy(rate: float) -> None:
    trials = np.array([1, 7, 300, 20_000, 100_000])
    first, found = binomial.tails(trials, rate)
    x = (first[:, None] + np.arange(found.shape[1])).clip(max=trials[:, None])
    np.testing.assert_allclose(found, bdtr(x, trials[:, None], rate), rtol=0, atol=1e-9)
    assert (bdtr(first - 1.0, trials, rate)[first > 0] < 1e-12).all()
    assert (first + found.shape[1] > trials * rate).all()


@pytest.mark.parametrize("rate", [0.2, 0.6])
def test_crossing_is_a_sum_over_all_sequences(rate: float) -> None:
    trials, bounds = np.array([2, 5, 6, 10]), np.array([0, 1, 2, 3])
    expected = 0.0
    for sequence in product((0, 1), repeat=10):
        successes = np.cumsum(sequence)
        if (successes[trials - 1] <= bounds).any():
            expected += rate ** successes[-1] * (1 - rate) ** (10 - successes[-1])
    assert binomial.crossing(trials, bounds, rate) == pytest.approx(expected, rel=1e-12)


def test_crossing_is_that_of_a_simulation() -> None:
    trials = np.arange(200, 5001, 100)
    bounds = np.unique(binom(trials, 0.05).ppf(0.02).astype(int), return_index=True)
    trials, bounds = trials[bounds[1]], bounds[0]
    rng, crossed = np.random.default_rng(0), 0
    steps = np.diff(trials, prepend=0)
    for _ in range(20):
        successes = rng.binomial(steps, 0.05, size=(1000, len(steps))).cumsum(1)
        crossed += int((successes <= bounds).any(1).sum())
    expected = binomial.crossing(trials, bounds, 0.05)
    assert 0.03 < expected < 0.3
    assert abs(crossed / 20_000 - expected) < 4 * (expected / 20_000) ** 0.5


def test_no_crossing_without_pairs() -> None:
    assert binomial.crossing(np.arange(0), np.arange(0), 0.5) == 0
