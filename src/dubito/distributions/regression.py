"""Distributions about real values: their protocol, mixtures and the Student-t predictive."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch import distributions as td
from torch.distributions import constraints

from dubito.distributions.base import Distribution, cached_tensor
from dubito.distributions.mixture import Mixture, MixturePredictive
from dubito.numerics.gamma import Gamma, log_gap

__all__ = ["RealDistribution"]

# Gauss-Legendre nodes and weights on [0, 1], for the Student-t cdf
_LEGENDRE = np.polynomial.legendre.leggauss(48)  # on [-1, 1]
_NODES, _WEIGHTS = (0.5 * _LEGENDRE[0] + 0.5).tolist(), (0.5 * _LEGENDRE[1]).tolist()


class RealDistribution(Distribution):
    """Distribution over the distribution of T real values.

    Uncertainties are variances, summed over the T values. Targets are (..., T), T = 1 included.
    """

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """Mean of the predictive: (..., T)."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """Variance of the predictive, which sums to `total`: (..., T)."""

    @abstractmethod
    def affine(self, scale: Tensor, shift: Tensor) -> RealDistribution:
        """Return the distribution about scale * y + shift.

        Args:
            scale: Factors > 0, (T,).
            shift: Offsets, (T,).
        """

    def mixture(self) -> RealMixture:
        """Mix the last batch axis with equal weights: (..., S) -> (...)."""
        return RealMixture(self)


class RealMixture(Mixture, RealDistribution):
    """Equal mixture of distributions about real values."""

    members: RealDistribution

    @cached_tensor
    def mean(self) -> Tensor:
        """Mean of the members' means: (..., T)."""
        return self.members.mean.mean(-2)

    @cached_tensor
    def variance(self) -> Tensor:
        """Mean of the members' variances plus the variance of their means: (..., T)."""
        return self.members.variance.mean(-2) + self._variance_of_means

    @property
    def disagreement(self) -> Tensor:
        """Variance of the members' means: (...)."""
        return self._variance_of_means.sum(-1)

    @cached_tensor
    def _variance_of_means(self) -> Tensor:
        means = self.members.mean
        # Differences of members are exact where these are close; differences from their rounded
        # mean are not.
        gaps = means - means[..., :1, :]
        return (gaps - gaps.mean(-2, keepdim=True)).square().mean(-2)

    @property
    def predictive(self) -> MixturePredictive:
        """Mixture of the members' predictives."""
        return MixturePredictive(self.members.predictive)

    def calibrated(self, theta: Tensor) -> MixturePredictive:
        """Multiply the scale of each member's predictive by exp(theta_0)."""
        return MixturePredictive(self.members.calibrated(theta))

    def affine(self, scale: Tensor, shift: Tensor) -> RealMixture:
        """Transform the members; see `RealDistribution.affine`."""
        return RealMixture(self.members.affine(scale, shift))


class StudentT(td.Distribution):
    """Independent Student-t distributions of T values, with more than two degrees of freedom.

    Exact in float32 for any degrees of freedom > 2, unlike `torch.distributions.StudentT`, which
    has no cdf either and cannot be exported.

    Args:
        df_minus_two: Degrees of freedom less 2, which float32 would round away: > 0, (..., T).
        loc: Means, (..., T).
        scale: Scales > 0, (..., T).

    >>> student = StudentT(torch.tensor([1e-3]), torch.tensor([0.0]), torch.tensor([1.0]))
    >>> student.log_prob(torch.tensor([1.0])), student.cdf(torch.tensor([1.0]))
    (tensor(-1.6477), tensor([0.7887]))
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    df_minus_two: Tensor
    loc: Tensor
    scale: Tensor

    def __init__(self, df_minus_two: Tensor, loc: Tensor, scale: Tensor) -> None:
        self.df_minus_two, self.loc, self.scale = torch.broadcast_tensors(df_minus_two, loc, scale)
        super().__init__(self.loc.shape[:-1], self.loc.shape[-1:], validate_args=False)

    @property
    def df(self) -> Tensor:
        """Degrees of freedom: (..., T)."""
        return self.df_minus_two + 2

    @property
    def mean(self) -> Tensor:
        """Mean of each value: (..., T)."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """Variance of each value: (..., T)."""
        return self.scale.square() * (1 + 2 / self.df_minus_two)

    def log_prob(self, value: Tensor, known: Tensor | None = None) -> Tensor:
        """Log density of a target (..., T), summed over the T values: (...).

        Args:
            value: Target.
            known: Which of its values count, bool (..., T); None: all.
        """
        each = self.log_probs(value)
        return (each if known is None else torch.where(known, each, 0)).sum(-1)

    def log_probs(self, value: Tensor) -> Tensor:
        """Log density of each value of a target (..., T): (..., T)."""
        half = 0.5 * self.df_minus_two + 1
        # A reciprocal: autograd divides a quotient by its denominator again, which can overflow.
        ratio = (value - self.loc) * (self.scale * self.df.sqrt()).reciprocal()
        tails = (half + 0.5) * _log1p_square(ratio)
        constant = 0.5 * math.log(2 * math.pi) + self.scale.log() + _log_gamma_gap(half)
        return -(constant + tails)

    def cdf(self, value: Tensor) -> Tensor:
        """Cumulative distribution of each value (..., T), to 1e-7: (..., T).

        With z = sqrt(df) tan(angle) the density is proportional to cos(angle)^(df - 1), which
        Gauss-Legendre integrates in float64. Beyond 8 standard deviations nothing is left.
        """
        excess, scale = self.df_minus_two.double(), self.scale.double()
        half, power = 0.5 * excess + 1, excess + 1
        z = (value.double() - self.loc.double()) / scale
        angle = (z.abs() / (2 * half).sqrt()).atan().minimum(8 * power.rsqrt())
        nodes, weights = (
            torch.tensor(values, dtype=z.dtype, device=z.device) for values in (_NODES, _WEIGHTS)
        )
        sines = (angle.unsqueeze(-1) * nodes).sin()
        density = (0.5 * power.unsqueeze(-1) * torch.log1p(-sines.square())).exp()
        constant = (half / math.pi).sqrt() * (-_log_gamma_gap(half)).exp()
        mass = constant * angle * (density * weights).sum(-1)
        return (0.5 + z.sign() * mass.clamp(max=0.5)).to(value.dtype)


def _log1p_square(x: Tensor) -> Tensor:
    """ln(1 + x^2), also where the square would overflow."""
    far = x.abs() > 1e8
    near = torch.log1p(torch.where(far, 0, x).square())
    return torch.where(far, 2 * torch.where(far, x, 1).abs().log(), near)


def _log_gamma_gap(x: Tensor) -> Tensor:
    """ln Gamma(x) - ln Gamma(x + 1/2) + ln(x)/2 ~ 1/(8x), for x >= 1."""
    h = 0.5 / x
    return x * log_gap(h, 1 + h) + (Gamma(x).mu - Gamma(x + 0.5).mu)
