"""The losses of labels in Triton, class by class: sums over the classes, and the gradient.

The sums leave out the label, which may have nearly all of alpha0, where 1 - p cancels; it is
computed separately, once a row, from the sums over the rest. Another class with nearly all of
alpha0 is treated separately too, but only in the squared errors without the trigamma: with it the
class's share of the sums is no larger than another's.

Where alpha >= 1, a class without evidence replaces the label and columns beyond the
last class: their part is known, and is subtracted once a row. Where alpha may be below 1 they are
masked.
"""

import math
from typing import NamedTuple

import triton
import triton.language as tl

from dubito.kernels import triton_math as tm
from dubito.kernels.triton_rows import Tile, load, sweep

__all__: list[str] = []

# of a class without evidence
_TRIGAMMA = tl.constexpr(math.pi**2 / 6)
_R_LESS_HALF = tl.constexpr(6 / math.pi**2 - 1)
_LOG = tl.constexpr(math.log2(6 / math.pi**2))


class Classes(NamedTuple):
    """A block of classes (R, C)."""

    alpha: tl.tensor
    e: tl.tensor  # alpha - base, where base is the concentration of the target Dirichlet
    gamma: tm.Gamma
    here: tl.tensor  # a class other than the label


class Total(NamedTuple):
    """Sums over all classes that a sweep over the classes may need (R,)."""

    alpha0: tl.tensor
    inverse: tl.tensor  # 1/alpha0
    # of `forward`: (alpha0 - b0)/b0, where b0 is the total of the target Dirichlet
    spread: tl.tensor


class Sums(NamedTuple):
    """Sums over the classes except the label (R,)."""

    rest: tl.tensor  # alpha
    evidence: tl.tensor  # e
    small_e: tl.tensor  # the part of it below `triton_math`'s threshold
    # ln Gamma(base) - ln Gamma(alpha) + e psi(alpha), from the threshold on minus e
    bregman: tl.tensor
    # 1/psi_1(alpha) - alpha, with the label; where alpha may be below 1, 1/2 more from 1 on
    excess: tl.tensor
    large: tl.tensor  # number of alpha that are at least 1, with the label
    inverse_trigamma: tl.tensor  # 1/psi_1(alpha), with the label
    logs: tl.tensor  # -log2 psi_1(alpha), with the label
    first: tl.tensor  # alpha psi_1
    second: tl.tensor  # alpha^2 psi_1
    forward: tl.tensor  # parts of `forward_kl`
    alpha: tl.tensor  # from here on for MSE alone: alpha without a class above 5/8 of alpha0
    squares: tl.tensor  # of alpha/alpha0, without that class
    top: tl.tensor  # that class's alpha


@triton.jit
def alpha_of(x: tl.tensor, C: tl.constexpr) -> tl.tuple:
    """alpha and alpha - base of values x."""
    e = tm.evidence(x, C)
    if C.spec.evidence is None:
        return e, e - C.constants.base
    elif C.spec.prior == C.constants.base:
        return C.spec.prior + e, e
    else:
        return C.spec.prior + e, e - (C.constants.base - C.spec.prior)


@triton.jit
def classes(x: tl.tensor, tile: Tile, j: tl.tensor, END: tl.constexpr, C: tl.constexpr) -> Classes:
    """Classes j (C,), which end at END, with values x (R, C), without the label."""
    HALF: tl.constexpr = tile.inputs.dtype.element_ty.primitive_bitwidth == 16
    alpha, e = alpha_of(x, C)
    here = ()
    if isinstance(tile.label, tl.tensor):
        here = j[None, :] != tile.label[:, None]
        if C.below_one:
            here = here & (j < C.K)[None, :]
    elif C.below_one and END > C.K:
        here = (j < C.K)[None, :]
    if isinstance(here, tl.tensor):
        alpha, e = tl.where(here, alpha, 1.0), tl.where(here, e, 0.0)
    alpha = alpha if C.below_one else 1.0 + e
    return Classes(alpha, e, tm.gamma(alpha, e, C.below_one, HALF), here)


@triton.jit
def bregman(alpha: tl.tensor, e: tl.tensor, g: tm.Gamma, C: tl.constexpr) -> tl.tuple:
    """Parts of the divergence from `base`, from the threshold on minus e, and which are below."""
    if C.below_one:
        b: tl.constexpr = C.constants.base
        lead, remainder, log = tm.bregman_parts(alpha, b, 1.0 / b, e, C.constants.mu_base, True)
        return tl.where(e < 1.0, lead + remainder, remainder - b * log), e < 1.0
    else:
        return tm.bregman(e, g)


