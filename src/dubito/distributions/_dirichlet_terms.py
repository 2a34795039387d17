"""Quantities that the closed forms of a Dirichlet share.

Nothing cancels in float32: what is large and equal is removed in algebra (`_special.py`), and the
class with the largest alpha, which may hold nearly all of alpha0, is treated apart from the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from dubito._eager import lazy
from dubito._special import (
    Gamma,
    GammaAboveOne,
    bregman_excess,
    bregman_excess_from_one,
    constants,
    log_gap,
    short_horner,
    stirling_coefficients,
)


class Terms:
    """Functions of alpha and the target, each computed once, when first used.

    Args:
        alpha: Concentrations > 0, (..., K).
        y: Soft target, (..., K), if a form needs one.
        prior: Constant in alpha = evidence + prior; 0 if there is none.
        beta: Concentration of the target class in the targets of Prior Networks.
        evidence: alpha - prior, if known better than alpha, (..., K).
        wide: Compute in float64, so that alpha far below 1 loses nothing to cancellation.
    """

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

    def beside(self, alpha: Tensor) -> Terms:
        """Terms of another alpha, computed as these."""
        terms = Terms(alpha)
        terms.single = self.single
        return terms

    def sum(self, values: Tensor) -> Tensor:
        """Sum over the classes: (..., K) -> (..., 1)."""
        return values.sum(-1, keepdim=True)

    @lazy
    def one(self) -> Tensor:
        """1 as a tensor (): small tensors are twice as slow to combine with numbers."""
        return self.alpha.new_ones(())

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
        return self.alpha0.reciprocal()

    @lazy
    def inverse1(self) -> Tensor:
        """1/(alpha0 + 1): (..., 1)."""
        return (self.alpha0 + self.one).reciprocal()

    @lazy
    def probs(self) -> Tensor:
        """p = alpha/alpha0."""
        return self.alpha / self.alpha0

    @lazy
    def complement(self) -> Tensor:
        """1 - p, from the other classes where p may be close to one."""
        return self.with_top(self.one - self.probs, self.rest / self.alpha0)

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
        return torch.lerp(self.probs, -self.complement, self.y)

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

    # --- divergences from constant concentrations ---

    def _excess(self, base: float) -> Tensor:
        """alpha - base."""
        if self._evidence is not None and self.prior == base:
            return self._evidence
        # A float32 alpha without evidence is the base rounded to float32.
        return self.alpha - (_rounded(base) if self.single else base)

    @lazy
    def from_one(self) -> ConstantKL:
        """KL(Dir(alpha) || Dir(1))."""
        return ConstantKL(self.alpha, self._excess(1.0), 1.0, self.single)

    @lazy
    def non_target(self) -> Tensor:
        """1 - y."""
        return self.one - self.y

    @lazy
    def label_removed(self) -> ConstantKL:
        """KL(Dir(alpha (1 - y) + base y) || Dir(base))."""
        alpha = self.alpha * self.non_target + self.base * self.y
        return ConstantKL(alpha, self._excess(self.base) * self.non_target, self.base, self.single)

    # --- divergences between two Dirichlets ---

    @lazy
    def target_alpha(self) -> Tensor:
        """Target concentrations of Prior Networks."""
        return 1 + (self.beta - 1) * self.y

    @lazy
    def to_target(self) -> KL:
        """KL(Dir(alpha) || target)."""
        return KL(self, self.beside(self.target_alpha))

    @lazy
    def from_target(self) -> KL:
        """KL(target || Dir(alpha))."""
        return KL(self.beside(self.target_alpha), self)

    @lazy
    def from_uniform(self) -> KL:
        """KL(Dir(1) || Dir(alpha))."""
        return KL(self.beside(torch.ones_like(self.alpha)), self)


def _rounded(x: float) -> float:
    """Round to the 24 bits of float32, by Veltkamp's splitting: torch.compile traces it."""
    scaled = x * (2.0**29 + 1)
    return scaled - (scaled - x)


