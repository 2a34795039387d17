"""The losses of labels in Triton, row by row: the terms, and the coefficients of the gradient.

A row's sums, of `triton_labels`, leave out the label, whose part is added here.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from dubito.kernels import triton_labels as labels
from dubito.kernels import triton_math as tm
from dubito.numerics.spec import PerForm

__all__: list[str] = []

# two-point Gauss rule on [0, 1]
_NODES = tl.constexpr((0.21132486540518713, 0.7886751345948129))


class Row(NamedTuple):
    """The label, and totals (R,)."""

    alpha: tl.tensor
    e: tl.tensor  # alpha - base of the label
    own: tm.Gamma  # the gamma family at alpha
    alpha0: tl.tensor
    total: tm.Gamma  # the same at alpha0
    inverse: tl.tensor  # 1/alpha0
    share: tl.tensor  # 1/(alpha0 + 1)
    p: tl.tensor
    q: tl.tensor  # 1 - p


@triton.jit
def row_of(alpha: tl.tensor, e: tl.tensor, own: tm.Gamma, rest: tl.tensor, C: tl.constexpr) -> Row:
    """Values that terms and slopes share, from the label and the sum over the other classes."""
    alpha0 = alpha + rest
    inverse = tm.inverse(alpha0)
    return Row(
        alpha, e, own, alpha0, tm.gamma(alpha0, alpha0 - 1.0, C.below_one),
        inverse, inverse * tm.inverse(1.0 + inverse), alpha * inverse, rest * inverse,
    )  # fmt: skip


# --- values --------------------------------------------------------------------------------------


@triton.jit
def _parts(s: labels.Sums, r: Row) -> tl.tuple:
    """p and 1 - p of a class above 5/8 of alpha0, or 0, and sums of p and p^2 over the others."""
    top = s.top * r.inverse
    return top, (s.alpha + r.alpha) * r.inverse, s.alpha * r.inverse, s.squares


@triton.jit
def _bracket(s: labels.Sums, r: Row, C: tl.constexpr) -> tl.tensor:
    """1/psi_1(alpha0) - sum_j 1/psi_1(alpha_j)."""
    bracket = r.total.excess - s.excess
    if C.below_one:  # below 1 the inverses themselves are small
        more = 0.5 * (s.large - 1.0) + bracket
        bracket = tl.where(r.alpha0 < 1.0, r.total.inverse_trigamma - s.inverse_trigamma, more)
    return bracket


@triton.jit
def _reverse(s: labels.Sums, r: Row, C: tl.constexpr) -> tl.tensor:
    """KL(Dir(alpha) || Dir(beta of the label, 1 of the others)).

    With much evidence the logarithms of the label and of the total are combined: beta may be large.
    """
    k: tl.constexpr = C.constants
    beta: tl.constexpr = C.spec.beta
    beta0: tl.constexpr = C.K - 1 + C.spec.beta
    d = r.alpha - beta
    d0 = s.evidence + d
    lead, remainder, _ = tm.bregman_parts(r.alpha, beta, 1.0 / beta, d, k.mu_beta, True)
    lead0, remainder0, log0 = tm.bregman_parts(
        r.alpha0, beta0, 1.0 / beta0, d0, k.mu_beta_total, True
    )
    logs = beta * (tm.log1p(s.rest * tm.inverse(r.alpha)) - k.log_beta) + (C.K - 1.0) * log0
    close = s.bregman + (s.evidence - s.small_e) + (lead + remainder) - (lead0 + remainder0)
    far = (s.bregman - s.small_e) + (remainder - remainder0) + logs
    return tl.where(d0 < 2.5 * beta0, close, far)


@triton.jit
def _forward(s: labels.Sums, r: Row, C: tl.constexpr) -> tl.tensor:
    """KL(Dir(beta of the label, 1 of the others) || Dir(alpha))."""
    beta: tl.constexpr = C.constants.forward_beta
    beta0: tl.constexpr = C.K - 1 + C.constants.forward_beta
    total = labels.total_of(r.alpha, s.rest, s.evidence, C)
    own = labels.forward(r.alpha, r.alpha - beta, beta, total, C)
    mu = tm.remainders(r.alpha0, True)[0]
    a = tl.full(r.alpha.shape, beta0, tl.float32)
    parts = tm.bregman_parts(a, r.alpha0, r.inverse, -total.spread * beta0, mu, True)
    return s.forward + own - parts[1]


@triton.jit
def _integrals(s: labels.Sums, r: Row) -> tl.tuple:
    """The integrals of psi_1 and -psi_2 from 1 + alpha to 1 + alpha0, where these are close."""
    first, second = tl.zeros_like(r.alpha), tl.zeros_like(r.alpha)
    for i in tl.static_range(2):
        x = r.alpha + s.rest * _NODES[i]
        g = tm.gamma(1.0 + x, x)
        part = (0.5 * s.rest) * g.trigamma
        first += part
        second += part * g.trigamma * g.one_plus_dr
    return first, second


@triton.jit
def _steps(s: labels.Sums, r: Row, C: tl.constexpr) -> tl.tuple:
    """Of the label psi(alpha0) - psi(alpha) and psi_1(alpha) - psi_1(alpha0).

    Where alpha may be below 1, both are computed one step further; the difference is exact.
    """
    x = r.alpha + 1.0 if C.below_one else r.alpha
    x0 = x + s.rest
    inverse, inverse0 = tm.inverse(x), tm.inverse(x0)
    digamma = tm.log1p(s.rest * inverse) + 0.5 * (s.rest * inverse0) * inverse
    digamma += tm.remainders(x, False)[1] - tm.remainders(x0, False)[1]
    g, g0 = tm.gamma(x, x - 1.0), tm.gamma(x0, x0 - 1.0)
    trigamma = (g0.trigamma * (s.rest + (g0.r_less_half - g.r_less_half))) * g.trigamma
    if C.below_one:
        first, second = _integrals(s, r)
        close = s.rest < 0.05 * x
        own = tm.inverse(r.alpha)
        product = (s.rest * r.inverse) * own
        digamma = tl.where(close, first, digamma) + product
        trigamma = tl.where(close, second, trigamma) + product * (own + r.inverse)
    return digamma, trigamma


@triton.jit
def terms(s: labels.Sums, r: Row, C: tl.constexpr) -> PerForm:
    """The terms of rows, from their sums and their labels."""
    zero = tl.zeros_like(r.alpha)
    mse_bias, mse_variance, fisher_bias, fisher_variance = zero, zero, zero, zero
    penalty, removed, uniform, reverse, forward = zero, zero, zero, zero, zero
    logs, step = zero, zero
    if C.groups.mse:
        p_top, q_top, sum1, sum2 = _parts(s, r)
        mse_bias = r.q * r.q + sum2 + p_top * p_top
        mse_variance = r.share * (sum1 - sum2 + r.p * r.q + p_top * q_top)
    if C.groups.fisher:
        first, second = r.inverse * s.first, r.inverse * (r.inverse * s.second)
        fisher_bias = r.q * r.q * r.own.trigamma + second
        fisher_variance = r.share * (first - second + r.p * r.q * r.own.trigamma)
    if C.groups.penalty:
        ratio = r.total.inverse_trigamma * tm.inverse(_bracket(s, r, C))
        penalty = tm.LN2 * (s.logs + tm.log2(ratio))
    k: tl.constexpr = C.constants
    if C.groups.removed:
        removed = tm.divergence(
            s.bregman, s.small_e, s.rest + k.base, s.evidence, k.base * C.K, k.mu_total, C.below_one
        )
    if C.groups.uniform:
        own, small = labels.bregman(r.alpha, r.e, r.own, C)
        small_e = s.small_e + tl.where(small, r.e, 0.0)
        d0 = s.evidence + r.e
        uniform = tm.divergence(
            s.bregman + own, small_e, r.alpha0, d0, C.K, k.mu_total, C.below_one
        )
    if C.groups.reverse:
        reverse = _reverse(s, r, C)
    if C.groups.forward:
        forward = _forward(s, r, C)
    if C.groups.marginal or C.groups.expected:
        logs = tm.log1p(s.rest * tm.inverse(r.alpha))
        step = _steps(s, r, C)[0]
    return PerForm(
        mse_bias, mse_variance, fisher_bias, fisher_variance, penalty, removed, logs, step,
        -uniform - C.constants.log_gamma, uniform, forward, reverse, forward,
    )  # fmt: skip


# --- slopes --------------------------------------------------------------------------------------


@triton.jit
def _fisher_slopes(s: labels.Sums, r: Row, w: PerForm) -> tl.tuple:
    """Of the Fisher-weighted errors: in common, and the label's."""
    first, second = r.inverse * s.first, r.inverse * (r.inverse * s.second)
    trigamma = r.own.trigamma
    spread = w.fisher_variance * r.share
    field = (first - 2.0 * second) * spread + 2.0 * w.fisher_bias * second
    own = ((r.q - r.p) * spread - 2.0 * r.q * w.fisher_bias) * trigamma
    bend = r.q * (r.q * w.fisher_bias + r.p * spread) * trigamma * trigamma
    total_slope = (first - second + r.p * r.q * trigamma) * (spread * r.share)
    common = -(field + r.p * own) * r.inverse - total_slope
    return common, (r.q * own - field) * r.inverse - bend * r.own.one_plus_dr - total_slope


