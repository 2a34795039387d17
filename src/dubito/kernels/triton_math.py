"""Functions of alpha in Triton, in float32.

With r(x) = 1/psi_1(x) - x + 1/2, which is small and smooth,

    psi_1 = 1/(x - 1/2 + r),    psi_2 = -psi_1^2 (1 + r'),

so that one polynomial and one reciprocal give the trigamma and one more the tetragamma, and nothing
cancels. The functions of evidence e = alpha - 1 >= 0 use as few instructions as possible, since
they bound the speed. With `ANY` a function accepts every alpha > 0: below 1 it uses the recurrence
over one step.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from dubito.numerics.gamma import ARTANH, POLYNOMIALS
from dubito.numerics.spec import EXP_BOUND

__all__: list[str] = []

#: whether the kernels are compiled: the interpreter has no instructions of a GPU
COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)

_EXCESS = tl.constexpr(POLYNOMIALS["excess"])
_R_LESS_HALF = tl.constexpr((POLYNOMIALS["excess"][0] - 0.5, *POLYNOMIALS["excess"][1:]))
_EXCESS_SLOPE = tl.constexpr(POLYNOMIALS["excess_slope"])
_EXCESS_SLOPE_HALF = tl.constexpr(POLYNOMIALS["excess_slope_half"])
_NEAR = tl.constexpr(POLYNOMIALS["near"])
_FAR = tl.constexpr(POLYNOMIALS["far"])
_THRESHOLD = tl.constexpr(1.0)  # evidence from which _FAR is used in place of _NEAR
_GAP = tl.constexpr(POLYNOMIALS["gap_moment"])
_LOG1P = tl.constexpr(POLYNOMIALS["log1p"])
_MU = tl.constexpr(POLYNOMIALS["mu_float32"])
_DELTA = tl.constexpr(POLYNOMIALS["delta_float32"])
_TAU = tl.constexpr(POLYNOMIALS["tau_float32"])
_TAIL = tl.constexpr(ARTANH[:5])
# Gauss rules for the weight theta on [0, 1], of two points and of three
_NODES = tl.constexpr(((0.355051026, 0.844948974), (0.212340538, 0.590533136, 0.911412040)))
_SHARES = tl.constexpr(((0.181958618, 0.318041382), (0.0698269799, 0.229241106, 0.200931914)))
_BOUND = tl.constexpr(EXP_BOUND)
_LOG2E = tl.constexpr(1.4426950216293335)  # in float32
_LOG2E_REST = tl.constexpr(1.9259629911266175e-08)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def horner(c: tl.constexpr, degree: tl.constexpr, x: tl.tensor) -> tl.tensor:
    """The polynomial with coefficients `c` in ascending powers."""
    total = c[degree - 1] + c[degree] * x
    for i in tl.static_range(degree - 1):
        total = total * x + c[degree - 2 - i]
    return total


# --- single instructions -------------------------------------------------------------------------


@triton.jit
def _approximate(NAME: tl.constexpr, x: tl.tensor) -> tl.tensor:
    ASM: tl.constexpr = NAME + ".approx.ftz.f32 $0, $1;"
    return tl.inline_asm_elementwise(ASM, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def inverse(x: tl.tensor) -> tl.tensor:
    """1/x to the last digit but one, for x from 1e-38 to 1e38."""
    return _approximate("rcp", x) if COMPILED else 1.0 / x


@triton.jit
def log2(x: tl.tensor) -> tl.tensor:
    """The binary logarithm, to 2e-7 of the larger of it and 1."""
    return _approximate("lg2", x) if COMPILED else tl.log2(x)


@triton.jit
def _exp2(x: tl.tensor) -> tl.tensor:
    return _approximate("ex2", x) if COMPILED else tl.exp2(x)


@triton.jit
def prefetch(at: tl.tensor) -> None:
    """Fetch the lines of addresses into the second-level cache; interpreted, do nothing."""
    if COMPILED:
        ASM: tl.constexpr = "prefetch.global.L2 [$1]; mov.b32 $0, 0;"
        tl.inline_asm_elementwise(ASM, "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1)


# --- evidence ------------------------------------------------------------------------------------


@triton.jit
def _exp(x: tl.tensor) -> tl.tensor:
    """e^x, corrected for the rounding of x log2(e)."""
    y = x * _LOG2E
    rest = tl.fma(x, _LOG2E, -y) + x * _LOG2E_REST
    power = _exp2(y)
    return power + power * (rest * LN2)


@triton.jit
def evidence(x: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """Evidence of logits, or alpha itself without a function; NaN stays NaN."""
    if C.spec.evidence == "softplus":
        u = _exp2(-_LOG2E * tl.abs(x))
        return tl.maximum(x, 0.0) + u * horner(_LOG1P, 7, u)
    elif C.spec.evidence == "relu":
        return tl.where(x <= 0.0, 0.0, x)
    elif C.spec.evidence == "exp":
        return _exp(tl.where(x > _BOUND, _BOUND, x))
    else:
        return x


@triton.jit
def evidence_slope(x: tl.tensor, e: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """Derivative of `evidence`."""
    if C.spec.evidence == "softplus":
        u = _exp2(-_LOG2E * tl.abs(x))
        return tl.where(x >= 0.0, 1.0, u) * inverse(1.0 + u)
    elif C.spec.evidence == "relu":
        return tl.where(x > 0.0, 1.0, 0.0)
    elif C.spec.evidence == "exp":
        return tl.where(x > _BOUND, 0.0, e)
    else:
        return tl.full(x.shape, 1.0, tl.float32)


# --- the gamma family ----------------------------------------------------------------------------


class Gamma(NamedTuple):
    """psi_1 and related values at alpha."""

    z: tl.tensor  # 1/(alpha + 1/2), or below 1 that of alpha + 1
    r_less_half: tl.tensor  # r - 1/2 = 1/psi_1 - alpha, in (-1/2, 0): small with alpha
    # with ANY r, or below 1 the same as `r_less_half`: small with 1/alpha and with alpha
    excess: tl.tensor
    inverse_trigamma: tl.tensor  # 1/psi_1
    trigamma: tl.tensor
    one_plus_dr: tl.tensor  # 1 + r' = -psi_2/psi_1^2, exact where it is small
    minus_dr: tl.tensor  # -r', exact where it is small


@triton.jit
def gamma(
    a: tl.tensor, e: tl.tensor, ANY: tl.constexpr = False, HALF: tl.constexpr = False
) -> Gamma:
    """The gamma family at a = 1 + e, or at any a > 0; with HALF `minus_dr` is good to 1e-4.

    Below 1, psi_1(a) = psi_1(a + 1) + 1/a^2.
    """
    small = a < 1.0
    if ANY:
        e = tl.where(small, a, a - 1.0)
    z = inverse(e + 1.5)
    r_less_half = horner(_R_LESS_HALF, 6, z)
    inverse_trigamma = (1.0 + e) + r_less_half
    trigamma = inverse(inverse_trigamma)
    minus_dr = z * z
    minus_dr *= horner(_EXCESS_SLOPE_HALF, 3, z) if HALF else horner(_EXCESS_SLOPE, 7, z)
    if ANY:
        safe = tl.where(small, a, 1.0)
        square = safe * safe
        share = inverse(1.0 + square * trigamma)
        less = square * share
        steep = less * trigamma
        one_plus_dr = 2.0 * safe * (share * share) + steep * steep * (1.0 - minus_dr)
        return Gamma(
            z,
            tl.where(small, less - safe, r_less_half),
            tl.where(small, less - safe, horner(_EXCESS, 6, z)),
            tl.where(small, less, inverse_trigamma),
            tl.where(small, trigamma + inverse(square), trigamma),
            tl.where(small, one_plus_dr, 1.0 - minus_dr),
            tl.where(small, 1.0 - one_plus_dr, minus_dr),
        )
    else:
        return Gamma(
            z, r_less_half, r_less_half, inverse_trigamma, trigamma, 1.0 - minus_dr, minus_dr
        )


@triton.jit
def bregman(e: tl.tensor, g: Gamma) -> tl.tuple:
    """A class's part of KL(Dir || Dir(1)), from _THRESHOLD on minus e, and which are below it."""
    near = e * (e * horner(_NEAR, 5, g.z))
    far = horner(_FAR, 5, g.z) - (0.5 * LN2) * log2(g.inverse_trigamma)
    small = e < _THRESHOLD
    return tl.where(small, near, far), small


