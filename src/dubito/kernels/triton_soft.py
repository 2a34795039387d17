"""The losses of soft targets in Triton, for alpha >= 1, in three sweeps over the classes.

Each sweep computes row sums that the next one needs: first the evidence, then the sums for the
class that may have nearly all of alpha0, then the terms and the fields of the gradient. Where a row
is one block the compiler keeps it, and the sweeps cost no second load.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from dubito.kernels import triton_math as tm
from dubito.kernels.triton_rows import Tile, load_evidence, load_target, sweep
from dubito.numerics.spec import PerForm

__all__: list[str] = []


class Totals(NamedTuple):
    """Sums over the classes (R,)."""

    evidence: tl.tensor
    removed: tl.tensor  # the evidence without the target's share
    weight: tl.tensor  # of the row, by its classes


class Parts(NamedTuple):
    """Sums over the classes (R,) that need `Totals`."""

    rest: tl.tensor  # alpha0 without a class above 5/8 of it
    r_less_half: tl.tensor
    logs: tl.tensor
    bregman: tl.tensor  # of the evidence, and the part of it below the threshold
    small_e: tl.tensor
    removed_bregman: tl.tensor  # the same without the target's share
    removed_small_e: tl.tensor


class Sums(NamedTuple):
    """Sums over the classes (R,) that need `Parts`."""

    fisher_bias: tl.tensor
    fisher_variance: tl.tensor
    mse_bias: tl.tensor
    mse_variance: tl.tensor
    marginal: tl.tensor
    expected: tl.tensor
    variance: tl.tensor  # p q times its weights
    field: tl.tensor  # p times the field, without a class above 5/8 of alpha0
    top: tl.tensor  # the same of that class


@triton.jit
def _is_top(m: Totals, e: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """The class above 5/8 of alpha0."""
    return e > (0.625 * (m.evidence + C.K) - 1.0)[:, None]


@triton.jit
def _shares(m: Totals, rest: tl.tensor, e: tl.tensor, y: tl.tensor, C: tl.constexpr) -> tl.tuple:
    """1/alpha0, p, 1 - p, y - p, and which class is above 5/8 of alpha0."""
    inverse = tm.inverse(m.evidence + C.K)[:, None]
    top = _is_top(m, e, C)
    p = (1.0 + e) * inverse
    q = tl.where(top, rest[:, None] * inverse, 1.0 - p)
    return inverse, p, q, y * q - (1.0 - y) * p, top


@triton.jit
def _first(
    given: tl.tensor, tile: Tile, j: tl.tensor, END: tl.constexpr, C: tl.constexpr
) -> tl.tuple:
    """A step of `sweep`: `Totals`."""
    e, here = load_evidence(tile, j, END, C)
    y = load_target(tile, j, C)
    weight = ()
    if C.class_weighted:
        weight = y * tl.load(tile.t.class_weight + j, j < C.K, 0.0).to(tl.float32)[None, :]
    return Totals(e, e * (1.0 - y), weight), here


@triton.jit
def _bregman(e: tl.tensor) -> tl.tuple:
    value, small = tm.bregman(e, tm.gamma(1.0 + e, e))
    return value, tl.where(small, e, 0.0)


@triton.jit
def _second(m: Totals, tile: Tile, j: tl.tensor, END: tl.constexpr, C: tl.constexpr) -> tl.tuple:
    """A step of `sweep`: `Parts`."""
    e, here = load_evidence(tile, j, END, C)
    y = load_target(tile, j, C)
    r_less_half, logs, bregman, small_e, removed, removed_small_e = (), (), (), (), (), ()
    if C.groups.penalty:
        g = tm.gamma(1.0 + e, e)
        r_less_half, logs = g.r_less_half, tm.log2(g.inverse_trigamma)
    if C.groups.uniform:
        bregman, small_e = _bregman(e)
    if C.groups.removed:
        removed, removed_small_e = _bregman(e * (1.0 - y))
    rest = tl.where(_is_top(m, e, C), 0.0, 1.0 + e)
    return Parts(rest, r_less_half, logs, bregman, small_e, removed, removed_small_e), here


@triton.jit
def _field(
    w: PerForm, trigamma: tl.tensor, p: tl.tensor, q: tl.tensor, d: tl.tensor, share: tl.tensor
) -> tl.tuple:
    """The weight of p q, and the field that the gradient of the squared errors centers."""
    spread = (w.mse_variance[:, None] + w.fisher_variance[:, None] * trigamma) * share
    field = (q - p) * spread
    return spread, field - 2.0 * d * (w.mse_bias[:, None] + w.fisher_bias[:, None] * trigamma)


@triton.jit
def _third(
    given: tl.tensor, tile: Tile, j: tl.tensor, END: tl.constexpr, C: tl.constexpr
) -> tl.tuple:
    """A step of `sweep`: `Sums`, for the terms and for the gradient."""
    m, rest, w = given
    e, here = load_evidence(tile, j, END, C)
    y = load_target(tile, j, C)
    inverse, p, q, d, top = _shares(m, rest, e, y, C)
    fisher_bias, fisher_variance, mse_bias, mse_variance = (), (), (), ()
    marginal, expected, variance, field, top_field = (), (), (), (), ()
    trigamma = tm.gamma(1.0 + e, e).trigamma
    if C.groups.fisher:
        fisher_bias, fisher_variance = d * d * trigamma, p * q * trigamma
    if C.groups.mse:
        mse_bias, mse_variance = d * d, p * q
    if C.groups.marginal or C.groups.expected:
        surprise = tm.log1p(q * tm.inverse(p))
        marginal = y * surprise
        delta0 = tm.remainders(m.evidence + C.K, False)[1]
        delta = tm.remainders(1.0 + e, False)[1] - delta0[:, None]
        expected = y * (surprise + 0.5 * q * tm.inverse(1.0 + e) + delta)
    if C.gradient and (C.groups.fisher or C.groups.mse):
        share = inverse * tm.inverse(1.0 + inverse)
        spread, each = _field(w, trigamma, p, q, d, share)
        variance = p * q * spread
        field, top_field = tl.where(top, 0.0, p * each), tl.where(top, p * each, 0.0)
    s = Sums(
        fisher_bias, fisher_variance, mse_bias, mse_variance, marginal, expected,
        variance, field, top_field,
    )  # fmt: skip
    return s, here


@triton.jit
def totals(tile: Tile, C: tl.constexpr) -> Totals:
    """The evidence of rows, and their weights."""
    return Totals(*sweep(_first, len(Totals._fields), (), tile, C))


@triton.jit
def row_of(
    m: Totals, tile: Tile, w: PerForm, C: tl.constexpr
) -> tuple[Totals, Parts, Sums, PerForm]:
    """`Totals`, `Parts`, `Sums` and the weights of the forms, from the first and the last."""
    parts = Parts(*sweep(_second, len(Parts._fields), m, tile, C))
    sums = sweep(_third, len(Sums._fields), (m, parts.rest, w), tile, C)
    return m, parts, Sums(*sums), w


@triton.jit
def terms(r: tl.tuple, C: tl.constexpr) -> PerForm:
    """The terms of rows, from their sums."""
    m, a, s, _ = r
    alpha0 = m.evidence + C.K
    share = tm.inverse(alpha0 + 1.0)
    o = tl.zeros_like(share)
    penalty, removed, uniform = o, o, o
    MU: tl.constexpr = C.constants.mu_total
    if C.groups.penalty:
        g = tm.gamma(alpha0, alpha0 - 1.0)
        penalty = tm.LN2 * (
            a.logs + tm.log2(g.inverse_trigamma * tm.inverse(g.r_less_half - a.r_less_half))
        )
    if C.groups.removed:
        removed = tm.divergence(
            a.removed_bregman, a.removed_small_e, m.removed + C.K, m.removed, C.K, MU, False
        )
    if C.groups.uniform:
        uniform = tm.divergence(a.bregman, a.small_e, alpha0, m.evidence, C.K, MU, False)
    return PerForm(
        s.mse_bias, share * s.mse_variance, s.fisher_bias, share * s.fisher_variance,
        penalty, removed, s.marginal, s.expected,
        -uniform - C.constants.log_gamma, uniform, o, o, o,
    )  # fmt: skip


@triton.jit
def _error_slope(
    r: tl.tuple, e: tl.tensor, y: tl.tensor, g: tm.Gamma, C: tl.constexpr
) -> tl.tensor:
    """The gradient of the squared errors."""
    m, a, s, w = r
    inverse, p, q, d, top = _shares(m, a.rest, e, y, C)
    share = inverse * tm.inverse(1.0 + inverse)
    _, field = _field(w, g.trigamma, p, q, d, share)
    mean = (s.field + s.top)[:, None]
    centered = tl.where(top, q * field - s.field[:, None], field - mean)
    curve = d * d * w.fisher_bias[:, None] + p * q * (w.fisher_variance[:, None] * share)
    curve *= g.trigamma * g.trigamma * g.one_plus_dr
    return centered * inverse - curve - s.variance[:, None] * share


@triton.jit
def _divergence_slope(
    weight: tl.tensor, evidence0: tl.tensor, e: tl.tensor, C: tl.constexpr
) -> tl.tensor:
    """The gradient of KL(Dir(1 + e) || Dir(1)) times the weights of rows."""
    g0 = tm.gamma(evidence0 + C.K, evidence0 + (C.K - 1.0))
    common, n_e, n_r = tm.divergence_slopes(weight, g0, evidence0, C.K)
    g = tm.gamma(1.0 + e, e)
    return g.trigamma * (n_e[:, None] * e + n_r[:, None] * (1.0 + g.r_less_half)) - common[:, None]


@triton.jit
def gradient(r: tl.tuple, x: tl.tensor, tile: Tile, j: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """The gradient of the values x (R, C) of classes j (C,)."""
    m, a, _, w = r
    e = tm.evidence(x, C)
    y = load_target(tile, j, C)
    alpha0 = m.evidence + C.K
    each, total = tm.gamma(1.0 + e, e), tm.gamma(alpha0, alpha0 - 1.0)
    slope = tl.zeros_like(e)
    if C.groups.mse or C.groups.fisher:
        slope += _error_slope(r, e, y, each, C)
    if C.groups.penalty:
        bracket = tm.inverse(total.r_less_half - a.r_less_half)
        common = total.trigamma * total.one_plus_dr + bracket * total.minus_dr
        own = each.trigamma * each.one_plus_dr - bracket[:, None] * each.minus_dr
        slope += w.fisher_penalty[:, None] * (own + common[:, None])
    if C.groups.removed:
        rest = 1.0 - y
        slope += rest * _divergence_slope(w.label_removed_kl, m.removed, e * rest, C)
    if C.groups.uniform:
        weight = w.kl_to_uniform - w.differential_entropy
        slope += _divergence_slope(weight, m.evidence, e, C)
    q = _shares(m, a.rest, e, y, C)[2]
    if C.groups.marginal:
        inverse = tm.inverse(alpha0)[:, None]
        slope += w.marginal_nll[:, None] * ((1.0 - y) * inverse - y * q * tm.inverse(1.0 + e))
    if C.groups.expected:
        trigamma0 = total.trigamma[:, None]
        gap = trigamma0 * (q * alpha0[:, None] + (total.r_less_half[:, None] - each.r_less_half))
        own = (1.0 - y) * trigamma0 - y * (each.trigamma * gap)
        slope += w.expected_cross_entropy[:, None] * own
    return slope * tm.evidence_slope(x, e, C)
