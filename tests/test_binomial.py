"""Binomial tails against SciPy."""

import numpy as np
import pytest
from scipy.special import bdtr, bdtri

from dubito import _binomial


@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.05, 0.5, 0.97])
@pytest.mark.parametrize("factor", [0.0, 0.6, 1.0, 1.03])
def test_running_cdf_equals_scipy(rate: float, factor: float) -> None:
    successes = (np.random.default_rng(0).random(100_000) < rate * factor).cumsum()
    for first in (1, 60, 99_999):
        expected = bdtr(successes[first - 1 :], np.arange(first, 100_001), rate)
        found = _binomial.running_cdf(successes[first - 1 :], first, rate)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_running_cdf_of_successes_only() -> None:
    found = _binomial.running_cdf(np.array([1, 2, 3, 3]), 1, 0.5)
    np.testing.assert_allclose(found, [1, 1, 1, 15 / 16])


@pytest.mark.parametrize(
    ("successes", "trials", "delta"),
    [(0, 1, 0.99), (0, 59, 0.05), (3, 400, 0.05), (50, 60, 1e-6), (500, 100_000, 0.01)],
)
def test_upper_bound_equals_scipy(successes: int, trials: int, delta: float) -> None:
    expected = bdtri(successes, trials, delta)
    assert _binomial.upper_bound(successes, trials, delta) == pytest.approx(expected, rel=1e-9)


def test_upper_bound_of_successes_only_is_one() -> None:
    assert _binomial.upper_bound(7, 7, 0.05) == 1
