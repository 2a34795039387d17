"""What the closed forms of a Dirichlet share."""

from __future__ import annotations

import torch
from torch import Tensor

from dubito._lazy import lazy
from dubito.special import Gamma


class Moments:
    """What the closed forms share: computed once, when first asked for. alpha (..., K)."""

    def __init__(self, alpha: Tensor, evidence: Tensor | None = None) -> None:
        self.alpha = alpha
        self.classes = alpha.shape[-1]
        self._evidence = evidence

    @lazy
    def evidence(self) -> Tensor:
        """alpha - 1, given apart where it is known better than alpha."""
        return self.alpha - 1 if self._evidence is None else self._evidence

    @lazy
    def _top_index(self) -> Tensor:
        return self.alpha.argmax(-1, keepdim=True)

    @lazy
    def top(self) -> Tensor:
        """Marks the one class with the largest alpha: only there can 1 - p cancel. (..., K)."""
        classes = torch.arange(self.classes, device=self.alpha.device)
        return classes == self._top_index

    @lazy
    def rest(self) -> Tensor:
        """alpha0 less the top class. (..., 1)."""
        return self.others(self.alpha)

    @lazy
    def alpha0(self) -> Tensor:
        """(..., 1)."""
        return self.rest + self.alpha.gather(-1, self._top_index)

    @lazy
    def each(self) -> Gamma:
        """The gamma family at alpha."""
        return Gamma(self.alpha)

    @lazy
    def total(self) -> Gamma:
        """The gamma family at alpha0."""
        return Gamma(self.alpha0)

    @lazy
    def probs(self) -> Tensor:
        """p = alpha/alpha0."""
        return self.alpha / self.alpha0

    @lazy
    def complement(self) -> Tensor:
        """1 - p, from the other classes' alpha where p is close to one."""
        return torch.where(self.top, self.rest / self.alpha0, 1 - self.probs)

    @lazy
    def surprise(self) -> Tensor:
        """-ln p, also where p is less than numbers can be."""
        lost = self.probs < torch.finfo(self.probs.dtype).tiny
        usual = -torch.where(lost, 1, self.probs).log()
        small = torch.where(lost, self.alpha0.log() - self.alpha.log(), usual)
        return torch.where(self.top, torch.log1p(self.rest / self.alpha), small)

    @lazy
    def digamma_steps(self) -> Tensor:
        """psi(alpha0 + 1) - psi(alpha + 1) > 0."""
        return self.surprise - self.gap_differences

    @lazy
    def gap_differences(self) -> Tensor:
        """h(alpha) - h(alpha0) > 0 with h(x) = psi(x + 1) - ln x."""
        return self.each.digamma_gap - self.total.digamma_gap

    @lazy
    def trigamma_differences(self) -> Tensor:
        """psi_1(alpha) - psi_1(alpha0) > 0."""
        each, total = self.each, self.total
        share = (self.rest / self.alpha0) * each.reciprocal
        dominant = share * (1 + 0.5 * (each.reciprocal + total.reciprocal)) + (each.tau - total.tau)
        return torch.where(
            self.top & (self.rest < 0.5 * self.alpha0), dominant, each.trigamma - total.trigamma
        )

    @lazy
    def bracket(self) -> Tensor:
        """1/psi_1(alpha0) - sum_j 1/psi_1(alpha_j), for the log-determinant. (..., 1)."""
        excess = self.each.inverse_trigamma_excess.sum(-1, keepdim=True)
        usual = (self.classes - 1) / 2 + self.total.inverse_trigamma_excess - excess
        # below one the inverses themselves are small, and halves would cancel instead
        inverses = self.each.trigamma.reciprocal().sum(-1, keepdim=True)
        return torch.where(self.alpha0 < 1, self.total.trigamma.reciprocal() - inverses, usual)

    def others(self, values: Tensor) -> Tensor:
        """The sum over all classes but the top one. (..., K) -> (..., 1)."""
        return values.masked_fill(self.top, 0).sum(-1, keepdim=True)

    def centred(self, values: Tensor) -> Tensor:
        """values - sum_k p_k values_k: alpha0 times the gradient of sum_k values_k p_k."""
        weighted = self.probs * values
        others = self.others(weighted)
        mean = others + weighted.gather(-1, self._top_index)
        return torch.where(self.top, self.complement * values - others, values - mean)

    def residual(self, y: Tensor) -> Tensor:
        """y - p, from 1 - p where p is the larger half."""
        return y * self.complement - (1 - y) * self.probs
