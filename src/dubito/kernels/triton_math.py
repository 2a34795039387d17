"""Functions of alpha in Triton, in float32.

With r(x) = 1/psi_1(x) - x + 1/2, which is small and smooth,

    psi_1 = 1/(x - 1/2 + r),    psi_2 = -psi_1^2 (1 + r'),

so that one polynomial and one reciprocal give the trigamma and one more the tetragamma, and nothing
cancels. The functions of evidence e = alpha - 1 >= 0 are made of as few instructions as possible,
since they bound the speed. The functions named "any" take every alpha > 0: below 1 they use the
recurrence over one step. The functions named "row" are evaluated once per row.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from dubito._coefficients import COEFFICIENTS
from dubito.kernels import triton_fits as fits
from dubito.kernels.spec import EXP_BOUND
from dubito.special import _ARTANH

#: whether the kernels are compiled: the interpreter has no instructions of a GPU
COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)
_EXCESS = tl.constexpr(fits.EXCESS)
_SAG = tl.constexpr((fits.EXCESS[0] - 0.5, *fits.EXCESS[1:]))
_EXCESS_SLOPE = tl.constexpr(fits.EXCESS_SLOPE)
_EXCESS_SLOPE_HALF = tl.constexpr(fits.EXCESS_SLOPE_HALF)
_NEAR = tl.constexpr(fits.NEAR)
_FAR = tl.constexpr(fits.FAR)
_GAP = tl.constexpr(fits.GAP)
_LOG1P = tl.constexpr(fits.LOG1P)
_THRESHOLD = tl.constexpr(fits.THRESHOLD)
_MU = tl.constexpr(COEFFICIENTS["float32"]["mu"])
_DELTA = tl.constexpr(COEFFICIENTS["float32"]["delta"])
_TAU = tl.constexpr(COEFFICIENTS["float32"]["tau"])
_TAIL = tl.constexpr(_ARTANH[:5])
# two-point Gauss rule for the weight theta on [0, 1]
_NODES = tl.constexpr((0.35505102572168217, 0.8449489742783178))
_SHARES = tl.constexpr((0.18195861825602283, 0.31804138174397717))
# three-point rule for the same weight
_GAUSS_NODES = tl.constexpr((0.21234053823915294, 0.5905331355592653, 0.9114120404872961))
_GAUSS_SHARES = tl.constexpr((0.06982697990145412, 0.22924110635958625, 0.20093191373895963))
_BOUND = tl.constexpr(EXP_BOUND)
_LOG2E = tl.constexpr(1.4426950216293335)  # in float32
_LOG2E_REST = tl.constexpr(1.9259629911266175e-08)
_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def horner(c: tl.constexpr, degree: tl.constexpr, x: tl.tensor) -> tl.tensor:
    """The polynomial with coefficients `c` in ascending powers."""
    total = c[degree - 1] + c[degree] * x
    for i in tl.static_range(degree - 1):
        total = total * x + c[degree - 2 - i]
    return total


# --- single instructions -------------------------------------------------------------------------


@triton.jit
def inverse(x: tl.tensor) -> tl.tensor:
    """1/x to the last digit but one, for x from 1e-38 to 1e38."""
    if COMPILED:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 1.0 / x


@triton.jit
def log2(x: tl.tensor) -> tl.tensor:
    """The binary logarithm, to 2e-7 of the larger of it and 1."""
    if COMPILED:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.log2(x)


@triton.jit
def _exp2(x: tl.tensor) -> tl.tensor:
    if COMPILED:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.exp2(x)


# --- evidence ------------------------------------------------------------------------------------


@triton.jit
def _exp(x: tl.tensor) -> tl.tensor:
    """e^x, with what the product with log2(e) is rounded by."""
    y = x * _LOG2E
    rest = tl.fma(x, _LOG2E, -y) + x * _LOG2E_REST
    power = _exp2(y)
    return power + power * (rest * _LN2)


@triton.jit
def evidence(x: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """Evidence of logits, or alpha itself without a function; NaN stays NaN."""
    if C.evidence == "softplus":
        u = _exp2(-_LOG2E * tl.abs(x))
        return tl.maximum(x, 0.0) + u * horner(_LOG1P, 7, u)
    elif C.evidence == "relu":
        return tl.where(x <= 0.0, 0.0, x)
    elif C.evidence == "exp":
        return _exp(tl.where(x > _BOUND, _BOUND, x))
    else:
        return x


@triton.jit
def evidence_slope(x: tl.tensor, e: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """Derivative of `evidence`."""
    if C.evidence == "softplus":
        u = _exp2(-_LOG2E * tl.abs(x))
        return tl.where(x >= 0.0, 1.0, u) * inverse(1.0 + u)
    elif C.evidence == "relu":
        return tl.where(x > 0.0, 1.0, 0.0)
    elif C.evidence == "exp":
        return tl.where(x > _BOUND, 0.0, e)
    else:
        return tl.full(x.shape, 1.0, tl.float32)


# --- the gamma family at x = 1 + e ---------------------------------------------------------------


@triton.jit
def variable(e: tl.tensor) -> tl.tensor:
    """z = 1/(x + 1/2)."""
    return inverse(e + 1.5)


@triton.jit
def excess(z: tl.tensor) -> tl.tensor:
    """r(x)."""
    return horner(_EXCESS, 6, z)


@triton.jit
def family(e: tl.tensor) -> tl.tensor:
    """z, r(x) - 1/2 and 1/psi_1(x)."""
    z = inverse(e + 1.5)
    sag = horner(_SAG, 6, z)
    return z, sag, (1.0 + e) + sag


@triton.jit
def excess_fall(z: tl.tensor, HALF: tl.constexpr = False) -> tl.tensor:
    """-r'(x), to 1e-4 where that is enough."""
    if HALF:
        return (z * z) * horner(_EXCESS_SLOPE_HALF, 3, z)
    else:
        return (z * z) * horner(_EXCESS_SLOPE, 7, z)


