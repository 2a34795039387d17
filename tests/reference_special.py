"""Exact values of the functions of numerics.gamma, by the names they have there."""

from collections.abc import Callable

from tests.reference import MP, Real, polygammas

HALF = MP.mpf(1) / 2


def mu(x: Real) -> Real:
    """lnGamma(x) less Stirling's formula."""
    return polygammas(x)[0] - ((x - HALF) * MP.log(x) - x + MP.log(2 * MP.pi) / 2)


def inverse_trigamma_excess_slope(x: Real) -> Real:
    _, _, psi1, psi2 = polygammas(x)
    return -psi2 / psi1**2 - 1


#: members of `special.Gamma`
MEMBERS: dict[str, Callable[[Real], Real]] = {
    "mu": mu,
    "delta": lambda x: MP.log(x) - 1 / (2 * x) - polygammas(x)[1],
    "tau": lambda x: polygammas(x)[2] - 1 / x - 1 / (2 * x**2),
    "sigma": lambda x: -polygammas(x)[3] - 1 / x**2 - 1 / x**3,
    "reciprocal": lambda x: 1 / x,
    "trigamma": lambda x: polygammas(x)[2],
    "log_inverse_trigamma": lambda x: -MP.log(polygammas(x)[2]),
    "log_trigamma_slope": lambda x: polygammas(x)[3] / polygammas(x)[2],
    "trigamma_excess": lambda x: x * polygammas(x)[2] - 1,
    "digamma_gap": lambda x: polygammas(x)[1] + 1 / x - MP.log(x),
    "trigamma_deficit": lambda x: 1 - x * (polygammas(x)[2] - 1 / x**2),
    "digamma_gap_moment": lambda x: polygammas(x)[1] - MP.log(x) + x * polygammas(x)[2] - 1,
    "inverse_trigamma_excess": lambda x: 1 / polygammas(x)[2] - x + HALF,
    "inverse_trigamma_excess_slope": inverse_trigamma_excess_slope,
}


def log_gap(t: Real) -> Real:
    """t - ln(1 + t)."""
    return t - MP.log(1 + t)


def bregman_excess(a: Real, b: Real) -> Real:
    """The Bregman divergence of lnGamma from a to b, less b (t - ln(1 + t)) with t = (a - b)/b."""
    lgamma_a, psi_a, _, _ = polygammas(a)
    return polygammas(b)[0] - lgamma_a - psi_a * (b - a) - (a - b) + b * MP.log(a / b)