@triton.jit
def forward(
    alpha: tl.tensor, e: tl.tensor, b: tl.constexpr, total: Total, C: tl.constexpr
) -> tl.tensor:
    """A class's part of KL(Dir(b) || Dir(alpha)), e = alpha - b, for rows or tiles."""
    inverse = tm.inverse(alpha)
    t = (b * total.spread - e) * inverse
    ratio = (total.alpha0 * inverse) * (b / (C.K - 1 + C.constants.forward_beta))
    gap = tm.log_gap(t, tm.log_ratio(t, ratio))
    mu = tm.remainders(alpha, True)[0]
    a = tl.full(alpha.shape, b, tl.float32)
    return alpha * gap + tm.bregman_parts(a, alpha, inverse, -e, mu, True)[1]


@triton.jit
def _add_alpha(
    given: tl.tensor, tile: Tile, j: tl.tensor, END: tl.constexpr, C: tl.constexpr
) -> tl.tuple:
    """A step of `sweep`: alpha and alpha - base."""
    c = classes(load(tile, j, END, C), tile, j, END, C)
    return (c.alpha if C.below_one else (), c.e), (c.here if C.below_one else ())


@triton.jit
def _add_classes(
    given: tl.tensor, tile: Tile, j: tl.tensor, END: tl.constexpr, C: tl.constexpr
) -> tl.tuple:
    """A step of `sweep`: `Sums`."""
    c = classes(load(tile, j, END, C), tile, j, END, C)
    total = Total(*[x[:, None] for x in given])
    rest, evidence, small_e, value, excess, large, inverse_trigamma = (), (), (), (), (), (), ()
    logs, first, second, fwd, alpha, squares, top = (), (), (), (), (), (), ()
    if not C.groups.total_first:
        evidence = c.e
        if C.below_one:
            rest = c.alpha
    if C.groups.bregman:
        value, small = bregman(c.alpha, c.e, c.gamma, C)
        small_e = tl.where(small, c.e, 0.0)
    if C.groups.penalty:
        excess, logs = c.gamma.excess, tm.log2(c.gamma.inverse_trigamma)
        if C.below_one:
            inverse_trigamma, large = c.gamma.inverse_trigamma, tl.where(c.alpha < 1.0, 0.0, 1.0)
    if C.groups.fisher:
        first = c.alpha * c.gamma.trigamma
        second = first * c.alpha
    if C.groups.forward:
        fwd = forward(c.alpha, c.e, 1.0, total, C)
    if C.groups.mse:
        apart = c.alpha > 0.625 * total.alpha0
        alpha, top = tl.where(apart, 0.0, c.alpha), tl.where(apart, c.alpha, 0.0)
        squares = (alpha * total.inverse) * (alpha * total.inverse)
    s = Sums(
        rest, evidence, small_e, value, excess, large, inverse_trigamma, logs, first, second, fwd,
        alpha, squares, top,
    )  # fmt: skip
    return s, (c.here if C.below_one else ())


@triton.jit
def total_of(alpha: tl.tensor, rest: tl.tensor, evidence: tl.tensor, C: tl.constexpr) -> Total:
    """Sums over all classes, from the label's alpha and sums over the others."""
    spread = alpha
    if C.groups.forward:
        d0 = evidence + (alpha - C.constants.forward_beta)
        spread = d0 * (1.0 / (C.K - 1 + C.constants.forward_beta))
    alpha0 = alpha + rest
    return Total(alpha0, tm.inverse(alpha0), spread)


@triton.jit
def sums_of(tile: Tile, alpha: tl.tensor, own: tm.Gamma, C: tl.constexpr) -> Sums:
    """The sums over the classes; alpha is the label's and `own` the gamma family there.

    `rest` and `evidence` are the sums by which a class was treated separately, to the bit.
    """
    total = Total(alpha, alpha, alpha)
    rest, evidence = alpha, alpha
    if C.groups.total_first:
        rest, evidence = sweep(_add_alpha, 2, (), tile, C)
        rest = rest if C.below_one else evidence + (C.K - 1.0)
        total = total_of(alpha, rest, evidence, C)
    s = Sums(*sweep(_add_classes, len(Sums._fields), total, tile, C))
    if not C.groups.total_first:
        evidence = s.evidence
        rest = s.rest if C.below_one else evidence + (C.K - 1.0)
    # classes without evidence: the label, and columns beyond the last class
    EMPTY: tl.constexpr = 0 if C.below_one else C.BLOCKS * C.C + C.TAIL + C.LAST - C.K + 1
    return Sums(
        rest, evidence, s.small_e, s.bregman,
        s.excess + (own.excess - EMPTY * _R_LESS_HALF), s.large + tl.where(alpha < 1.0, 0.0, 1.0),
        s.inverse_trigamma + own.inverse_trigamma,
        s.logs + (tm.log2(own.inverse_trigamma) - EMPTY * _LOG),
        s.first - EMPTY * _TRIGAMMA, s.second - EMPTY * _TRIGAMMA, s.forward,
        s.alpha - EMPTY, s.squares - EMPTY * (total.inverse * total.inverse), s.top,
    )  # fmt: skip


