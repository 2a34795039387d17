r"""Selective prediction with a guaranteed error rate or coverage.

A policy accepts a prediction or abstains, and gives the reason: the input is *unfamiliar* (OOD), or
the prediction is *ambiguous*, not confident enough.

**Risk control.** `Policy.control_error` takes validation samples and their errors, any 0/1 loss:
wrong classes, or numbers that are off by more than a tolerance. Sort the N samples by confidence,
the most confident first. For the first k with x errors, the exact binomial test (Clopper and
Pearson, 1934) asks whether an error rate of `level` or more would show so few:

.. math:: p_k = P(\mathrm{Bin}(k, \mathrm{level}) \le x) \le 1 - \mathrm{confidence}

Ranks are tested one after the other, from a start that depends on N only, and the first failure
ends the search: fixed-sequence testing, which needs no correction for the number of thresholds. One
or two errors among the most confident samples would end it at once. So if N is at least 3 n, where
n samples without an error are enough to show the level, there are three searches: from the share
`start`, from 0.6, and from all samples but one. They divide 1 - confidence as 2 : 2 : 1, and a
search that passes the start of another adds the other's part to its own. The longest search
determines the threshold. Then, whatever the model, the score and the data, with probability >=
`confidence` over the draw of the validation samples, the error rate among accepted predictions is
at most `level`.

*Proof.* Let R(u) be the error rate among the most confident share u of all inputs, a continuous
function. Let v be the share above the first tested rank. If R(v) > level, the samples above that
rank are independent draws with that rate, and the first test passes with probability at most its
level. Otherwise a wrong choice lies beyond the next point where R rises through `level`. Every rank
up to the choice was tested, including the rank of this point. Between points where R equals `level`
samples err at exactly that rate, so however many of them lie between, the test there passes with
probability at most its level. R need not be monotone. Ties are ordered at random, independently of
the errors and reproducibly; a threshold never divides them.

So each search that goes wrong passes one decisive test, at its start or at the next point where R
rises. Searches that start before the same point share that test, whose level is at most the sum of
their parts; starts behind the point are in no level before it. Each part thus counts once, and all
of them sum to 1 - confidence.

**Assumptions.** Validation samples are independent, have the distribution of future inputs, and
were not used for anything that shapes the scores or point predictions: neither for training, nor
for early stopping, nor for choosing among models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from pydantic import BaseModel, Field, FiniteFloat, NonNegativeInt
from torch import Tensor

from dubito import _binomial
from dubito._fields import ExtendedFloat
from dubito.distributions import Distribution

__all__ = ["REASONS", "Decision", "Guarantee", "Policy", "Threshold", "Validation"]

Array = np.ndarray[Any, Any]
#: reasons of a decision, by code
REASONS = ("accepted", "ambiguous", "unfamiliar")
# Shares where further searches start, the parts of 1 - confidence for the first search and these,
# and the multiple of the needed samples from which they pay: with fewer, three parts find less.
LATER_STARTS, PARTS, MANY = (0.6, 1.0), (0.4, 0.4, 0.2), 3

Share = Annotated[float, Field(ge=0, le=1)]


class Threshold(BaseModel, frozen=True, extra="forbid"):
    """The last value of a score that passes.

    >>> Threshold(score="vacuity", higher="uncertainty", value=0.2)
    vacuity <= 0.2
    """

    score: str
    """Name of a score."""
    higher: Literal["confidence", "uncertainty"]
    """What a higher score means."""
    value: ExtendedFloat
    """The last value that passes; may be infinite."""

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
    """What a policy guarantees for inputs with the distribution of the validation data."""

    controls: Literal["error", "coverage"]
    """An error rate is at most `level`, a coverage at least."""
    level: float = Field(gt=0, lt=1)
    """Error rate among accepted predictions, or share of accepted predictions."""
    confidence: float | None = Field(default=None, gt=0, lt=1)
    """Probability over validation sets with which it holds; None: on average over these."""
    false_alarms: float | None = Field(default=None, gt=0, lt=1)
    """Share of inputs rejected as unfamiliar, at most and on average; None: no OOD threshold."""

    def __repr__(self) -> str:
        if self.controls == "coverage":
            return f"coverage >= {self.level:g}"
        asked = f"error <= {self.level:g}"
        return asked if self.confidence is None else f"{asked} with confidence {self.confidence:g}"

    __str__ = __repr__


class Validation(BaseModel, frozen=True, extra="forbid"):
    """What a policy does on the data that it was fitted to."""

    samples: NonNegativeInt
    """Number of samples."""
    coverage: Share
    """Share of accepted predictions."""
    errors: NonNegativeInt | None = None
    """Errors among the samples that determine the threshold."""
    upper_bound: FiniteFloat | None = None
    """Upper confidence bound on their error rate."""


@dataclass(frozen=True, eq=False)
class Decision:
    """Decision about each sample.

    >>> Decision(torch.tensor([0, 2, 1]))
    Decision(3 samples: 1 accepted, 1 ambiguous, 1 unfamiliar)
    """

    codes: Tensor
    """Indices into `REASONS`, (...) int64."""

    @property
    def accepted(self) -> Tensor:
        """Which samples are accepted: bool (...)."""
        return self.codes == 0

    @property
    def reason(self) -> Array:
        """Reason for each sample, one of `REASONS`: array (...)."""
        reasons: Array = np.asarray(REASONS)[self.codes.cpu().numpy()]
        return reasons

    def __repr__(self) -> str:
        counts = torch.bincount(self.codes.flatten(), minlength=len(REASONS)).tolist()
        listed = ", ".join(f"{n} {name}" for n, name in zip(counts, REASONS, strict=True))
        return f"Decision({self.codes.numel()} samples: {listed})"


class Policy(BaseModel, frozen=True, extra="forbid"):
    """Accept predictions that pass `threshold`, and `ood_threshold` if there is one.

    >>> from dubito.distributions import Categorical
    >>> dist = Categorical.from_probs(torch.tensor([[0.99, 0.01], [0.6, 0.4]]).repeat(200, 1))
    >>> errors = torch.tensor([False, True]).repeat(200)
    >>> policy = Policy.control_error(dist, errors, level=0.05)
    >>> policy
    Policy(max_prob >= 0.99: error <= 0.05 with confidence 0.95, accepts 50.0% of 400 samples)
    >>> policy.decide(dist[:3]).reason
    array(['accepted', 'ambiguous', 'accepted'], dtype='<U10')
    """

    threshold: Threshold
    """Predictions that fail are ambiguous."""
    ood_threshold: Threshold | None = None
    """Inputs that fail are unfamiliar."""
    guarantee: Guarantee | None = None
    validation: Validation | None = None

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
        start: float = 0.1,
    ) -> Policy:
        """Accept as many predictions as possible at a guaranteed error rate.

        The first search starts at the most confident share `start`, or with as many samples as can
        show the level at all: ln(1 - confidence)/ln(1 - level) of them without an error, 59 for 5 %
        and 299 for 1 %, and one more. If no search succeeds, the policy accepts nothing.

        With `ood_score`, inputs beyond all but a share `false_alarms` of the validation data are
        rejected first, and the guarantee is about predictions that pass both thresholds.

        Args:
            dist: Distribution before calibration, batch shape (N,).
            errors: Which predictions are errors, bool (N,), from `Task.errors`.
            level: Largest error rate among accepted predictions.
            confidence: Probability with which the guarantee holds.
            score: Score that ranks predictions.
            ood_score: Score that ranks inputs by familiarity, if any.
            false_alarms: Share of inputs that may be rejected as unfamiliar.
            start: Share of samples where the first search starts.
        """
        _between(level=level, confidence=confidence)
        if not 0 <= start <= 1:
            raise ValueError(f"start must be a share in [0, 1], not {start!r}")
        wrong = _checked_errors(dist, errors)
        ood_threshold, rows, tied = _ood_threshold(dist, ood_score, false_alarms)
        rows = np.append(rows, tied[wrong[tied]])
        values = _confidences(dist, score)[rows]
        order = _most_confident_first(values)
        values, count = values[order], wrong[rows][order].cumsum()
        delta = 1 - confidence
        rank = _longest_search(values, count, level, delta, start)
        found = int(count[rank - 1]) if rank else 0
        return cls(
            threshold=Threshold.at_confidence(dist, score, values[rank - 1] if rank else math.inf),
            ood_threshold=ood_threshold,
            guarantee=Guarantee(
                controls="error",
                level=level,
                confidence=confidence,
                false_alarms=None if ood_score is None else false_alarms,
            ),
        )._validated(dist, found, _binomial.upper_bound(found, rank, delta) if rank else 1.0)

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
        `coverage`, over the draws of validation data and input. Inputs rejected by `ood_score`
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
        _between(coverage=coverage)
        _one_batch_axis(dist)
        ood_threshold, rows, _ = _ood_threshold(dist, ood_score, false_alarms)
        if ood_threshold is not None and coverage + false_alarms > 1:
            raise ValueError(
                f"coverage {coverage:g} is impossible if a share false_alarms={false_alarms:g} is "
                "rejected as unfamiliar"
            )
        values = _confidences(dist, score)[rows]
        rank = _conformal_rank(len(dist), coverage)
        # With too few samples for a quantile everything familiar has to be accepted.
        least = -math.inf if rank > len(values) else -np.sort(-values)[rank - 1]
        return cls(
            threshold=Threshold.at_confidence(dist, score, least),
            ood_threshold=ood_threshold,
            guarantee=Guarantee(
                controls="coverage",
                level=coverage,
                false_alarms=None if ood_score is None else false_alarms,
            ),
        )._validated(dist)

    def _validated(
        self, dist: Distribution, errors: int | None = None, upper_bound: float | None = None
    ) -> Policy:
        validation = Validation(
            samples=len(dist),
            coverage=self.decide(dist).accepted.double().mean().item(),
            errors=errors,
            upper_bound=upper_bound,
        )
        return self.model_copy(update={"validation": validation})

    def decide(self, dist: Distribution) -> Decision:
        """Accept or reject each sample.

        Args:
            dist: Distribution before calibration, any batch shape.
        """
        codes = torch.where(self.threshold.passes(dist), 0, 1)
        if self.ood_threshold is not None:
            codes = torch.where(self.ood_threshold.passes(dist), codes, 2)
        return Decision(codes)

    @property
    def accepts_nothing(self) -> bool:
        """Whether no threshold was found, so that every prediction is rejected."""
        return self.threshold.passes_nothing

    def __repr__(self) -> str:
        samples = f"{self.validation.samples} samples" if self.validation else "no samples"
        goal = repr(self.guarantee) if self.guarantee else "no guarantee"
        if self.accepts_nothing:
            return f"Policy(accepts nothing: {goal} was not shown by {samples})"
        thresholds = [t for t in (self.threshold, self.ood_threshold) if t]
        bounds = " and ".join(repr(t) for t in thresholds if math.isfinite(t.value))
        share = f", accepts {self.validation.coverage:.1%} of {samples}" if self.validation else ""
        return f"Policy({bounds or 'everything'}: {goal}{share})"


def _longest_search(values: Array, errors: Array, level: float, delta: float, start: float) -> int:
    """Return how many of the most confident samples to accept: the end of the longest search.

    `values` fall, `errors` are counted along them. The last rank must follow the first one tested,
    which shows that the share accepted is at least the one that the first test was about.
    """
    count = len(values)
    if count < 2:
        return 0
    starts, parts = _starts(count, level, delta, start)
    first = int(starts.min())
    p_values = _binomial.running_cdf(errors[first - 1 :], first, level)
    # The threshold must not divide ties: back to the last rank where the values change.
    ends = np.append(0, np.append(values[1:] < values[:-1], True).nonzero()[0] + 1)
    longest = 0
    for begin in starts:
        levels = np.full(count + 1 - begin, parts[starts == begin].sum())
        for later, part in zip(starts, parts, strict=True):
            if later > begin:  # from the rank behind its start on, as the proof needs it
                levels[later + 1 - begin :] += part
        passed = p_values[begin - first :] <= levels
        reached = count if passed.all() else begin - 1 + int(passed.argmin())
        end = int(ends[np.searchsorted(ends, reached, side="right") - 1])
        longest = max(longest, end if end > begin else 0)
    return longest


def _starts(count: int, level: float, delta: float, start: float) -> tuple[Array, Array]:
    """Return the rank where each search starts, and its part of the failure probability delta.

    >>> _starts(400, 0.05, 0.05, 0.1)
    (array([ 77, 240, 399]), array([0.02, 0.02, 0.01]))
    """
    several = count >= MANY * math.log(delta) / math.log1p(-level)
    shares = np.array([start, *LATER_STARTS] if several else [start])
    parts = delta * np.array(PARTS if several else [1.0])
    needed = np.maximum(np.log(parts) / math.log1p(-level), shares * count)
    return np.ceil(needed).clip(1, count - 1).astype(int), parts


def _most_confident_first(values: Array) -> Array:
    """Return the order of falling values, ties shuffled: data is often sorted by its labels."""
    drawn = np.random.default_rng(0).permutation(len(values))
    order: Array = drawn[np.argsort(-values[drawn], kind="stable")]
    return order


def _ood_threshold(
    dist: Distribution, score: str | None, false_alarms: float
) -> tuple[Threshold | None, Array, Array]:
    """Return the OOD threshold, a conformal quantile, and the rows above it in confidence.

    The third are the rows that determine the threshold, if others share their value.
    """
    everything, none = np.arange(len(dist)), np.arange(0)
    if score is None:
        return None, everything, none
    _between(false_alarms=false_alarms)
    values = _confidences(dist, score)
    rank = _conformal_rank(len(dist), 1 - false_alarms)
    if rank > len(dist):  # too few samples for so rare an event
        return Threshold.at_confidence(dist, score, -math.inf), everything, none
    # The sample at the threshold determines it; those above it in confidence are draws like any
    # other. So they are among tied values, in random order, but these draws contain too few of the
    # tied: only a part of them lies above that sample, and the threshold lets all pass. If the tied
    # err less than others, the draws err more often than what passes, so adding errors is
    # conservative. If they err more, all samples that pass contain no fewer of them than draws
    # would, as it takes that many for the threshold to lie there; leaving out some that are correct
    # is conservative again. Hence the errors among those at the threshold count for an error rate,
    # and the rest of them do not.
    order = _most_confident_first(values)
    least = values[order[rank - 1]]
    at_threshold = order[rank - 1 :][values[order[rank - 1 :]] == least]
    tied = at_threshold if (values == least).sum() > 1 else none
    return Threshold.at_confidence(dist, score, least), np.sort(order[: rank - 1]), tied


def _conformal_rank(count: int, share: float) -> int:
    """Return the rank of a conformal quantile; rounds away the error of shares like 1 - 0.9."""
    return math.ceil(round((count + 1) * share, 9))


def _without_nan(values: Tensor, score: str) -> Tensor:
    bad = values.isnan()
    if bool(bad.any()):
        place = bad.nonzero()[0].tolist()
        raise ValueError(f"{score} is NaN for {int(bad.sum())} samples, the first at {place}")
    return values


def _confidences(dist: Distribution, score: str) -> Array:
    """Return confidences (N,) in float64, which represents what `passes` compares."""
    values: Array = _without_nan(dist.confidence(score), score).detach().double().cpu().numpy()
    return values


def _one_batch_axis(dist: Distribution) -> None:
    if len(dist.batch_shape) != 1 or not len(dist):
        raise ValueError(f"a policy needs validation data of batch shape (N,), not {dist!r}")


def _checked_errors(dist: Distribution, errors: Tensor | Array) -> Array:
    _one_batch_axis(dist)
    array: Array = errors.cpu().numpy() if isinstance(errors, Tensor) else np.asarray(errors)
    if array.dtype != bool:
        raise TypeError(f"errors must be bool, as Task.errors returns them, not {array.dtype}")
    if array.shape != (len(dist),):
        raise ValueError(f"errors have shape {array.shape}, but {len(dist)} samples need as many")
    return array


def _between(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < 1:
            raise ValueError(f"{name} must be between 0 and 1, not {value!r}")
