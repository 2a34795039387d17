r"""Selective prediction with a guaranteed error rate or coverage.

A policy accepts a prediction or abstains, and gives the reason:

- *unfamiliar*: the input is out of distribution;
- *out of range*: the input is outside of the range of the training data;
- *ambiguous*: the prediction is not confident enough.

**Risk control.** `Policy.control_error` takes calibration samples and their errors, any 0/1 loss:
wrong classes, or numbers that are off by more than a tolerance. Sort the N samples by confidence,
the most confident first. Rank k means accepting the k most confident samples; x_k of them are
errors. The exact binomial test (Clopper and Pearson, 1934) of "error rate > level" has the p-value

.. math:: p_k = P(\mathrm{Bin}(k, \mathrm{level}) \le x_k)

Rank k passes if p_k <= c w_k. The weights w_k = (k/N)^2 exp(-6 k/N) prefer no error rate and depend
on nothing but k/N. For a set S of ranks, c is (nearly) the largest number with

.. math:: P(p_k \le c\,w_k \text{ for a rank } k \in S) \le \delta = 1 - \mathrm{confidence}

for samples that err independently with probability `level`, a probability that is computed rank by
rank. S begins with all ranks. Ranks that pass leave S, which raises c, until no longer rank passes
(step-down testing). The longest rank that passed and does not divide tied confidences determines
the threshold. Ranks at which not even p_k(0 errors) <= delta are left out. If N exceeds 1,000,
ranks form blocks, and p_k has the first rank of its block in place of k, which makes it larger.

Then, for any model, any score and any risk curve, under the assumptions below, with probability >=
`confidence` over the draw of the calibration samples, the error rate among accepted predictions is
at most `level`.

*Proof.* Let U be the share of inputs that are more confident than a given input, with ties in
random order: uniform on (0, 1). Let p(u) be the probability of an error at U = u, and G(u) the
integral of p - level from 0 to u. Accepting the share u breaks the guarantee if G(u) > 0. These u
form intervals. Consider finitely many of them, (a_i, b_i); more are the limit. G is 0 at their
ends, except perhaps at b_i = 1.

1. *Each sample (U, E) has a partner (V, E'): V is uniform on (0, 1), and E' is 1 with probability
   level, independently of V.* Let V be in (a, b) = (a_i, b_i) if and only if U is. If G(b) = 0, a
   share level of these samples are errors, so that E' = E has the right distribution. Errors have
   the distribution function F(u) = (level (u - a) + G(u)) / (level (b - a)) >= (u - a)/(b - a), so
   V = a + (b - a) F(U) >= U is uniform on (a, b). In the same way V <= U for correct samples. If
   b = 1 and G(1) > 0, let V be a + (integral of p from a to U)/level for errors, while that is less
   than 1, and a + (integral of 1 - p)/(1 - level) for correct samples. The errors that remain get
   E' = 0 and a V that fills the rest evenly. Before and between intervals a share level are errors
   as well: let E' = E, and draw V there. Behind the last one, let V = U and draw E'. Hence up to
   the last b_i E' = 1 implies E = 1, E = 0 implies E' = 0, and within an interval V >= U if
   E' = 1, V <= U if E = 0.
2. *Let x'_k be the sum of E' over the k smallest V, n(u) the number of samples with U <= u, and K
   all ranks from n(a_i) to n(b_i) for any i. Then x'_k <= x_k for all k in K.* Let u be the larger
   of a_i and the k-th smallest U. By 1., at most x_k samples have V <= u and E' = 1, and at least
   k - x_k have V <= u and E' = 0. If k or more samples have V <= u, the first gives x'_k <= x_k;
   otherwise the second does.
3. K follows from the V, so given K the E' still are independent with rate level. A wrong choice
   accepts a share v in an interval, and its rank n(v) is in K. While no rank of K has passed, S
   contains K. So if one ever passes, p_k <= c w_k for a k in K and the c of a set that contains K.
   Then the same holds for the p-value of x'_k, because p_k increases with x_k. Take the largest of
   these c: as its set contains K, the probability of this is at most delta. ∎

With `ood_score`, the samples above the OOD threshold, an order statistic, are independent draws of
the inputs above it, and their number is fixed. If that value is tied, further inputs pass; their
errors count at each rank that accepts them, their correct predictions never do. The proof is for
OOD values without ties.

**Assumptions.** Calibration samples are independent, have the distribution of future inputs, and
were not used for anything that shapes the scores or point predictions: neither for training, nor
for early stopping, nor for choosing among models.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from pydantic import BaseModel, Field, NonNegativeInt
from torch import Tensor

from dubito import _checks, binomial
from dubito._files import ExtendedFloat
from dubito.calibration import Calibration, conformal_rank
from dubito.distributions import Distribution
from dubito.errors import DubitoError
from dubito.types import Array

__all__ = ["Policy"]

#: reasons of a decision, by code
REASONS = ("accepted", "ambiguous", "unfamiliar", "out_of_range")
#: error rates of `Policy.table`
TABLE_LEVELS = (0.01, 0.02, 0.05, 0.1, 0.2)
#: number of blocks of ranks that a search distinguishes
BLOCKS = 1000
#: share of accepted predictions below which a policy gives advice
LITTLE = 0.25
#: share of wrong answers to images of a sanity check above which there is a warning
MANY = 0.05

Share = Annotated[float, Field(ge=0, le=1)]


class Threshold(BaseModel, frozen=True, extra="forbid"):
    """Threshold on a score; values equal to it pass.

    Attributes:
        score: Name of a score.
        higher: What a higher score means.
        value: The last value that passes; may be infinite.

    >>> Threshold(score="vacuity", higher="uncertainty", value=0.2)
    vacuity <= 0.2
    """

    score: str
    higher: Literal["confidence", "uncertainty"]
    value: ExtendedFloat

    @classmethod
    def at_confidence(cls, dist: Distribution, score: str, confidence: float) -> Self:
        """Create from the least confidence that passes.

        Args:
            dist: Distribution that has the score.
            score: Name of the score.
            confidence: The least value of `dist.confidence(score)`.
        """
        higher: Any = dist.higher(score)
        value = confidence if higher == "confidence" else -confidence + 0.0
        return cls(score=score, higher=higher, value=float(value))

    def passes(self, dist: Distribution) -> Tensor:
        """Return which samples pass: bool (...)."""
        values = _without_nan(dist.score(self.score), self.score)
        if self.passes_nothing:  # not even an infinite confidence
            return torch.zeros_like(values, dtype=torch.bool)
        return values >= self.value if self.higher == "confidence" else values <= self.value

    @property
    def passes_nothing(self) -> bool:
        """Whether no value passes."""
        return self.value == (math.inf if self.higher == "confidence" else -math.inf)

    def __repr__(self) -> str:
        return f"{self.score} {'>=' if self.higher == 'confidence' else '<='} {self.value:.6g}"

    __str__ = __repr__


class Guarantee(BaseModel, frozen=True, extra="forbid"):
    """What a policy guarantees for inputs with the distribution of the calibration samples.

    Attributes:
        controls: "error": error rate <= level; "coverage": coverage >= level.
        level: Error rate among accepted predictions, or share of accepted predictions.
        confidence: Probability with which it holds; None if it holds on average over calibration
            sets.
        false_alarms: Largest expected share of inputs rejected as unfamiliar; None without an
            OOD threshold.
        approximate: Whether the policy is of an ensemble and was fitted to out-of-fold predictions,
            for which there is no proof.
    """

    controls: Literal["error", "coverage"]
    level: float = Field(gt=0, lt=1)
    confidence: float | None = Field(default=None, gt=0, lt=1)
    false_alarms: float | None = Field(default=None, gt=0, lt=1)
    approximate: bool = False

    def __repr__(self) -> str:
        sign = ">=" if self.controls == "coverage" else "<="
        confidence = "" if self.confidence is None else f" with confidence {self.confidence:g}"
        approximate = ", approximate (cross-fitted)" if self.approximate else ""
        return f"{self.controls} {sign} {self.level:g}{confidence}{approximate}"

    __str__ = __repr__


class Validation(BaseModel, frozen=True, extra="forbid"):
    """Results on the calibration samples.

    Attributes:
        samples: Number of samples in range.
        coverage: Share of accepted predictions.
        out_of_range: Number of samples out of range, which are never accepted and not among
            `samples`.
        errors: Errors among the samples that determine the threshold.
        possible: Share of accepted predictions if the error rates observed up to each rank were
            known to be the true ones, about what many more samples would bring.
    """

    samples: NonNegativeInt
    coverage: Share
    out_of_range: NonNegativeInt = 0
    errors: NonNegativeInt | None = None
    possible: Share | None = None


class OperatingPoint(BaseModel, frozen=True, extra="forbid"):
    """Share of predictions that can be accepted at an error rate.

    Attributes:
        error_rate: Largest error rate among accepted predictions.
        coverage: Share of all calibration samples that are accepted, those out of range
            included.
    """

    error_rate: float = Field(gt=0, lt=1)
    coverage: Share


class SanityCheck(BaseModel, frozen=True, extra="forbid"):
    """Result of `dubito.sanity` for one kind of image that was made from the data.

    Attributes:
        accepted: Share of these images that are accepted.
        wrong: Share of these images that are accepted, with a wrong answer.
    """

    accepted: Share
    wrong: Share

    @property
    def fails(self) -> bool:
        """Whether there are too many wrong answers."""
        return self.wrong > MANY


class Policy(BaseModel, frozen=True, extra="forbid"):
    """Accept predictions that pass `threshold`, and `ood_threshold` and `max_width` if there are.

    Attributes:
        threshold: Predictions that fail are ambiguous.
        ood_threshold: Inputs that fail are unfamiliar.
        guarantee: What holds for new inputs.
        validation: Results on the calibration samples.
        table: Coverage at other error rates, each with its own threshold.
        sanity: What is accepted of images made from the calibration samples, by kind.
        max_width: Predictions whose interval, of the first level, is wider are ambiguous, too.

    >>> from dubito.distributions import Categorical
    >>> dist = Categorical.from_probs(torch.tensor([[0.99, 0.01], [0.6, 0.4]]).repeat(200, 1))
    >>> errors = torch.tensor([False, True]).repeat(200)
    >>> policy = Policy.control_error(dist, errors, level=0.05)
    >>> policy
    Policy(max_prob >= 0.99: error <= 0.05 with confidence 0.95, accepts 50.0% of 400 samples)
    >>> [REASONS[code] for code in policy.decide(dist[:3])]
    ['accepted', 'ambiguous', 'accepted']
    """

    threshold: Threshold
    ood_threshold: Threshold | None = None
    guarantee: Guarantee | None = None
    validation: Validation | None = None
    table: tuple[OperatingPoint, ...] = ()
    sanity: dict[str, SanityCheck] = {}
    max_width: float | None = Field(default=None, gt=0)

    @classmethod
    def control_error(
        cls,
        dist: Distribution,
        errors: Tensor | Array,
        level: float = 0.01,
        confidence: float = 0.95,
        score: str = "max_prob",
        *,
        ood_score: str | None = None,
        false_alarms: float = 0.01,
    ) -> Policy:
        """Accept as many predictions as possible at a guaranteed error rate.

        At least ln(delta)/ln(1 - level) samples are needed: 59 for a level of 5 %, 299 for 1 %. If
        no rank passes, the policy accepts nothing; see `advice`.

        With `ood_score`, the share `false_alarms` of least familiar inputs is rejected first, and
        the guarantee is about predictions that pass both thresholds.

        Args:
            dist: Distribution before calibration, batch shape (N,).
            errors: Which predictions are errors, bool (N,), from `Task.errors`.
            level: Largest error rate among accepted predictions.
            confidence: Probability with which the guarantee holds.
            score: Score that ranks predictions.
            ood_score: Score that ranks inputs by familiarity, if any.
            false_alarms: Share of inputs that may be rejected as unfamiliar.
        """
        _checks.in_open_unit_interval(level=level, confidence=confidence)
        _checks.one_batch_axis(dist)
        wrong: Array = _checks.errors(errors, dist.batch_shape).cpu().numpy()
        ood_threshold, above, tied = _ood_threshold(dist, ood_score, false_alarms)
        values = _confidences(dist, score)
        order = above[_most_confident_first(values[above])]
        # Errors that are tied at the OOD threshold count at every rank that would accept them.
        extra = np.sort(-values[tied[wrong[tied]]])
        errors_up_to = wrong[order].cumsum() + np.searchsorted(extra, -values[order], "right")
        rank = _longest(values[order], errors_up_to, level, 1 - confidence)
        count = int(errors_up_to[rank - 1]) if rank else 0
        within = errors_up_to <= level * np.arange(1, len(order) + 1)
        possible = (within.nonzero()[0].max(initial=-1) + 1) / len(dist)
        alarms = None if ood_score is None else false_alarms
        return cls(
            threshold=Threshold.at_confidence(
                dist, score, values[order[rank - 1]] if rank else math.inf
            ),
            ood_threshold=ood_threshold,
            guarantee=Guarantee(
                controls="error", level=level, confidence=confidence, false_alarms=alarms
            ),
        )._validated(dist, errors=count, possible=possible)

    @classmethod
    def control_coverage(
        cls,
        dist: Distribution,
        coverage: float,
        score: str = "max_prob",
        *,
        ood_score: str | None = None,
        false_alarms: float = 0.01,
    ) -> Policy:
        """Accept at least a share of predictions, and no more than necessary.

        The threshold is a conformal quantile: a new input is accepted with probability >=
        `coverage`, over the draws of calibration samples and input. Inputs rejected by `ood_score`
        count as not accepted, so coverage + false_alarms cannot exceed 1.

        Args:
            dist: Distribution before calibration, batch shape (N,).
            coverage: Smallest share of accepted predictions.
            score: Score that ranks predictions.
            ood_score: Score that ranks inputs by familiarity, if any.
            false_alarms: Share of inputs that may be rejected as unfamiliar.

        >>> from dubito.distributions import Categorical
        >>> dist = Categorical.from_probs(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]]))
        >>> Policy.control_coverage(dist, 0.5).threshold
        max_prob >= 0.8
        """
        _checks.in_open_unit_interval(coverage=coverage)
        _checks.one_batch_axis(dist)
        ood_threshold, above, _ = _ood_threshold(dist, ood_score, false_alarms)
        if ood_threshold is not None and coverage + false_alarms > 1:
            raise DubitoError(
                f"coverage {coverage:g} is impossible if a share false_alarms={false_alarms:g} is "
                "rejected as unfamiliar"
            )
        values = _confidences(dist, score)[above]
        rank = conformal_rank(len(dist), coverage)
        # With too few samples for a quantile everything familiar has to be accepted.
        least = -math.inf if rank > len(values) else -np.sort(-values)[rank - 1]
        alarms = None if ood_score is None else false_alarms
        return cls(
            threshold=Threshold.at_confidence(dist, score, least),
            ood_threshold=ood_threshold,
            guarantee=Guarantee(controls="coverage", level=coverage, false_alarms=alarms),
        )._validated(dist)

    @classmethod
    def control_width(
        cls,
        dist: Distribution,
        calibration: Calibration,
        max_width: float,
        *,
        ood_score: str | None = None,
        false_alarms: float = 0.01,
    ) -> Policy:
        """Accept predictions whose interval, of the first level, is at most so wide.

        The promise of the intervals stays one about all inputs, accepted or not. If no interval of
        these samples is narrow enough, nothing is accepted.

        Args:
            dist: Distribution of calibration samples before calibration, batch shape (N,).
            calibration: Calibration with intervals of one number.
            max_width: Largest width, in units of the target.
            ood_score: Score that ranks inputs by familiarity, if any.
            false_alarms: Share of inputs that may be rejected as unfamiliar.
        """
        _checks.one_batch_axis(dist)
        _checks.positive(max_width, "max_width")
        some = bool((calibration.width(dist) <= max_width).any())
        return cls(
            threshold=Threshold.at_confidence(dist, "total", -math.inf if some else math.inf),
            ood_threshold=_ood_threshold(dist, ood_score, false_alarms)[0],
            max_width=max_width,
        )._validated(dist, calibration)

    def _validated(
        self, dist: Distribution, calibration: Calibration | None = None, **results: Any
    ) -> Policy:
        coverage = self._coverage(dist, calibration)
        validation = Validation(samples=len(dist), coverage=coverage, **results)
        return self.model_copy(update={"validation": validation})

    def _coverage(self, dist: Distribution, calibration: Calibration | None = None) -> float:
        return (self.decide(dist, calibration=calibration) == 0).double().mean().item()

    def with_table(
        self, dist: Distribution, errors: Tensor | Array, out_of_range: int = 0
    ) -> Policy:
        """Return this policy with `table`: the coverage at error rates of 1, 2, 5, 10 and 20 %.

        Args:
            dist: Distribution that the policy was fitted to.
            errors: Which predictions are errors, bool (N,).
            out_of_range: Number of further samples that are out of range.
        """
        guarantee, ood = self.guarantee, self.ood_threshold
        if guarantee is None or self.validation is None:
            raise DubitoError("a table needs a policy that was fitted to calibration samples")
        confidence, alarms = guarantee.confidence or 0.95, guarantee.false_alarms or 0.01
        score, ood_score = self.threshold.score, None if ood is None else ood.score
        share = len(dist) / (len(dist) + out_of_range)
        points = []
        for level in TABLE_LEVELS:
            policy = Policy.control_error(
                dist, errors, level, confidence, score, ood_score=ood_score, false_alarms=alarms
            )
            points.append(OperatingPoint(error_rate=level, coverage=policy._coverage(dist) * share))
        validation = self.validation.model_copy(update={"out_of_range": out_of_range})
        return self.model_copy(update={"validation": validation, "table": tuple(points)})

    def as_approximate(self) -> Policy:
        """Return this policy with a guarantee that is called approximate."""
        if self.guarantee is None:
            return self
        guarantee = self.guarantee.model_copy(update={"approximate": True})
        return self.model_copy(update={"guarantee": guarantee})

    def decide(
        self,
        dist: Distribution,
        in_range: Tensor | None = None,
        *,
        calibration: Calibration | None = None,
    ) -> Tensor:
        """Accept or reject each sample: indices into `REASONS`, (...) int64; 0 means accepted.

        Args:
            dist: Distribution before calibration, any batch shape.
            in_range: Which inputs are in the range of the training data, bool (...); default: all.
            calibration: Calibration with the intervals that `max_width` is about.
        """
        codes = torch.where(self.threshold.passes(dist), 0, 1)
        if self.max_width is not None:
            if calibration is None:
                raise DubitoError("max_width needs intervals: pass their calibration")
            codes = torch.where(calibration.width(dist) <= self.max_width, codes, 1)
        if self.ood_threshold is not None:
            codes = torch.where(self.ood_threshold.passes(dist), codes, 2)
        if in_range is not None:
            codes = torch.where(in_range.to(codes.device), codes, 3)
        return codes

    @property
    def accepts_nothing(self) -> bool:
        """Whether no threshold was found, so that every prediction is rejected."""
        return self.threshold.passes_nothing

    @property
    def advice(self) -> str:
        """Why less than a quarter is accepted, and which error rate would answer more; else ""."""
        guarantee, validation = self.guarantee, self.validation
        if guarantee is None or validation is None or guarantee.confidence is None:
            return ""
        if validation.coverage >= LITTLE:
            return ""
        rate, samples = guarantee.level, validation.samples
        least = _needed(rate, 1 - guarantee.confidence)
        needed = least
        while _familiar(needed, guarantee.false_alarms) < least:
            needed += 1
        possible = validation.possible or 0.0
        few = f"{samples:,} calibration samples are too few for an error rate of {rate:g}"
        if samples < needed:
            cause = f"{few}: it needs {needed:,}, even without an error"
        elif possible >= LITTLE:
            cause = f"{few}: with many more about {possible:.0%} could be answered"
        else:
            cause = (
                f"the predictions are not accurate enough for an error rate of {rate:g}: even with "
                f"many more calibration samples about {possible:.0%} could be answered"
            )
        for point in self.table:
            if point.error_rate > rate and point.coverage >= LITTLE:
                return f"{cause}; at {point.error_rate:g}, {point.coverage:.1%} would be answered"
        return cause

    def __repr__(self) -> str:
        samples = f"{self.validation.samples} samples" if self.validation else "no samples"
        goal = repr(self.guarantee) if self.guarantee else "no guarantee"
        if self.max_width is not None:
            goal = f"intervals at most {self.max_width:g} wide"
            if self.accepts_nothing:
                return f"Policy(accepts nothing: no interval is at most {self.max_width:g} wide)"
        if self.accepts_nothing:
            return f"Policy(accepts nothing: {goal} was not shown by {samples})"
        thresholds = [t for t in (self.threshold, self.ood_threshold) if t]
        bounds = " and ".join(repr(t) for t in thresholds if math.isfinite(t.value))
        bounds = bounds or ("everything" if self.max_width is None else "")
        share = f", accepts {self.validation.coverage:.1%} of {samples}" if self.validation else ""
        return f"Policy({': '.join(filter(None, (bounds, goal)))}{share})"

    __str__ = __repr__


def _longest(values: Array, errors: Array, level: float, delta: float) -> int:
    """Return how many of the most confident samples to accept.

    Args:
        values: Confidences in decreasing order, (N,).
        errors: Number of errors up to each rank, (N,).
        level: Largest error rate.
        delta: Probability that the search may fail.
    """
    if len(values) < _needed(level, delta):
        return 0
    shown = _search(len(values), level, delta)(errors)
    ends = np.append(values[1:] < values[:-1], True)  # no threshold lies between tied values
    return int((shown & ends).nonzero()[0].max(initial=-1)) + 1


class _Search:
    """Search for ranks whose error rate is at most a level; see the module.

    Args:
        count: Number N of samples, >= `_needed`.
        level: Largest error rate.
        delta: Probability that the search may fail.
    """

    def __init__(self, count: int, level: float, delta: float) -> None:
        self.level, self.delta, self.least = level, delta, _needed(level, delta)
        ranks = np.arange(self.least, count + 1)
        size = math.ceil(count / BLOCKS)
        self.block, self.starts = np.arange(len(ranks)) // size, ranks[::size]
        share = self.starts / count
        weight = share**2 * np.exp(-6 * share)
        self.first, tails = binomial.tails(self.starts, level)
        self.statistics = tails * (weight.max() / weight)[:, None]
        self.critical = self._critical(np.ones(len(self.starts), bool), 0.0)

    def __call__(self, errors: Array) -> Array:
        """Return which ranks have been shown to have a low error rate: bool (N,).

        Args:
            errors: Number of errors up to each rank, (N,).
        """
        column = errors[self.least - 1 :] - self.first[self.block]
        inside = column.clip(0, self.statistics.shape[1] - 1)
        values = np.where(column > inside, np.inf, self.statistics[self.block, inside])
        values[column < 0] = 0.0
        critical = self.critical
        while True:
            shown = values <= critical
            longest = shown.nonzero()[0].max(initial=-1)
            following = values[longest + 1 :].min(initial=np.inf)
            remaining = np.bincount(self.block, ~shown) > 0
            if following == np.inf or self._probability(following, remaining) > self.delta:
                return np.append(np.zeros(self.least - 1, bool), shown)
            critical = self._critical(remaining, following)

    def _critical(self, blocks: Array, low: float) -> float:
        """Return nearly the largest c with a `_probability` of at most delta; it is >= `low`."""
        least, high = float(self.statistics.min()), float(self.statistics.max())
        value = max(1.5 * low, self.delta / 6)
        while high > max(1.001 * low, least):
            probability = self._probability(value, blocks)
            low, high = (value, high) if probability <= self.delta else (low, value)
            if 0.98 * self.delta <= probability <= self.delta:
                break
            value *= 0.99 * self.delta / max(probability, 0.2 * self.delta)
            if not low < value < high or low == 0:
                value = math.sqrt(low * high) if low else min(value, high / 2)
        return low

    def _probability(self, critical: float, blocks: Array) -> float:
        """Return P(statistic <= critical in a block) if each sample errs with the level."""
        limits = self.first + (self.statistics <= critical).sum(1) - 1
        limits[~blocks] = -1
        # Having at most as many errors as were allowed before implies having passed before.
        rises = np.diff(np.maximum.accumulate(limits), prepend=-1) > 0
        return binomial.crossing(self.starts[rises], limits[rises], self.level)


@lru_cache(maxsize=8)
def _search(count: int, level: float, delta: float) -> _Search:
    """Prepare a search once for each number of samples."""
    return _Search(count, level, delta)


def _needed(level: float, delta: float) -> int:
    """Return how many samples without an error show the level."""
    return math.ceil(math.log(delta) / math.log1p(-level))


def _most_confident_first(values: Array) -> Array:
    """Return indices in decreasing order, ties in random order: data is often sorted by label."""
    shuffled = np.random.default_rng(0).permutation(len(values))
    return shuffled.take(np.argsort(-values[shuffled], kind="stable"))


def _familiar(count: int, false_alarms: float | None) -> int:
    """Return how many of the calibration samples are above the OOD threshold."""
    rank = count + 1 if false_alarms is None else conformal_rank(count, 1 - false_alarms)
    return min(rank - 1, count)


def _ood_threshold(
    dist: Distribution, score: str | None, false_alarms: float
) -> tuple[Threshold | None, Array, Array]:
    """Return a conformal quantile, the rows above it in confidence, and those tied with it."""
    everything, none = np.arange(len(dist)), np.arange(0)
    if score is None:
        return None, everything, none
    _checks.in_open_unit_interval(false_alarms=false_alarms)
    values = _confidences(dist, score)
    rank = conformal_rank(len(dist), 1 - false_alarms)
    if rank > len(dist):  # Too few samples for this quantile: reject nothing.
        return Threshold.at_confidence(dist, score, -math.inf), everything, none
    # Samples strictly above the threshold are an unbiased sample of what passes. Tied samples also
    # pass, but are only partly among them. Counting the tied errors and omitting the tied correct
    # ones can only overestimate the error rate.
    order = _most_confident_first(values)
    least = values[order[rank - 1]]
    at_threshold = order[rank - 1 :][values[order[rank - 1 :]] == least]
    tied = at_threshold if (values == least).sum() > 1 else none
    return Threshold.at_confidence(dist, score, least), np.sort(order[: rank - 1]), tied


def _without_nan(values: Tensor, score: str) -> Tensor:
    bad = values.isnan()
    if not torch.compiler.is_compiling() and bool(bad.any()):
        first = bad.nonzero()[0].tolist()
        raise DubitoError(f"{score} is NaN for {int(bad.sum())} samples, the first at {first}")
    return values


def _confidences(dist: Distribution, score: str) -> Array:
    """Return confidences (N,) in float64, which holds float32 scores exactly."""
    return _without_nan(dist.confidence(score), score).detach().double().cpu().numpy()