class ConstantKL:
    """KL(Dir(alpha) || Dir(base)) with the same `base` for all classes; excess = alpha - base."""

    def __init__(self, alpha: Tensor, excess: Tensor, base: float, single: bool) -> None:
        self.alpha, self.excess, self.base, self.single = alpha, excess, base, single
        self.base0 = base * alpha.shape[-1]
        self.alpha0, self.excess0 = (x.sum(-1, keepdim=True) for x in (alpha, excess))

    @lazy
    def value(self) -> Tensor:
        """Sum of Bregman divergences of ln Gamma: (..., 1).

        Their leading parts sum to base0 KL(uniform || mean).
        """
        num_classes = self.alpha.shape[-1]
        inverse = num_classes / self.alpha0
        spread = self.excess - self.excess0 / num_classes
        leading = self.base * log_gap(spread * inverse, self.alpha * inverse)
        each = leading.sum(-1, keepdim=True)
        excesses = self._bregman(self.alpha, self.base, self.excess).sum(-1, keepdim=True)
        return each + (excesses - self._bregman(self.alpha0, self.base0, self.excess0))

    def _bregman(self, alpha: Tensor, base: float, excess: Tensor) -> Tensor:
        if base == 1:
            return bregman_excess_from_one(alpha, excess, self.single)
        return bregman_excess(alpha, torch.full_like(alpha, base), excess, self.single)

    @lazy
    def slope(self) -> Tensor:
        """Gradient in alpha: (..., K)."""
        each, total = Gamma(self.alpha, self.single), Gamma(self.alpha0, self.single)
        return kl_slope(self.excess, self.base, each, self.excess0, self.base0, total)


class KL:
    """KL(Dir(a) || Dir(b)) = b0 KL(mean of b || mean of a) + Bregman excesses."""

    def __init__(self, a: Terms, b: Terms) -> None:
        self.a, self.b = a, b
        self.d = a.alpha - b.alpha
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
        return leading + (a.sum(bregman_excess(a.alpha, b.alpha, None, a.single)) - total)

    @lazy
    def slope_first(self) -> Tensor:
        """Gradient in a: (..., K)."""
        a, b = self.a, self.b
        return kl_slope(self.d, b.alpha, a.each, self.d0, b.alpha0, a.total)

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


def kl_slope(
    d: Tensor, beta: Tensor | float, each: Gamma, d0: Tensor, beta0: Tensor | float, total: Gamma
) -> Tensor:
    """d psi_1(alpha) - d0 psi_1(alpha0), d = alpha - beta; for large alpha both tend to 1."""
    share, share0 = d * each.trigamma, d0 * total.trigamma
    deficit = _deficit(share, beta, each)
    return torch.where(share0 < 0.5, share - share0, _deficit(share0, beta0, total) - deficit)


def _deficit(share: Tensor, beta: Tensor | float, gamma: Gamma) -> Tensor:
    """1 - share, share = (x - beta) psi_1(x), also where it tends to 0."""
    near_one = (share - 1).abs() < 0.5
    return torch.where(near_one, beta * gamma.trigamma - gamma.trigamma_excess, 1 - share)


# --- float32 and alpha >= 1: fewer and larger operations ---


def joined(parts: list[Tensor]) -> Tensor:
    """Concatenate along the last axis, which comes first in memory if it does in the first part."""
    if parts[0].stride(-1) <= 1:
        return torch.cat(parts, -1)
    return torch.cat([part.movedim(-1, 0) for part in parts]).movedim(0, -1)


class _Columns:
    """Members of a gamma family at some columns of its argument."""

    def __init__(self, family: GammaAboveOne, columns: slice) -> None:
        self._family, self._columns = family, columns

    def __getattr__(self, name: str) -> Tensor:
        member: Tensor = getattr(self._family, name)[..., self._columns]
        self.__dict__[name] = member
        return member


