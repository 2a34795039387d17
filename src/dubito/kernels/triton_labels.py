"""The losses of labels in Triton, class by class: sums over the classes, and the gradient.

The sums leave out the label, which may hold nearly all of alpha0, where 1 - p cancels; it is
computed apart, once a row, from the sums over the rest. Another class that holds nearly all of
alpha0 is set apart too, but only in the squared errors without the trigamma: with it the class's
share of the sums is no larger than another's.

Where alpha >= 1, a class without evidence takes the place of the label and of columns beyond the
last class: what these add is known, and is subtracted once a row. Where alpha may be below 1 they
are masked.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import triton
import triton.language as tl

from dubito.kernels import triton_math as tm

# of a class without evidence
_TRIGAMMA = tl.constexpr(math.pi**2 / 6)
_SAG = tl.constexpr(6 / math.pi**2 - 1)
_LOG = tl.constexpr(math.log2(6 / math.pi**2))
_LN2 = tl.constexpr(0.6931471805599453)


class Classes(NamedTuple):
    """A block of classes (R, C)."""

    alpha: tl.tensor
    e: tl.tensor  # alpha - base, where base is the concentration of the target Dirichlet
    gamma: tl.tensor
    here: tl.tensor  # a class other than the label


class Total(NamedTuple):
    """Sums over all classes that a sweep over the classes may need (R,)."""

    alpha0: tl.tensor
    inverse: tl.tensor  # 1/alpha0
    # of `forward`: (alpha0 - b0)/b0, where b0 is the total of the target Dirichlet
    spread: tl.tensor


class Sums(NamedTuple):
    """Sums over the classes but the label (R,)."""

    rest: tl.tensor  # alpha
    evidence: tl.tensor  # e
    near: tl.tensor  # the part of it below `triton_math`'s threshold
    # ln Gamma(base) - ln Gamma(alpha) + e psi(alpha), from the threshold on less e
    bregman: tl.tensor
    # 1/psi_1(alpha) - alpha, with the label; where alpha may be below 1, 1/2 more from 1 on
    excess: tl.tensor
    large: tl.tensor  # how many alpha are at least 1, with the label
    below: tl.tensor  # 1/psi_1(alpha), with the label
    logs: tl.tensor  # -log2 psi_1(alpha), with the label
    first: tl.tensor  # alpha psi_1
    second: tl.tensor  # alpha^2 psi_1
    forward: tl.tensor  # what a class adds to `forward_kl`
    alpha: tl.tensor  # from here on for MSE alone: alpha without the class set apart
    squares: tl.tensor  # of alpha/alpha0
    top: tl.tensor  # the largest alpha


@triton.jit
def nothing(like: tl.tensor) -> tl.tensor:
    """The sums over no classes: for rows (R,), or for a tile (R, C) that is added up later."""
    o = tl.zeros_like(like)
    return Sums(o, o, o, o, o, o, o, o, o, o, o, o, o, o)


@triton.jit
def add_up(s: tl.tensor) -> tl.tensor:
    """The sums of rows, from those of a tile."""
    return Sums(
        tl.sum(s.rest, 1), tl.sum(s.evidence, 1), tl.sum(s.near, 1), tl.sum(s.bregman, 1),
        tl.sum(s.excess, 1), tl.sum(s.large, 1), tl.sum(s.below, 1), tl.sum(s.logs, 1),
        tl.sum(s.first, 1), tl.sum(s.second, 1), tl.sum(s.forward, 1), tl.sum(s.alpha, 1),
        tl.sum(s.squares, 1), tl.max(s.top, 1),
    )  # fmt: skip


@triton.jit
def alpha_of(x: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """alpha and alpha - base of values x."""
    e = tm.evidence(x, C)
    if C.evidence is None:
        return e, e - C.constants.base
    elif C.constants.prior == C.constants.base:
        return C.constants.prior + e, e
    else:
        return C.constants.prior + e, e - (C.constants.base - C.constants.prior)


@triton.jit
def others(x: tl.tensor, j: tl.tensor, label: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """alpha, alpha - base and a mask of classes j (C,) with values x (R, C), without the label."""
    here = j[None, :] != label[:, None]
    if C.below_one:
        here = here & (j < C.K)[None, :]
        alpha, e = alpha_of(x, C)
        return tl.where(here, alpha, 1.0), tl.where(here, e, 0.0), here
    else:
        e = tl.where(here, tm.evidence(x, C), 0.0)
        return 1.0 + e, e, here


@triton.jit
def classes(
    x: tl.tensor, j: tl.tensor, label: tl.tensor, C: tl.constexpr, HALF: tl.constexpr
) -> tl.tensor:
    """What sums and gradient need of classes j (C,) with values x (R, C)."""
    alpha, e, here = others(x, j, label, C)
    return Classes(alpha, e, tm.gamma(alpha, e, C.below_one, HALF), here)


@triton.jit
def sum_over(values: tl.tensor, here: tl.tensor, C: tl.constexpr, TILE: tl.constexpr) -> tl.tensor:
    """The sum over classes, or what is to be added up later."""
    if C.below_one:
        values = tl.where(here, values, 0.0)
    if TILE:
        return values
    else:
        return tl.sum(values, 1)


@triton.jit
def bregman(alpha: tl.tensor, e: tl.tensor, g: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """What classes add to the divergence from `base`, from the threshold on less e, and which."""
    if C.below_one:
        base = tl.full(e.shape, C.constants.base, tl.float32)
        lead, remainder, log = tm.any_bregman(alpha, base, e, C.constants.mu_base)
        small = e < 1.0
        return tl.where(small, lead + remainder, remainder - C.constants.base * log), small
    else:
        return tm.bregman(e, g.z, tm.log2(g.below))


@triton.jit
def forward(
    alpha: tl.tensor, e: tl.tensor, total: tl.tensor, b: tl.tensor, C: tl.constexpr
) -> tl.tensor:
    """What a class adds to KL(Dir(b) || Dir(alpha)), e = alpha - b, for rows or tiles."""
    inverse = tm.inverse(alpha)
    t = (b * total.spread - e) * inverse
    ratio = (total.alpha0 * inverse) * (b * (1.0 / C.constants.forward_total))
    gap = tm.any_log_gap(t, tm.any_log1p(t, ratio))
    _, remainder, _ = tm.any_bregman(b, alpha, -e, tm.any_mu(alpha))
    return alpha * gap + remainder


@triton.jit
def take(
    s: tl.tensor, c: tl.tensor, total: tl.tensor, C: tl.constexpr, TILE: tl.constexpr
) -> tl.tensor:
    """Add a block of classes."""
    excess, large, below, logs, near, breg = s.excess, s.large, s.below, s.logs, s.near, s.bregman
    first, second, alphas, squares, top, fwd = (
        s.first,
        s.second,
        s.alpha,
        s.squares,
        s.top,
        s.forward,
    )
    if C.groups.penalty:
        excess += sum_over(c.gamma.excess, c.here, C, TILE)
        logs += sum_over(tm.log2(c.gamma.below), c.here, C, TILE)
        if C.below_one:
            below += sum_over(c.gamma.below, c.here, C, TILE)
            large += sum_over(tl.where(c.alpha < 1.0, 0.0, 1.0), c.here, C, TILE)
    if C.groups.bregman:
        value, small = bregman(c.alpha, c.e, c.gamma, C)
        breg += sum_over(value, c.here, C, TILE)
        near += sum_over(tl.where(small, c.e, 0.0), c.here, C, TILE)
    if C.groups.fisher:
        each = c.alpha * c.gamma.trigamma
        first += sum_over(each, c.here, C, TILE)
        second += sum_over(each * c.alpha, c.here, C, TILE)
    if C.groups.forward:
        around = Total(total.alpha0[:, None], total.inverse[:, None], total.spread[:, None])
        one = tl.full(c.alpha.shape, 1.0, tl.float32)
        fwd += sum_over(forward(c.alpha, c.e, around, one, C), c.here, C, TILE)
    if C.groups.mse:
        apart = c.alpha > 0.625 * total.alpha0[:, None]
        alpha = tl.where(apart, 0.0, c.alpha)
        alphas += sum_over(alpha, c.here, C, TILE)
        p = alpha * total.inverse[:, None]
        squares += sum_over(p * p, c.here, C, TILE)
        most = tl.where(c.here, c.alpha, 0.0) if C.below_one else c.alpha
        top = tl.maximum(top, most if TILE else tl.max(most, 1))
    evidence = s.evidence + sum_over(c.e, c.here, C, TILE)
    rest = s.rest
    if C.below_one:
        rest += sum_over(c.alpha, c.here, C, TILE)
    return Sums(
        rest,
        evidence,
        near,
        breg,
        excess,
        large,
        below,
        logs,
        first,
        second,
        fwd,
        alphas,
        squares,
        top,
    )


@triton.jit
def settle(
    s: tl.tensor, alpha: tl.tensor, own: tl.tensor, rest: tl.tensor, evidence: tl.tensor,
    total: tl.tensor,
    C: tl.constexpr, EMPTY: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The sums with the label's part, and without EMPTY classes that have no evidence.

    `rest` and `evidence` are those by which a class was set apart, to the bit.
    """
    N: tl.constexpr = 0 if C.below_one else EMPTY
    return Sums(
        rest, evidence, s.near, s.bregman,
        s.excess + (own.excess - N * _SAG), s.large + tl.where(alpha < 1.0, 0.0, 1.0),
        s.below + own.below, s.logs + (tm.log2(own.below) - N * _LOG),
        s.first - N * _TRIGAMMA, s.second - N * _TRIGAMMA, s.forward,
        s.alpha - N, s.squares - N * (total.inverse * total.inverse), s.top,
    )  # fmt: skip


