"""The losses of soft targets in Triton, in as many sweeps over the classes as the sums need.

A sweep's results are row sums that the next one takes: first the evidence, then what is needed of
the class that may hold nearly all of alpha0, then the terms or the fields of the gradient. Where a
row is one block the compiler keeps it, and the sweeps cost no second load.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from dubito.kernels import triton_math as tm
from dubito.kernels.triton_rows import Numbers, load

_LN2 = tl.constexpr(0.6931471805599453)


class Sums(NamedTuple):
    """Sums over the classes (R,)."""

    evidence: tl.tensor
    removed: tl.tensor
    """the evidence without the target's share"""
    weight: tl.tensor
    """of the row, by its classes"""
    rest: tl.tensor
    """alpha0 less the class beyond the limit, if there is one"""
    excess: tl.tensor
    logs: tl.tensor
    bregman: tl.tensor
    near: tl.tensor
    fisher_bias: tl.tensor
    fisher_variance: tl.tensor
    mse_bias: tl.tensor
    mse_variance: tl.tensor
    marginal: tl.tensor
    expected: tl.tensor
    variance: tl.tensor
    """p q times its weights"""
    field: tl.tensor
    """p times the field, without the class beyond the limit"""
    top: tl.tensor
    """the same of that class"""


class Place(NamedTuple):
    """Where the rows of logits and targets begin, and how their classes lie."""

    logits: tl.tensor
    target: tl.tensor
    class_weight: tl.tensor
    class_stride: tl.tensor
    y_class: tl.tensor
    inside: tl.tensor


@triton.jit
def _nothing(R: tl.constexpr) -> tl.tensor:
    o = tl.zeros([R], tl.float32)
    return Sums(o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o)


@triton.jit
def _shares(s: tl.tensor, e: tl.tensor, y: tl.tensor, K: tl.constexpr) -> tl.tensor:
    """1/alpha0, p, 1 - p, y - p, and which class is beyond the limit."""
    inverse = tm.inverse(s.evidence + K)[:, None]
    top = e > (0.625 * (s.evidence + K) - 1.0)[:, None]
    p = (1.0 + e) * inverse
    q = tl.where(top, s.rest[:, None] * inverse, 1.0 - p)
    return inverse, p, q, y * q - (1.0 - y) * p, top