class FastTerms(Terms):
    """`Terms` for float32, alpha >= 1 and evidence >= 0, without derivatives.

    Forms that need the gamma family only at alpha without the label allow any prior > 0.

    The gamma family is evaluated once, at alpha, alpha0 and, with `share_removed`, the total of
    alpha without the label. That requires y to be one-hot: then alpha without the label differs
    from alpha only where the divergence has no term.
    """

    def __init__(self, *args: Any, share_removed: bool = False, **options: Any) -> None:
        super().__init__(*args, **options)
        self._share_removed = share_removed

    @lazy
    def one(self) -> Tensor:
        """As in `Terms`."""
        return constants((1.0,), self.alpha.device)[0]

    @lazy
    def _family(self) -> GammaAboveOne:
        points = [self.alpha, self.alpha0]
        if self._share_removed:
            points.insert(1, self.label_removed.alpha0)
        return GammaAboveOne(joined(points))

    @lazy
    def each(self) -> Any:
        """Gamma family at alpha."""
        return _Columns(self._family, slice(0, self.num_classes))

    @lazy
    def total(self) -> Any:
        """Gamma family at alpha0."""
        return _Columns(self._family, slice(-1, None))

    # Arithmetic with a mask of numbers is several times faster than an index or a mask of bool.

    @lazy
    def _top(self) -> tuple[Tensor, Tensor]:
        """Largest alpha, (..., 1), and a mask (..., K) of the classes: 0 where they have it."""
        largest = self.alpha.amax(-1, keepdim=True)
        return largest, (largest - self.alpha).sign_()

    def at_top(self, values: Tensor) -> Tensor:
        """As in `Terms` for a dominant class."""
        return self.sum(torch.addcmul(values, values, self._top[1], value=-1))

    def with_top(self, values: Tensor, top: Tensor) -> Tensor:
        """As in `Terms`; also for several classes that are equal."""
        return torch.lerp(top, values, self._top[1])

    @lazy
    def rest(self) -> Tensor:
        """As in `Terms`."""
        largest, lower = self._top
        equal = (self.num_classes - 1) - self.sum(lower)
        return torch.addcmul(self.sum(self.alpha * lower), largest, equal)

    @lazy
    def surprise(self) -> Tensor:
        """-ln p; p >= 1e-34 does not underflow."""
        return self.with_top(self.probs.log().neg_(), torch.log1p(self.rest / self._top[0]))

    @lazy
    def trigamma_differences(self) -> Tensor:
        """As in `Terms`: the inverses of both trigammas differ by more than 1/2."""
        excess = self.total.inverse_trigamma_excess - self.each.inverse_trigamma_excess
        inverse = torch.addcmul(excess, self.complement, self.alpha0)
        return inverse.mul_(self.total.trigamma).mul_(self.each.trigamma)

    @lazy
    def bracket(self) -> Tensor:
        """As in `Terms`."""
        excess = self.sum(self.each.inverse_trigamma_excess)
        (halves,) = constants(((self.num_classes - 1) / 2,), self.alpha.device)
        bracket: Tensor = (self.total.inverse_trigamma_excess - excess).add_(halves)
        return bracket

    @lazy
    def from_one(self) -> FastConstantKL:  # type: ignore[override]
        """As in `Terms`."""
        gamma = None if self._share_removed else lambda: self._family
        return FastConstantKL(self._excess(1.0), 1.0, gamma)

    @lazy
    def label_removed(self) -> FastConstantKL:  # type: ignore[override]
        """As in `Terms`."""
        columns = slice(0, self.num_classes + 1)
        gamma = (lambda: _Columns(self._family, columns)) if self._share_removed else None
        return FastConstantKL(self._excess(self.base) * self.non_target, self.base, gamma)