@triton.jit
def gap_moment(z: tl.tensor) -> tl.tensor:
    """x (psi(x + 1) - ln x), x = 1 + e."""
    return horner(_GAP, 7, z)


@triton.jit
def remainders(a: tl.tensor, ANY: tl.constexpr) -> tl.tuple:
    """Stirling's remainders: of ln Gamma(a), ln a - 1/(2a) - psi(a), psi_1(a) - 1/a - 1/(2 a^2)."""
    small = a < 1.0
    x = tl.where(small, a + 1.0, a) if ANY else a
    v = inverse(x)
    z = inverse(x + 0.5)
    mu = v * horner(_MU, 8, z)
    delta = v * (v * horner(_DELTA, 8, z))
    tau = v * v * v * horner(_TAU, 8, z)
    if ANY:
        safe = tl.where(small, a, 1.0)
        u = inverse(safe)
        log = LN2 * log2(1.0 + u)
        mu = tl.where(small, mu + ((safe + 0.5) * log - 1.0), mu)
        delta = tl.where(small, delta + ((safe + 0.5) * (u * v) - log), delta)
        tau = tl.where(small, tau + 0.5 * (u * v) * (u * v), tau)
    return mu, delta, tau


# --- differences of logarithms -------------------------------------------------------------------


@triton.jit
def log1p(t: tl.tensor) -> tl.tensor:
    """ln(1 + t) for t >= 0."""
    near = t < 1.0
    return tl.where(near, t * horner(_LOG1P, 7, tl.where(near, t, 0.0)), LN2 * log2(1.0 + t))


