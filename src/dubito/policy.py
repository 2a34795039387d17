r"""Selective prediction with a guaranteed error rate or coverage.

A policy accepts a prediction or abstains, and gives the reason:

- *unfamiliar*: the input is out of distribution;
- *out of range*: the input is outside of the range of the training data;
- *ambiguous*: the prediction is not confident enough.

**Risk control.** `Policy.control_error` takes validation samples and their errors, any 0/1 loss:
wrong classes, or numbers that are off by more than a tolerance. Sort the N samples by confidence,
the most confident first. Rank k means accepting the k most confident samples. With delta = 1 -
`confidence`, the exact binomial test (Clopper and Pearson, 1934) rejects the hypothesis "error rate
>= level" for the first k samples if x or fewer errors are improbable under it:

.. math:: p_k = P(\mathrm{Bin}(k, \mathrm{level}) \le x) \le \delta

Ranks are tested one after the other, from a start that depends on N only, and the first failure
ends the search: fixed-sequence testing, which needs no correction for the number of thresholds. An
early error would end a single search, so three searches are run if N is large enough (N >= 3 n,
where n error-free samples suffice): from a share of 0.1, from 0.6, and from all samples but one.
They get 40 %, 40 % and 20 % of delta. A search that passes another's start also uses its share. The
longest search determines the threshold. Then, for any model and score, under the assumptions below,
with probability >= `confidence` over the draw of the validation samples, the error rate among
accepted predictions is at most `level`.

*Proof.* Let R(u) be the error rate among the most confident share u of all inputs, a continuous
function. Let v be the share above the first tested rank. If R(v) > level, the samples above that
rank are independent draws with that rate, and the first test passes with probability at most its
level. Otherwise let u* be the first point after v where R rises through `level`, and k* its rank. A
wrong choice lies beyond u*. Every rank up to the choice was tested, including k*. Between points
where R equals `level` samples err at exactly that rate, so however many of them lie between, the
test at k* passes with probability at most its level. R need not be monotone. Ties are ordered at
random, independently of the errors and reproducibly; a threshold never divides them.

So each search that goes wrong passes one decisive test, at its start or at k*. Searches that start
before the same u* share that test, whose level is at most the sum of their shares. A search that
starts after u* contributes nothing to levels tested before u*. Each share thus counts once, and all
of them sum to delta.

**Assumptions.** Validation samples are independent, have the distribution of future inputs, and
were not used for anything that shapes the scores or point predictions: neither for training, nor
for early stopping, nor for choosing among models.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from pydantic import BaseModel, Field, FiniteFloat, NonNegativeInt
from torch import Tensor

from dubito import _binomial, _checks
from dubito._files import ExtendedFloat
from dubito.calibration import conformal_rank
from dubito.distributions import Distribution
from dubito.errors import DubitoError

__all__ = ["Policy"]

Array = np.ndarray[Any, Any]
#: reasons of a decision, by code
REASONS = ("accepted", "ambiguous", "unfamiliar", "out_of_range")
#: error rates of `Policy.table`
TABLE_LEVELS = (0.01, 0.02, 0.05, 0.1, 0.2)
#: shares of the samples where the searches start
STARTS = (0.1, 0.6, 1.0)
#: their shares of delta
DELTA_SHARES = (0.4, 0.4, 0.2)
#: multiple of the needed samples from which several searches pay
MIN_SAMPLES_FACTOR = 3

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
    """What a policy guarantees for inputs with the distribution of the validation data.

    Attributes:
        controls: "error": error rate <= level; "coverage": coverage >= level.
        level: Error rate among accepted predictions, or share of accepted predictions.
        confidence: Probability with which it holds; None if it holds on average over validation
            sets.
        false_alarms: Largest expected share of inputs rejected as unfamiliar; None without an
            OOD threshold.
    """

    controls: Literal["error", "coverage"]
    level: float = Field(gt=0, lt=1)
    confidence: float | None = Field(default=None, gt=0, lt=1)
    false_alarms: float | None = Field(default=None, gt=0, lt=1)

    def __repr__(self) -> str:
        sign = ">=" if self.controls == "coverage" else "<="
        confidence = "" if self.confidence is None else f" with confidence {self.confidence:g}"
        return f"{self.controls} {sign} {self.level:g}{confidence}"

    __str__ = __repr__


class Validation(BaseModel, frozen=True, extra="forbid"):
    """Results on the validation data.

    Attributes:
        samples: Number of samples in range.
        coverage: Share of accepted predictions.
        out_of_range: Number of samples out of range, which are never accepted and not among
            `samples`.
        errors: Errors among the samples that determine the threshold.
        upper_bound: Upper confidence bound on their error rate.
    """

    samples: NonNegativeInt
    coverage: Share
    out_of_range: NonNegativeInt = 0
    errors: NonNegativeInt | None = None
    upper_bound: FiniteFloat | None = None


class OperatingPoint(BaseModel, frozen=True, extra="forbid"):
    """Share of predictions that can be accepted at an error rate.

    Attributes:
        error_rate: Largest error rate among accepted predictions.
        coverage: Share of all validation samples that are accepted, those out of range
            included.
    """

    error_rate: float = Field(gt=0, lt=1)
    coverage: Share


class Policy(BaseModel, frozen=True, extra="forbid"):
    """Accept predictions that pass `threshold`, and `ood_threshold` if there is one.

    Attributes:
        threshold: Predictions that fail are ambiguous.
        ood_threshold: Inputs that fail are unfamiliar.
        guarantee: What holds for new inputs.
        validation: Results on the validation data.
        table: Coverage at other error rates, each with its own threshold.

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

        The first search needs at least ln(delta)/ln(1 - level) samples: 59 for a level of 5 %, 299
        for 1 %; more with three searches, which divide delta. If no search succeeds, the policy
        accepts nothing.

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
        rows = np.append(above, tied[wrong[tied]])
        values = _confidences(dist, score)[rows]
        order = _most_confident_first(values)
        values, cumulative_errors = values[order], wrong[rows][order].cumsum()
        delta = 1 - confidence
        rank = _longest_search(values, cumulative_errors, level, delta)
        count = int(cumulative_errors[rank - 1]) if rank else 0
        bound = _binomial.upper_bound(count, rank, delta)
        alarms = None if ood_score is None else false_alarms
        return cls(
            threshold=Threshold.at_confidence(dist, score, values[rank - 1] if rank else math.inf),
            ood_threshold=ood_threshold,
            guarantee=Guarantee(
                controls="error", level=level, confidence=confidence, false_alarms=alarms
            ),
        )._validated(dist, errors=count, upper_bound=bound)

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

    def _validated(self, dist: Distribution, **results: Any) -> Policy:
        validation = Validation(samples=len(dist), coverage=self._coverage(dist), **results)
        return self.model_copy(update={"validation": validation})

    def _coverage(self, dist: Distribution) -> float:
        return (self.decide(dist) == 0).double().mean().item()

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
            raise DubitoError("a table needs a policy that was fitted to validation data")
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

    def decide(self, dist: Distribution, in_range: Tensor | None = None) -> Tensor:
        """Accept or reject each sample: indices into `REASONS`, (...) int64; 0 means accepted.

        Args:
            dist: Distribution before calibration, any batch shape.
            in_range: Which inputs are in the range of the training data, bool (...); default: all.
        """
        codes = torch.where(self.threshold.passes(dist), 0, 1)
        if self.ood_threshold is not None:
            codes = torch.where(self.ood_threshold.passes(dist), codes, 2)
        if in_range is not None:
            codes = torch.where(in_range.to(codes.device), codes, 3)
        return codes

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

    __str__ = __repr__


