"""Mixture of Dirichlets over class probabilities, one for each class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from dubito import _checks
from dubito.distributions.base import cached_tensor, confidence_score, uncertainty_score
from dubito.distributions.flexible_dirichlet import LOG_ALPHA, FlexibleDirichlet, _Simplex
from dubito.errors import DubitoError

__all__: list[str] = []


class DirichletMixture(FlexibleDirichlet):
    r"""Flexible Dirichlet with a concentration tau of each class (MoDEX, ICML 2026).

    .. math:: \pi \sim \sum_k p_k \, \mathrm{Dir}(\alpha + \tau_k e_k)

    Kept in logarithms, in which shares of large and small concentrations do not cancel. The
    variance takes memory quadratic in the number of classes.

    Args:
        log_alpha: Logarithms of the concentrations, (..., K).
        logits: Logits of the allocation probabilities p, (..., K).
        log_tau: Logarithms of the concentrations that go to one class, (..., K).

    >>> dist = DirichletMixture(torch.zeros(3), torch.zeros(3), torch.tensor([3.0, 0.0, 0.0]).log())
    >>> dist.probs
    tensor([0.4444, 0.2778, 0.2778])
    """

    tensors: ClassVar[Mapping[str, int]] = {"log_alpha": 1, "logits": 1, "log_tau": 1}
    log_alpha: Tensor
    logits: Tensor
    log_tau: Tensor

    def __init__(self, log_alpha: Tensor, logits: Tensor, log_tau: Tensor) -> None:
        parts = {"log_alpha": log_alpha, "logits": logits, "log_tau": log_tau}
        parts = {name: _checks.floating(part, name) for name, part in parts.items()}
        self.log_alpha, self.logits, self.log_tau = torch.broadcast_tensors(*parts.values())

    @classmethod
    def from_outputs(cls, outputs: Tensor) -> DirichletMixture:
        """Create from the outputs of a network.

        Args:
            outputs: (..., 3K): K logarithms of alpha, limited to [-60, 60]; K logits of p; K
                logarithms of tau, limited as those of alpha.
        """
        size = _checks.tensor(outputs, "outputs").shape[-1]
        if size < 6 or size % 3:
            raise DubitoError(f"outputs has {size} values per sample: expected 3K, K >= 2")
        log_alpha, logits, log_tau = _checks.at_least_float32(outputs).chunk(3, -1)
        bounds = -LOG_ALPHA, LOG_ALPHA
        return cls(log_alpha.clamp(*bounds), logits, log_tau.clamp(*bounds))

    @cached_tensor
    def alpha(self) -> Tensor:
        """Concentrations: (..., K)."""
        return self.log_alpha.exp()

    @cached_tensor
    def p(self) -> Tensor:
        """Allocation probabilities: (..., K)."""
        return self.logits.softmax(-1)

    @cached_tensor
    def tau(self) -> Tensor:
        """Concentration that goes to each class: (..., K)."""
        return self.log_tau.exp()

    @property
    def _taus(self) -> Tensor:
        return self.tau

    @cached_tensor
    def log_probs(self) -> Tensor:
        """Logarithms of `probs`, exact near 0 and near 1: (..., K)."""
        log_p = self.logits.log_softmax(-1)
        odds = self.log_tau - self._log_total
        common = (log_p + logsigmoid(-odds)).logsumexp(-1, keepdim=True)
        own = log_p + logsigmoid(odds)
        logs = torch.logaddexp(self.log_alpha.log_softmax(-1) + common, own)
        mean = self._mean
        return torch.where(mean.major, torch.log1p(-mean.rest), logs)

    @cached_tensor
    def _log_total(self) -> Tensor:
        """Logarithm of the sum of alpha: (..., 1)."""
        return self.log_alpha.logsumexp(-1, keepdim=True)

    @cached_tensor
    def _base(self) -> _Simplex:
        """Shares of alpha."""
        return _Simplex.of(self.log_alpha.softmax(-1))

    @cached_tensor
    def _shares(self) -> tuple[Tensor, Tensor]:
        """Shares of tau and of alpha in each component: (..., K), (..., K)."""
        odds = self.log_tau - self._log_total
        return odds.sigmoid(), (-odds).sigmoid()

    @cached_tensor
    def _mean(self) -> _Simplex:
        own, common = self._shares
        p = self._allocation.values
        return _Simplex.of(self._base.values * (p * common).sum(-1, keepdim=True) + p * own)

    @cached_tensor
    def _gini(self) -> Tensor:
        """Gini index of the mean of each component: (..., K)."""
        own, common = self._shares
        return common * (common * self._base.gini.unsqueeze(-1) + 2 * own * self._base.complement)

    @cached_tensor
    def _log_size(self) -> Tensor:
        """Logarithm of the sum of the concentrations of each component: (..., K)."""
        return torch.logaddexp(self._log_total, self.log_tau)

    @confidence_score("α₀")
    def alpha0(self) -> Tensor:
        """Expected sum of the concentrations: (...)."""
        return (self.p * self._log_size.exp()).sum(-1)

    @uncertainty_score("E.Gini")
    def expected_gini(self) -> Tensor:
        """Expected Gini index of the probabilities, the aleatoric uncertainty: (...)."""
        return (self._allocation.values * self._log_size.sigmoid() * self._gini).sum(-1)

    @uncertainty_score("Var.")
    def variance(self) -> Tensor:
        """Trace of the covariance of the probabilities, the epistemic uncertainty: (...)."""
        p, base, (own, _) = self._allocation, self._base, self._shares
        within = (p.values * (-self._log_size).sigmoid() * self._gini).sum(-1)
        # A class's mean in the components: in its own one, and in the others, where it varies.
        weighted = p.values * own
        others = torch.where(p.complement > 0, p.complement, 1)
        mean = _Simplex.of(weighted, weighted.sum(-1, keepdim=True)).complement / others
        gap = own * base.complement + base.values * mean
        same = torch.eye(own.shape[-1], dtype=torch.bool, device=own.device)
        squares = (own.unsqueeze(-2) - mean.unsqueeze(-1)).square().masked_fill(same, 0)
        spread = (p.values.unsqueeze(-2) * squares).sum(-1)
        between = p.values * p.complement * gap.square() + base.values.square() * spread
        return within + between.sum(-1)