@triton.jit
def keep(t: tl.tensor, s: tl.tensor, rows: tl.tensor, inside: tl.tensor, n: tl.tensor) -> None:
    """Store what the gradient needs in `t.kept` (10, rows)."""
    at, step = t.kept + rows, n.count.to(tl.int64)
    tl.store(at, s.rest, inside)
    tl.store(at + step, s.evidence, inside)
    tl.store(at + 2 * step, s.excess, inside)
    tl.store(at + 3 * step, s.large, inside)
    tl.store(at + 4 * step, s.below, inside)
    tl.store(at + 5 * step, s.first, inside)
    tl.store(at + 6 * step, s.second, inside)
    tl.store(at + 7 * step, s.alpha, inside)
    tl.store(at + 8 * step, s.squares, inside)
    tl.store(at + 9 * step, s.top, inside)


@triton.jit
def kept(t: tl.tensor, rows: tl.tensor, inside: tl.tensor, n: tl.tensor) -> tl.tensor:
    """Load what was kept."""
    at, step = t.kept + rows, n.count.to(tl.int64)
    rest = tl.load(at, inside, 1.0)
    o = tl.zeros_like(rest)
    return Sums(
        rest, tl.load(at + step, inside, 0.0), o, o, tl.load(at + 2 * step, inside, 0.0),
        tl.load(at + 3 * step, inside, 0.0), tl.load(at + 4 * step, inside, 0.0), o,
        tl.load(at + 5 * step, inside, 0.0), tl.load(at + 6 * step, inside, 0.0), o,
        tl.load(at + 7 * step, inside, 0.0), tl.load(at + 8 * step, inside, 0.0),
        tl.load(at + 9 * step, inside, 0.0),
    )  # fmt: skip