@triton.jit
def _mse_slopes(s: labels.Sums, r: Row, w: PerForm) -> tl.tuple:
    """Of the squared errors: in common, the label's, and that of the class set apart."""
    p_top, q_top, sum1, sum2 = _parts(s, r)
    spread = w.mse_variance * r.share
    field = (sum1 - 2.0 * sum2) * spread + 2.0 * w.mse_bias * sum2
    own = (r.q - r.p) * spread - 2.0 * r.q * w.mse_bias
    top = (q_top - p_top) * spread + 2.0 * p_top * w.mse_bias
    total_slope = (sum1 - sum2 + r.p * r.q + p_top * q_top) * (spread * r.share)
    common = -(field + r.p * own + p_top * top) * r.inverse
    label = (r.q * own - (field + p_top * top)) * r.inverse
    return (
        common - total_slope,
        label - total_slope,
        (q_top * top - (field + r.p * own)) * r.inverse - total_slope,
    )


@triton.jit
def _penalty_slopes(s: labels.Sums, r: Row, weight: tl.tensor, C: tl.constexpr) -> tl.tuple:
    """The penalty's slopes: in common, the label's own, and its weight over the bracket."""
    bracket = weight * tm.inverse(_bracket(s, r, C))
    minus_dr0, minus_dr = r.total.minus_dr, r.own.minus_dr
    if C.below_one:
        small = r.alpha0 < 1.0
        minus_dr0 = tl.where(small, -r.total.one_plus_dr, minus_dr0)
        minus_dr = tl.where(small, -r.own.one_plus_dr, minus_dr)
    common = weight * r.total.one_plus_dr * r.total.trigamma + bracket * minus_dr0
    return common, weight * r.own.one_plus_dr * r.own.trigamma - bracket * minus_dr, bracket


