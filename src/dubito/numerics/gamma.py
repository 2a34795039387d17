r"""The gamma function's family in elementary operations, with nothing lost to cancellation.

Every member is its elementary leading part plus a small positive *remainder*:

.. math::
    \ln\Gamma(x) &= (x - \tfrac12)\ln x - x + \tfrac12\ln 2\pi + \mu(x) \\
    \psi(x)      &= \ln x - \tfrac1{2x} - \delta(x), & \delta &= -\mu' \\
    \psi_1(x)    &= \tfrac1x + \tfrac1{2x^2} + \tau(x), & \tau &= \mu'' \\
    -\psi_2(x)   &= \tfrac1{x^2} + \tfrac1{x^3} + \sigma(x), & \sigma &= -\mu'''

The remainders are computed to full *relative* accuracy for all x > 0, so a formula whose leading
parts cancel can drop these in algebra and keep what is left. They are polynomials in 1/(x + 1/2)
from some x on, and sums of positive increments below it: no call into a library, so all of this
differentiates, compiles and exports.
"""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dubito.numerics.tracing import lazy

__all__: list[str] = []

Array = Any  #: np.ndarray or Tensor; operators of one are not typed for the other
_FILE = Path(__file__).with_name("polynomials.json")  # from tools/fit_polynomials.py
#: name -> coefficients in ascending powers, mostly of 1/(x + 1/2)
POLYNOMIALS = {name: tuple(c) for name, c in json.loads(_FILE.read_text()).items()}
#: dtype name -> x from which the polynomials of the remainders are exact
FIRST = {"float32": 1, "float64": 8}


