"""The losses of labels in Triton: values in one pass over the logits, gradients in two.

The sums over the classes leave out the label, and where it matters the largest of the others too:
only these two can hold nearly all of alpha0, where 1 - p cancels. They are computed apart, once a
row, from the sums over the rest. In the label's place alpha without the label's evidence is 1, so
that one evaluation of the gamma family serves all terms.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from dubito.kernels import triton_math as tm
from dubito.kernels.triton_rows import Numbers

# alpha times this can be squared: its squares stay in range for evidence up to 1e30
_SMALLER = tl.constexpr(2.0**-40)
_LARGER = tl.constexpr(2.0**40)
_LN2 = tl.constexpr(0.6931471805599453)

# places in WHICH: the groups of terms in use, whether a class that holds most of alpha0 is set
# apart, and whether the sums are kept for the gradient
_FISHER = tl.constexpr(0)
_MSE = tl.constexpr(1)
_PENALTY = tl.constexpr(2)
_KL = tl.constexpr(3)
_APART = tl.constexpr(4)
_KEEP = tl.constexpr(5)


class Sums(NamedTuple):
    """Sums over the classes (R,)."""

    evidence: tl.tensor
    """without the label"""
    near: tl.tensor
    """the part of it below `triton_math`'s threshold"""
    bregman: tl.tensor
    excess: tl.tensor
    """r(alpha), with the label"""
    logs: tl.tensor
    """-log2 psi_1(alpha), with the label"""
    alpha: tl.tensor
    """from here on without the label and without what is beyond the limit"""
    squares: tl.tensor
    """of alpha, made smaller"""
    first: tl.tensor
    """alpha psi_1"""
    second: tl.tensor
    """alpha^2 psi_1"""
    top: tl.tensor
    """the largest evidence but for the label's"""


@triton.jit
def nothing(like: tl.tensor) -> tl.tensor:
    """The sums over no classes: for rows (R,), or for a tile (R, C) that is added up later."""
    o = tl.zeros_like(like)
    return Sums(o, o, o, o, o, o, o, o, o, o)


@triton.jit
def add_up(s: tl.tensor) -> tl.tensor:
    """The sums of rows, from those of a tile."""
    return Sums(
        tl.sum(s.evidence, 1), tl.sum(s.near, 1), tl.sum(s.bregman, 1), tl.sum(s.excess, 1),
        tl.sum(s.logs, 1), tl.sum(s.alpha, 1), tl.sum(s.squares, 1), tl.sum(s.first, 1),
        tl.sum(s.second, 1), tl.max(s.top, 1),
    )  # fmt: skip


@triton.jit
def _sum(values: tl.tensor, TILE: tl.constexpr) -> tl.tensor:
    if TILE:
        return values
    else:
        return tl.sum(values, 1)


@triton.jit
def limit(e: tl.tensor, evidence: tl.tensor, K: tl.constexpr) -> tl.tensor:
    """The evidence from which a class is set apart, of the label's and the others' evidence."""
    return 0.625 * (e + evidence + K) - 1.0


@triton.jit
def others(
    e: tl.tensor, j: tl.tensor, label: tl.tensor, K: tl.constexpr, PADDED: tl.constexpr
) -> tl.tensor:
    """The evidence of classes j, 0 for the label."""
    if PADDED:
        return tl.where((j[None, :] != label[:, None]) & (j < K)[None, :], e, 0.0)
    else:
        return tl.where(j[None, :] != label[:, None], e, 0.0)