@triton.jit
def slopes(  # noqa: C901, PLR0915 - one group of forms after the other
    s: labels.Sums, r: Row, w: PerForm, C: tl.constexpr
) -> labels.Slopes:
    """The coefficients of the gradient of rows, from their sums and their labels."""
    o = tl.zeros_like(r.alpha)
    common, label, n, n_a, n_e, n_r, m_0, m_a, bracket = o, o, o, o, o, o, o, o, o
    mse_common, top, forward = o, o, o
    if C.groups.fisher:
        common, label = _fisher_slopes(s, r, w)
        n = r.inverse * (w.fisher_variance * r.share)
        m_a = r.inverse * (r.inverse * (w.fisher_variance * r.share - w.fisher_bias))
        m_0 = -n
        n_a = -2.0 * m_a
    if C.groups.mse:
        mse_common, own, top = _mse_slopes(s, r, w)
        label += own
    if C.groups.penalty:
        shared, own, bracket = _penalty_slopes(s, r, w.fisher_penalty, C)
        common, label = common + shared, label + (own + shared)
    if C.groups.removed:  # the label is removed from the total too, and has no slope
        alpha = s.rest + C.constants.base
        g = tm.gamma(alpha, alpha - 1.0, C.below_one)
        shared, n_e, n_r = tm.divergence_slopes(
            w.label_removed_kl, g, s.evidence, C.constants.base * C.K
        )
        common -= shared
    if C.groups.uniform:
        weight = w.kl_to_uniform - w.differential_entropy
        shared, by_e, by_r = tm.divergence_slopes(weight, r.total, s.evidence + r.e, C.K)
        label += r.own.trigamma * (by_e * r.e + by_r * (1.0 + r.own.r_less_half)) - shared
        common, n_e, n_r = common - shared, n_e + by_e, n_r + by_r
    if C.groups.reverse:
        d = r.alpha - C.spec.beta
        shared, by_e, by_r = tm.divergence_slopes(
            w.reverse_kl, r.total, s.evidence + d, C.K - 1 + C.spec.beta
        )
        # the label's slope minus the total's: both contain beta, which may be large
        step = _steps(s, r, C)[1]
        close = d * step - s.evidence * r.total.trigamma
        far = (C.K - 1.0 + (r.total.r_less_half - r.own.r_less_half)) * r.total.trigamma
        far -= (C.spec.beta + r.own.r_less_half) * step
        label += w.reverse_kl * tl.where(by_r == 0.0, close, far)
        common, n_e, n_r = common - shared, n_e + by_e, n_r + by_r
    if C.groups.forward:
        forward = w.kl_from_uniform + w.forward_kl
        common += forward * C.constants.forward_step
        label += forward * (C.constants.forward_label_step - _steps(s, r, C)[0])
    if C.groups.marginal:
        common += w.marginal_nll * r.inverse
        label -= w.marginal_nll * r.q * tm.inverse(r.alpha)
    if C.groups.expected:
        common += w.expected_cross_entropy * r.total.trigamma
        label -= w.expected_cross_entropy * _steps(s, r, C)[1]
    spread = w.mse_variance * r.share
    n += n_r * C.constants.base
    if not C.below_one:  # alpha = 1 + e
        n, n_e, m_0 = n + n_a, n_e + n_a, m_0 + m_a
    return labels.Slopes(
        r, common, label, n, n_a, n_e, n_r, w.fisher_penalty, m_0, m_a, bracket,
        forward, spread, 2.0 * (w.mse_bias - spread), mse_common, top,
    )  # fmt: skip
