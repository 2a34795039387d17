"""Quantities that the closed forms of a Dirichlet share.

Nothing cancels in float32: what is large and equal is removed in algebra (`gamma.py`), and the
class with the largest alpha, which may hold nearly all of alpha0, is treated apart from the rest.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from dubito.numerics.gamma import Gamma, bregman_excess, log_gap
from dubito.numerics.tracing import lazy

__all__: list[str] = []


class Quantities:
    """Functions of alpha and the target, each computed once, when first used.

    `FastQuantities` inherits those that are arithmetic, for NumPy arrays too: these call functions
    of `xp` in place of methods of tensors.

    Args:
        alpha: Concentrations > 0, (..., K).
        y: Soft target, (..., K), if a form needs one.
        prior: Constant in alpha = evidence + prior; 0 if there is none.
        beta: Concentration of the target class in the targets of Prior Networks.
        evidence: alpha - prior, if known better than alpha, (..., K).
        wide: Compute in float64, so that alpha far below 1 loses nothing to cancellation.
    """

    xp: ModuleType = torch

    def __init__(
        self,
        alpha: Tensor,
        y: Tensor | None = None,
        *,
        prior: float = 1.0,
        beta: float = 1.0,
        evidence: Tensor | None = None,
        wide: bool = False,
    ) -> None:
        self.single = alpha.dtype != torch.float64
        self.alpha = alpha.double() if wide else alpha
        self.num_classes = alpha.shape[-1]
        self.y: Tensor = y.double() if wide and y is not None else y  # type: ignore[assignment]
        self.prior, self.beta = prior, beta
        self.base = prior if prior > 0 else 1.0  # of the target of `label_removed_kl`
        self._evidence = evidence.double() if wide and evidence is not None else evidence

    def beside(self, alpha: Tensor) -> Quantities:
        """Quantities of another alpha, computed as these."""
        other = Quantities(alpha)
        other.single = self.single
        return other

    def release(self) -> None:
        """Free all arrays: divergences refer to their quantities, and the collector comes late."""
        self.__dict__.clear()

    def sum(self, values: Tensor) -> Tensor:
        """Sum over the classes: (..., K) -> (..., 1)."""
        return values.sum(-1, keepdim=True)

    # --- sums and probabilities ---

    @lazy
    def _top(self) -> tuple[Tensor, Tensor]:
        """Largest alpha and its class, (..., 1) each: only there can 1 - p cancel."""
        value, index = self.alpha.max(-1, keepdim=True)
        return value, index

    @lazy
    def is_top(self) -> Tensor:
        """Marks the top class: (..., K)."""
        return torch.arange(self.num_classes, device=self.alpha.device) == self._top[1]

    def at_top(self, values: Tensor) -> Tensor:
        """Values of the top class: (..., K) -> (..., 1)."""
        return values.gather(-1, self._top[1])

    def with_top(self, values: Tensor, top: Tensor) -> Tensor:
        """Values with those of the top class replaced: (..., K), (..., 1) -> (..., K)."""
        return values.scatter(-1, self._top[1], top)

    @lazy
    def rest(self) -> Tensor:
        """alpha0 without the top class: (..., 1)."""
        return self.sum(self.alpha.scatter(-1, self._top[1], 0.0))

    @lazy
    def alpha0(self) -> Tensor:
        """(..., 1)."""
        return self.rest + self._top[0]

    @lazy
    def inverse0(self) -> Tensor:
        """1/alpha0: (..., 1)."""
        inverse: Tensor = self.xp.reciprocal(self.alpha0)
        return inverse

    @lazy
    def inverse1(self) -> Tensor:
        """1/(alpha0 + 1): (..., 1)."""
        inverse: Tensor = self.xp.reciprocal(self.alpha0 + 1)
        return inverse

    @lazy
    def probs(self) -> Tensor:
        """p = alpha/alpha0."""
        return self.alpha / self.alpha0

    @lazy
    def complement(self) -> Tensor:
        """1 - p, from the other classes where p may be close to one."""
        return self.with_top(1 - self.probs, self.rest / self.alpha0)

    @lazy
    def dominant(self) -> Tensor:
        """Whether the top class has more than half of alpha0: (..., 1)."""
        return self.rest < self._top[0]

    @lazy
    def surprise(self) -> Tensor:
        """-ln p, also where p underflows."""
        lost = self.probs < torch.finfo(self.probs.dtype).tiny
        usual = -torch.where(lost, 1, self.probs).log()
        small = torch.where(lost, self.alpha0.log() - self.alpha.log(), usual)
        return self.with_top(small, torch.log1p(self.rest / self._top[0]))

    @lazy
    def residual(self) -> Tensor:
        """p - y, from 1 - p where y is 1."""
        return self.non_target * self.probs - self.y * self.complement

    @lazy
    def spread(self) -> Tensor:
        """p (1 - p)."""
        return self.probs * self.complement

    @lazy
    def spread_slope(self) -> Tensor:
        """1 - 2p."""
        return self.complement - self.probs

    @lazy
    def mean_spread(self) -> Tensor:
        """sum_j p_j (1 - p_j)/(alpha0 + 1): (..., 1)."""
        return self.sum(self.spread) * self.inverse1

    @lazy
    def fisher_residual(self) -> Tensor:
        """(p - y) psi_1(alpha)."""
        return self.residual * self.each.trigamma

    @lazy
    def fisher_squares(self) -> Tensor:
        """(p - y)^2 psi_1(alpha)."""
        return self.residual * self.fisher_residual

    @lazy
    def fisher_weight(self) -> Tensor:
        """psi_1(alpha)/(alpha0 + 1)."""
        return self.each.trigamma * self.inverse1

    @lazy
    def fisher_spread(self) -> Tensor:
        """p (1 - p) psi_1(alpha)/(alpha0 + 1)."""
        return self.spread * self.fisher_weight

    @lazy
    def fisher_spread_sum(self) -> Tensor:
        """(..., 1)."""
        return self.sum(self.fisher_spread)

    def centered(self, values: Tensor) -> Tensor:
        """values - sum_k p_k values_k: alpha0 times the gradient of sum_k values_k p_k.

        The mean of a dominant class cancels against its own value, so both are shifted by it.
        """
        shifted = values - self.at_top(values) * self.dominant
        return shifted - self.sum(self.probs * shifted)

    # --- gamma family ---

    @lazy
    def each(self) -> Gamma:
        """Gamma family at alpha."""
        return Gamma(self.alpha, self.single)

    @lazy
    def total(self) -> Gamma:
        """Gamma family at alpha0."""
        return Gamma(self.alpha0, self.single)

    @lazy
    def digamma_steps(self) -> Tensor:
        """psi(alpha0 + 1) - psi(alpha + 1) > 0."""
        return self.surprise - self.gap_differences

    @lazy
    def gap_differences(self) -> Tensor:
        """h(alpha) - h(alpha0) > 0 with h(x) = psi(x + 1) - ln x."""
        return self.each.digamma_gap - self.total.digamma_gap

    @lazy
    def digamma_differences(self) -> Tensor:
        """psi(alpha0) - psi(alpha) > 0."""
        halves = 0.5 * self.complement * self.each.reciprocal
        return self.surprise + halves + (self.each.delta - self.total.delta)

    @lazy
    def digamma_remainders(self) -> Tensor:
        """psi(alpha0) - psi(alpha) + ln p."""
        halves = 0.5 * (self.each.reciprocal - self.total.reciprocal)
        return halves + (self.each.delta - self.total.delta)

    @lazy
    def trigamma_differences(self) -> Tensor:
        """psi_1(alpha) - psi_1(alpha0) > 0."""
        each, total = self.each, self.total
        share = (self.rest / self.alpha0) * each.reciprocal
        halves = 1 + 0.5 * (each.reciprocal + total.reciprocal)
        dominant = share * halves + (each.tau - total.tau)
        usual = each.trigamma - total.trigamma
        return torch.where(self.is_top & self.dominant, dominant, usual)

    @lazy
    def bracket(self) -> Tensor:
        """1/psi_1(alpha0) - sum_j 1/psi_1(alpha_j), for the log-determinant: (..., 1)."""
        excess = self.sum(self.each.inverse_trigamma_excess)
        usual = (self.num_classes - 1) / 2 + self.total.inverse_trigamma_excess - excess
        # Below one the inverses themselves are small, and the halves would cancel instead.
        inverses = self.sum(self.each.trigamma.reciprocal())
        return torch.where(self.alpha0 < 1, self.total.trigamma.reciprocal() - inverses, usual)

    # --- divergences ---

    @lazy
    def non_target(self) -> Tensor:
        """1 - y."""
        return 1 - self.y

    def _excess(self, base: float) -> Tensor:
        """alpha - base."""
        if self._evidence is not None and self.prior == base:
            return self._evidence
        # A float32 alpha without evidence is the base rounded to float32.
        return self.alpha - (_rounded(base) if self.single else base)

    def _constant(self, base: float) -> Quantities:
        return self.beside(torch.full_like(self.alpha, base))

    @lazy
    def from_one(self) -> KL:
        """KL(Dir(alpha) || Dir(1))."""
        return KL(self, self._constant(1.0), self._excess(1.0))

    @lazy
    def label_removed(self) -> KL:
        """KL(Dir(alpha (1 - y) + base y) || Dir(base))."""
        removed = self.beside(self.alpha * self.non_target + self.base * self.y)
        return KL(removed, self._constant(self.base), self._excess(self.base) * self.non_target)

    @lazy
    def _target(self) -> Quantities:
        """Target of Prior Networks."""
        return self.beside(1 + (self.beta - 1) * self.y)

    @lazy
    def to_target(self) -> KL:
        """KL(Dir(alpha) || target)."""
        return KL(self, self._target)

    @lazy
    def from_target(self) -> KL:
        """KL(target || Dir(alpha))."""
        return KL(self._target, self)

    @lazy
    def from_uniform(self) -> KL:
        """KL(Dir(1) || Dir(alpha))."""
        return KL(self._constant(1.0), self)


def _rounded(x: float) -> float:
    """Round to the 24 bits of float32, by Veltkamp's splitting: torch.compile traces it."""
    scaled = x * (2.0**29 + 1)
    return scaled - (scaled - x)


