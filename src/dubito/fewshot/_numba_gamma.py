"""The gamma family in numba, by the algebra of `special.py`, for x >= 1 and in float64.

The polynomials are those of float32, good to about 1e-8. The functions of vectors are written for
vector instructions: with selections and not branches, and with a logarithm of our own.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dubito._coefficients import COEFFICIENTS
from dubito.special import _ARTANH, _FROM_ONE, _GAUSS, _MU_ONE

Floats = NDArray[np.float64]

# Nobody calls these from Python: without the means for it they compile in half the time.
_inner = partial(njit, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
#: for what would cancel in another order; a product and a sum may still become one instruction
exact = _inner(fastmath={"contract"})
#: the same, for functions of numbers: a call would keep the loop around it from vector instructions
inlined = _inner(fastmath={"contract"}, forceinline=True)
#: for sums over the classes, whose order is the compiler's to choose
reordered = _inner(fastmath={"contract", "reassoc", "nsz"})

_MU = COEFFICIENTS["float32"]["mu"]
_DELTA = COEFFICIENTS["float32"]["delta"]
_TAU = COEFFICIENTS["float32"]["tau"]
_SIGMA = COEFFICIENTS["float32"]["sigma"]
_NEAR_ONE = _FROM_ONE[:14]  # these two as in float32
_NEAR_ZERO = _ARTANH[:5]
_LN2 = math.log(2)
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD  # of sqrt(1/2), where the mantissas of `ln` begin


class Family(NamedTuple):
    """Functions of alpha (R, K), or of alpha0 (R, 1)."""

    trigamma: Floats
    tetragamma: Floats
    log: Floats  # ln trigamma
    log_slope: Floats
    excess: Floats  # r(x) = 1/trigamma - x + 1/2
    excess_slope: Floats


class Removed(NamedTuple):
    """Functions of alpha without the label's evidence (R, K), or of its sum (R, 1)."""

    trigamma: Floats
    trigamma_excess: Floats  # x trigamma - 1
    log: Floats  # ln x
    bregman: Floats  # the Bregman excess over 1, or over K


@inlined
def _horner(c: Any, x: Any) -> Any:
    total = c[-1]
    for i in range(len(c) - 2, -1, -1):
        total = total * x + c[i]
    return total


@inlined
def ln(x: Any) -> Any:
    """ln x to 1e-14, by operations that exist for vectors; x is normal and positive."""
    bits = np.float64(x).view(np.int64)
    exponent = (bits - _SQRT_HALF_BITS) >> 52
    mantissa = np.int64(bits - (exponent << 52)).view(np.float64)
    w = (mantissa - 1) / (mantissa + 1)
    s = w * w
    tail = 1 / 9 + s * (1 / 11 + s * (1 / 13 + s * (1 / 15 + s / 17)))
    return exponent * _LN2 + 2 * w * (1 + s * (1 / 3 + s * (1 / 5 + s * (1 / 7 + s * tail))))


@inlined
def _inverses(x: Any) -> Any:
    """1/x, and the polynomials' 1/(x + 1/2), for one division."""
    q = 1 / (x * (x + 0.5))
    return q * (x + 0.5), q * x


@inlined
def delta(x: Any) -> Any:
    """ln x - 1/(2x) - digamma."""
    v, z = _inverses(x)
    return v * v * _horner(_DELTA, z)


@inlined
def tau(x: Any) -> Any:
    """Trigamma - 1/x - 1/(2 x^2)."""
    v, z = _inverses(x)
    return v * v * v * _horner(_TAU, z)


@inlined
def log_gap(t: Any, log: Any) -> Any:
    """t - ln(1 + t), where the logarithm is known."""
    near = abs(t) < 0.25
    safe = t if near else 0.0
    w = safe / (2 + safe)
    series = w * (safe - 2 * w * w * _horner(_NEAR_ZERO, w * w))
    return series if near else t - log


@exact
def family(x: Any, count: Any, out: Any) -> None:
    """Fill in `out`, a Family, for the first entries of x."""
    trigamma, tetragamma = out.trigamma.reshape(-1), out.tetragamma.reshape(-1)
    logs, log_slope = out.log.reshape(-1), out.log_slope.reshape(-1)
    excess, excess_slope = out.excess.reshape(-1), out.excess_slope.reshape(-1)
    for i in range(count):
        v, z = _inverses(x[i])
        t, s = _horner(_TAU, z), _horner(_SIGMA, z)  # tau = t/x^3, sigma = s/x^4
        first = 1 + v * (0.5 + t * v)  # x trigamma
        second = 1 + v * (1 + s * v)  # -x^2 tetragamma
        inverse = 1 / first
        trigamma[i] = v * first
        tetragamma[i] = -v * v * second
        logs[i] = ln(v * first)
        log_slope[i] = -v * second * inverse
        excess[i] = v * (0.25 - (1 - 0.5 * v) * t) * inverse
        bend = s - 0.25 - t * (2 + v + t * v * v)
        excess_slope[i] = v * v * bend * inverse * inverse


@inlined
def _bregman(x: Any, d: Any) -> Any:
    """Trigamma, x trigamma - 1, ln x, and the Bregman excess over x - d but for a constant."""
    v, z = _inverses(x)
    excess = v * (0.5 + _horner(_TAU, z) * v)
    log = ln(x)
    smooth = v * (_horner(_MU, z) + d * v * _horner(_DELTA, z))
    return v * (1 + excess), excess, log, 0.5 * (log - d * v) - smooth


@exact
def removed(evidence: Any, count: Any, out: Any) -> None:
    """Fill in `out`, a Removed, for the first entries of 1 + evidence."""
    trigamma, excess = out.trigamma.reshape(-1), out.trigamma_excess.reshape(-1)
    logs, bregman = out.log.reshape(-1), out.bregman.reshape(-1)
    for i in range(count):
        e = evidence[i]
        trigamma[i], excess[i], logs[i], far = _bregman(1 + e, e)
        near = e < 0.25
        safe = e if near else 0.0
        close = safe * safe * _horner(_NEAR_ONE, safe)
        bregman[i] = close if near else far + _MU_ONE


@exact
def removed_total(evidence0: Any, classes: Any, count: Any, out: Any) -> None:
    """Fill in `out`, a Removed, for the first entries of K + evidence0."""
    base = float(classes)
    v, z = _inverses(base)
    constant = v * _horner(_MU, z) - 0.5 * math.log(base)
    for i in range(count):
        d = evidence0[i]
        trigamma, excess, log, far = _bregman(base + d, d)
        near = d * v < 0.25
        t = d * v if near else 0.0
        curvature = 0.0
        for node, weight in _GAUSS:
            curvature += weight * tau(base * (1 + node * t))
        close = 0.5 * (t * t / (1 + t) - log_gap(t, 0.0)) + curvature * d * d
        out.trigamma[i, 0], out.trigamma_excess[i, 0], out.log[i, 0] = trigamma, excess, log
        out.bregman[i, 0] = close if near else far + constant