class _Constants:
    """Vectors (K + 1,) for the classes and their total; `base0` is (1,).

    `upper` is the base, or base + 1 if that is below 1.
    """

    def __init__(self, num_classes: int, base: float, device: torch.device) -> None:
        with torch.inference_mode(False):
            self.sign = torch.ones(num_classes + 1, dtype=torch.float64, device=device)
            self.base64 = base * self.sign
            self.sign[-1], self.base64[-1] = -1, base * num_classes
            self.upper64 = self.base64 + (1.0 if base < 1 else 0.0)
            self.base, self.upper = self.base64.float(), self.upper64.float()
            self.base0 = self.base[-1:]
            self.log_weight = (0.5 - self.upper64) * self.sign
            self.share_weight = -0.5 * self.sign
            self.half_less_upper = (0.5 - self.upper64).float()
            each, total = (stirling_coefficients(self.upper64[i].item()) for i in (0, -1))
            polynomial = self.sign.new_tensor(each).repeat(num_classes + 1, 1)
            polynomial[-1] = self.sign.new_tensor(total)
            self.polynomial = (polynomial.T * self.sign).float().unbind()


_constants = lru_cache(maxsize=64)(_Constants)


class FastConstantKL:
    r"""`ConstantKL` for float32 and excess >= 0, without derivatives.

    With b the base and e = alpha - b, the Bregman divergence of ln Gamma is e - f_b(e),

    .. math:: f_b(e) = (b - \tfrac12)\ln(1 + e/b) + \frac{e}{2 (b + e)} - \mu(b) + \mu(b + e)
              + e\,\delta(b + e)

    for a class and for the total alike, and e cancels between them. The remaining terms of first
    order in e cancel too, so they are computed in float64; those of mu and delta are of second
    order. For b < 1, f_b(e) = f_{b + 1}(e) - ln(1 + e/b) + e/(b + e).

    Below e = 1e-10 the value, then less than 1e-20, is exact only to 1e-16 e; the slope still is.

    Args:
        excess: alpha - base >= 0, (..., K).
        base: Concentration of all classes of the other Dirichlet.
        gamma: Returns the gamma family at alpha and alpha0, (..., K + 1), if it is known.
    """

    def __init__(self, excess: Tensor, base: float, gamma: Callable[[], Any] | None = None) -> None:
        self.stepped, self._gamma = base < 1, gamma
        self.constants = _constants(excess.shape[-1], base, excess.device)
        # Of the classes and of their sum, (..., K + 1).
        exact = excess.double()
        self.excess64 = joined([exact, exact.sum(-1, keepdim=True)])
        self.excess = self.excess64.to(excess.dtype)
        self.excess0 = self.excess[..., -1:]

    @lazy
    def alpha0(self) -> Tensor:
        """(..., 1)."""
        return self.excess0 + self.constants.base0

    @lazy
    def gamma(self) -> Any:
        """Gamma family at alpha and alpha0: (..., K + 1)."""
        if self._gamma is not None:
            return self._gamma()
        return GammaAboveOne(self.excess + self.constants.upper)

    @lazy
    def value(self) -> Tensor:
        """As in `ConstantKL`."""
        c, variable, excess = self.constants, self.gamma.variable, self.excess64
        main = (excess / c.upper64).log1p_() @ c.log_weight
        main += (excess / (excess + c.upper64)) @ c.share_weight
        if self.stepped:
            main += (excess / c.base64).log1p_().sub_(excess / (excess + c.base64)) @ c.sign
        smooth = (self.excess * variable).square_()
        smooth.mul_(short_horner(c.polynomial, variable))
        value: Tensor = main.add_(smooth.sum(-1)).to(smooth.dtype).unsqueeze(-1)
        return value

    @lazy
    def slope(self) -> Tensor:
        """As in `ConstantKL`."""
        c, excess = self.constants, self.excess
        # share = e psi_1(b + e), less 1 where it tends to 1
        far = c.half_less_upper - self.gamma.inverse_trigamma_excess
        share = torch.where(self.excess0 < c.base0, excess, far).mul_(self.gamma.trigamma)
        if self.stepped:
            alpha = excess + c.base
            share += (excess / alpha).div_(alpha)
        return share[..., :-1] - share[..., -1:]