def _longest_search(values: Array, errors: Array, level: float, delta: float) -> int:
    """Return how many of the most confident samples to accept: the end of the longest search.

    `values` are sorted in decreasing order, `errors` is cumulative. An accepted rank must exceed
    the first tested rank, as the proof requires.
    """
    count = len(values)
    if count < 2:
        return 0
    starts, shares = _starts(count, level, delta)
    first = int(starts.min())
    p_values = _binomial.running_cdf(errors[first - 1 :], first, level)
    # Ranks where the value changes: a threshold between tied values is impossible.
    ends = np.append(0, np.append(values[1:] < values[:-1], True).nonzero()[0] + 1)
    longest = 0
    for begin in starts:
        levels = np.full(count + 1 - begin, shares[starts == begin].sum())
        for later, share in zip(starts, shares, strict=True):
            if later > begin:  # from the rank behind its start on, as the proof needs it
                levels[later + 1 - begin :] += share
        passed = p_values[begin - first :] <= levels
        reached = count if passed.all() else begin - 1 + int(passed.argmin())
        end = int(ends[np.searchsorted(ends, reached, side="right") - 1])
        longest = max(longest, end if end > begin else 0)
    return longest


def _starts(count: int, level: float, delta: float) -> tuple[Array, Array]:
    """Return the rank where each search starts, and its share of delta.

    >>> _starts(400, 0.05, 0.05)
    (array([ 77, 240, 399]), array([0.02, 0.02, 0.01]))
    """
    several = count >= MIN_SAMPLES_FACTOR * math.log(delta) / math.log1p(-level)
    places = np.array(STARTS if several else STARTS[:1])
    shares = delta * np.array(DELTA_SHARES if several else [1.0])
    needed = np.maximum(np.log(shares) / math.log1p(-level), places * count)
    return np.ceil(needed).clip(1, count - 1).astype(int), shares


def _most_confident_first(values: Array) -> Array:
    """Return indices in decreasing order, ties in random order: data is often sorted by label."""
    shuffled = np.random.default_rng(0).permutation(len(values))
    return shuffled.take(np.argsort(-values[shuffled], kind="stable"))


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
