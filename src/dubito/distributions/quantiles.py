"""Quantiles of a number at fixed probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from dubito import _checks
from dubito.distributions.base import cached_tensor
from dubito.distributions.normal_inverse_gamma import blocks, positive
from dubito.distributions.regression import PredictiveOnly, RealPredictive, takes_bounds
from dubito.errors import DubitoError
from dubito.numerics.tracing import constant
from dubito.targets import Target

__all__: list[str] = []

#: Lower bound of the outputs of a network: a gap of 1e-13 is less than float32 resolves.
LEAST_OUTPUT = -30.0
#: an open interval ends where a tail has fallen to exp(-40) of itself
REACH = 40.0


class Quantiles(PredictiveOnly):
    """Ascending quantiles of each of T values, the same K >= 2 probabilities for all.

    The density is constant between neighboring quantiles. Beyond the outer ones it falls
    exponentially from the value that it has inside, so that mean and variance exist and no target
    has a density of zero. All uncertainty is aleatoric. A mixture, as of an ensemble or of MC
    Dropout samples, has an epistemic part: the disagreement of its members.

    Args:
        center: Quantile number K // 2, counted from 0: the median if probabilities are symmetric
            and K is odd. (..., T)
        gaps: Differences > 0 of neighboring quantiles, (..., T, K - 1). Stored in place of
            quantiles because float32 would round them away.
        probabilities: K ascending probabilities between 0 and 1.

    >>> dist = Quantiles.from_outputs(torch.tensor([[1.0, 0.0, 0.0]]), (0.25, 0.5, 0.75))
    >>> dist.mean, dist.ends(0.5)
    (tensor([[1.]]), (tensor([[0.3069]]), tensor([[1.6931]])))
    """

    tensors: ClassVar[Mapping[str, int]] = {"center": 1, "gaps": 2}
    static: ClassVar[tuple[str, ...]] = ("probabilities",)
    center: Tensor
    gaps: Tensor
    probabilities: tuple[float, ...]

    def __init__(self, center: Tensor, gaps: Tensor, probabilities: tuple[float, ...]) -> None:
        named = {"center": center, "gaps": gaps}
        values = [_checks.at_least_float32(_checks.tensor(v, name)) for name, v in named.items()]
        self.center, self.gaps = values
        expected = (*self.center.shape, len(probabilities) - 1)
        if self.gaps.shape != expected:
            raise DubitoError(f"gaps has shape {tuple(self.gaps.shape)}, expected {expected}")
        self.probabilities = probabilities

    @classmethod
    def from_outputs(cls, outputs: Tensor, probabilities: tuple[float, ...]) -> Quantiles:
        """Create from the outputs of a network.

        Args:
            outputs: K blocks of T values, (..., K * T): the center; and the gaps, from the lowest
                to the highest, before their softplus, where outputs below -30 count as -30 but
                keep their gradient.
            probabilities: K ascending probabilities between 0 and 1.
        """
        center, *raw = blocks(outputs, len(probabilities))
        return cls(center, positive(torch.stack(raw, -1), LEAST_OUTPUT), probabilities)

    @property
    def predictive(self) -> PiecewisePredictive:
        """Distribution with these quantiles."""
        return PiecewisePredictive(self.center, self.gaps, self.probabilities)

    @cached_tensor
    def mean(self) -> Tensor:
        """Mean of the predictive, which differs from the median of a skewed one: (..., T)."""
        return self.predictive.mean

    @cached_tensor
    def variance(self) -> Tensor:
        """Variance of the predictive: (..., T)."""
        return self.predictive.variance

    def ends(self, level: float) -> tuple[Tensor, Tensor]:
        """Quantiles of (1 - level)/2 and (1 + level)/2; see `RealDistribution.ends`."""
        sides = (0.5 * (1 + sign * level) for sign in (-1, 1))
        lower, upper = (torch.full_like(self.center, side, dtype=torch.double) for side in sides)
        predictive = self.predictive
        return predictive.icdf(lower).to(self.center), predictive.icdf(upper).to(self.center)

    def affine(self, scale: Tensor, shift: Tensor) -> Quantiles:
        """Return the distribution about scale * y + shift; see `RealDistribution.affine`."""
        gaps = self.gaps * scale.unsqueeze(-1)
        return Quantiles(self.center * scale + shift, gaps, self.probabilities)

    # --- loss term ---

    @takes_bounds
    def pinball(self, target: Tensor | Target) -> Tensor:
        """Pinball loss, averaged over the quantiles: (..., T).

        A censored target counts as the point within its bounds that is nearest to the quantile, so
        that quantiles within the bounds cost nothing (Powell, 1986).

        Args:
            target: Targets, (..., T).
        """
        values = target.values if isinstance(target, Target) else target
        deviation = self._deviation(values)
        if isinstance(target, Target) and target.bounds is not None:
            lower, upper = (self._deviation(bound) for bound in target.bounds)
            outside = lower.clamp(min=0) + upper.clamp(max=0)
            deviation = torch.where(target.censored.unsqueeze(-1), outside, deviation)
        share = constant(self.probabilities, deviation.device, deviation.dtype)
        return torch.maximum(share * deviation, (share - 1) * deviation).mean(-1)

    def _deviation(self, value: Tensor) -> Tensor:
        """Value less each quantile: (..., T) -> (..., T, K)."""
        return (value - self.center).unsqueeze(-1) - self.predictive.offsets


class PiecewisePredictive(RealPredictive):
    """Independent distributions of T values with given quantiles; see `Quantiles`.

    Args:
        center: Quantile number K // 2, (..., T).
        gaps: Differences > 0 of neighboring quantiles, (..., T, K - 1).
        probabilities: K ascending probabilities between 0 and 1.
    """

    def __init__(self, center: Tensor, gaps: Tensor, probabilities: tuple[float, ...]) -> None:
        self.center, self.gaps, self.probabilities = center, gaps, probabilities
        # The density at an outer quantile, p/scale, is that of the segment inside of it.
        steps = [high - low for low, high in pairwise(probabilities)]
        low, high = probabilities[0], 1 - probabilities[-1]
        self._masses = (low, *steps, high)
        self._low = gaps[..., 0] * (low / steps[0])
        self._high = gaps[..., -1] * (high / steps[-1])
        super().__init__(center.shape[:-1], center.shape[-1:], validate_args=False)

    @property
    def offsets(self) -> Tensor:
        """Quantiles less the center: (..., T, K)."""
        middle = len(self.probabilities) // 2
        below = -self.gaps[..., :middle].flip(-1).cumsum(-1).flip(-1)
        above = self.gaps[..., middle:].cumsum(-1)
        return torch.cat([below, torch.zeros_like(self.gaps[..., :1]), above], -1)

    @property
    def mean(self) -> Tensor:
        """Mean of each value: (..., T)."""
        return self.center + self._mean_offset(self._means)

    @property
    def variance(self) -> Tensor:
        """Variance of each value: (..., T)."""
        means = self._means
        between = (means - self._mean_offset(means).unsqueeze(-1)).square()
        tails = self._low.square().unsqueeze(-1), self._high.square().unsqueeze(-1)
        within = torch.cat([tails[0], self.gaps.square() / 12, tails[1]], -1)
        return (self._constant(self._masses) * (between + within)).sum(-1)

    @property
    def scale(self) -> Tensor:
        """Standard deviation of each value: (..., T)."""
        return self.variance.sqrt()

    @property
    def _means(self) -> Tensor:
        """Mean of each piece, a tail or a segment, less the center: (..., T, K + 1)."""
        offsets = self.offsets
        low, high = offsets[..., 0] - self._low, offsets[..., -1] + self._high
        inner = offsets[..., :-1] + 0.5 * self.gaps
        return torch.cat([low.unsqueeze(-1), inner, high.unsqueeze(-1)], -1)

    def _mean_offset(self, means: Tensor) -> Tensor:
        return (self._constant(self._masses) * means).sum(-1)

    def _constant(self, values: tuple[float, ...]) -> Tensor:
        return constant(values, self.gaps.device, self.gaps.dtype)

    def scaled(self, factor: Tensor) -> PiecewisePredictive:
        """Return the distribution whose deviations from its mean are multiplied."""
        wide = self._to(factor.dtype)
        shift = wide._mean_offset(wide._means)
        center, gaps = wide.center + (1 - factor) * shift, wide.gaps * factor
        return PiecewisePredictive(center, gaps, self.probabilities)

    def _to(self, dtype: torch.dtype) -> PiecewisePredictive:
        return PiecewisePredictive(self.center.to(dtype), self.gaps.to(dtype), self.probabilities)

    def log_probs(self, value: Tensor | Target) -> Tensor:
        """Log density of each value of a target (..., T): (..., T)."""
        values = value.values if isinstance(value, Target) else value
        wide = self._to(torch.double)
        below, inside, above = wide._places(values)
        steps = wide._constant(self._masses[1:-1])
        segment = (inside >= 1).sum(-1, keepdim=True).clamp(max=inside.shape[-1] - 1)
        logs = (steps.log() - wide.gaps.log()).take_along_dim(segment, -1).squeeze(-1)
        each = logs - below - above
        if isinstance(value, Target) and value.bounds is not None:
            each = torch.where(value.censored, wide._log_probability(*value.bounds), each)
        return each.to(self.center.dtype)

    def _places(self, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Depth in the lower tail in its scales, share of each segment, depth in the upper tail."""
        offsets = self.offsets
        deviation = value.to(self.center.dtype) - self.center
        below = ((offsets[..., 0] - deviation) / self._low).clamp(min=0)
        above = ((deviation - offsets[..., -1]) / self._high).clamp(min=0)
        inside = ((deviation.unsqueeze(-1) - offsets[..., :-1]) / self.gaps).clamp(0, 1)
        return below, inside, above

    def _log_probability(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Log probability of intervals whose ends may be infinite, of each part by itself."""
        offsets = self.offsets
        first, last = offsets[..., 0], offsets[..., -1]
        a, b = (bound.to(self.center.dtype) - self.center for bound in (lower, upper))
        # An open interval gets an end beyond which there is nothing in float64.
        start = torch.where(b.isfinite(), torch.minimum(b, first), first) - REACH * self._low
        a = torch.where(a.isfinite(), a, start)
        b = torch.where(b.isfinite(), b, torch.maximum(a, last) + REACH * self._high)
        x, y = (end.unsqueeze(-1) for end in (a, b))
        left, right = offsets[..., :-1], offsets[..., 1:]
        overlap = (torch.minimum(y, right) - torch.maximum(x, left)).clamp(min=0)
        inner = (self._constant(self._masses[1:-1]) * (overlap / self.gaps)).sum(-1)
        parts, is_empty = [], torch.ones_like(inner, dtype=torch.bool)
        for mass, scale, near, far in (
            (self._masses[0], self._low, first - b, first - a),
            (self._masses[-1], self._high, a - last, b - last),
        ):
            depth = near.clamp(min=0) / scale
            width = far.clamp(min=0) / scale - depth
            some = width > 0
            log = (-(-torch.where(some, width, 1)).expm1()).log() - depth
            mass_log = self._constant((mass,)).log()
            parts.append(torch.where(some, mass_log + log, -torch.inf))
            is_empty = is_empty & ~some
        # An interval that rounding has made empty has a finite logarithm.
        some = is_empty | (inner > 0)
        least = torch.finfo(inner.dtype).tiny
        log = torch.where(some, inner, 1).clamp(min=least).log()
        parts.append(torch.where(some, log, -torch.inf))
        return torch.stack(parts).logsumexp(0)

    def cdf(self, value: Tensor) -> Tensor:
        """Cumulative distribution of each value (..., T): (..., T)."""
        wide = self._to(torch.double)
        below, inside, above = wide._places(value)
        low, *_, high = self._masses
        inner = (wide._constant(self._masses[1:-1]) * inside).sum(-1)
        return (low * (-below).exp() + inner - high * (-above).expm1()).to(value.dtype)

    def icdf(self, value: Tensor) -> Tensor:
        """Quantile of each probability in (0, 1), (..., T): (..., T)."""
        wide, share = self._to(torch.double), value.double()
        low, *_, high = self._masses
        steps = wide._constant(self._masses[1:-1])
        start = wide._constant(self.probabilities[:-1])
        inside = ((share.unsqueeze(-1) - start) / steps).clamp(0, 1)
        below = (share / low).clamp(max=1).log() * wide._low
        above = ((1 - share) / high).clamp(max=1).log() * wide._high
        offset = wide.offsets[..., 0] + (inside * wide.gaps).sum(-1) + below - above
        return (wide.center + offset).to(value.dtype)

    def crps(self, value: Tensor) -> Tensor:
        """Continuous ranked probability score of each value of a target (..., T): (..., T).

        The integral of (F(x) - [x >= value])^2, in closed form for each part of each piece.
        """
        wide = self._to(torch.double)
        below, inside, above = wide._places(value)
        p, step = wide._constant(self.probabilities[:-1]), wide._constant(self._masses[1:-1])
        start, split, end = p, p + step * inside, p + step
        left = (start.square() + start * split + split.square()) * inside
        start, split, end = 1 - start, 1 - split, 1 - end
        right = (end.square() + end * split + split.square()) * (1 - inside)
        score = ((left + right) * wide.gaps).sum(-1) / 3
        low, *_, high = self._masses
        for mass, scale, depth in ((low, wide._low, below), (high, wide._high, above)):
            score = score + scale * (depth + 2 * mass * (-depth).expm1() + 0.5 * mass**2)
        return score.to(value.dtype)
