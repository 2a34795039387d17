"""Distributions about real values: their protocol, mixtures and the Student-t predictive."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch import distributions as td
from torch.distributions import constraints

from dubito.distributions.base import Distribution, cached_tensor, uncertainty_score
from dubito.distributions.mixture import Mixture, MixturePredictive
from dubito.numerics import student
from dubito.targets import Target

__all__ = ["RealDistribution"]

F = TypeVar("F", bound=Callable[..., Any])


def takes_bounds(term: F) -> F:
    """Mark a loss term that reads the bounds of censored targets."""
    term.takes_bounds = True  # type: ignore[attr-defined]
    return term


class RealDistribution(Distribution):
    """Distribution over the distribution of T real values.

    Uncertainties are variances, summed over the T values. Targets are (..., T), T = 1 included.
    """

    decomposition: ClassVar[tuple[str, str, str]] = (
        "predictive_variance",
        "expected_variance",
        "variance_of_mean",
    )
    unit: ClassVar[str] = "variance"

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """Mean of the predictive: (..., T)."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """Variance of the predictive, which sums to `total`: (..., T)."""

    @property
    @abstractmethod
    def predictive(self) -> Any:
        """Distribution of the target, with a density, a cdf and the score of both: (...)."""

    def calibrated(self, theta: Tensor) -> Any:
        """Multiply the scale of the predictive by exp(theta_0)."""
        return self.predictive.scaled(theta[0].exp())

    @takes_bounds
    def nll(self, target: Tensor | Target) -> Tensor:
        """Negative log-likelihood of each target under the predictive: (..., T).

        The likelihood of a censored one is the probability of its bounds.

        Args:
            target: Targets, (..., T).
        """
        return -self.predictive.log_probs(target)  # type: ignore[no-any-return]

    def distance(self, target: Tensor | Target) -> Tensor:
        """Absolute error of the mean: (..., T). That of a censored target is the least possible.

        Args:
            target: Targets, (..., T).
        """
        if not isinstance(target, Target):
            return (target - self.mean).abs()
        error = (target.values - self.mean).abs()
        if target.bounds is None:
            return error
        lower, upper = target.bounds
        least = torch.maximum(lower - self.mean, self.mean - upper).clamp(min=0)
        return torch.where(target.censored, least, error)

    def ends(self, level: float) -> tuple[Tensor, Tensor] | None:
        """Return the ends of a central interval, (..., T) each, which calibration moves.

        None: intervals of calibration have their center at the mean, and a width that depends on
        the variance.

        Args:
            level: Probability of the interval.
        """
        return None

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


class PredictiveOnly(RealDistribution):
    """Base of distributions without uncertainty about their parameters: all of it is aleatoric."""

    @uncertainty_score("Var.")
    def predictive_variance(self) -> Tensor:
        """Variance of the target: (...)."""
        return self.variance.sum(-1)

    # The two parts are listed for mixtures only: here they rank nothing that the variance does not.

    @uncertainty_score("E.Var.", when=lambda dist: False)
    def expected_variance(self) -> Tensor:
        """Equal to the variance: it is certain. (...)."""
        return self.predictive_variance

    @uncertainty_score("Var.mean", when=lambda dist: False)
    def variance_of_mean(self) -> Tensor:
        """Zero: (...)."""
        return torch.zeros_like(self.predictive_variance)


class RealMixture(Mixture, RealDistribution):  # type: ignore[override]
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

    def ends(self, level: float) -> tuple[Tensor, Tensor] | None:
        """Means of the members' ends; see `RealDistribution.ends`.

        Their distance beyond a target is at most the mean of the members', unlike that of the
        mixture's own quantiles.
        """
        ends = self.members.ends(level)
        return None if ends is None else (ends[0].mean(-2), ends[1].mean(-2))

    def affine(self, scale: Tensor, shift: Tensor) -> RealMixture:
        """Transform the members; see `RealDistribution.affine`."""
        return RealMixture(self.members.affine(scale, shift))


class RealPredictive(td.Distribution):
    """Independent distributions of T values."""

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    @abstractmethod
    def log_probs(self, value: Tensor | Target) -> Tensor:
        """Log density of each value of a target (..., T): (..., T)."""

    @abstractmethod
    def crps(self, value: Tensor) -> Tensor:
        """Continuous ranked probability score of each value of a target (..., T): (..., T)."""

    def log_prob(self, value: Tensor | Target) -> Tensor:
        """Log density of a target (..., T), summed over its known values: (...).

        Args:
            value: Target; the density of a censored value is the probability of its bounds.
        """
        each = self.log_probs(value)
        weight = getattr(value, "weight", None)
        if weight is not None and weight.ndim == each.ndim:
            each = torch.where(weight > 0, each, 0)
        return each.sum(-1)


class StudentT(RealPredictive):
    """Independent Student-t distributions of T values, with more than two degrees of freedom.

    Exact in float32 for any degrees of freedom > 2, unlike `torch.distributions.StudentT`, which
    has no cdf either and cannot be exported.

    Args:
        df_minus_two: Degrees of freedom less 2, which float32 would round away: > 0, (..., T);
            `numerics.student.NORMAL` for normal distributions.
        loc: Means, (..., T).
        scale: Scales > 0, (..., T).

    >>> student = StudentT(torch.tensor([1e-3]), torch.tensor([0.0]), torch.tensor([1.0]))
    >>> student.log_prob(torch.tensor([1.0])), student.cdf(torch.tensor([1.0]))
    (tensor(-1.6477), tensor([0.7887]))
    >>> student.icdf(torch.tensor([0.7887]))
    tensor([1.0000])
    """

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

    def scaled(self, factor: Tensor) -> StudentT:
        """Return the distribution whose scale is multiplied, in the dtype of the factor."""
        excess, loc, scale = (v.to(factor.dtype) for v in (self.df_minus_two, self.loc, self.scale))
        return StudentT(excess, loc, scale * factor)

    def log_probs(self, value: Tensor | Target) -> Tensor:
        """Log density of each value of a target (..., T): (..., T)."""
        values = value.values if isinstance(value, Target) else value
        each = student.log_density(self.df_minus_two, values - self.loc, self.scale)
        if not isinstance(value, Target) or value.bounds is None:
            return each
        ends = []
        for bound in value.bounds:
            finite = bound.isfinite()
            end = self._standardized(torch.where(finite, bound, values))
            ends.append(torch.where(finite, end, bound.double()))
        inside = student.log_probability(self.df_minus_two, *ends)
        return torch.where(value.censored, inside.to(each.dtype), each)

    def _standardized(self, value: Tensor) -> Tensor:
        return (value.double() - self.loc.double()) / self.scale.double()

    def cdf(self, value: Tensor) -> Tensor:
        """Cumulative distribution of each value (..., T): (..., T)."""
        below = student.log_survival(self.df_minus_two, -self._standardized(value))
        return below.exp().to(value.dtype)

    def icdf(self, value: Tensor) -> Tensor:
        """Quantile of each probability in (0, 1), (..., T): (..., T)."""
        z = student.quantile(self.df_minus_two, value)
        return (self.loc.double() + self.scale.double() * z).to(value.dtype)

    def crps(self, value: Tensor) -> Tensor:
        """Continuous ranked probability score of each value of a target (..., T): (..., T)."""
        score = student.crps(self.df_minus_two, self._standardized(value))
        return (self.scale.double() * score).to(value.dtype)