class KL:
    """KL(Dir(a) || Dir(b)) = b0 KL(mean of b || mean of a) + Bregman excesses; d = a - b."""

    def __init__(self, a: Quantities, b: Quantities, d: Tensor | None = None) -> None:
        self.a, self.b = a, b
        self.d = a.alpha - b.alpha if d is None else d
        self.d0 = self.d.sum(-1, keepdim=True)

    @lazy
    def _ratio(self) -> tuple[Tensor, Tensor]:
        """(ratio - 1, ratio) of the means."""
        a, b, d, d0 = self.a, self.b, self.d, self.d0
        ratio = a.probs / b.probs
        up = (d / b.alpha - d0 / b.alpha0) * (b.alpha0 / a.alpha0)
        down = (d / a.alpha - d0 / a.alpha0) * (a.alpha0 / b.alpha0) * ratio
        return torch.where(a.alpha0 >= b.alpha0, up, down), ratio

    @lazy
    def value(self) -> Tensor:
        """(..., 1)."""
        a, b = self.a, self.b
        leading = a.sum(b.alpha * log_gap(*self._ratio))
        total = bregman_excess(a.alpha0, b.alpha0, self.d0, a.single)
        return leading + (a.sum(bregman_excess(a.alpha, b.alpha, self.d, a.single)) - total)

    @lazy
    def slope(self) -> Tensor:
        """Gradient in a, d psi_1(alpha) - d0 psi_1(alpha0): (..., K)."""
        a, b = self.a, self.b
        share, share0 = self.d * a.each.trigamma, self.d0 * a.total.trigamma
        # For large alpha both tend to 1.
        far = _deficit(share0, b.alpha0, a.total) - _deficit(share, b.alpha, a.each)
        return torch.where(share0 < 0.5, share - share0, far)

    @lazy
    def slope_second(self) -> Tensor:
        """Gradient in b, the difference of psi(alpha0) - psi(alpha) at a and at b: (..., K)."""
        a, b = self.a, self.b
        t, ratio = self._ratio
        near = t.abs() < 0.5
        logs = torch.where(near, torch.log1p(torch.where(near, t, 0)), ratio.log())
        far = (a.digamma_remainders - b.digamma_remainders) - logs
        # If a class has most of both totals, each difference of digammas is small by itself.
        both = a.is_top & b.is_top & a.dominant & b.dominant
        return torch.where(both, a.digamma_differences - b.digamma_differences, far)


def _deficit(share: Tensor, beta: Tensor, gamma: Gamma) -> Tensor:
    """1 - share, share = (x - beta) psi_1(x), also where it tends to 0."""
    near_one = (share - 1).abs() < 0.5
    return torch.where(near_one, beta * gamma.trigamma - gamma.trigamma_excess, 1 - share)
