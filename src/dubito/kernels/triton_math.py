"""Functions of evidence in Triton, in float32.

With x = 1 + e and r(x) = 1/psi_1(x) - x + 1/2, which is small and smooth,

    psi_1 = 1/(x - 1/2 + r),    psi_2 = -psi_1^2 (1 + r'),

so that one polynomial and one reciprocal give the trigamma and one more the tetragamma, and nothing
cancels. The functions named "row" are used once a row and take their time; the others are made of
as few instructions as will do, since they bound the speed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dubito._coefficients import COEFFICIENTS
from dubito._evidence import EXP_BOUND
from dubito.kernels import triton_fits as fits
from dubito.special import _ARTANH

#: whether the kernels are compiled: the interpreter has no instructions of a GPU
COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)
#: evidence functions that the kernels know -> their number
EVIDENCE = {"softplus": 0, "relu": 1, "exp": 2}

_EXCESS = tl.constexpr(fits.EXCESS)
_LACK = tl.constexpr((fits.EXCESS[0] - 1.0, *fits.EXCESS[1:]))
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
def evidence(x: tl.tensor, FUNCTION: tl.constexpr) -> tl.tensor:
    """Evidence of logits; what is not a number stays so."""
    if FUNCTION == 0:
        u = _exp2(-_LOG2E * tl.abs(x))
        return tl.maximum(x, 0.0) + u * horner(_LOG1P, 7, u)
    elif FUNCTION == 1:
        return tl.where(x <= 0.0, 0.0, x)
    else:
        return _exp(tl.where(x > _BOUND, _BOUND, x))


@triton.jit
def evidence_slope(x: tl.tensor, e: tl.tensor, FUNCTION: tl.constexpr) -> tl.tensor:
    """Its derivative."""
    if FUNCTION == 0:
        u = _exp2(-_LOG2E * tl.abs(x))
        return tl.where(x >= 0.0, 1.0, u) * inverse(1.0 + u)
    elif FUNCTION == 1:
        return tl.where(x > 0.0, 1.0, 0.0)
    else:
        return tl.where(x > _BOUND, 0.0, e)


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
    """z, r(x) - 1 and 1/psi_1(x)."""
    longer = e + 1.5
    z = inverse(longer)
    lack = horner(_LACK, 6, z)
    return z, lack, longer + lack


@triton.jit
def excess_fall(z: tl.tensor, HALF: tl.constexpr = False) -> tl.tensor:
    """-r'(x), to 1e-4 where that is enough."""
    if HALF:
        return (z * z) * horner(_EXCESS_SLOPE_HALF, 3, z)
    else:
        return (z * z) * horner(_EXCESS_SLOPE, 7, z)


@triton.jit
def trigamma(e: tl.tensor) -> tl.tensor:
    """psi_1(x)."""
    _, _, below = family(e)
    return inverse(below)


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
