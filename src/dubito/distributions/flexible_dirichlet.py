"""Flexible Dirichlet distribution over class probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from dubito import _checks
from dubito.distributions.base import cached_tensor, confidence_score, uncertainty_score
from dubito.distributions.classification import ClassDistribution
from dubito.errors import DubitoError
from dubito.numerics import functions

__all__ = ["FlexibleDirichlet"]

#: A class with a larger probability is treated as 1 minus the others. At 0.5 rounding could lift
#: two classes above the bound.
MAJOR = 0.6
#: Bound of the logarithms of alpha, within which ratios of concentrations stay in float32.
LOG_ALPHA = 60.0


class FlexibleDirichlet(ClassDistribution):
    r"""Flexible Dirichlet distribution over class probabilities (F-EDL, NeurIPS 2025).

    .. math:: \pi \sim \sum_k p_k \, \mathrm{Dir}(\alpha + \tau e_k)

    Uncertainties are variances of the probabilities: the total is the Gini index 1 - sum mu^2 of
    the expected probabilities mu = (alpha + tau p)/(alpha0 + tau). Values and gradients keep their
    relative accuracy in float32 near one-hot mu, too.

    Args:
        alpha: Concentrations > 0, (..., K).
        p: Allocation probabilities, which sum to 1, (..., K).
        tau: Concentration that goes to one class, > 0, (...).

    >>> dist = FlexibleDirichlet(torch.ones(3), torch.tensor([1.0, 0.0, 0.0]), torch.tensor(7.0))
    >>> dist.probs, dist.total, dist.epistemic
    (tensor([0.8000, 0.1000, 0.1000]), tensor(0.3400), tensor(0.0309))
    """

    tensors: ClassVar[Mapping[str, int]] = {"alpha": 1, "p": 1, "tau": 0}
    decomposition: ClassVar[tuple[str, str, str]] = ("gini_of_mean", "expected_gini", "variance")
    unit: ClassVar[str] = "variance of the probabilities"
    alpha: Tensor
    p: Tensor
    tau: Tensor

    def __init__(self, alpha: Tensor, p: Tensor, tau: Tensor) -> None:
        alpha, p = _checks.floating(alpha, "alpha"), _checks.floating(p, "p")
        tau = _checks.at_least_float32(_checks.tensor(tau, "tau"))
        self.alpha, self.p, padded = torch.broadcast_tensors(alpha, p, tau.unsqueeze(-1))
        self.tau = padded[..., 0]

    @classmethod
    def from_outputs(cls, outputs: Tensor) -> FlexibleDirichlet:
        """Create from the outputs of a network.

        Args:
            outputs: (..., 2K + 1): K logarithms of alpha, limited to [-60, 60]; K logits of p; tau
                before its softplus.
        """
        size = _checks.tensor(outputs, "outputs").shape[-1]
        if size < 5 or size % 2 == 0:
            raise DubitoError(f"outputs has {size} values per sample: expected 2K + 1, K >= 2")
        raw = _checks.at_least_float32(outputs)
        log_alpha, logits, tau = raw.split([size // 2, size // 2, 1], -1)
        alpha = log_alpha.clamp(-LOG_ALPHA, LOG_ALPHA).exp()
        return cls(alpha, logits.softmax(-1), softplus(tau.squeeze(-1)))

    # --- moments ---

    @cached_tensor
    def probs(self) -> Tensor:
        """Expected class probabilities (alpha + tau p)/(alpha0 + tau): (..., K)."""
        return self._mean.values

    @cached_tensor
    def log_probs(self) -> Tensor:
        """Logarithms of `probs`, exact near 0 and near 1: (..., K)."""
        mean = self._mean
        lost = mean.values < torch.finfo(mean.values.dtype).tiny
        parts = self.alpha + self.tau.unsqueeze(-1) * self.p
        apart = parts.log() - self.alpha0.log().unsqueeze(-1)
        logs = torch.where(lost, apart, torch.where(lost, 1, mean.values).log())
        return torch.where(mean.major, torch.log1p(-mean.rest), logs)

    @cached_tensor
    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """alpha, tau and their sum in a common unit: (..., K), (..., 1), (..., 1).

        The unit does not change any ratio of these. If tau dominates, it is tau itself: otherwise
        the derivative of tau/(alpha0 + tau) by tau would cancel.
        """
        total, tau = self.alpha.sum(-1, keepdim=True), self.tau.unsqueeze(-1)
        dominates = tau > total
        unit = torch.where(dominates, tau, total.detach())
        alpha, weight = self.alpha / unit, torch.where(dominates, 1, tau / unit)
        return alpha, weight, alpha.sum(-1, keepdim=True) + weight

    @cached_tensor
    def _allocation(self) -> _Simplex:
        return _Simplex.of(self.p)

    @cached_tensor
    def _mean(self) -> _Simplex:
        alpha, tau, total = self._parts
        p = self._allocation
        values = (alpha + tau * p.values) / total
        major = values > MAJOR
        # 1 - mu of a major class, from the other alpha and 1 - p: neither of these cancels.
        rest = alpha.masked_fill(major, 0) + tau * p.complement.masked_fill(~major, 0)
        rest = torch.where(major.any(-1, keepdim=True), rest.sum(-1, keepdim=True) / total, 1)
        return _Simplex(values, major, rest)

    @property
    def _taus(self) -> Tensor:
        """Concentration that goes to each class: (..., 1) or (..., K)."""
        return self.tau.unsqueeze(-1)

    def log_density(self, logs: Tensor) -> Tensor:
        """Log density at class probabilities: (...).

        Args:
            logs: Logarithms of the probabilities, (..., K); batch shapes broadcast.
        """
        ratios = functions.log_density_ratio(self.alpha, self._taus, logs)
        # An allocation that has underflowed counts as the least of float32.
        shares = self.p.double().clamp_min(torch.finfo(torch.float32).tiny).log()
        density = functions.log_density(self.alpha, logs) + (shares + ratios).logsumexp(-1)
        return density.to(self.alpha.dtype)

    # --- scores ---

    @confidence_score("α₀")
    def alpha0(self) -> Tensor:
        """Sum of all concentrations, tau included: (...)."""
        return self.alpha.sum(-1) + self.tau

    @uncertainty_score("Gini")
    def gini_of_mean(self) -> Tensor:
        """Gini index 1 - sum mu^2, the total uncertainty: (...)."""
        return self._mean.gini

    @uncertainty_score("E.Gini")
    def expected_gini(self) -> Tensor:
        """Expected Gini index of the probabilities, the aleatoric uncertainty: (...)."""
        # The difference of the other two, with their common parts canceled in algebra.
        alpha, tau, total = self._parts
        cross = (alpha * self._allocation.complement).sum(-1)
        inner = _Simplex.of(alpha, alpha.sum(-1, keepdim=True)).gini + 2 * tau.squeeze(-1) * cross
        return self.alpha0 / (self.alpha0 + 1) * inner / total.squeeze(-1).square()

    @uncertainty_score("Var.")
    def variance(self) -> Tensor:
        """Variance of the probabilities, the epistemic uncertainty, summed over classes: (...)."""
        _, tau, total = self._parts
        between = (tau / total).squeeze(-1).square() * self._allocation.gini
        unknown = 1 / (self.alpha0 + 1)
        return unknown * self._mean.gini + (1 - unknown) * between

    @staticmethod
    def divergence(p: Tensor, q: Tensor) -> Tensor:
        """Squared distance, which matches variances: (...)."""
        return (p - q).square().sum(-1)

    # --- loss terms ---

    def mean_error(self, target: Tensor) -> Tensor:
        """Squared error of the mean, sum (y - mu)^2: (...).

        Args:
            target: Labels (...) or class probabilities y (..., K).
        """
        return self._mean.residual(self.one_hot(target)).square().sum(-1)

    def squared_error(self, target: Tensor) -> Tensor:
        """Expected squared error, sum (y - mu)^2 plus the variance: (...).

        Args:
            target: Labels (...) or class probabilities y (..., K).
        """
        return self.mean_error(target) + self.variance

    def allocation_error(self, target: Tensor) -> Tensor:
        """Squared error of the allocation, sum (y - p)^2: (...).

        Args:
            target: Labels (...) or class probabilities y (..., K).
        """
        return self._allocation.residual(self.one_hot(target)).square().sum(-1)


class _Simplex:
    """Shares (..., K) of a total, of which the largest may round to the total.

    A major share is the total minus the rest, as a value and for autograd. So 1 - p does not
    cancel, nor does a gradient that passes through a softmax or a division by the total.

    Args:
        values: Shares, (..., K).
        major: Mark of a share above `MAJOR` of the total, if there is one, (..., K).
        rest: Sum of the other shares, (..., 1).
        total: Sum of all shares, (..., 1).
    """

    def __init__(
        self, values: Tensor, major: Tensor, rest: Tensor, total: Tensor | float = 1.0
    ) -> None:
        self.major, self.rest, self.total = major, rest, total
        self.minor = values.masked_fill(major, 0)
        self.values = torch.where(major, total - rest, values)

    @classmethod
    def of(cls, values: Tensor, total: Tensor | float = 1.0) -> _Simplex:
        """Create from the shares alone."""
        major = values > MAJOR * total
        return cls(values, major, values.masked_fill(major, 0).sum(-1, keepdim=True), total)

    @property
    def complement(self) -> Tensor:
        """Total minus each share: (..., K)."""
        return torch.where(self.major, self.rest, self.total - self.values)

    @property
    def gini(self) -> Tensor:
        """Squared total minus the squared shares: (...)."""
        # Without a major share, rest is the total and the first product its square.
        head = self.rest * (2 * self.total - self.rest)
        return head.squeeze(-1) - self.minor.square().sum(-1)

    def residual(self, y: Tensor) -> Tensor:
        """Target shares minus these, where the total is 1: (..., K)."""
        return torch.where(self.major, self.rest - (1 - y), y - self.values)
