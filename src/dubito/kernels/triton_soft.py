"""The losses of soft targets in Triton, for alpha >= 1, in three sweeps over the classes.

A sweep's results are row sums that the next one needs: first the evidence, then what is needed of
the class that may hold nearly all of alpha0, then the terms and the fields of the gradient. Where a
row is one block the compiler keeps it, and the sweeps cost no second load.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from dubito.kernels import triton_math as tm
from dubito.kernels.triton_rows import Terms, load, load_target, sweep

_LN2 = tl.constexpr(0.6931471805599453)


class Totals(NamedTuple):
    """Sums over the classes (R,)."""

    evidence: tl.tensor
    removed: tl.tensor  # the evidence without the target's share
    weight: tl.tensor  # of the row, by its classes


class Parts(NamedTuple):
    """Sums over the classes (R,) that need `Totals`."""

    rest: tl.tensor  # alpha0 less the class beyond the limit, if there is one
    sag: tl.tensor
    logs: tl.tensor
    bregman: tl.tensor  # of the evidence, and the part of it below the threshold
    near: tl.tensor
    removed_bregman: tl.tensor  # the same without the target's share
    removed_near: tl.tensor


class Sums(NamedTuple):
    """Sums over the classes (R,) that need `Parts`."""

    fisher_bias: tl.tensor
    fisher_variance: tl.tensor
    mse_bias: tl.tensor
    mse_variance: tl.tensor
    marginal: tl.tensor
    expected: tl.tensor
    variance: tl.tensor  # p q times its weights
    field: tl.tensor  # p times the field, without the class beyond the limit
    top: tl.tensor  # the same of that class


class Row(NamedTuple):
    """All sums over the classes, and the weights of the terms in each row."""

    totals: tl.tensor
    parts: tl.tensor
    sums: tl.tensor
    weights: tl.tensor


class _Class(NamedTuple):
    """A block of classes (R, C)."""

    e: tl.tensor
    y: tl.tensor
    here: tl.tensor


@triton.jit
def _classes(tile: tl.tensor, j: tl.tensor, END: tl.constexpr, C: tl.constexpr) -> tl.tensor:
    here = (j < C.K)[None, :] & tile.inside[:, None]
    return _Class(tm.evidence(load(tile, j, END, C), C), load_target(tile, j, C), here)


@triton.jit
def _is_top(m: tl.tensor, e: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """The class that holds most of alpha0."""
    return e > (0.625 * (m.evidence + C.K) - 1.0)[:, None]


@triton.jit
def _shares(
    m: tl.tensor, rest: tl.tensor, e: tl.tensor, y: tl.tensor, C: tl.constexpr
) -> tl.tensor:
    """1/alpha0, p, 1 - p, y - p, and which class is beyond the limit."""
    inverse = tm.inverse(m.evidence + C.K)[:, None]
    top = _is_top(m, e, C)
    p = (1.0 + e) * inverse
    q = tl.where(top, rest[:, None] * inverse, 1.0 - p)
    return inverse, p, q, y * q - (1.0 - y) * p, top


@triton.jit
def _add(total: tl.tensor, values: tl.tensor, here: tl.tensor) -> tl.tensor:
    return total + tl.sum(tl.where(here, values, 0.0), 1)


@triton.jit
def _first(
    m: tl.tensor, given: tl.tensor, t: tl.tensor, tile: tl.tensor, j: tl.tensor,
    END: tl.constexpr, C: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    c = _classes(tile, j, END, C)
    weight = m.weight
    if C.class_weighted:
        by = tl.load(t.class_weight + j, j < C.K, 0.0).to(tl.float32)
        weight += tl.sum(c.y * by[None, :], 1)
    removed = _add(m.removed, c.e * (1.0 - c.y), c.here)
    return Totals(_add(m.evidence, c.e, c.here), removed, weight)


@triton.jit
def _bregman(total: tl.tensor, near: tl.tensor, e: tl.tensor, here: tl.tensor) -> tl.tensor:
    z, _, below = tm.family(e)
    value, small = tm.bregman(e, z, tm.log2(below))
    return _add(total, value, here), _add(near, e, here & small)


@triton.jit
def _second(
    s: tl.tensor, m: tl.tensor, t: tl.tensor, tile: tl.tensor, j: tl.tensor,
    END: tl.constexpr, C: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    c = _classes(tile, j, END, C)
    sag, logs, bregman, near = s.sag, s.logs, s.bregman, s.near
    removed, removed_near = s.removed_bregman, s.removed_near
    if C.groups.penalty:
        _, each, below = tm.family(c.e)
        sag = _add(sag, each, c.here)
        logs = _add(logs, tm.log2(below), c.here)
    if C.groups.uniform:
        bregman, near = _bregman(bregman, near, c.e, c.here)
    if C.groups.removed:
        removed, removed_near = _bregman(removed, removed_near, c.e * (1.0 - c.y), c.here)
    rest = _add(s.rest, 1.0 + c.e, c.here & (_is_top(m, c.e, C) == 0))
    return Parts(rest, sag, logs, bregman, near, removed, removed_near)


@triton.jit
def _field(
    w: tl.tensor, trigamma: tl.tensor, p: tl.tensor, q: tl.tensor, d: tl.tensor, share: tl.tensor
) -> tl.tensor:
    """The weight of p q, and the field that the gradient of the squared errors centers."""
    spread = (w.mse_variance[:, None] + w.fisher_variance[:, None] * trigamma) * share
    field = (q - p) * spread
    return spread, field - 2.0 * d * (w.mse_bias[:, None] + w.fisher_bias[:, None] * trigamma)


@triton.jit
def _third(
    s: tl.tensor, given: tl.tensor, t: tl.tensor, tile: tl.tensor, j: tl.tensor,
    END: tl.constexpr, C: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The sums of the terms, and those of the gradient."""
    m, rest, w = given
    c = _classes(tile, j, END, C)
    inverse, p, q, d, top = _shares(m, rest, c.e, c.y, C)
    fisher_bias, fisher_variance = s.fisher_bias, s.fisher_variance
    mse_bias, mse_variance = s.mse_bias, s.mse_variance
    marginal, expected = s.marginal, s.expected
    variance, fields, tops = s.variance, s.field, s.top
    trigamma = tm.inverse(tm.family(c.e)[2])
    if C.groups.fisher:
        fisher_bias = _add(fisher_bias, d * d * trigamma, c.here)
        fisher_variance = _add(fisher_variance, p * q * trigamma, c.here)
    if C.groups.mse:
        mse_bias = _add(mse_bias, d * d, c.here)
        mse_variance = _add(mse_variance, p * q, c.here)
    if C.groups.marginal or C.groups.expected:
        surprise = tm.row_log1p(q * tm.inverse(p))
        marginal = _add(marginal, c.y * surprise, c.here)
        halves = 0.5 * q * tm.inverse(1.0 + c.e)
        deltas = tm.row_delta(1.0 + c.e) - tm.row_delta(m.evidence + C.K)[:, None]
        expected = _add(expected, c.y * (surprise + halves + deltas), c.here)
    if C.gradient and (C.groups.fisher or C.groups.mse):
        share = inverse * tm.inverse(1.0 + inverse)
        spread, field = _field(w, trigamma, p, q, d, share)
        variance = _add(variance, p * q * spread, c.here)
        fields = _add(fields, p * field, c.here & (top == 0))
        tops = _add(tops, p * field, c.here & top)
    return Sums(
        fisher_bias, fisher_variance, mse_bias, mse_variance, marginal, expected,
        variance, fields, tops,
    )  # fmt: skip