class Slopes(NamedTuple):
    """Coefficients of a row's gradient (R,).

    A class has the slope psi_1 (N + (1 + r') M) + bracket r' and one that all classes share, where
    N = n + n_a alpha + n_e e + n_r (r - 1/2) and M = m + alpha psi_1 (m_0 + m_a alpha); where alpha
    is 1 + e, N = n + n_e e + n_r (r - 1/2) and M = m + alpha psi_1 (m_0 + m_a e).
    """

    row: tl.tensor  # Row
    common: tl.tensor
    label: tl.tensor  # the slope of the label
    n: tl.tensor
    n_a: tl.tensor
    n_e: tl.tensor
    n_r: tl.tensor
    m: tl.tensor
    m_0: tl.tensor
    m_a: tl.tensor
    bracket: tl.tensor  # the penalty's weight over its bracket
    forward: tl.tensor  # the weight of `forward_kl`
    mse: tl.tensor
    mse_p: tl.tensor
    mse_common: tl.tensor
    top: tl.tensor  # of MSE, of a class above 5/8 of alpha0


@triton.jit
def _gamma_slope(g: Slopes, c: Classes, C: tl.constexpr) -> tl.tensor:
    """The part of the slopes that needs psi_1 and psi_2."""
    trigamma = c.gamma.trigamma
    n = g.n[:, None] + g.n_e[:, None] * c.e
    if C.below_one:
        n += g.n_a[:, None] * c.alpha
    if C.groups.bregman:
        n += g.n_r[:, None] * c.gamma.r_less_half
    if C.groups.fisher or C.groups.penalty:
        m = tl.zeros_like(n) + g.m[:, None]
        if C.groups.fisher:
            x = c.alpha if C.below_one else c.e
            m += (c.alpha * trigamma) * (g.m_0[:, None] + g.m_a[:, None] * x)
        minus_dr = c.gamma.minus_dr
        if C.below_one:  # below 1 all of r' is close to -1, and cancels against that of alpha0
            minus_dr = tl.where(g.row.alpha0[:, None] < 1.0, -c.gamma.one_plus_dr, minus_dr)
            return trigamma * (n + m * c.gamma.one_plus_dr) - g.bracket[:, None] * minus_dr
        else:
            return trigamma * (n + m) - minus_dr * (trigamma * m + g.bracket[:, None])
    else:
        return trigamma * n


@triton.jit
def gradient(
    g: Slopes, x: tl.tensor, tile: Tile, j: tl.tensor, END: tl.constexpr, C: tl.constexpr
) -> tl.tensor:
    """The gradient of the values x (R, C) of classes j (C,), which end at END."""
    c = classes(x, tile, j, END, C)
    alpha0, inverse0 = g.row.alpha0[:, None], g.row.inverse[:, None]
    slope = tl.zeros_like(c.e) + g.common[:, None]
    if C.groups.fisher or C.groups.penalty or C.groups.bregman:
        slope += _gamma_slope(g, c, C)
    if C.groups.forward:
        inverse = tm.inverse(c.alpha)
        step = tm.LN2 * tm.log2(alpha0 * inverse) + 0.5 * (inverse - inverse0)
        delta0 = tm.remainders(g.row.alpha0, True)[1]
        step += tm.remainders(c.alpha, True)[1] - delta0[:, None]
        slope -= g.forward[:, None] * step
    if C.groups.mse:
        p = c.alpha * inverse0
        mse = g.mse_common[:, None] + inverse0 * (g.mse[:, None] + p * g.mse_p[:, None])
        slope += tl.where(c.alpha > 0.625 * alpha0, g.top[:, None], mse)
    if isinstance(tile.label, tl.tensor):
        slope = tl.where(j[None, :] == tile.label[:, None], g.label[:, None], slope)
    return slope * tm.evidence_slope(x, tm.evidence(x, C), C)
