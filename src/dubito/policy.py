r"""When to answer: thresholds that keep a promise, from validation data.

A policy accepts a prediction or abstains, and says why: *unfamiliar*, the input lacks what the
model was trained on; or *ambiguous*, the model knows such inputs and still is not sure enough.

**The promise of an error rate.** Sort the N validation samples by confidence, the surest first. For
the k surest with x errors, the exact binomial test (Clopper and Pearson 1934) asks whether an error
rate of `error` or more would show so few:

.. math:: p_k = P(\mathrm{Bin}(k, \mathrm{error}) \le x) \le 1 - \mathrm{confidence}

Ranks are tested one after the other from a start that depends on nothing but N, and the first that
fails ends the search: a fixed-sequence test, which pays nothing for the many thresholds it looks
at. An error or two among the surest would end it at once, so from 3 n samples on, n being as many
as can show the rate without an error, there are three searches: from the share `start`, from 0.6,
and from all samples but one. They divide 1 - confidence as 2 : 2 : 1, and one that comes past the
start of another has the other's part as well. The longest counts. Then, whatever the model, the
measure and the data, with probability >= `confidence` over the draw of the validation samples, the
error rate among accepted predictions is at most `error`.

*Why that holds.* Let R(u) be the error rate among the surest share u of all inputs: a continuous
function. Let v be the share that lies above the first tested rank. Where R(v) > error, the samples
above it are independent draws with that rate, and the first test passes too seldom. Elsewhere a
wrong choice lies beyond the next place where R rises through `error`, and every rank was tested,
also that of this place. Between places where R equals `error` samples err at that very rate, so
however many lie between them, the test there passes too seldom. No monotone R is needed. Ties take
a drawn order, the same each time, which knows nothing of labels; a threshold never divides them.

So each search that goes wrong passes one decisive test, at its start or at the next place where R
rises. Searches that start before the same place share that test, with no more than their parts
added up; starts behind the place are in no level before it. Each part thus counts once, and all of
them sum to 1 - confidence.

What it takes: validation samples drawn like the inputs to come, independent, and used for nothing
that shapes the confidences or labels: not for training, early stopping or choosing among models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dubito import _checks
from dubito.measures import MEASURES
from dubito.prediction import Prediction

__all__ = ["REASONS", "UNFAMILIAR", "Bound", "Decision", "Policy"]

Labels: TypeAlias = "Tensor | np.ndarray[Any, Any]"
#: what a decision says of a sample, by its code
REASONS = ("accepted", "ambiguous", "unfamiliar")
#: measures of how unfamiliar an input is, the best first
UNFAMILIAR = ("vacuity", "mutual_information", "alpha0")
# shares where further searches start, the parts of 1 - confidence for the first search and these,
# and from how many times the needed samples on: with fewer, three parts find less than the whole
LATER, PARTS, MANY = (0.6, 1.0), (0.4, 0.4, 0.2), 3


@dataclass(frozen=True)
class Bound:
    """The last value of a measure that passes; the measure's direction says on which side.

    >>> Bound("max_prob", 0.9), Bound("vacuity", 0.2)
    (max_prob >= 0.9, vacuity <= 0.2)
    """

    measure: str
    value: float

    def __post_init__(self) -> None:
        _checks.one_of(MEASURES, self.measure, "measure")
        if not isinstance(self.value, int | float) or math.isnan(self.value):
            raise ValueError(f"the value of a bound must be a number, not {self.value!r}")

    def passes(self, said: Prediction) -> Tensor:
        """Which samples pass: (...)."""
        values = _measured(said, self.measure)
        return values >= self.value if self._rises else values <= self.value

    @property
    def _rises(self) -> bool:
        return MEASURES[self.measure].rises_with == "confidence"

    @property
    def passes_nothing(self) -> bool:
        """Whether no value passes."""
        return self.value == (math.inf if self._rises else -math.inf)

    def __repr__(self) -> str:
        return f"{self.measure} {'>=' if self._rises else '<='} {self.value:.6g}"


@dataclass(frozen=True, eq=False)
class Decision:
    """What a policy decided of each sample: codes into `REASONS`, (...) int64.

    >>> Decision(torch.tensor([0, 2, 1]))
    Decision(3 samples: 1 accepted, 1 ambiguous, 1 unfamiliar)
    """

    codes: Tensor

    @property
    def accept(self) -> Tensor:
        """Which samples are answered: (...) bool."""
        return self.codes == 0

    @property
    def reason(self) -> np.ndarray[Any, Any]:
        """Why: (...) of strings, one of `REASONS` each."""
        reasons: np.ndarray[Any, Any] = np.asarray(REASONS)[self.codes.cpu().numpy()]
        return reasons

    def __repr__(self) -> str:
        counts = torch.bincount(self.codes.flatten(), minlength=len(REASONS)).tolist()
        listed = ", ".join(f"{n} {name}" for n, name in zip(counts, REASONS, strict=True))
        return f"Decision({self.codes.numel()} samples: {listed})"


@dataclass(frozen=True)
class Policy:
    """Accept what is `sure`, and `familiar` where that is asked; `promise` and `seen` say why.

    `promise` holds what was asked for, `seen` what the validation data showed: `samples`, the share
    `accepted`, and with a promised error rate `errors` and `upper`, the bound on that rate.

    >>> said = Prediction.from_probs(torch.tensor([[0.99, 0.01], [0.6, 0.4]]).repeat(200, 1))
    >>> right = torch.tensor([0, 1]).repeat(200)  # the unsure half is wrong
    >>> policy = Policy.promise_error(said, right, error=0.05)
    >>> policy
    Policy(max_prob >= 0.99: error <= 0.05 with confidence 0.95, accepts 50.0% of 400 samples)
    >>> policy.decide(said[:3]).reason
    array(['accepted', 'ambiguous', 'accepted'], dtype='<U10')
    """

    sure: Bound
    familiar: Bound | None
    promise: Mapping[str, float]
    seen: Mapping[str, float]

    @classmethod
    def promise_error(
        cls,
        said: Prediction,
        labels: Labels,
        error: float = 0.01,
        confidence: float = 0.95,
        measure: str = "max_prob",
        *,
        unfamiliar: str | None = None,
        false_alarms: float = 0.01,
        start: float = 0.1,
    ) -> Policy:
        """The largest share found to err at most at the rate `error`, with that `confidence`.

        `said` (N, K) and `labels` (N,) are validation data; see the module for what is promised.
        The first search starts at the surest share `start`, or where so many samples can show the
        rate at all: ln(1 - confidence)/ln(1 - error) of them without an error, 59 for 5 %, 299 for
        1 %; one more bounds what they show. Where no search succeeds, the policy accepts nothing.

        With a measure `unfamiliar`, inputs that exceed all but a share `false_alarms` of the
        validation data in it are refused first, and the promise is about what both let pass.
        """
        for name, value in (("error", error), ("confidence", confidence)):
            _between(value, name)
        if not 0 <= start <= 1:
            raise ValueError(f"start must be a share in [0, 1], not {start!r}")
        wrong = (said.label != _checked_labels(said, labels)).cpu().numpy()
        familiar, among, tied = _familiar(said, unfamiliar, false_alarms)
        among = np.append(among, tied[wrong[tied]])
        values = _values(said, measure)[among]
        order = _surest_first(values)
        values, errors = values[order], wrong[among][order].cumsum()
        rank = _longest(values, errors, error, 1 - confidence, start)
        found = int(errors[rank - 1]) if rank else 0
        bound = _upper(found, rank, 1 - confidence) if rank else 1.0
        promise = {"error": error, "confidence": confidence, **_asked(unfamiliar, false_alarms)}
        seen = {"samples": len(said), "accepted": 0.0, "errors": found, "upper": bound}
        least = values[rank - 1] if rank else math.inf
        return cls(_bound(measure, least), familiar, promise, seen)._seen_accepting(said)

    @classmethod
    def promise_coverage(
        cls,
        said: Prediction,
        share: float,
        measure: str = "max_prob",
        *,
        unfamiliar: str | None = None,
        false_alarms: float = 0.01,
    ) -> Policy:
        """Accept at least `share` of inputs like the validation data, and no more than need be.

        The threshold is a conformal quantile: an input drawn like `said` (N, K) is accepted with a
        probability >= `share`, over the draws of both. `unfamiliar` as in `promise_error`; what it
        refuses counts, so share + false_alarms can't exceed 1.

        >>> said = Prediction.from_probs(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]]))
        >>> Policy.promise_coverage(said, 0.5).sure
        max_prob >= 0.8
        """
        _between(share, "share")
        _one_axis(said)
        familiar, among, _ = _familiar(said, unfamiliar, false_alarms)
        values = _values(said, measure)[among]
        rank = _rank(len(said), share)
        if familiar is not None and share + false_alarms > 1:
            raise ValueError(
                f"a share of {share:g} can't be accepted where a share false_alarms="
                f"{false_alarms:g} is refused as unfamiliar"
            )
        # With too few samples for a quantile everything that is familiar has to be accepted.
        least = -math.inf if rank > len(values) else -np.sort(-values)[rank - 1]
        promise = {"coverage": share, **_asked(unfamiliar, false_alarms)}
        seen = {"samples": len(said), "accepted": 0.0}
        return cls(_bound(measure, least), familiar, promise, seen)._seen_accepting(said)

    def _seen_accepting(self, said: Prediction) -> Policy:
        accepted = self.decide(said).accept.double().mean().item()
        return replace(self, seen={**self.seen, "accepted": accepted})

    def decide(self, said: Prediction) -> Decision:
        """Accept or abstain, for each sample of a prediction (..., K)."""
        codes = torch.where(self.sure.passes(said), 0, 1)
        if self.familiar is not None:
            codes = torch.where(self.familiar.passes(said), codes, 2)
        return Decision(codes)

    @property
    def accepts_nothing(self) -> bool:
        """Whether the promise was not shown, so that it abstains on everything."""
        return self.sure.passes_nothing

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a json file; `from_dict` makes an equal policy again."""
        parts = {"sure": self.sure, "familiar": self.familiar}
        bounds = {name: asdict(bound) if bound else None for name, bound in parts.items()}
        for held in bounds.values():
            if held is not None and math.isinf(held["value"]):
                held["value"] = str(held["value"])  # json has no infinity
        return {**bounds, "promise": dict(self.promise), "seen": dict(self.seen)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Policy:
        """What `as_dict` described.

        >>> policy = Policy(Bound("max_prob", float("inf")), None, {"error": 0.01}, {})
        >>> Policy.from_dict(policy.as_dict()) == policy
        True
        """
        known = {"sure", "familiar", "promise", "seen"}
        if not isinstance(values, Mapping) or set(values) != known:
            held = sorted(values) if isinstance(values, Mapping) else type(values).__name__
            raise ValueError(f"a policy has the keys {_checks.listed(sorted(known))}, not {held}")
        familiar = values["familiar"]
        return cls(
            _read_bound(values["sure"], "sure"),
            None if familiar is None else _read_bound(familiar, "familiar"),
            _read_numbers(values["promise"], "promise"),
            _read_numbers(values["seen"], "seen"),
        )

    def __repr__(self) -> str:
        finite = [b for b in (self.sure, self.familiar) if b and math.isfinite(b.value)]
        bounds = " and ".join(map(repr, finite)) or "everything"
        asked = "no promise"
        if "error" in self.promise:
            asked = f"error <= {self.promise['error']:g}"
            asked += f" with confidence {self.promise.get('confidence', math.nan):g}"
        elif "coverage" in self.promise:
            asked = f"coverage >= {self.promise['coverage']:g}"
        if self.accepts_nothing:
            return f"Policy(accepts nothing: {asked} was not shown by {self._samples})"
        share = self.seen.get("accepted", math.nan)
        return f"Policy({bounds}: {asked}, accepts {share:.1%} of {self._samples})"

    @property
    def _samples(self) -> str:
        return f"{self.seen.get('samples', 0):g} samples"


def _longest(
    values: np.ndarray[Any, Any],
    errors: np.ndarray[Any, Any],
    error: float,
    delta: float,
    start: float,
) -> int:
    """How many of the surest to accept: as far as the longest search comes, or none.

    `values` fall, `errors` are counted along them. The last rank must follow the first one tested,
    which shows that the share accepted is at least the one that the first test was about.
    """
    from scipy.special import bdtr

    count = len(values)
    if count < 2:
        return 0
    starts, parts = _starts(count, error, delta, start)
    first = int(starts.min())
    chances = bdtr(errors[first - 1 :], np.arange(first, count + 1), error)
    # the threshold must not divide ties: back to the last place where the values change
    ends = np.append(0, np.append(values[1:] < values[:-1], True).nonzero()[0] + 1)
    longest = 0
    for begin in starts:
        levels = np.full(count + 1 - begin, parts[starts == begin].sum())
        for later, part in zip(starts, parts, strict=True):
            if later > begin:  # from the rank behind its start on, as the proof needs it
                levels[later + 1 - begin :] += part
        passed = chances[begin - first :] <= levels
        reached = count if passed.all() else begin - 1 + int(passed.argmin())
        end = int(ends[np.searchsorted(ends, reached, side="right") - 1])
        longest = max(longest, end if end > begin else 0)
    return longest


def _starts(
    count: int, error: float, delta: float, start: float
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The rank where each search starts, and its part of the probability to fail, delta.

    >>> _starts(400, 0.05, 0.05, 0.1)
    (array([ 77, 240, 399]), array([0.02, 0.02, 0.01]))
    """
    several = count >= MANY * math.log(delta) / math.log1p(-error)
    shares = np.array([start, *LATER] if several else [start])
    parts = delta * np.array(PARTS if several else [1.0])
    needed = np.maximum(np.log(parts) / math.log1p(-error), shares * count)
    return np.ceil(needed).clip(1, count - 1).astype(int), parts


def _surest_first(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The order of falling values, ties shuffled: data is often sorted by its labels."""
    drawn = np.random.default_rng(0).permutation(len(values))
    order: np.ndarray[Any, Any] = drawn[np.argsort(-values[drawn], kind="stable")]
    return order


def _upper(errors: int, count: int, delta: float) -> float:
    """The Clopper-Pearson upper bound on an error rate."""
    from scipy.special import bdtri

    return 1.0 if errors == count else float(bdtri(errors, count, delta))


def _familiar(
    said: Prediction, unfamiliar: str | None, false_alarms: float
) -> tuple[Bound | None, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The bound of what is familiar, a conformal quantile, and the places of samples below it.

    The third are those that made the bound, where others share their value.
    """
    everything, none = np.arange(len(said)), np.arange(0)
    if unfamiliar is None:
        return None, everything, none
    _between(false_alarms, "false_alarms")
    values = _values(said, unfamiliar)
    rank = _rank(len(said), 1 - false_alarms)
    if rank > len(said):  # so few samples tell nothing of so rare an event
        return _bound(unfamiliar, -math.inf), everything, none
    # The sample at the bound made the bound; those below it are draws like any other. So they are
    # among tied values, in a drawn order, but these draws hold too few of the tied: only a part of
    # them lies below that sample, and the bound lets all pass. If the tied err less than others,
    # the draws err more often than what passes, so to add errors is only cautious. If they err
    # more, all samples that pass hold no fewer of them than draws would, as it takes that many for
    # the bound to lie there; to leave out some that are right is only cautious again. Hence the
    # errors among those that made the bound count for an error rate, and the rest of them do not.
    order = _surest_first(values)
    least = values[order[rank - 1]]
    makers = order[rank - 1 :][values[order[rank - 1 :]] == least]
    tied = makers if (values == least).sum() > 1 else none
    return _bound(unfamiliar, least), np.sort(order[: rank - 1]), tied


def _rank(count: int, share: float) -> int:
    """The rank of a conformal quantile; shares like 1 - 0.9 are a little off what they mean."""
    return math.ceil(round((count + 1) * share, 9))


def _bound(measure: str, confidence: float) -> Bound:
    """The bound at a confidence, in the measure's own direction."""
    rises = MEASURES[measure].rises_with == "confidence"
    return Bound(measure, float(confidence) if rises else -float(confidence) + 0.0)


def _asked(unfamiliar: str | None, false_alarms: float) -> dict[str, float]:
    return {} if unfamiliar is None else {"false_alarms": false_alarms}


def _measured(said: Prediction, measure: str) -> Tensor:
    values = said.measure(measure)
    bad = values.isnan()
    if bool(bad.any()):
        place = bad.nonzero()[0].tolist()
        raise ValueError(f"{measure} is NaN for {int(bad.sum())} samples, the first at {place}")
    return values


def _values(said: Prediction, measure: str) -> np.ndarray[Any, Any]:
    """The confidences of validation data in float64, which holds what a prediction compares."""
    values = MEASURES[measure].as_confidence(_measured(said, measure))
    return values.detach().double().cpu().numpy()


def _one_axis(said: Prediction) -> None:
    shape = tuple(said.probs.shape)
    if len(shape) != 2 or not shape[0]:
        raise ValueError(f"validation predictions have shape {shape}; expected (N, K), N >= 1")


def _checked_labels(said: Prediction, labels: Labels) -> Tensor:
    _one_axis(said)
    need = f"{len(said)} predictions need ({len(said)},)"
    given = torch.as_tensor(labels)
    checked = _checks.labels(given, said.label.shape, said.probs.shape[-1], need)
    return checked.to(said.label.device)


def _between(value: float, name: str) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name} must be between 0 and 1, not {value!r}")


def _read_bound(values: Any, name: str) -> Bound:
    if not isinstance(values, Mapping) or set(values) != {"measure", "value"}:
        raise ValueError(f"{name} has the keys 'measure', 'value', but is {values!r}")
    value = values["value"]
    if isinstance(value, str) and value in ("inf", "-inf"):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"the value of {name} must be a number, 'inf' or '-inf', not {value!r}")
    return Bound(values["measure"], value)


def _read_numbers(values: Any, name: str) -> dict[str, float]:
    numbers = isinstance(values, Mapping) and all(
        isinstance(v, int | float) and math.isfinite(v) for v in values.values()
    )
    if not numbers:
        raise ValueError(f"{name} must hold finite numbers by name, but is {values!r}")
    return dict(values)
