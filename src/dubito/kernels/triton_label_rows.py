"""The losses of labels in Triton, row by row: the terms, and what the gradient takes.

A row's sums, of `triton_labels`, leave out the label, whose part is added here.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from dubito.kernels import triton_math as tm
from dubito.kernels.triton_labels import FISHER, KL, MSE, PENALTY
from dubito.kernels.triton_rows import Numbers

_LARGER = tl.constexpr(2.0**40)  # what made the squares smaller, undone
_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _shares(s: tl.tensor, e: tl.tensor, K: tl.constexpr) -> tl.tensor:
    """1/alpha0, 1/(alpha0 + 1), and p and 1 - p of the label."""
    rest = s.evidence + (K - 1.0)
    inverse = tm.inverse(1.0 + e + rest)
    return inverse, inverse * tm.inverse(1.0 + inverse), (1.0 + e) * inverse, rest * inverse


@triton.jit
def _parts(s: tl.tensor, e: tl.tensor, most: tl.tensor, inverse: tl.tensor) -> tl.tensor:
    """Of the class set apart p and 1 - p, if there is one, and of the others sums of p and p^2."""
    larger = inverse * _LARGER
    top = tl.where(s.top > most, (1.0 + s.top) * inverse, 0.0)
    return top, (s.alpha + (1.0 + e)) * inverse, s.alpha * inverse, larger * larger * s.squares


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
    fisher_bias, fisher_variance, mse_bias, mse_variance = zero, zero, zero, zero
    penalty, divergence, marginal, expected = zero, zero, zero, zero
    alpha, rest = 1.0 + e, s.evidence + (K - 1.0)
    inverse, share, p, q = _shares(s, e, K)
    if WHICH[FISHER]:
        trigamma = tm.trigamma(e)
        first, second = inverse * s.first, inverse * (inverse * s.second)
        fisher_bias = q * q * trigamma + second
        fisher_variance = share * (first - second + p * q * trigamma)
    if WHICH[MSE]:
        p_top, q_top, sum1, sum2 = _parts(s, e, most, inverse)
        mse_bias = q * q + sum2 + p_top * p_top
        mse_variance = share * (sum1 - sum2 + p * q + p_top * q_top)
    if WHICH[PENALTY]:
        penalty = growth * _penalty(s, alpha + rest, K)
    if WHICH[KL]:
        divergence = growth * _divergence(s, K, mu)
    if AT[6] > -2 or AT[7] > -2:
        marginal = tm.row_log1p(rest * tm.inverse(alpha))
    if AT[7] > -2:
        halves = 0.5 * q * tm.inverse(alpha)
        expected = marginal + halves + (tm.row_delta(alpha) - tm.row_delta(alpha + rest))
    return Numbers(
        fisher_bias, fisher_variance, mse_bias, mse_variance,
        penalty, divergence, marginal, expected,
    )  # fmt: skip


class Slopes(NamedTuple):
    """What the gradient of a row is made of (R,).

    With f = -r' a class has the slope psi_1 (N + M) - f (psi_1 M + bracket) and what is even, where
    N = n + n_e e + n_lack (r - 1) and M = m + alpha psi_1 (m_0 + m_e e).
    """

    even: tl.tensor
    """what all classes have in common"""
    label: tl.tensor
    """the slope of the label"""
    n: tl.tensor
    n_e: tl.tensor
    n_lack: tl.tensor
    m: tl.tensor
    m_0: tl.tensor
    m_e: tl.tensor
    bracket: tl.tensor
    """the penalty's weight over its bracket"""
    inverse: tl.tensor
    """1/alpha0; from here on for MSE alone"""
    mse: tl.tensor
    mse_p: tl.tensor
    top: tl.tensor
    """of the class set apart what MSE adds to its slope"""
    mse_even: tl.tensor


@triton.jit
def _fisher_slopes(s: tl.tensor, e: tl.tensor, w: tl.tensor, K: tl.constexpr) -> tl.tensor:
    """Of the Fisher-weighted errors: in common, and the label's."""
    inverse, share, p, q = _shares(s, e, K)
    first, second = inverse * s.first, inverse * (inverse * s.second)
    z, _, below = tm.family(e)
    trigamma = tm.inverse(below)
    spread = w.fisher_variance * share
    field = (first - 2.0 * second) * spread + 2.0 * w.fisher_bias * second
    own = ((q - p) * spread - 2.0 * q * w.fisher_bias) * trigamma
    bend = q * (q * w.fisher_bias + p * spread) * trigamma * trigamma
    fall = (first - second + p * q * trigamma) * (spread * share)
    even = -(field + p * own) * inverse - fall
    return even, (q * own - field) * inverse - bend * (1.0 - tm.excess_fall(z)) - fall