@triton.jit
def totals(t: tl.tensor, tile: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """The evidence of rows, and their weights."""
    R: tl.constexpr = C.R
    o = tl.zeros([R], tl.float32)
    return sweep(Totals(o, o, o), o, t, tile, _first, C)


@triton.jit
def row_of(m: tl.tensor, t: tl.tensor, tile: tl.tensor, w: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """All sums over the classes, of `totals` and the weights of the terms in each row."""
    o = tl.zeros_like(m.evidence)
    parts = sweep(Parts(o, o, o, o, o, o, o), m, t, tile, _second, C)
    empty = Sums(o, o, o, o, o, o, o, o, o)
    return Row(m, parts, sweep(empty, (m, parts.rest, w), t, tile, _third, C), w)


@triton.jit
def _divergence(
    evidence: tl.tensor, bregman: tl.tensor, near: tl.tensor, C: tl.constexpr
) -> tl.tensor:
    total, less, small = tm.row_divergence(evidence, C.K, C.constants.mu_total)
    return tl.where(small, bregman + (evidence - near) - total, (bregman - near) - less)


@triton.jit
def terms(r: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """The terms of rows, from their sums."""
    m, a, s = r.totals, r.parts, r.sums
    alpha0 = m.evidence + C.K
    share = tm.inverse(alpha0 + 1.0)
    o = tl.zeros_like(share)
    penalty, removed, uniform = o, o, o
    if C.groups.penalty:
        _, sag, below = tm.family(alpha0 - 1.0)
        ratio = below * tm.inverse(sag - a.sag)
        penalty = C.constants.growth * (_LN2 * (a.logs + tm.log2(ratio)))
    if C.groups.removed:
        divergence = _divergence(m.removed, a.removed_bregman, a.removed_near, C)
        removed = C.constants.growth * divergence
    if C.groups.uniform:
        uniform = _divergence(m.evidence, a.bregman, a.near, C)
    return Terms(
        s.mse_bias, share * s.mse_variance, s.fisher_bias, share * s.fisher_variance,
        penalty, removed, s.marginal, s.expected,
        -uniform - C.constants.log_gamma, uniform, o, o, o,
    )  # fmt: skip


@triton.jit
def _error_slope(
    r: tl.tensor, e: tl.tensor, y: tl.tensor, trigamma: tl.tensor, bend: tl.tensor, C: tl.constexpr
) -> tl.tensor:
    """Of the squared errors; `bend` is -psi_2."""
    s, w = r.sums, r.weights
    inverse, p, q, d, top = _shares(r.totals, r.parts.rest, e, y, C)
    share = inverse * tm.inverse(1.0 + inverse)
    _, field = _field(w, trigamma, p, q, d, share)
    mean = (s.field + s.top)[:, None]
    centered = tl.where(top, q * field - s.field[:, None], field - mean)
    curve = d * d * w.fisher_bias[:, None] + p * q * (w.fisher_variance[:, None] * share)
    return centered * inverse - curve * bend - s.variance[:, None] * share


@triton.jit
def _divergence_slope(evidence0: tl.tensor, e: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """e psi_1(1 + e) - evidence0 psi_1(K + evidence0); where both are close to 1, less 1."""
    _, sag0, below0 = tm.family(evidence0 + (C.K - 1.0))
    trigamma0 = tm.inverse(below0)
    large = evidence0 * trigamma0 >= 0.5
    common = trigamma0 * tl.where(large, -(C.K + sag0), evidence0)
    _, sag, below = tm.family(e)
    return tm.inverse(below) * tl.where(large[:, None], -(1.0 + sag), e) - common[:, None]


@triton.jit
def gradient(
    r: tl.tensor, x: tl.tensor, tile: tl.tensor, j: tl.tensor, C: tl.constexpr
) -> tl.tensor:
    """The gradient of the values x (R, C) of classes j (C,)."""
    m, a, w = r.totals, r.parts, r.weights
    e = tm.evidence(x, C)
    y = load_target(tile, j, C)
    alpha0 = m.evidence + C.K
    each = tm.gamma(e, e, False, False)
    total = tm.gamma(alpha0, alpha0 - 1.0, False, False)
    slope = tl.zeros_like(e)
    if C.groups.mse or C.groups.fisher:
        bend = each.trigamma * each.trigamma * each.rise
        slope += _error_slope(r, e, y, each.trigamma, bend, C)
    if C.groups.penalty:
        bracket = tm.inverse(total.sag - a.sag)
        common = total.trigamma * total.rise + bracket * total.fall
        own = each.trigamma * each.rise - bracket[:, None] * each.fall
        slope += w.fisher_penalty[:, None] * (own + common[:, None])
    if C.groups.removed:
        removed = (1.0 - y) * _divergence_slope(m.removed, e * (1.0 - y), C)
        slope += w.label_removed_kl[:, None] * removed
    if C.groups.uniform:
        weight = w.kl_to_uniform - w.differential_entropy
        slope += weight[:, None] * _divergence_slope(m.evidence, e, C)
    _, _, q, _, _ = _shares(m, a.rest, e, y, C)
    if C.groups.marginal:
        inverse = tm.inverse(alpha0)[:, None]
        slope += w.marginal_nll[:, None] * ((1.0 - y) * inverse - y * q * tm.inverse(1.0 + e))
    if C.groups.expected:
        trigamma0 = total.trigamma[:, None]
        gap = trigamma0 * (q * alpha0[:, None] + (total.sag[:, None] - each.sag))
        own = (1.0 - y) * trigamma0 - y * (each.trigamma * gap)
        slope += w.expected_cross_entropy[:, None] * own
    return slope * tm.evidence_slope(x, e, C)