@triton.jit
def bregman(e: tl.tensor, z: tl.tensor, log: tl.tensor) -> tl.tensor:
    """What a class adds to KL(Dir || Dir(1)), from THRESHOLD on less e, and whether it is less.

    `log` is -log2 psi_1(x).
    """
    near = e * (e * horner(_NEAR, 5, z))
    far = horner(_FAR, 5, z) - (0.5 * _LN2) * log
    small = e < _THRESHOLD
    return tl.where(small, near, far), small


@triton.jit
def gap_moment(z: tl.tensor) -> tl.tensor:
    """x (psi(x + 1) - ln x)."""
    return horner(_GAP, 7, z)


# --- the gamma family at any alpha > 0 -----------------------------------------------------------


class Gamma(NamedTuple):
    """psi_1 and what belongs to it."""

    z: tl.tensor
    sag: tl.tensor  # r - 1/2 = 1/psi_1 - alpha, in (-1/2, 0): small with alpha
    excess: tl.tensor  # r, or below 1 the same as `sag`: small with 1/alpha and with alpha
    below: tl.tensor  # 1/psi_1
    trigamma: tl.tensor
    rise: tl.tensor  # 1 + r' = -psi_2/psi_1^2, exact where it is small
    fall: tl.tensor  # -r', exact where it is small


@triton.jit
def gamma(a: tl.tensor, e: tl.tensor, BELOW_ONE: tl.constexpr, HALF: tl.constexpr) -> tl.tensor:
    """The gamma family at a = 1 + e, or at any a > 0: psi_1(a) = psi_1(a + 1) + 1/a^2 below 1."""
    if BELOW_ONE:
        small = a < 1.0
        safe = tl.where(small, a, 1.0)
        z, sag, below = family(tl.where(small, a, a - 1.0))
        trigamma = inverse(below)
        fall = excess_fall(z, HALF)
        square = safe * safe
        share = inverse(1.0 + square * trigamma)
        less = square * share
        steep = less * trigamma
        rise = 2.0 * safe * (share * share) + steep * steep * (1.0 - fall)
        return Gamma(
            z,
            tl.where(small, less - safe, sag),
            tl.where(small, less - safe, excess(z)),
            tl.where(small, less, below),
            tl.where(small, trigamma + inverse(square), trigamma),
            tl.where(small, rise, 1.0 - fall),
            tl.where(small, 1.0 - rise, fall),
        )
    else:
        z, sag, below = family(e)
        fall = excess_fall(z, HALF)
        return Gamma(z, sag, sag, below, inverse(below), 1.0 - fall, fall)


@triton.jit
def any_log1p(t: tl.tensor, ratio: tl.tensor) -> tl.tensor:
    """ln(1 + t) for t > -1, where `ratio` is 1 + t as well as it is known."""
    near = tl.abs(t) < 0.25
    w = tl.where(near, t, 0.0)
    w = w * inverse(2.0 + w)
    series = 2.0 * w + 2.0 * (w * w) * (w * horner(_TAIL, 4, w * w))
    return tl.where(near, series, _LN2 * log2(tl.where(near, 1.0, ratio)))


@triton.jit
def any_log_gap(t: tl.tensor, log: tl.tensor) -> tl.tensor:
    """t - ln(1 + t) for t > -1, where the logarithm is known."""
    near = tl.abs(t) < 0.25
    safe = tl.where(near, t, 0.0)
    w = safe * inverse(2.0 + safe)
    series = w * (safe - 2.0 * w * w * horner(_TAIL, 4, w * w))
    return tl.where(near, series, t - log)


@triton.jit
def _step(a: tl.tensor) -> tl.tensor:
    """Where the recurrence applies, alpha there, alpha after it, 1/that and ln(1 + 1/alpha)."""
    small = a < 1.0
    safe = tl.where(small, a, 1.0)
    x = tl.where(small, a + 1.0, a)
    return small, safe, x, inverse(x), _LN2 * log2(1.0 + inverse(safe))