@triton.jit
def _mse_slopes(
    s: tl.tensor, e: tl.tensor, w: tl.tensor, most: tl.tensor, K: tl.constexpr
) -> tl.tensor:
    """Of the squared errors: in common, the label's, and that of the class set apart."""
    inverse, share, p, q = _shares(s, e, K)
    p_top, q_top, sum1, sum2 = _parts(s, e, most, inverse)
    spread = w.mse_variance * share
    field = (sum1 - 2.0 * sum2) * spread + 2.0 * w.mse_bias * sum2
    own = (q - p) * spread - 2.0 * q * w.mse_bias
    top = (q_top - p_top) * spread + 2.0 * p_top * w.mse_bias
    fall = (sum1 - sum2 + p * q + p_top * q_top) * (spread * share)
    even = -(field + p * own + p_top * top) * inverse
    label = (q * own - (field + p_top * top)) * inverse
    return even - fall, label - fall, (q_top * top - (field + p * own)) * inverse - fall


@triton.jit
def _penalty_slopes(
    s: tl.tensor, e: tl.tensor, weight: tl.tensor, alpha0: tl.tensor, K: tl.constexpr
) -> tl.tensor:
    """The penalty's slopes: in common, the label's own, and its weight over the bracket."""
    z0 = tm.variable(alpha0 - 1.0)
    z, _, below = tm.family(e)
    r0 = tm.excess(z0)
    fall0, fall = tm.excess_fall(z0), tm.excess_fall(z)
    bracket = weight * tm.inverse(0.5 * (K - 1.0) + (r0 - s.excess))
    even = weight * (1.0 - fall0) * tm.inverse(alpha0 - 0.5 + r0) + bracket * fall0
    own = weight * (1.0 - fall) * tm.inverse(below) - bracket * fall
    return even, own, bracket


@triton.jit
def slopes(
    s: tl.tensor, e: tl.tensor, w: tl.tensor, most: tl.tensor,
    K: tl.constexpr, WHICH: tl.constexpr, AT: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """All that the gradient of rows takes, from their sums and the evidence of their labels."""
    zero = tl.zeros_like(e)
    even, label, bracket, n, n_e, n_lack, m_0, m_e = zero, zero, zero, zero, zero, zero, zero, zero
    mse_even, top = zero, zero
    alpha, rest = 1.0 + e, s.evidence + (K - 1.0)
    alpha0 = alpha + rest
    inverse, share, _, q = _shares(s, e, K)
    if WHICH[FISHER]:
        even, label = _fisher_slopes(s, e, w, K)
        base = inverse * (w.fisher_variance * share)
        m_e = inverse * (inverse * (w.fisher_variance * share - w.fisher_bias))
        m_0 = m_e - base
        n_e = -2.0 * m_e
        n = base + n_e
    if WHICH[MSE]:
        mse_even, own, top = _mse_slopes(s, e, w, most, K)
        label += own
    if WHICH[PENALTY]:
        common, own, bracket = _penalty_slopes(s, e, w.fisher_penalty, alpha0, K)
        even, label = even + common, label + (own + common)
    if WHICH[KL]:  # its slope is e psi_1 less what is common; or else 1 is taken away from both
        r = tm.excess(tm.variable(rest))
        trigamma = tm.inverse(rest + 0.5 + r)
        large = s.evidence * trigamma >= 0.5
        kl = w.label_removed_kl
        even -= kl * trigamma * tl.where(large, 0.5 - r - K, s.evidence)
        n_e += tl.where(large, 0.0, kl)
        n_lack = tl.where(large, -kl, 0.0)
        n += 1.5 * n_lack
    if AT[6] > -2:
        even += w.marginal_nll * inverse
        label -= w.marginal_nll * q * tm.inverse(alpha)
    if AT[7] > -2:
        r0, r = tm.excess(tm.variable(alpha0 - 1.0)), tm.excess(tm.variable(e))
        trigamma0 = tm.inverse(alpha0 - 0.5 + r0)
        even += w.expected_cross_entropy * trigamma0
        gap = (trigamma0 * (rest + (r0 - r))) * tm.inverse(e + 0.5 + r)
        label -= w.expected_cross_entropy * gap
    spread = w.mse_variance * share
    return Slopes(
        even, label, n, n_e, n_lack, w.fisher_penalty, m_0, m_e, bracket,
        inverse, spread, 2.0 * (w.mse_bias - spread), top, mse_even,
    )  # fmt: skip