class Slopes(NamedTuple):
    """What the gradient of a row is made of (R,).

    A class has the slope psi_1 (N + (1 + r') M) + bracket r' and what all have in common, where
    N = n + n_a alpha + n_e e + n_sag (base + sag) and M = m + alpha psi_1 (m_0 + m_a alpha).
    """

    common: tl.tensor
    label: tl.tensor  # the slope of the label
    n: tl.tensor
    n_a: tl.tensor
    n_e: tl.tensor
    n_sag: tl.tensor
    m: tl.tensor
    m_0: tl.tensor
    m_a: tl.tensor
    bracket: tl.tensor  # the penalty's weight over its bracket
    alpha0: tl.tensor
    inverse: tl.tensor  # 1/alpha0
    forward: tl.tensor  # the weight of `forward_kl`
    delta0: tl.tensor  # ln alpha0 - 1/(2 alpha0) - psi(alpha0)
    mse: tl.tensor
    mse_p: tl.tensor
    mse_common: tl.tensor
    top: tl.tensor  # what MSE adds to the slope of the class set apart


@triton.jit
def _gamma_slope(g: tl.tensor, c: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """The part of the slopes that needs psi_1 and psi_2, where alpha >= 1: few instructions."""
    trigamma, e = c.gamma.trigamma, c.e
    n = (g.n + g.n_a + g.n_sag)[:, None] + (g.n_a + g.n_e)[:, None] * e
    if C.groups.bregman:
        n += g.n_sag[:, None] * c.gamma.sag
    if C.groups.fisher or C.groups.penalty:
        m = tl.zeros_like(n) + g.m[:, None]
        if C.groups.fisher:
            m += (c.alpha * trigamma) * ((g.m_0 + g.m_a)[:, None] + g.m_a[:, None] * e)
        return trigamma * (n + m) - c.gamma.fall * (trigamma * m + g.bracket[:, None])
    else:
        return trigamma * n


@triton.jit
def _any_gamma_slope(g: tl.tensor, c: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """The same for any alpha."""
    trigamma = c.gamma.trigamma
    n = g.n[:, None] + g.n_a[:, None] * c.alpha + g.n_e[:, None] * c.e
    n += g.n_sag[:, None] * (C.constants.base + c.gamma.sag)
    m = g.m[:, None] + (c.alpha * trigamma) * (g.m_0[:, None] + g.m_a[:, None] * c.alpha)
    slope = trigamma * (n + m * c.gamma.rise)
    if C.groups.penalty:  # below 1 all of r' is close to -1, and cancels against that of alpha0
        fall = tl.where(g.alpha0[:, None] < 1.0, -c.gamma.rise, c.gamma.fall)
        slope -= g.bracket[:, None] * fall
    return slope


@triton.jit
def gradient(
    g: tl.tensor, x: tl.tensor, c: tl.tensor, j: tl.tensor, label: tl.tensor, C: tl.constexpr
) -> tl.tensor:
    """The gradient of the values x (R, C) of classes j (C,)."""
    slope = tl.zeros_like(c.e) + g.common[:, None]
    if C.groups.fisher or C.groups.penalty or C.groups.bregman:
        if C.below_one:
            slope += _any_gamma_slope(g, c, C)
        else:
            slope += _gamma_slope(g, c, C)
    if C.groups.forward:
        inverse = tm.inverse(c.alpha)
        step = _LN2 * tm.log2(g.alpha0[:, None] * inverse)
        step += 0.5 * (inverse - g.inverse[:, None]) + (tm.any_delta(c.alpha) - g.delta0[:, None])
        slope -= g.forward[:, None] * step
    if C.groups.mse:
        p = c.alpha * g.inverse[:, None]
        mse = g.mse_common[:, None] + g.inverse[:, None] * (g.mse[:, None] + p * g.mse_p[:, None])
        slope += tl.where(c.alpha > 0.625 * g.alpha0[:, None], g.top[:, None], mse)
    slope = tl.where(j[None, :] == label[:, None], g.label[:, None], slope)
    return slope * tm.evidence_slope(x, tm.evidence(x, C), C)
