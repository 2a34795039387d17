"""Exact values, gradients and scales of the functions of dirichlet.py; see reference.py."""

from dataclasses import replace

import numpy as np

from tests.reference import MP, Concentration, Point, Real, Truth, Vector, log, truth
from tests.reference_dissonance import dissonance_parts

# --- moments: one entry of the output, marked by `row` (and `column`) ----------------------------


def mean(x: Point) -> Truth:
    """p_k. Gradient others_k/alpha0^2 at k and -p_k/alpha0 elsewhere: single terms, plain scale."""
    p = x.value_at("row", x.probs)
    return truth(x, p, (x["row"] - p) / x.alpha0)


def variance(x: Point) -> Truth:
    """Var[p_k], a product of powers: g_j is the value times a signed sum of logarithmic slopes.

    The slopes: 1/alpha_j for the factor alpha_j, 1/others_k for the factor others_k, and
    -2/alpha0 - 1/(alpha0 + 1).  They do cancel (the variance peaks), so the terms count.
    """
    a0, row = x.alpha0, x["row"]
    alpha_k = x.value_at("row", x.alpha)
    value = alpha_k * (a0 - alpha_k) / (a0**2 * (a0 + 1))
    rising, falling = row / alpha_k + (1 - row) / (a0 - alpha_k), 2 / a0 + 1 / (a0 + 1)
    return truth(x, value, value * (rising - falling), value * (rising + falling))


def fisher_information(x: Point) -> Truth:
    """I_kl = [k = l] psi1(alpha_k) - psi1(alpha0).

    psi1(alpha_k) - psi1(alpha0) and the same of psi2 are well-conditioned however close alpha_k is
    to alpha0 (both are a positive sum over the other classes to first order): plain scale.
    """
    diagonal = x.total(x["row"] * x["column"])
    value = diagonal * x.value_at("row", x.psi1) - x.psi1_of_sum
    return truth(x, value, diagonal * x["row"] * x.psi2 - x.psi2_of_sum)


# --- entropies -----------------------------------------------------------------------------------


def entropy_of_mean(x: Point) -> Truth:
    """H = -sum p ln p, g_j = -(ln p_j + H)/alpha0; terms |ln p_j| and H."""
    log_probs = log(x.probs)
    value = -x.total(x.probs * log_probs)
    return truth(x, value, -(log_probs + value) / x.alpha0, (value - log_probs) / x.alpha0)


def expected_entropy(x: Point) -> Truth:
    """E[H] = sum_k p_k (psi(alpha0 + 1) - psi(alpha_k + 1)), every term positive.

    alpha0 g_j = [psi(alpha0 + 1) - psi(alpha_j + 1)] - E[H] + [w(alpha0) - w(alpha_j)] with
    w(x) = x psi1(x + 1) rising from 0 to 1: three terms.
    """
    a0 = x.alpha0
    gap = (x.psi0_of_sum + 1 / a0) - (x.psi0 + 1 / x.alpha)
    value = x.total(x.probs * gap)
    rise = (a0 * x.psi1_of_sum - 1 / a0) - (x.alpha * x.psi1 - 1 / x.alpha)
    return truth(x, value, (gap - value + rise) / a0, (gap + value + rise) / a0)


def mutual_information(x: Point) -> Truth:
    """H - E[H] = [sum_k u(alpha_k) - u(alpha0)]/alpha0 with u(x) = x (psi(x + 1) - ln x).

    alpha0 g_j = [u'(alpha_j) - u'(alpha0)] - MI: two terms, as u' falls from +inf to 0.
    """
    a0, log0 = x.alpha0, MP.log(x.alpha0)
    u0 = a0 * (x.psi0_of_sum - log0) + 1
    u = x.alpha * (x.psi0 - log(x.alpha)) + 1
    value = (x.total(u) - u0) / a0
    slope0 = x.psi0_of_sum - log0 + a0 * x.psi1_of_sum - 1
    slope = x.psi0 - log(x.alpha) + x.alpha * x.psi1 - 1
    fall = slope - slope0
    return truth(x, value, (fall - value) / a0, (fall + value) / a0)


# --- divergences ---------------------------------------------------------------------------------


