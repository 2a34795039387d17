r"""Student-t distribution with more than two degrees of freedom: density, tails and quantiles.

With `excess` degrees of freedom beyond 2, which float32 would round away, and h = (df + 1)/2 the
density at z is proportional to (1 + z^2/df)^-h. Tails are integrals of the density relative to that
at the start: the substitution

.. math:: \frac{f(t + s)}{f(t)} = e^{-q^2}, \quad
          \frac{ds}{dq} = \frac{q\,(df + t^2)\,e^{q^2/h}}{h\,(t + s)}

leaves a smooth integrand for t >= 1, which Gauss-Legendre integrates to nine digits in float64
whatever the degrees of freedom. So logarithms of tails are exact however far out, and all of this
differentiates, compiles and exports. 1e30 degrees of freedom give a normal distribution.
"""

import math

import numpy as np
import torch
from torch import Tensor

from dubito.numerics.elementwise import Slopes, elementwise
from dubito.numerics.gamma import Array, Gamma, GammaAboveOne, log_gap

__all__: list[str] = []

#: degrees of freedom of a normal distribution
NORMAL = 1e30
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
#: the integrand of a tail ends where it has fallen to exp(-38) of its start
TAIL = 38.0
#: Newton steps of a quantile
STEPS = 12


def rule(count: int) -> tuple[list[float], list[float]]:
    """Return nodes and weights of a Gauss-Legendre rule on [0, 1].

    Args:
        count: Number of nodes.
    """
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return (0.5 * nodes + 0.5).tolist(), (0.5 * weights).tolist()


RULE = rule(24)


def log_density(excess: Tensor, z: Tensor, scale: Tensor) -> Tensor:
    """Return the log density at z: (...) each -> (...).

    Args:
        excess: Degrees of freedom beyond 2.
        z: Deviations from the mean.
        scale: Scale of the deviations, by which a quotient might overflow.
    """
    return elementwise(_log_density_and_slopes, _log_density, excess, z, scale)


def _log_density(excess: Tensor, z: Tensor, scale: Tensor | None = None) -> Tensor:
    half = 0.5 * excess + 1
    root = (2 * half).sqrt()
    # A reciprocal: autograd divides a quotient by its denominator again, which can overflow.
    ratio = z * (root if scale is None else scale * root).reciprocal()
    constant = HALF_LOG_2PI + _log_gamma_gap(half)
    constant = constant if scale is None else constant + scale.log()
    return -(constant + (half + 0.5) * _log1p_square(ratio))


def _log_density_and_slopes(excess: Array, z: Array, scale: Array) -> tuple[Array, Slopes]:
    half, inverse = 0.5 * excess + 1, 1 / scale
    h, u = 0.5 / half, z * inverse
    r = u * u * h
    low, high, log_h, log_r = GammaAboveOne(half), GammaAboveOne(half + 0.5), *map(np.log1p, (h, r))
    gap = half * (h - log_h) + low.mu - high.mu

    def slopes() -> tuple[Array, ...]:
        pull = (1 + h) / (1 + r)
        by_half = log_h - h / (1 + h) + low.delta - high.delta - log_r + pull * r
        return 0.5 * by_half, -pull * u * inverse, inverse * (pull * u * u - 1)

    return np.log(inverse) - gap - (half + 0.5) * log_r - HALF_LOG_2PI, slopes


def normal_inverse_gamma_nll(
    gamma: Tensor, nu: Tensor, excess: Tensor, beta: Tensor, y: Tensor
) -> Tensor:
    """Return the negative log density of the predictive of a normal-inverse-gamma: (...).

    Args:
        gamma: Means, (...).
        nu: Virtual observations of the mean, (...).
        excess: Shape alpha less 1, (...).
        beta: Scale of the variance, (...).
        y: Targets, (...).
    """
    return elementwise(_nll_and_slopes, _nll, gamma, nu, excess, beta, y)


def scale_of(nu: Tensor, excess: Tensor, beta: Tensor) -> Tensor:
    """Return the scale of the predictive of a normal-inverse-gamma: (...)."""
    # The share nu/(1 + nu): one form is exact in value, the other in the derivative as well.
    share = torch.where(nu < 1, nu / (1 + nu), 1 - 1 / (1 + nu))
    # Roots and a reciprocal: the derivative of beta/share would leave the range of float32.
    return beta.sqrt() * (share * (excess + 1)).sqrt().reciprocal()


def _nll(gamma: Tensor, nu: Tensor, excess: Tensor, beta: Tensor, y: Tensor) -> Tensor:
    return -_log_density(2 * excess, y - gamma, scale_of(nu, excess, beta))


def _nll_and_slopes(
    gamma: Array, nu: Array, excess: Array, beta: Array, y: Array
) -> tuple[Array, Slopes]:
    alpha = excess + 1
    scale = np.sqrt(beta * (1 + nu) / (nu * alpha))
    value, density_slopes = _log_density_and_slopes(2 * excess, y - gamma, scale)

    def slopes() -> tuple[Array, ...]:
        by_excess, by_z, by_scale = density_slopes()
        by_log_scale = 0.5 * scale * by_scale
        by_alpha = by_log_scale / alpha - 2 * by_excess
        return by_z, by_log_scale / (nu * (1 + nu)), by_alpha, -by_log_scale / beta, -by_z

    return -value, slopes


