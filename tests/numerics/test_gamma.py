"""Functions of numerics.gamma against mpmath, in float32 and float64."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from dubito.numerics import gamma
from tests.accuracy import LARGEST, MEDIAN, relative
from tests.reference import Real, exact
from tests.reference_special import MEMBERS, bregman_excess, log_gap

Array = npt.NDArray[Any]
DTYPES = (np.float32, np.float64)
WIDE = 1e-12
ROOT_OF_DIGAMMA = 1.4616321
# A few units in the last place; below x = 1 the remainders are sums that cancel a little.
SPECIAL_LARGEST, SPECIAL_MEDIAN = 3e-6, 2e-7


def arguments(dtype: type, least: float = 1e-6) -> Array:
    """Across float32's range, dense where the forms change and around the root of psi."""
    rng = np.random.default_rng(0)
    spread = 10 ** rng.uniform(-6, 30, 300)
    dense = rng.uniform(0.01, 20, 300)
    marks = [1.0, 2.0, 0.5, ROOT_OF_DIGAMMA, 0.99999994, 1.0000001, 7.9999995, 8.000001]
    x = np.concatenate([spread, dense, marks]).astype(dtype)
    return x[x >= least]


def check(
    result: Tensor,
    expected: list[Real],
    scale: Array,
    largest: float = LARGEST,
    median: float = MEDIAN,
) -> None:
    assert torch.isfinite(result).all()
    if result.dtype == torch.float64:
        largest, median = WIDE, WIDE
    errors = relative(result.double().numpy(), np.array([float(w) for w in expected]), scale)
    worst = np.nanargmax(errors)
    assert np.nanmax(errors) <= largest, (errors[worst], worst, float(expected[worst]))
    assert np.nanmedian(errors) <= median


def magnitudes(values: list[Real]) -> Array:
    return np.array([abs(float(v)) for v in values])


#: Differences of remainders, and where they keep their relative accuracy in each dtype. Outside
#: they stay below 1/x (for large x) or 1 (for small x), which is all that their users need.
DIFFERENCES = {
    "digamma_gap_moment": {np.float32: (0.01, 1e12), np.float64: (0.01, 1e12)},
    "inverse_trigamma_excess": {np.float32: (0.0, 1e12), np.float64: (0.0, 1e12)},
    "inverse_trigamma_excess_slope": {np.float32: (0.0, 1e9), np.float64: (0.0, 1e9)},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in MEMBERS if name not in DIFFERENCES])
def test_gamma_is_exact(name: str, dtype: type) -> None:
    """Relative to the value; functions with a root, relative to a scale that has none."""
    x = arguments(dtype)
    expected = [MEMBERS[name](p) for p in exact(x)]
    scale = magnitudes(expected)
    if name == "log_inverse_trigamma":
        scale += 1
    result = getattr(gamma.Gamma(torch.from_numpy(x)), name)
    check(result, expected, scale, SPECIAL_LARGEST, SPECIAL_MEDIAN)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DIFFERENCES)
def test_differences_of_remainders_are_exact(name: str, dtype: type) -> None:
    first, last = DIFFERENCES[name][dtype]
    x = arguments(dtype, max(first, 1e-6))
    near = x < last
    result = getattr(gamma.Gamma(torch.from_numpy(x)), name)
    expected = [MEMBERS[name](p) for p in exact(x[near])]
    check(result[torch.from_numpy(near)], expected, magnitudes(expected))
    far = torch.from_numpy(~near)
    assert (result[far].abs() <= 1 / torch.from_numpy(x)[far]).all()


def test_single_polynomials_in_float64_are_as_exact_as_float32() -> None:
    """Their differences are smooth, which is what float64 is for."""
    x = arguments(np.float64)
    for name in ("mu", "delta", "tau", "sigma"):
        expected = [MEMBERS[name](p) for p in exact(x)]
        result = getattr(gamma.Gamma(torch.from_numpy(x), single=True), name)
        check(result.float(), expected, magnitudes(expected), SPECIAL_LARGEST, SPECIAL_MEDIAN)


#: members that are small beside a term of order one, and so are exact to an absolute error
ABSOLUTE = ("inverse_trigamma_excess",)


@pytest.mark.parametrize(
    "name",
    [
        "reciprocal",
        "inverse_trigamma_excess",
        "trigamma",
        "log_inverse_trigamma",
        "inverse_trigamma_excess_slope",
        "log_trigamma_slope",
        "delta",
    ],
)
def test_gamma_above_one_is_exact(name: str) -> None:
    x = arguments(np.float32, least=1)
    x = x[x < 1e9] if name == "inverse_trigamma_excess_slope" else x
    expected = [MEMBERS[name](p) for p in exact(x)]
    scale = magnitudes(expected) + (1 if name in ABSOLUTE else 0)
    # ln psi_1 crosses zero
    scale += 1 if name == "log_inverse_trigamma" else 0
    # delta is added to logarithms, which are far larger
    median = 3e-6 if name == "delta" else MEDIAN
    result = getattr(gamma.GammaAboveOne(torch.from_numpy(x)), name)
    check(result, expected, scale, median=median)


def test_scaled_gap_above_one_is_exact() -> None:
    x = arguments(np.float32, least=1)
    expected = [p * MEMBERS["digamma_gap"](p) for p in exact(x)]
    result = gamma.GammaAboveOne(torch.from_numpy(x)).digamma_gap_scaled
    check(result, expected, magnitudes(expected))


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_gap_is_exact(dtype: type) -> None:
    rng = np.random.default_rng(1)
    t = np.concatenate([10 ** rng.uniform(-18, 30, 300), rng.uniform(-0.999, 2, 300)])
    t = t.astype(dtype)
    ratio = (exact(t) + 1).astype(dtype)
    expected = [log_gap(v) for v in exact(t)]
    # Near t = -1 the rounded ratio counts: 1 + t moves by a last place.
    scale = magnitudes(expected) + np.where(t < -0.5, 1.0, 0.0)
    check(gamma.log_gap(torch.from_numpy(t), torch.from_numpy(ratio)), expected, scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("apart", ["near", "far", "one"])
def test_bregman_excess_is_exact(apart: str, dtype: type) -> None:
    rng = np.random.default_rng(2)
    b = (1 + 10 ** rng.uniform(-4, 20, 300)).astype(dtype)
    factor = {
        "near": 1 + 10 ** rng.uniform(-3, -0.5, 300),
        "far": 10 ** rng.uniform(-4, 4, 300),
        "one": 1 + 10 ** rng.uniform(-6, 25, 300),
    }
    b = np.ones_like(b) if apart == "one" else b
    a = (b * factor[apart]).astype(dtype)
    expected = [bregman_excess(u, v) for u, v in zip(exact(a), exact(b), strict=True)]
    first, second = torch.from_numpy(a), torch.from_numpy(b)
    check(gamma.bregman_excess(first, second), expected, magnitudes(expected))