def divergence(a: Concentration, b: Concentration) -> tuple[Real, Vector, Vector, Vector, Vector]:
    """KL(Dir(a) || Dir(b)); its gradient in a and the terms; its gradient in b and the terms.

    In a: g_j = d_j psi1(a_j) - sum_k d_k psi1(a0) with d = a - b.  Near a = b these are small, and
    the d_k, of either sign, are a term each.  Far above b both products tend to 1, and with
    x psi1(x) = 1 + O(1/x) the terms are those of [w(a_j) - w(a0)] - b_j psi1(a_j) + b0 psi1(a0),
    w(x) = x psi1(x) - 1.  The smaller of the two sums counts.

    In b: g_j = [psi(b_j) - psi(b0)] - [psi(a_j) - psi(a0)]: two terms, as psi(x0) - psi(x_j) is
    well-conditioned however close x_j is to x0.
    """
    value = a.lgamma_of_sum - a.total(a.lgamma) - b.lgamma_of_sum + b.total(b.lgamma)
    value += a.total((a.alpha - b.alpha) * (a.psi0 - a.psi0_of_sum))
    d = a.alpha - b.alpha
    near, near0 = d * a.psi1, a.total(d) * a.psi1_of_sum
    far, far0 = a.alpha * a.psi1 - 1, a.alpha0 * a.psi1_of_sum - 1
    far_terms = abs(far) + abs(far0) + b.alpha * a.psi1 + b.alpha0 * a.psi1_of_sum
    terms_a = np.minimum(abs(near) + a.total(abs(d)) * a.psi1_of_sum, far_terms)
    gap_a, gap_b = a.psi0_of_sum - a.psi0, b.psi0_of_sum - b.psi0
    return value, near - near0, terms_a, gap_a - gap_b, gap_a + gap_b


def towards(x: Point, beta: Vector) -> Truth:
    """KL(Dir(alpha) || Dir(beta)) for a beta that is given; terms as in `divergence`."""
    value, gradient, terms, _, _ = divergence(x, Concentration(beta, x.count))
    return truth(x, value, gradient, terms)


def away_from(x: Point, beta: Vector) -> Truth:
    """KL(Dir(beta) || Dir(alpha)) for a beta that is given; terms as in `divergence`."""
    value, _, _, gradient, terms = divergence(Concentration(beta, x.count), x)
    return truth(x, value, gradient, terms)


def differential_entropy(x: Point) -> Truth:
    """-lnGamma(K) - KL(Dir(alpha) || Dir(1)), which is at most -lnGamma(K); terms as there."""
    value, gradient, terms, _, _ = divergence(x, Concentration(0 * x.alpha + 1, x.count))
    return truth(x, -MP.loggamma(x.classes) - value, -gradient, terms)


def kl_from(x: Point) -> Truth:
    """KL(Dir(alpha) || Dir(beta)) and its gradient in alpha."""
    value, gradient, terms, in_beta, _ = divergence(x, Concentration(x["beta"], x.count))
    return _of_two(x, value, gradient, terms, in_beta * x["beta"])


def kl_into(x: Point) -> Truth:
    """KL(Dir(beta) || Dir(alpha)) and its gradient in alpha."""
    beta = Concentration(x["beta"], x.count)
    value, in_beta, _, gradient, terms = divergence(beta, x)
    return _of_two(x, value, gradient, terms, in_beta * x["beta"])


def _of_two(x: Point, value: Real, gradient: Vector, terms: Vector, moved: Vector) -> Truth:
    """As `truth`, with what a last-place change of the second input moves in the value's scale."""
    alone = truth(x, value, gradient, terms)
    scale = alone.value_scale + float(x.total(abs(moved)))
    return replace(alone, value_scale=scale)


# --- Fisher information --------------------------------------------------------------------------


def fisher_logdet(x: Point) -> Truth:
    """log|I| = sum_j ln psi1(alpha_j) + ln(1 - sum_j psi1(alpha0)/psi1(alpha_j)).

    Gradient with r(x) = 1/psi1(x) - x + 1/2 and B = (K-1)/2 + r(alpha0) - sum r(alpha_j):
    psi2/psi1 at alpha_j and at alpha0 (both negative), and [r'(alpha0) - r'(alpha_j)]/B.
    """
    ratio, ratio0 = x.psi2 / x.psi1, x.psi2_of_sum / x.psi1_of_sum
    rest = 1 - x.psi1_of_sum * x.total(1 / x.psi1)
    value = x.total(log(x.psi1)) + MP.log(rest)
    bracket = rest / x.psi1_of_sum
    pull = (x.psi2 / x.psi1**2 - x.psi2_of_sum / x.psi1_of_sum**2) / bracket
    return truth(x, value, ratio + ratio0 + pull, abs(ratio) + abs(ratio0) + abs(pull))


def dissonance(x: Point) -> Truth:
    """sum_k b_k sum_{j != k} b_j Bal(b_j, b_k)/sum_{j != k} b_j = phi(evidence)/alpha0.

    phi is homogeneous of degree one, so g_j = phi_j/alpha0 - phi/alpha0^2; phi_j and its terms are
    described with `dissonance_parts`.  All parts of the value are positive: plain scale.
    """
    phi, slope, terms = dissonance_parts(x.alpha - 1, x.count)
    value = phi / x.alpha0
    if slope is None or terms is None:
        undefined = np.full(len(x.inverse), np.nan)
        return Truth(float(value), float(value), undefined, undefined)
    return truth(x, value, (slope - value) / x.alpha0, (terms + value) / x.alpha0)
