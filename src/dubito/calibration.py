r"""Post-hoc calibration.

Evidential losses keep evidence low: predictions rank well but are underconfident. Each distribution
defines a small family of calibrated predictives; `Calibration.fit` chooses its parameters on
held-out data by maximum likelihood. The point prediction never changes.

For regression a calibration also has intervals mean +- q * std**exponent. The q of a level is a
conformal quantile: with n held-out samples, q is the ceil((n + 1) level)-th smallest
:math:`|y - mean|/std^{exponent}`. A new target of the same distribution then lies in its interval
with probability >= level, over the draws of both, whatever the model. Mean and std are those before
calibration, which do not depend on the held-out targets. The same holds for the exponent, if it is
fixed or chosen on other samples (`interval_exponent`). 0 gives each input the same width; networks
that exaggerate differences in uncertainty do better with 1/2 than with 1. Intervals do not depend
on the unit of the target: q has the unit that the power lacks.

A distribution with ends [lower, upper] of its own, such as quantiles (`RealDistribution.ends`), has
the intervals [lower - q, upper + q] of conformalized quantile regression (Romano et al., NeurIPS
2019, https://arxiv.org/abs/1905.03222). q is the same conformal quantile, of
:math:`\max(lower - y, y - upper)`, and negative where the ends cover too much; an interval that
would be empty is the midpoint of the ends, which only adds to it. The promise and its proof are the
same, since the ends depend on the input alone. Levels are fitted one by one: intervals of a higher
level need not contain those of a lower one, and none need contain the mean.

For classes a calibration may have prediction sets. Let s_k be the distance of a class from the
predicted one, the logarithm of how many times as much speaks for that one
(`ClassDistribution.distances`). The set of a level is {k: s_k <= q}, and q the same conformal
quantile of the s of the true classes. s depends on input and class alone, so those of n held-out
samples and of a new one are exchangeable: with probability >= level the new one is at most the
ceil((n + 1) level)-th smallest of the n (Vovk et al., Algorithmic Learning in a Random World, 2005,
ch. 2; ties only add to it), and its set has the true class. Each set has the predicted class, for
which s is 0: none is empty, and sets cover more than the level if the accuracy is above it.

This is the relative likelihood e_k/max e of a Dirichlet, with its evidence in place of alpha. On 12
models (four data sets; I-EDL, Re-EDL, softmax; 90 and 95 %) sets by alpha, or by probabilities
before calibration, were 1.3 times as large on average, since a prior hides the order of unlikely
classes, and those of APS and RAPS without randomization 1.1 to 2.0 times. Probabilities calibrated
on further samples gave sets of the same size; on the same samples they would void the proof.

A calibration, intervals and sets that were fitted to single networks, each on samples that it was
not trained on, can be applied to the ensemble of these networks. That is approximate: an ensemble
errs less than its members, so they usually cover too much. std is then the root of the members'
mean variance: their disagreement, which no member knows, would widen intervals by half. Ends are
the means of the members' ends, for the same reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Self

import torch
from pydantic import BaseModel, Field, FiniteFloat, model_validator
from torch import Tensor
from torch.utils import _pytree

from dubito import _checks
from dubito._files import ExtendedFloat
from dubito.distributions import ClassDistribution, Distribution
from dubito.distributions.regression import RealMixture
from dubito.errors import DubitoError
from dubito.targets import Target, exact_weight, known_rows, values_and_weight

__all__ = ["Calibration"]

#: coverage of intervals or sets
Level = Annotated[float, Field(gt=0, lt=1)]
#: level of intervals by default
LEVEL = 0.9
#: Rounding in float32 must not exclude what is as far away as a held-out sample.
SLACK = 1e-5

#: exponents of the standard deviation that `interval_exponent` compares
EXPONENTS = (0.0, 0.25, 0.5, 0.75, 1.0)
# Points of the grid along the first and along further parameters.
GRID = (25, 13)
# Times that the grid of a single parameter is drawn, between the neighbors of the best point.
ROUNDS = 3
# The grid is evaluated on at least this many rows, and on more up to this many entries.
ROWS, ENTRIES = 500, 1 << 19


class Calibration(BaseModel, frozen=True, extra="forbid"):
    """Parameters of a calibrated predictive, and of intervals or prediction sets.

    Attributes:
        theta: Parameters of `Distribution.calibrated`.
        levels: Levels of the intervals or sets.
        quantiles: Half-width of the interval of each level over std**exponent, for each target
            value; what is added to each end, for a distribution with ends of its own; or the
            largest distance of a class in the set of each level.
        exponent: Power of the standard deviation that the width of intervals is proportional to;
            not used for ends.
        of_members: Whether it was fitted to single members of an ensemble. If so, each member is
            calibrated before the members are mixed.

    >>> from dubito.distributions import Categorical
    >>> dist = Categorical.from_probs(torch.tensor([[0.99, 0.01]]).repeat(100, 1))
    >>> calibration = Calibration.fit(dist, torch.arange(100) // 60)
    >>> calibration(dist).probs[0]
    tensor([0.5941, 0.4059], dtype=torch.float64)
    """

    theta: tuple[FiniteFloat, ...]
    levels: tuple[Level, ...] = ()
    quantiles: tuple[tuple[Annotated[ExtendedFloat, Field(gt=-math.inf)], ...], ...] = ()
    exponent: float = Field(default=0.5, ge=0, le=1)
    of_members: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.levels) != len(self.quantiles):
            raise ValueError(f"{len(self.quantiles)} quantiles for {len(self.levels)} levels")
        if len({*self.levels}) < len(self.levels):
            raise ValueError(f"levels must be distinct, not {self.levels}")
        return self

    @classmethod
    def fit(
        cls,
        dist: Distribution,
        target: Tensor | Target,
        levels: Sequence[float] | None = None,
        *,
        exponent: float = 0.5,
        of_members: bool = False,
    ) -> Calibration:
        """Fit to held-out data by maximum likelihood.

        Few samples do not justify certainty: for classes, one more error is added at the median
        confidence, as in the rule of succession; for numbers, the log of the scale has a standard
        normal prior, which weighs as much as half a sample. Neither counts among thousands. The
        fit is in float64 and deterministic.

        Missing targets are left out. Other weights are ignored: the promise of intervals and sets
        is about samples that are drawn alike. The likelihood of a censored target is the
        probability of its bounds; intervals are fitted to the others, so their promise is about
        targets that will be known exactly.

        Args:
            dist: Predicted distribution, batch shape (N,).
            target: Class indices (N,), or numbers (N, T).
            levels: Levels of the intervals or sets; None: 0.9 for numbers, no sets for classes.
            exponent: Power of the standard deviation that the width of intervals is proportional
                to, from 0 to 1; it must not be chosen on these samples.
            of_members: Whether the predictions are those of single members of the ensemble that
                the calibration is for.
        """
        dist = dist.detach().to(torch.float64)
        dist, known = _checked(dist, target)
        if levels is None:
            levels = () if isinstance(dist, ClassDistribution) else (LEVEL,)
        for level in levels:
            _checks.in_open_unit_interval(levels=level)
        if not 0 <= exponent <= 1:
            raise DubitoError(f"exponent must be from 0 to 1, not {exponent}")
        if isinstance(dist, ClassDistribution):
            theta = _maximum_likelihood(*_with_added_error(dist, known))
            distances, exact = dist.distances.gather(-1, known.unsqueeze(-1)), None
            scores = [distances for _ in levels]
        else:
            theta = _maximum_likelihood(dist, known, precision=1.0)
            scores, exact = [_scores(dist, known, exponent, p) for p in levels], exact_weight(known)
        pairs = zip(scores, levels, strict=True)
        return cls(
            theta=theta,
            levels=tuple(levels),
            quantiles=tuple(conformal_quantiles(each, level, exact) for each, level in pairs),
            exponent=exponent,
            of_members=of_members,
        )

    def __call__(self, dist: Distribution) -> torch.distributions.Distribution:
        """Return the calibrated predictive.

        Args:
            dist: Distribution of the kind that the calibration was fitted to.
        """
        single: Distribution = getattr(dist, "members", dist) if self.of_members else dist
        if len(self.theta) != len(single.calibration_bounds):
            raise DubitoError(
                f"this calibration has {len(self.theta)} parameters, but {single!r} needs "
                f"{len(single.calibration_bounds)}: was it fitted to another model?"
            )
        theta = torch.tensor(self.theta, dtype=torch.float64, device=dist.device)
        return dist.with_calibrated_members(theta) if self.of_members else dist.calibrated(theta)

    def interval(self, dist: Any, level: float | None = None) -> tuple[Tensor, Tensor]:
        """Return the lower and upper ends of intervals, (..., T) each.

        Args:
            dist: Distribution about numbers, before calibration.
            level: One of `levels`; None: the first.
        """
        level, quantiles = self._fitted(level)
        lower, upper, unit = _ends(dist, level, self.exponent, self.of_members)
        more, middle = lower.new_tensor(quantiles) * unit, lower + 0.5 * (upper - lower)
        return torch.minimum(lower - more, middle), torch.maximum(upper + more, middle)

    def width(self, dist: Any) -> Tensor:
        """Return the width of the interval of the first level, of a regression of one value: (...).

        Args:
            dist: Distribution about one number, before calibration.
        """
        lower, upper = self.interval(dist)
        if lower.shape[-1] > 1:
            raise DubitoError(f"max_width is for one target value, not for {lower.shape[-1]}")
        return (upper - lower)[..., 0]

    def prediction_set(self, dist: Any, level: float | None = None) -> Tensor:
        """Return which classes are in the prediction sets: bool (..., K).

        Args:
            dist: Distribution about classes, before calibration.
            level: One of `levels`; None: the first.
        """
        _, (quantile,) = self._fitted(level)
        inside: Tensor = dist.distances <= quantile + SLACK * (1 + quantile)
        return inside

    def _fitted(self, level: float | None) -> tuple[float, tuple[float, ...]]:
        """Return a level, by default the first, and its quantiles."""
        chosen = level if level is not None or not self.levels else self.levels[0]
        if chosen not in self.levels:
            known = ", ".join(map(str, self.levels)) or "none"
            raise DubitoError(f"level {chosen!r} was not fitted; fitted levels: {known}")
        return chosen, self.quantiles[self.levels.index(chosen)]


def interval_exponent(dist: Any, target: Tensor | Target, level: float = LEVEL) -> float:
    """Return the exponent of `EXPONENTS` whose intervals have the lowest interval score.

    The score of an interval is its width, plus 2/(1 - level) times the distance of targets outside
    of it (Gneiting and Raftery, 2007). With too few samples for the level the exponent is 1/2.

    Args:
        dist: Distribution about numbers, batch shape (N,), before calibration, without ends of
            its own.
        target: Numbers (N, T). Intervals must be fitted to other samples. Samples of which one is
            missing are left out.
        level: Level of the intervals.
    """
    _checks.in_open_unit_interval(level=level)
    rows = known_rows(target)
    if conformal_rank(len(rows), level) > len(rows):
        return 0.5
    dist, target = _checked(dist.detach().to(torch.float64)[rows], target[rows])
    distance, costs = dist.distance(target), []
    for exponent in EXPONENTS:
        quantiles = conformal_quantiles(_scores(dist, target, exponent, level), level)
        half = distance.new_tensor(quantiles) * dist.variance ** (exponent / 2)
        costs.append((half + (distance - half).clamp(min=0) / (1 - level)).mean(0))
    # Targets may have different units: compare each with its own intervals of one width.
    ratios = torch.stack(costs) / costs[0].clamp_min(torch.finfo(torch.float64).tiny)
    return EXPONENTS[int(ratios.mean(-1).argmin())]


def _checked(dist: Distribution, target: Tensor | Target) -> tuple[Any, Any]:
    """Check that targets fit a distribution, and move them to its device.

    Samples without any target are left out.
    """
    _checks.one_batch_axis(dist)
    predictive = dist.predictive
    shape = dist.batch_shape + predictive.event_shape
    target = target.to(dist.device)
    values, weight = values_and_weight(target)
    if predictive.has_enumerate_support:
        classes = int(predictive.enumerate_support(expand=False).max()) + 1
        target = _checks.labels(values, shape, classes, f"{dist!r} needs {tuple(shape)}")
    elif values.shape != shape:
        raise DubitoError(f"target has shape {tuple(values.shape)}, expected {tuple(shape)}")
    elif not bool(values.isfinite().all()):
        raise DubitoError("target must be finite")
    elif isinstance(target, Target):
        target = target.map(Tensor.double)
    else:
        target = target.detach().double()
    if weight is not None:
        rows = (weight > 0).reshape(len(weight), -1).any(-1).nonzero().flatten()
        if not len(rows):
            raise DubitoError("all targets are missing")
        dist, target = dist[rows], target[rows]
    return dist, target


def _with_added_error(dist: Any, target: Tensor) -> tuple[Any, Tensor]:
    """Append the sample of median confidence, with its second class as the target."""
    probs = dist.probs
    median = probs.amax(-1).argsort()[len(dist) // 2]
    second = probs[median].topk(2).indices[1]
    rows = torch.cat([torch.arange(len(dist), device=median.device), median[None]])
    return dist[rows], torch.cat([target, second[None]])


def conformal_rank(count: int, share: float) -> int:
    """Return the rank of a conformal quantile; rounded, because 1 - 0.9 is not exactly 0.1."""
    return math.ceil(round((count + 1) * share, 9))


def _ends(
    dist: Any, level: float, exponent: float, of_members: bool = False
) -> tuple[Tensor, Tensor, Tensor | float]:
    """Return the ends of intervals, both the mean by default, and the unit of what moves them."""
    if (own := dist.ends(level)) is not None:
        return *own, 1.0
    # Members do not know how they disagree, so that quantiles of theirs are of their variances.
    is_mixed = of_members and isinstance(dist, RealMixture)
    variance = dist.members.variance.mean(-2) if is_mixed else dist.variance
    return dist.mean, dist.mean, variance ** (exponent / 2)


def _scores(dist: Any, target: Tensor | Target, exponent: float, level: float) -> Tensor:
    """Return by how many units targets are beyond the ends, negative inside: (N, T)."""
    values = values_and_weight(target)[0]
    lower, upper, unit = _ends(dist, level, exponent)
    return torch.maximum(lower - values, values - upper) / unit


def conformal_quantiles(
    scores: Tensor, level: float, weight: Tensor | None = None
) -> tuple[float, ...]:
    """Return the quantile for each target value; infinite if there are too few samples.

    Values of weight 0 are left out.
    """
    if weight is not None:
        columns = zip(scores.unbind(-1), weight.unbind(-1), strict=True)
        each = (conformal_quantiles(column[own > 0, None], level) for column, own in columns)
        return tuple(quantile for (quantile,) in each)
    rank = conformal_rank(len(scores), level)
    if rank > len(scores):
        return (math.inf,) * scores.shape[-1]
    return tuple(scores.sort(0).values[rank - 1].tolist())


def _maximum_likelihood(
    dist: Distribution, target: Any, precision: float = 0.0
) -> tuple[float, ...]:
    """Maximize the likelihood times a normal prior of the given precision, within the bounds.

    The likelihood need not be concave: L-BFGS starts from the best point of a grid. Nor need it be
    continuous: the grid of a single parameter is cheap to refine.
    """
    count = len(dist)
    bounds = torch.tensor(dist.calibration_bounds, dtype=torch.float64, device=dist.device)

    def loss(theta: Tensor, rows: Distribution, target: Any) -> Tensor:
        nll = -rows.calibrated(theta).log_prob(target).mean()
        return nll + 0.5 * precision * theta.square().sum() / count

    # A sample of the rows is enough to choose the start.
    entries = sum(leaf.numel() for leaf in _pytree.tree_leaves(dist))
    every = max(1, min(count // ROWS, entries // ENTRIES))
    drawn = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    rows = drawn[: count // every].to(target.device)
    few = dist[rows], target[rows]
    axes = [
        torch.linspace(-bound, bound, GRID[min(index, 1)], dtype=bounds.dtype, device=bounds.device)
        for index, bound in enumerate(bounds.tolist())
    ]
    grid = torch.cartesian_prod(*axes).reshape(-1, len(axes))
    start, size = torch.zeros_like(bounds), 1.0
    with torch.no_grad():
        for _ in range(ROUNDS if len(axes) == 1 else 1):
            points = (start + size * grid).clamp(-bounds, bounds)
            start = points[torch.stack([loss(point, *few) for point in points]).argmin()]
            size *= 2 / (GRID[0] - 1)

    theta = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [theta],
        max_iter=200,
        tolerance_grad=1e-10,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(theta.clamp(-bounds, bounds), dist, target)
        value.backward()
        return value

    optimizer.step(closure)
    return tuple(theta.detach().clamp(-bounds, bounds).tolist())
