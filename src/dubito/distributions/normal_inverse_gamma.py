"""Normal-inverse-gamma distribution over the mean and variance of a number."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from dubito import _checks
from dubito.distributions.base import cached_tensor, confidence_score, uncertainty_score
from dubito.distributions.regression import RealDistribution, StudentT, takes_bounds
from dubito.errors import DubitoError
from dubito.numerics import student
from dubito.numerics.elementwise import Slopes, elementwise
from dubito.numerics.gamma import Array, Gamma, bregman_excess, log_gap
from dubito.targets import Target

__all__ = ["NormalInverseGamma"]

#: Lower bound of the outputs of a network: below it slopes would leave the range of float32.
LEAST_OUTPUT = -60.0


def positive(outputs: Tensor, least: float = LEAST_OUTPUT) -> Tensor:
    """Return the softplus of outputs; those below `least` count as that."""
    return elementwise(partial(_softplus_and_slope, least), partial(_softplus, least), outputs)


def _softplus(least: float, outputs: Tensor) -> Tensor:
    change = outputs - outputs.detach()  # 0, with a gradient: an output can come back
    return softplus(torch.where(outputs < least, least + change, outputs))


def _softplus_and_slope(least: float, outputs: Array) -> tuple[Array, Slopes]:
    limited = np.maximum(outputs, least)
    small = np.exp(-np.abs(limited))
    values = np.maximum(limited, 0) + np.log1p(small)
    return values, lambda: (np.where(limited < 0, small, 1) / (1 + small),)


def blocks(outputs: Tensor, count: int) -> tuple[Tensor, ...]:
    """Divide the outputs of a network into blocks of T values, in float32 at least."""
    size = _checks.tensor(outputs, "outputs").shape[-1]
    if size == 0 or size % count:
        raise DubitoError(f"outputs has {size} values per sample: expected {count} for each target")
    return _checks.at_least_float32(outputs).chunk(count, -1)


class NormalInverse(RealDistribution):
    """Base of distributions over the mean and the noise of normal values.

    Attributes:
        gamma: Means, (..., T).
        nu: Number of virtual observations of the mean, > 0, (..., T) or (..., 1).
    """

    gamma: Tensor
    nu: Tensor

    @property
    @abstractmethod
    def noise(self) -> Tensor:
        """Expected variance of each value around its mean: (..., T)."""

    @property
    def mean(self) -> Tensor:
        """Mean gamma of the predictive: (..., T)."""
        return self.gamma

    @cached_tensor
    def variance(self) -> Tensor:
        """Variance of the predictive, the noise times 1 + 1/nu: (..., T)."""
        return self.noise + self.noise / self.nu

    @uncertainty_score("Var.")
    def predictive_variance(self) -> Tensor:
        """Variance of the target, the total uncertainty: (...)."""
        return self.expected_variance + self.variance_of_mean

    @uncertainty_score("E.Var.")
    def expected_variance(self) -> Tensor:
        """Expected noise, the aleatoric uncertainty: (...)."""
        return self.noise.sum(-1)

    @uncertainty_score("Var.mean")
    def variance_of_mean(self) -> Tensor:
        """Variance of the mean, the noise over nu, the epistemic uncertainty: (...)."""
        return (self.noise / self.nu).sum(-1)


class NormalInverseGamma(NormalInverse):
    r"""Normal-inverse-gamma distribution for each of T values (Amini et al., NeurIPS 2020).

    .. math:: y \sim N(\mu, \sigma^2),\quad \mu \sim N(\gamma, \sigma^2/\nu),\quad
              \sigma^2 \sim \Gamma^{-1}(\alpha, \beta)

    Uncertainties are variances. The likelihood alone does not determine nu (Meinert et al., AAAI
    2023): `variance_of_mean` ranks samples, but its size depends on the regularizer.

    Args:
        gamma: Means, (..., T).
        nu: Number of virtual observations of the mean, > 0, (..., T).
        alpha_minus_one: Shape alpha less 1, > 0, (..., T). Stored in place of alpha because float32
            would round it away.
        beta: Scale of the variance, > 0, (..., T).

    >>> dist = NormalInverseGamma.from_outputs(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    >>> dist.mean, dist.aleatoric, dist.epistemic
    (tensor([[1.]]), tensor([1.]), tensor([1.4427]))
    """

    tensors: ClassVar[Mapping[str, int]] = {"gamma": 1, "nu": 1, "alpha_minus_one": 1, "beta": 1}
    alpha_minus_one: Tensor
    beta: Tensor

    def __init__(self, gamma: Tensor, nu: Tensor, alpha_minus_one: Tensor, beta: Tensor) -> None:
        named = {"gamma": gamma, "nu": nu, "alpha_minus_one": alpha_minus_one, "beta": beta}
        values = [_checks.at_least_float32(_checks.tensor(v, name)) for name, v in named.items()]
        self.gamma, self.nu, self.alpha_minus_one, self.beta = torch.broadcast_tensors(*values)

    @classmethod
    def from_outputs(cls, outputs: Tensor, least: float = LEAST_OUTPUT) -> NormalInverseGamma:
        """Create from the outputs of a network.

        Args:
            outputs: Four blocks of T values, (..., 4T): gamma; nu, alpha - 1 and beta before their
                softplus.
            least: Value that lower outputs count as; they keep their gradient.
        """
        gamma, *raw = blocks(outputs, 4)
        size = gamma.shape[-1]
        return cls(gamma, *positive(torch.cat(raw, -1), least).split(size, -1))

    @property
    def alpha(self) -> Tensor:
        """Shape of the variance, > 1: (..., T)."""
        return self.alpha_minus_one + 1

    @cached_tensor
    def noise(self) -> Tensor:
        """Expected variance beta/(alpha - 1) of the target around its mean: (..., T)."""
        return self.beta / self.alpha_minus_one

    # --- scores ---

    @uncertainty_score("1/nu")
    def inverse_nu(self) -> Tensor:
        """Ratio 1/nu of epistemic and aleatoric variance (Meinert et al., AAAI 2023): (...)."""
        return self.nu.reciprocal().sum(-1)

    @confidence_score("Evidence")
    def evidence(self) -> Tensor:
        """Total evidence 2 nu + alpha: (...)."""
        return self._evidence.sum(-1)

    @property
    def _evidence(self) -> Tensor:
        return 2 * self.nu + self.alpha

    # --- loss terms ---

    @takes_bounds
    def nll(self, target: Tensor | Target) -> Tensor:
        """Negative log-likelihood of each target, see `RealDistribution.nll`: (..., T)."""
        if isinstance(target, Target):
            return super().nll(target)
        parts = (self.gamma, self.nu, self.alpha_minus_one, self.beta)
        return student.normal_inverse_gamma_nll(*parts, target)

    @takes_bounds
    def expected_nll(self, target: Tensor | Target) -> Tensor:
        """Negative log-likelihood expected over mean and variance, a bound on `nll`: (..., T).

        The squared error is weighted by the Fisher information alpha/beta of one observation.
        Censored targets have the probability of their bounds under the expected noise.

        Args:
            target: Targets, (..., T).
        """
        normal = torch.full_like(self.gamma, student.NORMAL)
        error = StudentT(normal, self.gamma, self._precision.rsqrt()).log_probs(target)
        # The mean of 1/(sigma^2 nu), and ln alpha - psi(alpha).
        alpha = Gamma(self.alpha)
        return 0.5 * (self.nu.reciprocal() + 0.5 * alpha.reciprocal + alpha.delta) - error

    @takes_bounds
    def evidence_penalty(self, target: Tensor | Target) -> Tensor:
        """Absolute error times the total evidence, |y - gamma| (2 nu + alpha): (..., T).

        Args:
            target: Targets, (..., T).
        """
        return self.distance(target) * self._evidence

    @takes_bounds
    def fisher_penalty(self, target: Tensor | Target) -> Tensor:
        """Negative log-determinant of `fisher_log_det`, which penalizes evidence: (..., T).

        Args:
            target: Not used.
        """
        return -self.fisher_log_det()

    # --- information ---

    def entropy(self) -> Tensor:
        """Differential entropy of mean and variance, in nats: (..., T)."""
        alpha = Gamma(self.alpha)
        # Stirling's parts of ln Gamma and psi cancel, but for these.
        rest = alpha.mu + (self.alpha + 1.5) * (0.5 * alpha.reciprocal + alpha.delta)
        logs = 1.5 * self.beta.log() - 0.5 * self.nu.log() - 2 * self.alpha.log()
        return 0.5 + math.log(2 * math.pi) + logs + rest

    def kl(self, other: NormalInverseGamma) -> Tensor:
        """Kullback-Leibler divergence from another distribution, in nats: (..., T).

        Each part is at least 0, so that nothing cancels.

        Args:
            other: Distribution of the same shape.
        """
        gap = self.alpha_minus_one - other.alpha_minus_one
        ratio = self.alpha / other.alpha * (other.beta / self.beta)
        # Where alpha is close the differences are exact; elsewhere they cancel.
        change = (gap + self.alpha * ((other.beta - self.beta) / self.beta)) / other.alpha
        change = torch.where(gap.abs() < 0.5 * other.alpha, change, ratio - 1)
        noise = other.alpha * log_gap(change, ratio) + bregman_excess(self.alpha, other.alpha, gap)
        mean = log_gap((other.nu - self.nu) / self.nu, other.nu / self.nu)
        shift = (self.gamma - other.gamma).square() * (other.nu * self._precision)
        return 0.5 * (mean + shift) + noise

    def fisher_diagonal(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Diagonal of the Fisher information in gamma, nu, alpha and beta: (..., T) each.

        Off it there is -1/beta for alpha and beta only.
        """
        gamma, scale = self.nu * self._precision, self.nu.reciprocal()
        # Products: the derivative of 1/nu^2 would leave the range of float32.
        nu = 0.5 * scale * scale
        return gamma, nu, Gamma(self.alpha).trigamma, self._precision / self.beta

    def fisher_log_det(self) -> Tensor:
        """Log-determinant of the Fisher information in the evidence, nu and alpha: (..., T).

        It is ln(psi_1(alpha) - 1/alpha) - ln(2 nu^2) at a given mean gamma and noise beta/alpha, to
        which nu and alpha are orthogonal.
        """
        # The excess times alpha^2 is 1/2 + alpha^2 tau ~ 1/2, with which nothing cancels.
        numerator = 0.5 + self.alpha * (self.alpha * Gamma(self.alpha).tau)
        return numerator.log() - (math.log(2) + 2 * (self.nu.log() + self.alpha.log()))

    @property
    def _precision(self) -> Tensor:
        """Expected 1/sigma^2."""
        return self.alpha / self.beta

    # --- predictive ---

    @property
    def predictive(self) -> StudentT:
        """Student-t distribution with 2 alpha degrees of freedom."""
        scale = student.scale_of(self.nu, self.alpha_minus_one, self.beta)
        return StudentT(2 * self.alpha_minus_one, self.gamma, scale)

    def affine(self, scale: Tensor, shift: Tensor) -> NormalInverseGamma:
        """Return the distribution about scale * y + shift; see `RealDistribution.affine`."""
        gamma, beta = self.gamma * scale + shift, self.beta * scale.square()
        return NormalInverseGamma(gamma, self.nu, self.alpha_minus_one, beta)
