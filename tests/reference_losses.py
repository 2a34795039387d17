"""Exact values, gradients and scales of the loss terms; see reference.py for what a scale is."""

from dataclasses import replace

from tests.reference import MP, Concentration, Point, Real, Truth, Vector, log, truth
from tests.reference_dirichlet import divergence, fisher_logdet

# --- expected squared errors ---------------------------------------------------------------------


def _residual(x: Point) -> tuple[Vector, Vector]:
    """p_j - y_j = p_j (1 - y_j) - y_j others_j/alpha0, and the sum of the two magnitudes."""
    over, under = x.probs * (1 - x["target"]), x["target"] * x.others / x.alpha0
    return over - under, over + under


def _weighted_bias(x: Point, weight: Vector, slope: Vector) -> Truth:
    """sum_j w_j r_j^2, r = p - y:  g_j = w'_j r_j^2 + 2/alpha0 [w_j r_j - sum_k p_k w_k r_k].

    The bracket is w_j r_j others_j/alpha0 - sum_{k != j} p_k w_k r_k, of which the terms are taken.
    """
    r, size = _residual(x)
    bracket = weight * r - x.total(x.probs * weight * r)
    terms = weight * size * x.others / x.alpha0 + x.over_others(x.probs * weight * size)
    gradient = slope * r**2 + 2 * bracket / x.alpha0
    return truth(x, x.total(weight * r**2), gradient, abs(slope) * size**2 + 2 * terms / x.alpha0)


def mse_bias(x: Point) -> Truth:
    """sum_j (y_j - p_j)^2."""
    return _weighted_bias(x, 0 * x.alpha + 1, 0 * x.alpha)


def fisher_bias(x: Point) -> Truth:
    """sum_j (y_j - p_j)^2 psi1(alpha_j)."""
    return _weighted_bias(x, x.psi1, x.psi2)


def _weighted_variance(x: Point, weight: Vector, slope: Vector) -> Truth:
    """sum_j w_j v_j, v_j = alpha_j others_j/c, c = alpha0^2 (alpha0 + 1).

    g_j = [w_j others_j + sum_{k != j} w_k alpha_k]/c + w'_j v_j - f (2/alpha0 + 1/(alpha0 + 1)).
    """
    a0 = x.alpha0
    c = a0**2 * (a0 + 1)
    v = x.alpha * x.others / c
    value = x.total(weight * v)
    rising = (weight * x.others + x.over_others(weight * x.alpha)) / c
    falling = value * (2 / a0 + 1 / (a0 + 1))
    return truth(x, value, rising + slope * v - falling, rising + abs(slope) * v + falling)


def mse_variance(x: Point) -> Truth:
    """sum_j p_j (1 - p_j)/(alpha0 + 1)."""
    return _weighted_variance(x, 0 * x.alpha + 1, 0 * x.alpha)


def fisher_variance(x: Point) -> Truth:
    """sum_j p_j (1 - p_j)/(alpha0 + 1) psi1(alpha_j)."""
    return _weighted_variance(x, x.psi1, x.psi2)


# --- cross entropies -----------------------------------------------------------------------------


def _cross_entropy(x: Point, f: Vector, f0: Real, slope: Vector, slope0: Real) -> Truth:
    """sum_j y_j (f(alpha0) - f(alpha_j)), f rising and concave.

    g_j = f'(alpha0) sum_{k != j} y_k - y_j [f'(alpha_j) - f'(alpha0)]: one of the two terms
    vanishes if y is one-hot, and then the scale is the plain one.
    """
    y = x["target"]
    push, pull = slope0 * x.over_others(y), y * (slope - slope0)
    return truth(x, x.total(y * (f0 - f)), push - pull, push + pull)


def marginal_nll(x: Point) -> Truth:
    """sum_j y_j (ln alpha0 - ln alpha_j)."""
    return _cross_entropy(x, log(x.alpha), MP.log(x.alpha0), 1 / x.alpha, 1 / x.alpha0)


def expected_cross_entropy(x: Point) -> Truth:
    """sum_j y_j (psi(alpha0) - psi(alpha_j))."""
    return _cross_entropy(x, x.psi0, x.psi0_of_sum, x.psi1, x.psi1_of_sum)


def label_removed_kl(x: Point, base: float = 1.0) -> Truth:
    """KL(Dir(alpha (1 - y) + base y) || Dir(base)); slopes times 1 - y_j by the chain rule."""
    # The base is a double, as in the library; alpha - base is what carries the information.
    non_target, b = 1 - x["target"], MP.mpf(base)
    removed = Concentration(x.alpha * non_target + b * x["target"], x.count)
    value, gradient, terms, _, _ = divergence(removed, Concentration(0 * x.alpha + b, x.count))
    return truth(x, value, non_target * gradient, non_target * terms)


def fisher_penalty(x: Point) -> Truth:
    """-log|I|."""
    t = fisher_logdet(x)
    return replace(t, value=-t.value, gradient=-t.gradient)