@triton.jit
def _first(
    s: tl.tensor, e: tl.tensor, y: tl.tensor, j: tl.tensor, here: tl.tensor, place: tl.tensor,
    K: tl.constexpr, BY_CLASS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    weight = s.weight
    if BY_CLASS:
        by = tl.load(place.class_weight + j, j < K, 0.0).to(tl.float32)
        weight += tl.sum(y * by[None, :], 1)
    return Sums(
        s.evidence + tl.sum(tl.where(here, e, 0.0), 1),
        s.removed + tl.sum(tl.where(here, e * (1.0 - y), 0.0), 1),
        weight, s.rest, s.excess, s.logs, s.bregman, s.near,
        s.fisher_bias, s.fisher_variance, s.mse_bias, s.mse_variance, s.marginal, s.expected,
        s.variance, s.field, s.top,
    )  # fmt: skip


@triton.jit
def _second(
    s: tl.tensor, e: tl.tensor, y: tl.tensor, here: tl.tensor, K: tl.constexpr,
    WHICH: tl.constexpr, VALUE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    excess, logs, bregman, near = s.excess, s.logs, s.bregman, s.near
    top = e > (0.625 * (s.evidence + K) - 1.0)[:, None]
    rest = s.rest + tl.sum(tl.where(here & (top == 0), 1.0 + e, 0.0), 1)
    if WHICH[2]:
        r = tm.excess(tm.variable(e))
        excess += tl.sum(tl.where(here, r, 0.0), 1)
        if VALUE:
            logs += tl.sum(tl.where(here, tm.log2(e + 0.5 + r), 0.0), 1)
    if VALUE and WHICH[3]:
        less = e * (1.0 - y)
        z, _, below = tm.family(less)
        value, small = tm.bregman(less, z, tm.log2(below))
        bregman += tl.sum(tl.where(here, value, 0.0), 1)
        near += tl.sum(tl.where(here & small, less, 0.0), 1)
    return Sums(
        s.evidence, s.removed, s.weight, rest, excess, logs, bregman, near,
        s.fisher_bias, s.fisher_variance, s.mse_bias, s.mse_variance, s.marginal, s.expected,
        s.variance, s.field, s.top,
    )  # fmt: skip


@triton.jit
def _third(
    s: tl.tensor, e: tl.tensor, y: tl.tensor, here: tl.tensor, K: tl.constexpr,
    WHICH: tl.constexpr, AT: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The sums of the values."""
    _, p, q, d, _ = _shares(s, e, y, K)
    fisher_bias, fisher_variance = s.fisher_bias, s.fisher_variance
    mse_bias, mse_variance = s.mse_bias, s.mse_variance
    marginal, expected = s.marginal, s.expected
    bias, spread = tl.where(here, d * d, 0.0), tl.where(here, p * q, 0.0)
    if WHICH[0]:
        trigamma = tm.trigamma(e)
        fisher_bias += tl.sum(bias * trigamma, 1)
        fisher_variance += tl.sum(spread * trigamma, 1)
    if WHICH[1]:
        mse_bias += tl.sum(bias, 1)
        mse_variance += tl.sum(spread, 1)
    if AT[6] > -2 or AT[7] > -2:
        surprise = tm.row_log1p(q * tm.inverse(p))
        marginal += tl.sum(tl.where(here, y * surprise, 0.0), 1)
    if AT[7] > -2:
        halves = 0.5 * q * tm.inverse(1.0 + e)
        deltas = tm.row_delta(1.0 + e) - tm.row_delta(s.evidence + K)[:, None]
        expected += tl.sum(tl.where(here, y * (surprise + halves + deltas), 0.0), 1)
    return Sums(
        s.evidence, s.removed, s.weight, s.rest, s.excess, s.logs, s.bregman, s.near,
        fisher_bias, fisher_variance, mse_bias, mse_variance, marginal, expected,
        s.variance, s.field, s.top,
    )  # fmt: skip


@triton.jit
def _field(
    w: tl.tensor, trigamma: tl.tensor, p: tl.tensor, q: tl.tensor, d: tl.tensor, share: tl.tensor
) -> tl.tensor:
    spread = (w.mse_variance[:, None] + w.fisher_variance[:, None] * trigamma) * share
    field = (q - p) * spread
    return spread, field - 2.0 * d * (w.mse_bias[:, None] + w.fisher_bias[:, None] * trigamma)


@triton.jit
def _fields(
    s: tl.tensor, e: tl.tensor, y: tl.tensor, w: tl.tensor, here: tl.tensor, K: tl.constexpr
) -> tl.tensor:
    """The sums of the gradient."""
    inverse, p, q, d, top = _shares(s, e, y, K)
    share = inverse * tm.inverse(1.0 + inverse)
    spread, field = _field(w, tm.trigamma(e), p, q, d, share)
    p = tl.where(here, p, 0.0)
    return Sums(
        s.evidence, s.removed, s.weight, s.rest, s.excess, s.logs, s.bregman, s.near,
        s.fisher_bias, s.fisher_variance, s.mse_bias, s.mse_variance, s.marginal, s.expected,
        s.variance + tl.sum(p * q * spread, 1),
        s.field + tl.sum(tl.where(top, 0.0, p * field), 1),
        s.top + tl.sum(tl.where(top, p * field, 0.0), 1),
    )  # fmt: skip


@triton.jit
def _step(
    s: tl.tensor, w: tl.tensor, place: tl.tensor, j: tl.tensor, STAGE: tl.constexpr,
    K: tl.constexpr, KNOWN: tl.constexpr, FUNCTION: tl.constexpr, WHICH: tl.constexpr,
    AT: tl.constexpr, VALUE: tl.constexpr, BY_CLASS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Add a block of classes to the sums of a sweep."""
    here = (j < K)[None, :] & place.inside[:, None]
    e = tm.evidence(load(place.logits, j, place.inside, place.class_stride, K, KNOWN), FUNCTION)
    y = load(place.target, j, place.inside, place.y_class, K, KNOWN)
    if STAGE == 1:
        return _first(s, e, y, j, here, place, K, BY_CLASS)
    elif STAGE == 2:
        return _second(s, e, y, here, K, WHICH, VALUE)
    elif VALUE:
        return _third(s, e, y, here, K, WHICH, AT)
    else:
        return _fields(s, e, y, w, here, K)


@triton.jit
def _sweep(
    s: tl.tensor, w: tl.tensor, place: tl.tensor, STAGE: tl.constexpr,
    K: tl.constexpr, C: tl.constexpr, BLOCKS: tl.constexpr, TAIL: tl.constexpr,
    KNOWN: tl.constexpr, FUNCTION: tl.constexpr, WHICH: tl.constexpr, AT: tl.constexpr,
    VALUE: tl.constexpr, BY_CLASS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    j = tl.arange(0, C)
    if BLOCKS == 1:
        s = _step(s, w, place, j, STAGE, K, KNOWN, FUNCTION, WHICH, AT, VALUE, BY_CLASS)
    else:
        for block in range(BLOCKS):
            at = j + block * C
            s = _step(s, w, place, at, STAGE, K, KNOWN, FUNCTION, WHICH, AT, VALUE, BY_CLASS)
    if TAIL > 0:
        rest = BLOCKS * C + tl.arange(0, TAIL)
        s = _step(s, w, place, rest, STAGE, K, KNOWN, FUNCTION, WHICH, AT, VALUE, BY_CLASS)
    return s


@triton.jit
def sums(
    w: tl.tensor, place: tl.tensor,
    K: tl.constexpr, C: tl.constexpr, BLOCKS: tl.constexpr, TAIL: tl.constexpr,
    KNOWN: tl.constexpr, FUNCTION: tl.constexpr, WHICH: tl.constexpr, AT: tl.constexpr,
    VALUE: tl.constexpr, BY_CLASS: tl.constexpr, R: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """All sums over the classes: of the VALUE, or else of the gradient."""
    s = _nothing(R)
    for stage in tl.static_range(1, 4):
        s = _sweep(
            s, w, place, stage, K, C, BLOCKS, TAIL, KNOWN, FUNCTION, WHICH, AT, VALUE, BY_CLASS
        )
    return s


@triton.jit
def terms(
    s: tl.tensor, mu: tl.tensor, growth: tl.tensor, K: tl.constexpr, WHICH: tl.constexpr
) -> tl.tensor:
    """The terms of rows, from their sums."""
    alpha0 = s.evidence + K
    share = tm.inverse(alpha0 + 1.0)
    penalty, divergence = tl.zeros_like(share), tl.zeros_like(share)
    if WHICH[2]:
        r = tm.excess(tm.variable(alpha0 - 1.0))
        inverse = tm.inverse(0.5 * (K - 1.0) + (r - s.excess))
        penalty = growth * (_LN2 * (s.logs + tm.log2((alpha0 - 0.5 + r) * inverse)))
    if WHICH[3]:
        total, less, small = tm.row_divergence(s.removed, K, mu)
        near = s.bregman + (s.removed - s.near) - total
        divergence = growth * tl.where(small, near, (s.bregman - s.near) - less)
    return Numbers(
        s.fisher_bias, share * s.fisher_variance, s.mse_bias, share * s.mse_variance,
        penalty, divergence, s.marginal, s.expected,
    )  # fmt: skip


@triton.jit
def _error_slope(
    s: tl.tensor, w: tl.tensor, e: tl.tensor, y: tl.tensor, trigamma: tl.tensor, bend: tl.tensor,
    K: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Of the squared errors; `bend` is -psi_2."""
    inverse, p, q, d, top = _shares(s, e, y, K)
    share = inverse * tm.inverse(1.0 + inverse)
    _, field = _field(w, trigamma, p, q, d, share)
    mean = (s.field + s.top)[:, None]
    centred = tl.where(top, q * field - s.field[:, None], field - mean)
    curve = d * d * w.fisher_bias[:, None] + p * q * (w.fisher_variance[:, None] * share)
    return centred * inverse - curve * bend - s.variance[:, None] * share


@triton.jit
def gradient(
    s: tl.tensor, w: tl.tensor, x: tl.tensor, y: tl.tensor,
    K: tl.constexpr, FUNCTION: tl.constexpr, WHICH: tl.constexpr, AT: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The gradient of the logits x (R, C) with targets y (R, C)."""
    e = tm.evidence(x, FUNCTION)
    alpha0 = s.evidence + K
    z, z0 = tm.variable(e), tm.variable(alpha0 - 1.0)
    r, r0 = tm.excess(z), tm.excess(z0)
    fall, fall0 = tm.excess_fall(z), tm.excess_fall(z0)
    trigamma, trigamma0 = tm.inverse(e + 0.5 + r), tm.inverse(alpha0 - 0.5 + r0)
    slope = tl.zeros_like(e)
    if WHICH[0] or WHICH[1]:
        slope += _error_slope(s, w, e, y, trigamma, trigamma * trigamma * (1.0 - fall), K)
    if WHICH[2]:
        bracket = tm.inverse(0.5 * (K - 1.0) + (r0 - s.excess))
        even = trigamma0 * (1.0 - fall0) + bracket * fall0
        own = trigamma * (1.0 - fall) - bracket[:, None] * fall
        slope += w.fisher_penalty[:, None] * (own + even[:, None])
    if WHICH[3]:
        slope += w.label_removed_kl[:, None] * _divergence_slope(s.removed, e, y, K)
    _, _, q, _, _ = _shares(s, e, y, K)
    if AT[6] > -2:
        inverse = tm.inverse(alpha0)[:, None]
        slope += w.marginal_nll[:, None] * ((1.0 - y) * inverse - y * q * tm.inverse(1.0 + e))
    if AT[7] > -2:
        gap = trigamma * (trigamma0[:, None] * (q * alpha0[:, None] + (r0[:, None] - r)))
        slope += w.expected_cross_entropy[:, None] * ((1.0 - y) * trigamma0[:, None] - y * gap)
    return slope * tm.evidence_slope(x, e, FUNCTION)


@triton.jit
def _divergence_slope(removed: tl.tensor, e: tl.tensor, y: tl.tensor, K: tl.constexpr) -> tl.tensor:
    z0 = tm.variable(removed + (K - 1.0))
    r0 = tm.excess(z0)
    trigamma0 = tm.inverse(removed + (K - 0.5) + r0)
    large = removed * trigamma0 >= 0.5
    common = tl.where(large, (0.5 - r0 - K) * trigamma0, removed * trigamma0)
    less = e * (1.0 - y)
    r = tm.excess(tm.variable(less))
    own = tm.inverse(less + 0.5 + r) * tl.where(large[:, None], -(0.5 + r), less)
    return (1.0 - y) * (own - common[:, None])


@triton.jit
def row_weight(
    place: tl.tensor, K: tl.constexpr, C: tl.constexpr, BLOCKS: tl.constexpr, TAIL: tl.constexpr,
    KNOWN: tl.constexpr, R: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The weights of rows, by their classes."""
    total = tl.zeros([R], tl.float32)
    for block in range(BLOCKS):
        j = block * C + tl.arange(0, C)
        by = tl.load(place.class_weight + j, j < K, 0.0).to(tl.float32)
        total += tl.sum(
            by[None, :] * load(place.target, j, place.inside, place.y_class, K, KNOWN), 1
        )
    if TAIL > 0:
        rest = BLOCKS * C + tl.arange(0, TAIL)
        more = tl.load(place.class_weight + rest, rest < K, 0.0).to(tl.float32)
        y = load(place.target, rest, place.inside, place.y_class, K, KNOWN)
        total += tl.sum(more[None, :] * y, 1)
    return total