def log_survival(excess: Tensor, z: Tensor) -> Tensor:
    """Return ln P(Z > z) in float64: (...), (...) -> (...)."""
    excess, z = excess.double(), z.double()
    size = z.abs()
    tail = _log_tail(excess, size.clamp(min=1))
    center = _log_mass(excess, size.clamp(max=1), torch.ones_like(size))
    upper = torch.where(size < 1, torch.logaddexp(tail, center), tail)
    # P(Z > 0) = 1/2 exactly, and the logarithm below is of what is at least that.
    upper = upper.clamp(max=math.log(0.5))
    return torch.where(z < 0, torch.log1p(-upper.exp()), upper)


def log_probability(excess: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return ln P(low < Z < high) in float64: (...) each.

    Args:
        excess: Degrees of freedom beyond 2.
        low: Lower ends, which may be -inf.
        high: Upper ends >= low, which may be inf.
    """
    low, high = low.double(), high.double()
    flip = low + high < 0  # work in the upper tail, where nothing is subtracted from one
    a, b = torch.where(flip, -high, low), torch.where(flip, -low, high)
    is_open = b == math.inf
    both = a == -math.inf  # a whole line has probability 1
    a, b = torch.where(both, 0, a), torch.where(is_open | both, 0, b)
    outside = log_survival(excess, a)
    b = torch.where(is_open | both, a + 1, b)
    gap = outside - log_survival(excess, b)
    # A narrow interval is integrated: its ends have almost the same tails.
    is_wide = gap > 0.7
    safe = torch.where(is_wide, gap, 1)
    wide = outside + torch.log1p(-(-safe).exp())
    narrow = _log_mass(excess.double(), torch.where(is_wide, 0, a), torch.where(is_wide, 1, b))
    inside = torch.where(is_wide, wide, narrow)
    return torch.where(both, 0, torch.where(is_open, outside, inside))


def quantile(excess: Tensor, probability: Tensor) -> Tensor:
    """Return the z with P(Z < z) = probability, in float64: (...), (...) -> (...).

    With z = sqrt(df) sinh(u) the logarithm of the tail is concave in u, so that Newton's steps
    converge from everywhere.

    Args:
        excess: Degrees of freedom beyond 2.
        probability: In (0, 1).
    """
    excess, probability = torch.broadcast_tensors(excess.double(), probability.double())
    lower = probability < 0.5
    goal = torch.where(lower, probability, 1 - probability).log()
    root = (excess + 2).sqrt()

    def step(u: Tensor) -> Tensor:
        z = root * u.sinh()
        tail = log_survival(excess, z)
        hazard = (_log_density(excess, z) - tail).exp() * root * u.cosh()
        return u + (tail - goal) / hazard.detach()

    with torch.no_grad():
        u = torch.zeros_like(goal)
        for _ in range(STEPS):
            u = step(u)
    z = root * step(u).sinh()
    return torch.where(lower, -z, z)


def crps(excess: Tensor, z: Tensor) -> Tensor:
    """Return the continuous ranked probability score at z, in float64: (...), (...) -> (...).

    The closed form of Jordan, Krueger and Lerch (2019), without the quotient of beta functions.
    """
    excess, z = excess.double(), z.double()
    df, below = excess + 2, excess + 1
    size = z.abs()
    outer = size * (1 - 2 * log_survival(excess, size).exp())
    slope = 2 * _log_density(excess, z).exp() * (df / below + z * (z / below))
    gap = _log_gamma_gap(df - 0.5) - 2 * _log_gamma_gap(0.5 * df)
    spread = df / below * (df / (df - 0.5) / math.pi).sqrt() * gap.exp()
    return outer + slope - spread


def _log_mass(excess: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return ln P(low < Z < high) of short intervals."""
    nodes, weights = (torch.tensor(part, dtype=low.dtype, device=low.device) for part in RULE)
    width = (high - low).unsqueeze(-1)
    logs = _log_density(excess.unsqueeze(-1), low.unsqueeze(-1) + width * nodes)
    least = torch.finfo(low.dtype).tiny  # the logarithm of an empty interval stays finite
    return (high - low).clamp(min=least).log() + (logs + weights.log()).logsumexp(-1)


def _log_tail(excess: Tensor, t: Tensor) -> Tensor:
    """Return ln P(Z > t) for t >= 1, by the substitution above."""
    nodes, weights = (torch.tensor(part, dtype=t.dtype, device=t.device) for part in RULE)
    df, half = (excess + 2).unsqueeze(-1), (0.5 * (excess + 3)).unsqueeze(-1)
    start = t.unsqueeze(-1)
    end = (TAIL / (1 - 0.5 / half)).sqrt()
    q = end * nodes
    rise = q.square() / half
    # In units of t: its square would overflow.
    share = df * start.reciprocal().square() + 1
    distance = (1 + share * rise.expm1()).sqrt()  # (t + s)/t
    slope = q * share * (rise - q.square()).exp() / (half * distance)
    mass = (end * slope * weights).sum(-1)
    return _log_density(excess, t) + t.log() + mass.log()


def _log1p_square(x: Tensor) -> Tensor:
    """ln(1 + x^2), also where the square would overflow."""
    far = x.abs() > 1e8
    near = torch.log1p(torch.where(far, 0, x).square())
    return torch.where(far, 2 * torch.where(far, x, 1).abs().log(), near)


def _log_gamma_gap(x: Tensor) -> Tensor:
    """ln Gamma(x) - ln Gamma(x + 1/2) + ln(x)/2 ~ 1/(8x), for x >= 1."""
    h = 0.5 / x
    return x * log_gap(h, 1 + h) + (Gamma(x).mu - Gamma(x + 0.5).mu)