@triton.jit
def take(
    s: tl.tensor, x: tl.tensor, j: tl.tensor, label: tl.tensor, most: tl.tensor, K: tl.constexpr,
    FUNCTION: tl.constexpr, WHICH: tl.constexpr, VALUE: tl.constexpr, PADDED: tl.constexpr,
    TILE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Add a block of classes j (C,) with logits x (R, C); what only a VALUE takes may be left."""
    e = tm.evidence(x, FUNCTION)
    z = tm.variable(e)
    r = tm.excess(z)
    below = e + 0.5 + r  # 1/psi_1
    inside = (j < K)[None, :]
    rest = others(e, j, label, K, PADDED)
    excess, logs, bregman, near, top = s.excess, s.logs, s.bregman, s.near, s.top
    total, squares, first, second = s.alpha, s.squares, s.first, s.second
    if WHICH[_PENALTY]:
        excess += _sum(tl.where(inside, r, 0.0) if PADDED else r, TILE)
        if VALUE:
            log = tm.log2(below)
            logs += _sum(tl.where(inside, log, 0.0) if PADDED else log, TILE)
    if VALUE and WHICH[_KL]:
        value, small = tm.bregman(rest, z)
        bregman += _sum(value, TILE)
        near += _sum(tl.where(small, rest, 0.0), TILE)
    ordinary = j[None, :] != label[:, None]
    if PADDED:
        ordinary = ordinary & inside
    if WHICH[_APART]:
        ordinary = ordinary & (e <= most[:, None])
    if WHICH[_APART] or WHICH[_KEEP]:
        top = tl.maximum(top, rest if TILE else tl.max(rest, 1))
    alpha = tl.where(ordinary, 1.0 + e, 0.0)
    if WHICH[_APART]:
        total += _sum(alpha, TILE)
    if WHICH[_MSE]:
        squares += _sum((alpha * _SMALLER) * (alpha * _SMALLER), TILE)
    if WHICH[_FISHER]:
        each = alpha * tm.inverse(below)
        first += _sum(each, TILE)
        second += _sum(each * alpha, TILE)
    evidence = s.evidence + _sum(rest, TILE)
    return Sums(evidence, near, bregman, excess, logs, total, squares, first, second, top)


@triton.jit
def keep(
    kept: tl.tensor, s: tl.tensor, rows: tl.tensor, inside: tl.tensor, count: tl.tensor,
    K: tl.constexpr, WHICH: tl.constexpr,
) -> None:  # fmt: skip
    """Store what the gradient takes in kept (7, count)."""
    at = kept + rows
    step = count.to(tl.int64)
    alpha = s.alpha if WHICH[_APART] else s.evidence + (K - 1.0)
    tl.store(at, s.evidence, inside)
    tl.store(at + step, s.excess, inside)
    tl.store(at + 2 * step, alpha, inside)
    tl.store(at + 3 * step, s.squares, inside)
    tl.store(at + 4 * step, s.first, inside)
    tl.store(at + 5 * step, s.second, inside)
    tl.store(at + 6 * step, s.top, inside)


@triton.jit
def found(kept: tl.tensor, rows: tl.tensor, inside: tl.tensor, count: tl.tensor) -> tl.tensor:
    """What was kept."""
    at = kept + rows
    step = count.to(tl.int64)
    evidence = tl.load(at, inside, 0.0)
    o = tl.zeros_like(evidence)
    return Sums(
        evidence, o, o, tl.load(at + step, inside, 0.0), o, tl.load(at + 2 * step, inside, 0.0),
        tl.load(at + 3 * step, inside, 0.0), tl.load(at + 4 * step, inside, 0.0),
        tl.load(at + 5 * step, inside, 0.0), tl.load(at + 6 * step, inside, 0.0),
    )  # fmt: skip


# --- once a row ----------------------------------------------------------------------------------


@triton.jit
def _shares(s: tl.tensor, e: tl.tensor, apart: tl.tensor, K: tl.constexpr) -> tl.tensor:
    """Of the label and of the largest other class p and 1 - p, and the sums of p and p^2."""
    others = s.evidence + (K - 1.0)
    inverse = tm.inverse(1.0 + e + others)
    larger = inverse * _LARGER
    top, rest = apart * (1.0 + s.top) * inverse, (s.alpha + (1.0 + e)) * inverse
    sum1, sum2 = s.alpha * inverse, larger * larger * s.squares
    return inverse, (1.0 + e) * inverse, others * inverse, top, rest, sum1, sum2


@triton.jit
def _squared_errors(
    s: tl.tensor, e: tl.tensor, apart: tl.tensor, K: tl.constexpr, WHICH: tl.constexpr
) -> tl.tensor:
    """The four terms of squared errors; `apart` is 1 where a class is, and else 0."""
    inverse, p, q, p_top, q_top, sum1, sum2 = _shares(s, e, apart, K)
    share = inverse * tm.inverse(1.0 + inverse)
    zero = tl.zeros_like(p)
    fisher_bias, fisher_variance, mse_bias, mse_variance = zero, zero, zero, zero
    if WHICH[_MSE]:
        mse_bias = q * q + sum2 + p_top * p_top
        mse_variance = share * (sum1 - sum2 + p * q + p_top * q_top)
    if WHICH[_FISHER]:
        trigamma = tm.trigamma(e)
        first, second = inverse * s.first, inverse * (inverse * s.second)
        fisher_bias = q * q * trigamma + second
        fisher_variance = share * (first - second + p * q * trigamma)
        if WHICH[_APART]:
            top = p_top * tm.trigamma(s.top)
            fisher_bias += top * p_top
            fisher_variance += share * top * q_top
    return fisher_bias, fisher_variance, mse_bias, mse_variance


@triton.jit
def _divergence(s: tl.tensor, K: tl.constexpr, mu: tl.tensor) -> tl.tensor:
    """KL to the uniform Dirichlet, without the label's evidence."""
    total, less, small = tm.row_divergence(s.evidence, K, mu)
    return tl.where(small, s.bregman + (s.evidence - s.near) - total, (s.bregman - s.near) - less)


@triton.jit
def _penalty(s: tl.tensor, alpha0: tl.tensor, K: tl.constexpr) -> tl.tensor:
    """-ln |I|."""
    r = tm.excess(tm.variable(alpha0 - 1.0))
    bracket = 0.5 * (K - 1.0) + (r - s.excess)
    return _LN2 * (s.logs + tm.log2((alpha0 - 0.5 + r) * tm.inverse(bracket)))


@triton.jit
def terms(
    s: tl.tensor, e: tl.tensor, most: tl.tensor, mu: tl.tensor, growth: tl.tensor,
    K: tl.constexpr, WHICH: tl.constexpr, AT: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The terms of rows, from their sums and the evidence of their labels."""
    zero = tl.zeros_like(e)
    alpha, others = 1.0 + e, s.evidence + (K - 1.0)
    fisher_bias, fisher_variance, mse_bias, mse_variance = zero, zero, zero, zero
    if WHICH[_FISHER] or WHICH[_MSE]:
        apart = tl.where(s.top > most, 1.0, 0.0)
        fisher_bias, fisher_variance, mse_bias, mse_variance = _squared_errors(
            s, e, apart, K, WHICH
        )
    penalty, divergence, marginal, expected = zero, zero, zero, zero
    if WHICH[_PENALTY]:
        penalty = growth * _penalty(s, alpha + others, K)
    if WHICH[_KL]:
        divergence = growth * _divergence(s, K, mu)
    if AT[6] > -2 or AT[7] > -2:
        marginal = tm.row_log1p(others * tm.inverse(alpha))
    if AT[7] > -2:
        halves = 0.5 * (others * tm.inverse(alpha + others)) * tm.inverse(alpha)
        expected = marginal + halves + (tm.row_delta(alpha) - tm.row_delta(alpha + others))
    return Numbers(
        fisher_bias, fisher_variance, mse_bias, mse_variance,
        penalty, divergence, marginal, expected,
    )  # fmt: skip


class Slopes(NamedTuple):
    """What the gradient of a row is made of (R,)."""

    inverse: tl.tensor
    """1/alpha0"""
    even: tl.tensor
    """what all classes have in common"""
    label: tl.tensor
    """the slope of the label"""
    top: tl.tensor
    """the slope of the largest other class"""
    mse: tl.tensor
    mse_p: tl.tensor
    fisher: tl.tensor
    fisher_p: tl.tensor
    bracket: tl.tensor
    """the penalty's weight over its bracket"""
    large: tl.tensor
    """whether the divergence's slope is taken from what it lacks to 1"""


@triton.jit
def _error_slopes(
    s: tl.tensor, e: tl.tensor, w: tl.tensor, apart: tl.tensor,
    K: tl.constexpr, WHICH: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The slopes of the four squared errors: in common, of the label, and of what is set apart."""
    inverse, p, q, p_top, q_top, sum1, sum2 = _shares(s, e, apart, K)
    share = inverse * tm.inverse(1.0 + inverse)
    zero = tl.zeros_like(p)
    trigamma, trigamma_top, bend, bend_top = zero, zero, zero, zero
    variance, field = zero, zero
    if WHICH[_MSE]:
        variance = w.mse_variance * (sum1 - sum2)
        field = w.mse_variance * (sum1 - 2.0 * sum2) * share + 2.0 * w.mse_bias * sum2
    if WHICH[_FISHER]:
        first, second = inverse * s.first, inverse * (inverse * s.second)
        variance += w.fisher_variance * (first - second)
        field += w.fisher_variance * (first - 2.0 * second) * share + 2.0 * w.fisher_bias * second
        trigamma, trigamma_top = tm.trigamma(e), tm.trigamma(s.top)
        bend = q * (q * w.fisher_bias + p * w.fisher_variance * share)
        bend = bend * trigamma * trigamma * (1.0 - tm.excess_fall(tm.variable(e)))
        bend_top = p_top * (p_top * w.fisher_bias + q_top * w.fisher_variance * share)
        fall = tm.excess_fall(tm.variable(s.top))
        bend_top = bend_top * trigamma_top * trigamma_top * (1.0 - fall)
    spread = (w.mse_variance + w.fisher_variance * trigamma) * share
    spread_top = (w.mse_variance + w.fisher_variance * trigamma_top) * share
    own = (q - p) * spread - 2.0 * q * (w.mse_bias + w.fisher_bias * trigamma)
    top = (q_top - p_top) * spread_top
    top += 2.0 * p_top * (w.mse_bias + w.fisher_bias * trigamma_top)
    fall = (variance * share + p * q * spread + p_top * q_top * spread_top) * share
    even = -(field + p * own + p_top * top) * inverse
    of_label = (q * own - (field + p_top * top)) * inverse - bend
    of_top = (q_top * top - (field + p * own)) * inverse - bend_top
    return even - fall, of_label - fall, of_top - fall


@triton.jit
def _penalty_slopes(
    s: tl.tensor, e: tl.tensor, weight: tl.tensor, alpha0: tl.tensor, K: tl.constexpr
) -> tl.tensor:
    """The penalty's slopes: in common, the label's own, and its weight over the bracket."""
    z0, z = tm.variable(alpha0 - 1.0), tm.variable(e)
    r0 = tm.excess(z0)
    fall0, fall = tm.excess_fall(z0), tm.excess_fall(z)
    bracket = weight * tm.inverse(0.5 * (K - 1.0) + (r0 - s.excess))
    even = weight * (1.0 - fall0) * tm.inverse(alpha0 - 0.5 + r0) + bracket * fall0
    own = weight * (1.0 - fall) * tm.inverse(e + 0.5 + tm.excess(z)) - bracket * fall
    return even, own, bracket


@triton.jit
def _top_slope(
    s: tl.tensor, w: tl.tensor, bracket: tl.tensor, large: tl.tensor, WHICH: tl.constexpr
) -> tl.tensor:
    """The own slopes of the largest other class in the penalty and the divergence."""
    z = tm.variable(s.top)
    r, fall = tm.excess(z), tm.excess_fall(z)
    own = z * 0.0
    if WHICH[_PENALTY]:
        own += w.fisher_penalty * (1.0 - fall)
    if WHICH[_KL]:
        own += w.label_removed_kl * tl.where(large, -(0.5 + r), s.top)
    return own * tm.inverse(s.top + 0.5 + r) - bracket * fall


@triton.jit
def slopes(
    s: tl.tensor, e: tl.tensor, w: tl.tensor, most: tl.tensor,
    K: tl.constexpr, WHICH: tl.constexpr, AT: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """All that the gradient of rows takes, from their sums and the evidence of their labels."""
    zero = tl.zeros_like(e)
    alpha, others = 1.0 + e, s.evidence + (K - 1.0)
    alpha0 = alpha + others
    inverse = tm.inverse(alpha0)
    share = tm.inverse(alpha0 + 1.0)
    even, label, top, bracket = zero, zero, zero, zero
    large = zero > 0.0
    if WHICH[_APART]:
        apart = tl.where(s.top > most, 1.0, 0.0)
        even, label, top = _error_slopes(s, e, w, apart, K, WHICH)
    if WHICH[_PENALTY]:
        common, own, bracket = _penalty_slopes(s, e, w.fisher_penalty, alpha0, K)
        even, label, top = even + common, label + (own + common), top + common
    if WHICH[_KL]:
        z = tm.variable(s.evidence + (K - 1.0))
        r = tm.excess(z)
        trigamma = tm.inverse(s.evidence + (K - 0.5) + r)
        common = s.evidence * trigamma
        large = common >= 0.5
        common = w.label_removed_kl * tl.where(large, (0.5 - r - K) * trigamma, common)
        even, top = even - common, top - common
    if AT[6] > -2:
        even, top = even + w.marginal_nll * inverse, top + w.marginal_nll * inverse
        label -= w.marginal_nll * (others * inverse) * tm.inverse(alpha)
    if AT[7] > -2:
        r0, r = tm.excess(tm.variable(alpha0 - 1.0)), tm.excess(tm.variable(e))
        trigamma0 = tm.inverse(alpha0 - 0.5 + r0)
        common = w.expected_cross_entropy * trigamma0
        even, top = even + common, top + common
        gap = (trigamma0 * (others + (r0 - r))) * tm.inverse(e + 0.5 + r)
        label -= w.expected_cross_entropy * gap
    if WHICH[_APART]:
        top += _top_slope(s, w, bracket, large, WHICH)
    spread = w.mse_variance * share
    return Slopes(
        inverse, even, label, top, spread, 2.0 * (w.mse_bias - spread),
        w.fisher_variance * share, w.fisher_bias - w.fisher_variance * share, bracket, large,
    )  # fmt: skip


@triton.jit
def gradient(
    g: tl.tensor, w: tl.tensor, x: tl.tensor, j: tl.tensor, label: tl.tensor, most: tl.tensor,
    FUNCTION: tl.constexpr, WHICH: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The gradient of the logits x (R, C) of classes j (C,); the weights w are those of rows."""
    e = tm.evidence(x, FUNCTION)
    z = tm.variable(e)
    r = tm.excess(z)
    trigamma = tm.inverse(e + 0.5 + r)
    p = (1.0 + e) * g.inverse[:, None]
    fall = tm.excess_fall(z)
    own = tl.zeros_like(p)
    if WHICH[_FISHER]:
        turn, base = g.fisher_p[:, None], g.fisher[:, None]
        own = g.inverse[:, None] * (base + (2.0 * p) * turn)
        own -= (p * (base + p * turn)) * (trigamma * (1.0 - fall))
    if WHICH[_PENALTY]:
        own += w.fisher_penalty[:, None] * (1.0 - fall)
    if WHICH[_KL]:
        own += w.label_removed_kl[:, None] * tl.where(g.large[:, None], -(0.5 + r), e)
    slope = g.even[:, None] + trigamma * own
    if WHICH[_PENALTY]:
        slope -= g.bracket[:, None] * fall
    if WHICH[_MSE]:
        slope += g.inverse[:, None] * (g.mse[:, None] + p * g.mse_p[:, None])
    if WHICH[_APART]:
        slope = tl.where(e > most[:, None], g.top[:, None], slope)
    slope = tl.where(j[None, :] == label[:, None], g.label[:, None], slope)
    return slope * tm.evidence_slope(x, e, FUNCTION)
