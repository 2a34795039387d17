"""The functions of special.py against mpmath, in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from dubito import special
from tests.accuracy import LARGEST, MEDIAN, relative
from tests.reference import Real, exact, polygammas
from tests.reference_special import MEMBERS, bregman_excess, log_gap

Array = npt.NDArray[Any]

ROOT_OF_DIGAMMA = 1.4616321
# A few units in the last place; below x = 1 the remainders are sums that cancel a little.
SPECIAL_LARGEST, SPECIAL_MEDIAN = 3e-6, 2e-7


def arguments() -> torch.Tensor:
    """Across float32's range, dense where forms change over and around the root of psi."""
    rng = np.random.default_rng(0)
    spread = 10 ** rng.uniform(-6, 30, 400)
    dense = rng.uniform(0.01, 20, 400)
    marks = [1.0, 2.0, 0.5, ROOT_OF_DIGAMMA, 0.99999994, 1.0000001, 7.9999995, 8.000001]
    return torch.from_numpy(np.concatenate([spread, dense, marks]).astype(np.float32))


def check_special(
    name: str,
    seen: Tensor,
    wanted: list[Real],
    scale: Array,
    largest: float = LARGEST,
    median: float = MEDIAN,
) -> None:
    assert torch.isfinite(seen).all(), name
    errors = relative(seen.double().numpy(), np.array([float(w) for w in wanted]), scale)
    assert np.nanmax(errors) <= largest, (name, np.nanmax(errors), np.nanargmax(errors))
    assert np.nanmedian(errors) <= median, (name, np.nanmedian(errors))


def magnitudes(values: list[Real]) -> Array:
    return np.array([abs(float(v)) for v in values])


#: Differences of remainders, and where they keep their relative accuracy.  Beyond, where remainders
#: underflow, they stay below 1/x, which is all that the sums they go into can see.
DIFFERENCES = {
    "digamma_gap_moment": (0.01, 1e12),
    "inverse_trigamma_excess": (0.0, 1e12),
    "inverse_trigamma_excess_slope": (0.0, 1e9),
}


@pytest.mark.parametrize("name", [name for name in MEMBERS if name not in DIFFERENCES])
def test_gamma_family_is_exact(name: str) -> None:
    """Relative to the plain value, but psi, which has a root, to |psi(x)| + x psi1(x)."""
    x = arguments()
    points = exact(x.numpy())
    wanted = [MEMBERS[name](p) for p in points]
    scale = magnitudes(wanted)
    if name == "digamma":
        scale += magnitudes([p * polygammas(p)[2] for p in points])
    seen = getattr(special.Gamma(x), name)
    check_special(name, seen, wanted, scale, SPECIAL_LARGEST, SPECIAL_MEDIAN)


@pytest.mark.parametrize("name", DIFFERENCES)
def test_differences_of_remainders_are_exact(name: str) -> None:
    first, last = DIFFERENCES[name]
    x = arguments()
    x = x[x >= first]
    near = x < last
    seen = getattr(special.Gamma(x), name)
    wanted = [MEMBERS[name](p) for p in exact(x[near].numpy())]
    check_special(name, seen[near], wanted, magnitudes(wanted))
    assert (seen[~near].abs() <= 1 / x[~near]).all()


def test_plain_functions_are_the_members() -> None:
    x = arguments()
    family = special.Gamma(x)
    assert torch.equal(special.stirling_remainder(x), family.mu)
    assert torch.equal(special.digamma(x), family.digamma)
    assert torch.equal(special.trigamma(x), family.trigamma)
    assert torch.equal(special.tetragamma(x), family.tetragamma)
    joint = special.polygammas(x)
    assert torch.equal(
        torch.stack(joint), torch.stack([family.digamma, family.trigamma, family.tetragamma])
    )


def test_log_gap_is_exact() -> None:
    rng = np.random.default_rng(1)
    t = np.concatenate([10 ** rng.uniform(-18, 30, 300), rng.uniform(-0.999, 2, 300)])
    t = t.astype(np.float32)
    ratio = (exact(t) + 1).astype(np.float32)
    wanted = [log_gap(v) for v in exact(t)]
    # near t = -1 the ratio is what counts, and it was rounded: 1 + t moves by a last place
    scale = magnitudes(wanted) + np.where(t < -0.5, 1.0, 0.0)
    seen = special.log_gap(torch.from_numpy(t), torch.from_numpy(ratio))
    check_special("log_gap", seen, wanted, scale)


@pytest.mark.parametrize("apart", ["near", "far", "one"])
def test_bregman_excess_is_exact(apart: str) -> None:
    rng = np.random.default_rng(2)
    b = (1 + 10 ** rng.uniform(-4, 20, 300)).astype(np.float32)
    factor = {
        "near": 1 + 10 ** rng.uniform(-3, -0.5, 300),
        "far": 10 ** rng.uniform(-4, 4, 300),
        "one": 1 + 10 ** rng.uniform(-6, 25, 300),
    }
    b = np.ones_like(b) if apart == "one" else b
    a = (b * factor[apart]).astype(np.float32)
    wanted = [bregman_excess(u, v) for u, v in zip(exact(a), exact(b), strict=True)]
    first, second = torch.from_numpy(a), torch.from_numpy(b)
    check_special(
        "bregman_excess", special.bregman_excess(first, second), wanted, magnitudes(wanted)
    )
    if apart == "one":
        seen = special.bregman_excess_from_one(first)
        check_special("bregman_excess_from_one", seen, wanted, magnitudes(wanted))