def _horner(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """Polynomial with `coefficients` in ascending powers; in place where nobody differentiates."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        return short_horner(coefficients, x)  # type: ignore[no-any-return]
    result = torch.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = result * x + c
    return result


class Gamma:
    r"""The gamma family at `x`: each member is computed when asked for and shares the work.

    Shapes: `x` (...) > 0, floating; every member (...). With `single` the polynomials of float32
    are used, also for float64 arguments, whose differences then still lose nothing to rounding.

    >>> g = Gamma(torch.tensor([0.5, 1.0, 1e8]))
    >>> g.trigamma
    tensor([4.9348e+00, 1.6449e+00, 1.0000e-08])
    >>> g.mu  # ~ 1/(12 x), to the last digits
    tensor([1.5343e-01, 8.1061e-02, 8.3333e-10])
    """

    def __init__(self, x: Tensor, single: bool = False) -> None:
        self.x = x
        self._key = "float32" if single or x.dtype != torch.float64 else "float64"
        self._first = FIRST[self._key]
        self._small = x < self._first
        shifted = torch.where(self._small, x + self._first, x)
        self._shifted_reciprocal = shifted.reciprocal()
        self._variable = (shifted + 0.5).reciprocal()

    @lazy
    def reciprocal(self) -> Tensor:
        """1/x."""
        return self.x.reciprocal()

    def _polynomial(self, remainder: str, decay: int) -> Tensor:
        """The remainder at the shifted point: x**-decay times its polynomial."""
        value = _horner(POLYNOMIALS[f"{remainder}_{self._key}"], self._variable)
        for _ in range(decay):  # step by step: the power alone would underflow first
            value = value * self._shifted_reciprocal
        return value

    def _with_increments(self, value: Tensor, increments: list[Tensor]) -> Tensor:
        total = sum(increments[1:], increments[0])
        return torch.where(self._small, value + total, value)

    @lazy
    def _steps(self) -> list[Tensor]:
        """x, x + 1, ... up to the shifted point; where that is x itself, unused and harmless."""
        x = self.x.clamp(max=float(self._first))
        return [x + i if i else x for i in range(self._first)]

    @lazy
    def _log_steps(self) -> list[Tensor]:
        return [torch.log1p(t.reciprocal()) for t in self._steps]

    @lazy
    def _products(self) -> list[Tensor]:
        return [(t * (t + 1)).reciprocal() for t in self._steps]

    @lazy
    def mu(self) -> Tensor:
        """Stirling's remainder of ln Gamma."""
        steps = zip(self._steps, self._log_steps, strict=True)
        return self._with_increments(
            self._polynomial("mu", 1), [(t + 0.5) * log - 1 for t, log in steps]
        )

    @lazy
    def _delta_shifted(self) -> Tensor:
        return self._polynomial("delta", 2)

    @lazy
    def _delta_steps(self) -> list[Tensor]:
        steps = zip(self._steps, self._products, self._log_steps, strict=True)
        return [(t + 0.5) * u - log for t, u, log in steps]

    @lazy
    def delta(self) -> Tensor:
        """ln x - 1/(2x) - psi(x)."""
        return self._with_increments(self._delta_shifted, self._delta_steps)

    @lazy
    def _tau_shifted(self) -> Tensor:
        return self._polynomial("tau", 3)

    @lazy
    def _tau_steps(self) -> list[Tensor]:
        return [0.5 * u * u for u in self._products]

    @lazy
    def tau(self) -> Tensor:
        """psi_1(x) - 1/x - 1/(2 x^2)."""
        return self._with_increments(self._tau_shifted, self._tau_steps)

    @lazy
    def sigma(self) -> Tensor:
        """-psi_2(x) - 1/x^2 - 1/x^3."""
        steps = zip(self._steps, self._products, strict=True)
        return self._with_increments(
            self._polynomial("sigma", 4), [u * u * u * (2 * t + 1) for t, u in steps]
        )

    @lazy
    def trigamma(self) -> Tensor:
        """psi_1(x)."""
        return self.reciprocal * (1 + 0.5 * self.reciprocal) + self.tau

    @lazy
    def log_inverse_trigamma(self) -> Tensor:
        """-ln psi_1(x)."""
        return -self.trigamma.log()

    @lazy
    def log_trigamma_slope(self) -> Tensor:
        """psi_2/psi_1, finite where psi_2 itself underflows: ~ -1/x."""
        top = 1 + self.reciprocal + self.x * (self.x * self.sigma)
        bottom = 1 + 0.5 * self.reciprocal + self.x * self.tau
        return -self.reciprocal * top / bottom

    @lazy
    def trigamma_excess(self) -> Tensor:
        """x psi_1(x) - 1 ~ 1/(2x)."""
        return 0.5 * self.reciprocal + self.x * self.tau

    @lazy
    def _next_reciprocal(self) -> Tensor:
        return (self._steps[0] + 1).reciprocal()

    @lazy
    def digamma_gap(self) -> Tensor:
        """psi(x + 1) - ln x ~ 1/(2x), and -ln x - 0.577 near zero."""
        plain = 0.5 * self.reciprocal - self.delta
        # For small x the terms in 1/x cancel: use the expansion at x + 1.
        delta = sum(self._delta_steps[1:], self._delta_shifted)
        stepped = self._log_steps[0] - 0.5 * self._next_reciprocal - delta
        return torch.where(self._small, stepped, plain)

    @lazy
    def trigamma_deficit(self) -> Tensor:
        """1 - x psi_1(x + 1) ~ 1/(2x), and 1 at zero."""
        plain = 0.5 * self.reciprocal - self.x * self.tau
        v = self._next_reciprocal
        tau = sum(self._tau_steps[1:], self._tau_shifted)
        stepped = 1 - self._steps[0] * (v * (1 + 0.5 * v) + tau)
        return torch.where(self._small, stepped, plain)

    @lazy
    def digamma_gap_moment(self) -> Tensor:
        """d/dx [x (psi(x + 1) - ln x)] ~ 1/(12 x^2)."""
        return self.x * self.tau - self.delta

    @lazy
    def inverse_trigamma_excess(self) -> Tensor:
        """r(x) = 1/psi_1(x) - x + 1/2 ~ 1/(12 x), smooth and in (0, 1/2)."""
        v = self.reciprocal
        return (0.25 * v - (1 - 0.5 * v) * (self.x * (self.x * self.tau))) / (
            1 + 0.5 * v + self.x * self.tau
        )

    @lazy
    def inverse_trigamma_excess_slope(self) -> Tensor:
        """r'(x) = -psi_2/psi_1^2 - 1 ~ -1/(12 x^2)."""
        v, x2tau = self.reciprocal, self.x * (self.x * self.tau)
        top = self.x * (self.x * self.sigma) - v * (0.25 * v + x2tau * (2 + v + x2tau * v))
        return top / (1 + 0.5 * v + self.x * self.tau).square()


# --- float32 and x >= 1, for NumPy arrays and tensors, without derivatives ---


def namespace(x: Array) -> ModuleType:
    """Return the module whose functions take an array: torch or NumPy."""
    return torch if isinstance(x, Tensor) else np


def short_horner(coefficients: Sequence[float], x: Array) -> Array:
    """Polynomial with coefficients in ascending powers; not differentiable."""
    result = coefficients[-1] * x
    for c in reversed(coefficients[1:-1]):
        result += c
        result *= x
    result += coefficients[0]
    return result


class GammaAboveOne:
    r"""Members of `Gamma` from short polynomials.

    With r(x) = 1/psi_1(x) - x + 1/2, which is small and smooth, psi_1 = 1/(x - 1/2 + r) and
    psi_2/psi_1 = -psi_1 (1 + r'): one polynomial and one reciprocal for each.

    Shapes: `x` (...), every member (...).

    >>> GammaAboveOne(torch.tensor([1.0, 1e8])).trigamma
    tensor([1.6449e+00, 1.0000e-08])
    """

    def __init__(self, x: Array) -> None:
        self.x, self.xp = x, namespace(x)
        self.variable = self.xp.reciprocal(x + 0.5)  # z

    @lazy
    def reciprocal(self) -> Array:
        """1/x."""
        return self.xp.reciprocal(self.x)

    @lazy
    def inverse_trigamma_excess(self) -> Array:
        """r(x)."""
        return short_horner(POLYNOMIALS["excess"], self.variable)

    @lazy
    def inverse_trigamma(self) -> Array:
        """1/psi_1(x)."""
        return (self.x - 0.5) + self.inverse_trigamma_excess

    @lazy
    def trigamma(self) -> Array:
        """psi_1(x)."""
        return self.xp.reciprocal(self.inverse_trigamma)

    @lazy
    def log_inverse_trigamma(self) -> Array:
        """-ln psi_1(x)."""
        return self.xp.log(self.inverse_trigamma)

    @lazy
    def inverse_trigamma_excess_slope(self) -> Array:
        """r'(x)."""
        z = self.variable
        return short_horner(_EXCESS_SLOPE, z) * (z * z)

    @lazy
    def log_trigamma_slope(self) -> Array:
        """psi_2/psi_1."""
        return -self.trigamma * (1 + self.inverse_trigamma_excess_slope)

    @lazy
    def mu(self) -> Array:
        """Stirling's remainder of ln Gamma."""
        z = self.variable
        return short_horner(_MU, z) * z

    @lazy
    def delta(self) -> Array:
        """ln x - 1/(2x) - psi(x)."""
        z = self.variable
        return short_horner(MU_SLOPE, z) * (z * z)

    @lazy
    def digamma_gap_scaled(self) -> Array:
        """x (psi(x + 1) - ln x)."""
        return short_horner(POLYNOMIALS["gap_moment"], self.variable)


_EXCESS_SLOPE = tuple(-c for c in POLYNOMIALS["excess_slope"])
#: mu(x) from the first power of z on; its second derivative is within 3e-6 of tau
_MU = POLYNOMIALS["stirling"]
#: delta(x)/z^2
MU_SLOPE = tuple((n + 1) * c for n, c in enumerate(_MU))


@cache
def stirling_coefficients(b: float) -> tuple[float, ...]:
    """Polynomial M with mu(b) - mu(x) - (x - b) delta(x) = ((x - b) z)^2 M(z), for x, b >= 1.

    For mu = z^n the left side is ((x - b) z)^2 sum_k (k + 1) z^k z_b^(n - k) over k < n.
    """
    zb = 1 / (b + 0.5)
    powers = range(len(_MU))
    return tuple((k + 1) * sum(_MU[n] * zb ** (n + 1 - k) for n in powers[k:]) for k in powers)


# --- logarithms ---


# ln(1 + t) = 2 artanh(w) with w = t/(2 + t); the odd powers of w from the third on, halved
ARTANH = tuple(1 / (2 * k + 3) for k in range(11))


def log_gap(t: Tensor, ratio: Tensor) -> Tensor:
    """t - ln(1 + t) >= 0 to full relative accuracy, where `ratio` is 1 + t as well as it is known.

    Near t = 0 only `t` counts and near t = -1 only `ratio`. Shapes: (...), (...) -> (...).

    >>> t = torch.tensor([1e-4, 3.0])
    >>> log_gap(t, 1 + t)
    tensor([4.9997e-09, 1.6137e+00])
    """
    near = t.abs() < 0.25
    safe = torch.where(near, t, torch.zeros_like(t))
    w = safe / (2 + safe)
    tail = _horner(ARTANH if t.dtype == torch.float64 else ARTANH[:5], w * w)
    series = w * (safe - 2 * w * w * tail)
    return torch.where(near, series, t - torch.where(near, torch.ones_like(ratio), ratio).log())


# Gauss rules for the weight theta on [0, 1]: three points for float32, four for float64
GAUSS = (
    (0.21234053823915294, 0.06982697990145412),
    (0.590533135559265, 0.22924110635958627),
    (0.9114120404872961, 0.20093191373895963),
)
GAUSS_WIDE = (
    (0.13975986434378054, 0.03118097095000808),
    (0.41640956763108317, 0.12984754760823244),
    (0.7231569863618762, 0.20346456801027135),
    (0.9428958038854823, 0.13550691343148813),
)


def bregman_excess(a: Tensor, b: Tensor, d: Tensor | None = None, single: bool = False) -> Tensor:
    r"""What the Bregman divergence of ln Gamma has beyond b (t - ln(1 + t)), t = (a - b)/b.

    .. math:: R(a, b) = \ln\Gamma(b) - \ln\Gamma(a) - \psi(a)(b - a) - (a - b) + b\ln(a/b) \ge 0

    Shapes: (...), (...) -> (...).

    >>> bregman_excess(torch.tensor([2.0, 1e6]), torch.tensor([1.0, 1.0]))
    tensor([0.1159, 6.4888])
    """
    ga, gb = Gamma(a, single), Gamma(b, single)
    d = a - b if d is None else d
    t = d * gb.reciprocal
    single = single or a.dtype != torch.float64
    near = t.abs() < (0.25 if single else 0.08)  # where the Gauss rule is exact
    far = 0.5 * ((a * gb.reciprocal).log() - d * ga.reciprocal) + (gb.mu - ga.mu - d * ga.delta)
    # near b both parts are d^2 times something smooth: a difference of the parts would lose it
    safe = torch.where(near, t, torch.zeros_like(t))
    curvature = torch.zeros_like(t)
    for node, weight in GAUSS if single else GAUSS_WIDE:
        curvature = curvature + weight * Gamma(b * (1 + node * safe), single).tau
    logs = 0.5 * (safe * safe / (1 + safe) - log_gap(safe, 1 + safe))
    return torch.where(near, logs + (curvature * (b * safe)) * (b * safe), far)