@triton.jit
def log_ratio(t: tl.tensor, ratio: tl.tensor) -> tl.tensor:
    """ln(1 + t) for t > -1, where `ratio` is an accurate 1 + t."""
    near = tl.abs(t) < 0.25
    w = tl.where(near, t, 0.0)
    w = w * inverse(2.0 + w)
    series = 2.0 * w + 2.0 * (w * w) * (w * horner(_TAIL, 4, w * w))
    return tl.where(near, series, LN2 * log2(tl.where(near, 1.0, ratio)))


@triton.jit
def log_gap(t: tl.tensor, log: tl.tensor) -> tl.tensor:
    """t - ln(1 + t) for t > -1, given the logarithm."""
    near = tl.abs(t) < 0.25
    safe = tl.where(near, t, 0.0)
    w = safe * inverse(2.0 + safe)
    series = w * (safe - 2.0 * w * w * horner(_TAIL, 4, w * w))
    return tl.where(near, series, t - log)


@triton.jit
def bregman_parts(
    a: tl.tensor, b: tl.tensor, u: tl.tensor, d: tl.tensor, mu: tl.tensor, ANY: tl.constexpr
) -> tl.tuple:
    """ln Gamma(b) - ln Gamma(a) - psi(a) (b - a) in two parts; d = a - b, u = 1/b, mu = mu(b).

    The parts are b (t - ln(1 + t)) with t = d/b, and the positive remainder; last comes ln(1 + t).
    Without ANY a >= b >= 1.
    """
    t = d * u
    log = log_ratio(t, a * u) if ANY else log1p(t)
    gap = log_gap(t, log)
    own_mu, delta, _ = remainders(a, ANY)
    far = 0.5 * (log - d * inverse(a)) + ((mu - own_mu) - d * delta)
    near = tl.abs(t) < (0.2 if ANY else 0.1)  # beyond that nothing cancels
    safe = tl.where(near, t, 0.0)
    curvature = safe * 0.0
    for i in tl.static_range(3 if ANY else 2):
        tau = remainders(b * (1.0 + _NODES[ANY][i] * safe), ANY)[2]
        curvature += _SHARES[ANY][i] * tau
    close = 0.5 * (safe * safe * inverse(1.0 + safe) - gap) + (curvature * (b * safe)) * (b * safe)
    return b * gap, tl.where(near, close, far), log


@triton.jit
def divergence(
    bregman: tl.tensor, small_e: tl.tensor, alpha0: tl.tensor, d0: tl.tensor,
    base: tl.constexpr, mu: tl.constexpr, ANY: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """KL(Dir(alpha) || Dir(b)) from sums over the classes and the totals alpha0 = base + d0.

    The sums and the total's part both contain d0: with much evidence it is omitted from both.
    """
    lead, remainder, log = bregman_parts(alpha0, base, 1.0 / base, d0, mu, ANY)
    close = bregman + (d0 - small_e) - (lead + remainder)
    return tl.where(d0 < 2.5 * base, close, (bregman - small_e) - (remainder - base * log))


@triton.jit
def divergence_slopes(weight: tl.tensor, g0: Gamma, d0: tl.tensor, base: tl.constexpr) -> tl.tuple:
    """The same divergence's slopes: that of the total, and coefficients n_e and n_r of classes.

    A class has the slope d psi_1 = psi_1 (n_e d + n_r (b + r - 1/2)), d = alpha - b; where d0 is
    large, both slopes are close to 1, and 1 is omitted from both.
    """
    large = d0 * g0.trigamma >= 0.5
    n_e, n_r = tl.where(large, 0.0, weight), tl.where(large, -weight, 0.0)
    return g0.trigamma * (n_e * d0 + n_r * (base + g0.r_less_half)), n_e, n_r