@triton.jit
def any_mu(a: tl.tensor) -> tl.tensor:
    """Stirling's remainder of ln Gamma(a)."""
    small, safe, x, v, log = _step(a)
    value = v * horner(_MU, 8, inverse(x + 0.5))
    return tl.where(small, value + ((safe + 0.5) * log - 1.0), value)


@triton.jit
def any_delta(a: tl.tensor) -> tl.tensor:
    """ln a - 1/(2a) - digamma(a)."""
    small, safe, x, v, log = _step(a)
    value = v * (v * horner(_DELTA, 8, inverse(x + 0.5)))
    return tl.where(small, value + ((safe + 0.5) * (inverse(safe) * v) - log), value)


@triton.jit
def any_tau(a: tl.tensor) -> tl.tensor:
    """Trigamma(a) - 1/a - 1/(2 a^2)."""
    small = a < 1.0
    x = tl.where(small, a + 1.0, a)
    v = inverse(x)
    value = v * v * v * horner(_TAU, 8, inverse(x + 0.5))
    product = v * inverse(tl.where(small, a, 1.0))
    return tl.where(small, value + 0.5 * product * product, value)


@triton.jit
def any_bregman(a: tl.tensor, b: tl.tensor, d: tl.tensor, mu: tl.tensor) -> tl.tensor:
    """ln Gamma(b) - ln Gamma(a) - psi(a)(b - a) in two parts, with d = a - b and mu = mu(b).

    The parts are b (t - ln(1 + t)) with t = d/b, and the positive remainder; last comes ln(1 + t).
    """
    v = inverse(a)
    u = inverse(b)
    t = d * u
    log = any_log1p(t, a * u)
    gap = any_log_gap(t, log)
    far = 0.5 * (log - d * v) + ((mu - any_mu(a)) - d * any_delta(a))
    near = tl.abs(t) < 0.2
    safe = tl.where(near, t, 0.0)
    curvature = safe * 0.0
    for i in tl.static_range(3):
        curvature += _GAUSS_SHARES[i] * any_tau(b * (1.0 + _GAUSS_NODES[i] * safe))
    close = 0.5 * (safe * safe * inverse(1.0 + safe) - gap) + (curvature * (b * safe)) * (b * safe)
    return b * gap, tl.where(near, close, far), log


# --- once a row ----------------------------------------------------------------------------------


@triton.jit
def row_log1p(t: tl.tensor) -> tl.tensor:
    """ln(1 + t) for t >= 0."""
    near = t < 1.0
    return tl.where(near, t * horner(_LOG1P, 7, tl.where(near, t, 0.0)), _LN2 * log2(1.0 + t))


@triton.jit
def row_log_gap(t: tl.tensor, log: tl.tensor) -> tl.tensor:
    """t - ln(1 + t), where the logarithm is known."""
    near = t < 0.25
    safe = tl.where(near, t, 0.0)
    w = safe * inverse(2.0 + safe)
    series = w * (safe - 2.0 * w * w * horner(_TAIL, 4, w * w))
    return tl.where(near, series, t - log)


@triton.jit
def row_delta(x: tl.tensor) -> tl.tensor:
    """ln x - 1/(2x) - digamma(x)."""
    v = inverse(x)
    return v * (v * horner(_DELTA, 8, inverse(x + 0.5)))


@triton.jit
def _row_curvature(classes: tl.constexpr, t: tl.tensor) -> tl.tensor:
    """(K t)^2 times the mean of tau from K to K (1 + t), weighed as Taylor's remainder is."""
    total = t * 0.0
    for i in tl.static_range(2):
        x = classes * (1.0 + _NODES[i] * t)
        v = inverse(x)
        total += _SHARES[i] * (v * v * v * horner(_TAU, 8, inverse(x + 0.5)))
    return total * (classes * t) * (classes * t)


@triton.jit
def row_divergence(evidence0: tl.tensor, classes: tl.constexpr, mu: tl.tensor) -> tl.tensor:
    """The total's share D of KL(Dir || Dir(1)), D - evidence0, and which of them is smaller.

    `mu` is Stirling's remainder of the number of classes.
    """
    alpha0 = classes + evidence0
    t = evidence0 * (1.0 / classes)
    log = row_log1p(t)
    z = inverse(alpha0 + 0.5)
    v = inverse(alpha0)
    smooth = v * (horner(_MU, 8, z) + (evidence0 * v) * horner(_DELTA, 8, z))
    far = 0.5 * (log - evidence0 * v) + (mu - smooth)
    near = t < 0.1  # from there on nothing cancels, and up to there two nodes do
    safe = tl.where(near, t, 0.0)
    gap = row_log_gap(t, log)
    close = 0.5 * (safe * safe * inverse(1.0 + safe) - gap) + _row_curvature(classes, safe)
    beyond = tl.where(near, close, far)
    return classes * gap + beyond, beyond - classes * log, t < 2.5
