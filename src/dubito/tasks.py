"""Tasks: what a target is, what counts as an error, and which metrics apply.

A task is saved with a model. It encodes targets for training, decodes predictions, converts between
training units and user units, and defines the 0/1 loss that a policy controls.

Targets are class indices (N,) or class probabilities (N, K) for `Classification`, and numbers
(N, T) for `Regression`; or a `Target` with weights, where the weight of a missing one is 0.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, Self

import numpy as np
import torch
from pydantic import BaseModel, Field, FiniteFloat, NonNegativeInt, model_validator
from torch import Tensor
from torch import distributions as td
from typing_extensions import TypeVar

from dubito import _checks, metrics
from dubito.distributions import ClassDistribution, RealDistribution
from dubito.distributions.regression import RealPredictive
from dubito.errors import DubitoError
from dubito.targets import (
    Target,
    cell_bounds,
    exact_weight,
    is_censored,
    missing,
    values_and_weight,
    weighted,
)
from dubito.types import Array

__all__ = ["Classification", "Regression"]

#: distribution that a network predicts, and that of the target which follows from it
D = TypeVar("D", default=Any)
P = TypeVar("P", default=Any)
Curve = dict[str, list[float]]
AnyTarget = TypeVar("AnyTarget", Tensor, Tensor | Target)
#: metrics that can select weights, and whether lower or higher is better
Modes = Mapping[str, Literal["min", "max"]]
RELIABILITY_BINS = 15
#: A standard deviation below this share of the mean leaves less than two digits in float32.
MIN_SPREAD = 1e-5
#: distinct numbers up to which targets are classes
MOST_CLASSES = 20


class Task(BaseModel, ABC, Generic[D, P], frozen=True, extra="forbid"):
    """What a model predicts."""

    kind: str
    modes: ClassVar[Modes]
    #: metric that selects weights by default
    monitor: ClassVar[str]

    if TYPE_CHECKING:  # a field or a property of the subclasses

        @property
        def names(self) -> tuple[str, ...]:
            """Names of the classes, or of the target values."""

    @property
    def size(self) -> int:
        """Number of classes, or of target values."""
        return len(self.names)

    @property
    def defines_errors(self) -> bool:
        """Whether `errors` is defined."""
        return True

    @abstractmethod
    def encode(self, values: Any) -> Tensor:
        """Convert targets as users give them to a tensor.

        Args:
            values: List, array, tensor, or column of a table.
        """

    def target(self, values: Any, weight: Any = None) -> Tensor | Target:
        """Convert targets, some of which are missing (None or NaN) or weigh more than others.

        Args:
            values: See `encode`.
            weight: Weight of each sample (N,) or, for numbers, of each value (N, T); 0 leaves it
                out, and None gives all the same.

        Returns:
            The tensor of `encode`, if nothing is missing and there are no weights.
        """
        return weighted(*self._known(values), weight)

    @abstractmethod
    def _known(self, values: Any) -> tuple[Tensor, Tensor]:
        """Return encoded targets, of any value where they are missing, and which are not."""

    @abstractmethod
    def decode(self, point: Tensor) -> Array:
        """Convert point predictions to class names or numbers.

        Args:
            point: Result of `point`.
        """

    @abstractmethod
    def point(self, dist: D) -> Tensor:
        """Return the point prediction, in the encoding of targets.

        Args:
            dist: Distribution before calibration, in user units.
        """

    @abstractmethod
    def errors(self, point: Tensor, target: Tensor) -> Tensor:
        """Compute the 0/1 loss that a policy controls: bool (N,).

        Args:
            point: Result of `point`.
            target: Result of `encode`.
        """

    @abstractmethod
    def metrics(self, predictive: P, target: Tensor | Target) -> dict[str, float]:
        """Compute the metrics of a predictive, raw or calibrated; weights count.

        Args:
            predictive: Distribution of the target, batch shape (N,), in user units.
            target: Result of `encode` or `target`.
        """

    def recall(self, point: Tensor, target: Tensor) -> dict[str, float]:
        """Return the share of right predictions of each class that occurs; none for numbers.

        Args:
            point: Result of `point`.
            target: Result of `encode`.
        """
        return {}

    @abstractmethod
    def reliability(self, predictive: P, target: Tensor) -> Curve:
        """Compute the points of a reliability diagram: expected and observed frequencies.

        Args:
            predictive: Distribution of the target, batch shape (N,), in user units.
            target: Result of `encode`.

        Returns:
            Lists "expected", "observed" and "count" (samples behind a point).
        """

    @abstractmethod
    def tensors(self, point: Tensor, predictive: P) -> dict[str, Tensor]:
        """Return the columns of a prediction that depend on the kind of target.

        Args:
            point: Result of `point`.
            predictive: Calibrated distribution of the target.
        """

    def notes(self, point: Tensor) -> dict[int, str]:
        """Return what is unusual about predictions, by row.

        Args:
            point: Result of `point`.
        """
        return {}

    def to_training_units(self, target: AnyTarget) -> AnyTarget:
        """Convert encoded targets to the units in which a network is trained."""
        return target

    def to_user_units(self, dist: D) -> D:
        """Convert a distribution in training units to the units of the targets."""
        return dist


class Classification(Task[ClassDistribution, td.Categorical], frozen=True, extra="forbid"):
    """One of several classes.

    Attributes:
        classes: Names of the classes, in the order of the network's outputs.
        counts: Training samples of each class, if known.

    >>> task = Classification.from_target(["cat", "dog", "cat"])
    >>> task
    Classification(kind='classification', classes=('cat', 'dog'), counts=(2, 1))
    >>> task.encode(["dog", "cat"])
    tensor([1, 0])
    """

    kind: Literal["classification"] = "classification"
    classes: tuple[str, ...] = Field(min_length=2)
    counts: tuple[NonNegativeInt, ...] | None = None
    modes: ClassVar[Modes] = {"accuracy": "max", "nll": "min", "brier": "min", "ece": "min"}
    monitor: ClassVar[str] = "accuracy"

    @model_validator(mode="after")
    def _check(self) -> Self:
        _distinct(self.classes, "classes")
        if self.counts is not None and len(self.counts) != len(self.classes):
            raise ValueError(f"{len(self.counts)} counts for {len(self.classes)} classes")
        return self

    @classmethod
    def from_target(cls, values: Any) -> Classification:
        """Create from the targets of the training data.

        Args:
            values: Class names or numbers, (N,); classes are sorted, numbers by value.
        """
        counts = Counter(class_names(values))
        if len(counts) < 2:
            has = f"the one class {next(iter(counts))!r}" if counts else "no samples"
            raise DubitoError(f"a classification needs at least two classes, but target has {has}")
        classes = sorted(counts, key=_sort_key)
        return cls(classes=tuple(classes), counts=tuple(counts[name] for name in classes))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.classes

    def encode(self, values: Any) -> Tensor:
        """Convert class names (N,) to indices (N,) int64, or check probabilities (..., K) float32.

        Args:
            values: Class names or numbers; or floating-point class probabilities, an array or a
                tensor with the classes last.
        """
        if getattr(values, "ndim", 1) > 1:
            cells = values if isinstance(values, Tensor) else np.asarray(values)
            if isinstance(cells, Tensor) or cells.dtype.kind in "biuf":
                return self._soft(torch.as_tensor(cells))
        index = {name: place for place, name in enumerate(self.classes)}
        names = class_names(values)
        for row, name in enumerate(names):
            if name not in index:
                raise DubitoError(
                    f"row {row} of target is {name!r}, which is not one of the {self.size} classes "
                    f"{_checks.listed(self.classes[:10])}{', ...' if self.size > 10 else ''}"
                )
        return torch.tensor([index[name] for name in names], dtype=torch.int64)

    def _known(self, values: Any) -> tuple[Tensor, Tensor]:
        absent = missing(values)
        if absent.ndim == 1 and absent.any():
            rows = values.tolist() if hasattr(values, "tolist") else values
            values = [
                self.classes[0] if out else row for row, out in zip(rows, absent, strict=True)
            ]
        encoded = self.encode(values)
        known = ~absent if absent.ndim == 1 else np.ones(len(encoded), bool)
        return encoded, torch.from_numpy(known)

    def _soft(self, probs: Tensor) -> Tensor:
        if not probs.is_floating_point() or probs.shape[-1] != self.size:
            raise DubitoError(
                f"target is {probs.dtype} of shape {tuple(probs.shape)}; expected class names (N,) "
                f"or probabilities (..., {self.size})"
            )
        _checks.probabilities(probs, "target")
        return probs.detach().float()

    def decode(self, point: Tensor) -> Array:
        """Convert class indices (...) to names (...)."""
        return np.asarray(self.classes).take(point.cpu().numpy())

    def point(self, dist: ClassDistribution) -> Tensor:
        """Return the most probable class: (N,) int64."""
        return torch.argmax(dist.probs, -1)

    def errors(self, point: Tensor, target: Tensor) -> Tensor:
        """Return whether the class is wrong: bool (N,).

        Class probabilities as targets count as their most probable class.
        """
        return point != self._labels(target)

    def metrics(self, predictive: td.Categorical, target: Tensor | Target) -> dict[str, float]:
        """Compute accuracy, nll (nats), brier and ece; see `Task.metrics`."""
        values, weight = values_and_weight(target)
        probs, labels = predictive.probs, self._labels(values)
        log_probs = predictive.log_prob(labels)  # exact where probs are 0
        return {
            "accuracy": metrics.accuracy(probs, labels, weight).item(),
            "nll": -metrics.mean(log_probs, weight).item(),
            "brier": metrics.brier(probs, labels, weight).item(),
            "ece": metrics.ece(probs, labels, RELIABILITY_BINS, weight).item(),
        }

    def recall(self, point: Tensor, target: Tensor) -> dict[str, float]:
        """Return the share of right predictions of each class that occurs."""
        labels = self._labels(target)
        counts = torch.bincount(labels, minlength=self.size)
        right = torch.bincount(labels[point == labels], minlength=self.size)
        shares = (right.double() / counts).tolist()
        return {name: share for name, share in zip(self.classes, shares, strict=True) if share >= 0}

    def reliability(self, predictive: td.Categorical, target: Tensor) -> Curve:
        """Compute mean confidence and accuracy in the bins of the ECE; see `Task.reliability`.

        An empty bin has zeros.
        """
        probs, labels = predictive.probs.detach(), self._labels(target)
        confidence, correct, count = metrics.confidence_bins(probs, labels, RELIABILITY_BINS)
        expected, observed = confidence / count.clamp_min(1), correct / count.clamp_min(1)
        columns = {"expected": expected, "observed": observed, "count": count}
        return {name: values.tolist() for name, values in columns.items()}

    def tensors(self, point: Tensor, predictive: td.Categorical) -> dict[str, Tensor]:
        """Return prediction (N,), its probability (N,) and probs (N, K); see `Task.tensors`."""
        probs = predictive.probs.float()
        probability = probs.gather(-1, point.unsqueeze(-1)).squeeze(-1)
        return {"prediction": point, "probability": probability, "probs": probs}

    @staticmethod
    def _labels(target: Tensor) -> Tensor:
        return target.argmax(-1) if target.is_floating_point() else target


class Regression(Task[RealDistribution, td.Distribution], frozen=True, extra="forbid"):
    """One or several numbers.

    Networks are trained on standardized targets, (y - mean)/std.

    Attributes:
        names: Names of the target values.
        mean: Mean of each value in the training data.
        std: Standard deviation of each value in the training data.
        tolerance: A prediction is an error if one of its values is further off than this.
        low: Smallest number of each value in the training data, if known.
        high: Largest number of each value in the training data, if known.

    >>> task = Regression.from_target([10.0, 20.0, 30.0], tolerance=2)
    >>> task.mean, task.tolerance, task.encode([15])
    ((20.0,), (2.0,), tensor([[15.]]))
    """

    kind: Literal["regression"] = "regression"
    names: tuple[str, ...] = Field(min_length=1)
    mean: tuple[FiniteFloat, ...]
    std: tuple[Annotated[FiniteFloat, Field(gt=0)], ...]
    tolerance: tuple[Annotated[FiniteFloat, Field(ge=0)], ...] | None = None
    low: tuple[FiniteFloat, ...] | None = None
    high: tuple[FiniteFloat, ...] | None = None
    modes: ClassVar[Modes] = {"rmse": "min", "mae": "min", "nll": "min", "crps": "min"}
    monitor: ClassVar[str] = "nll"

    @model_validator(mode="after")
    def _check(self) -> Self:
        _distinct(self.names, "names")
        parts = (self.mean, self.std, self.tolerance, self.low, self.high)
        if any(part is not None and len(part) != len(self.names) for part in parts):
            raise ValueError(
                f"names, mean, std, tolerance, low and high need {len(self.names)} values each"
            )
        return self

    @classmethod
    def from_target(
        cls,
        values: Any,
        names: Sequence[str] | None = None,
        tolerance: float | Sequence[float] | None = None,
    ) -> Regression:
        """Create from the targets of the training data.

        Args:
            values: Numbers, (N,) or (N, T); missing ones, None or NaN, do not count, and censored
                ones, see `target`, count as their bound, or as the middle of two.
            names: Names of the T values; by default those of a table's columns.
            tolerance: Largest deviation that is not an error, one or one per value; needed for
                error rates and policies.
        """
        array, names = numbers(values, names, partial=True)
        for name, column in zip(names, array.T, strict=True):
            if np.isnan(column).all():
                raise DubitoError(f"target {name!r} has no values: all are missing")
        mean, std = np.nanmean(array, 0), np.nanstd(array, 0)
        for name, center, spread in zip(names, mean, std, strict=True):
            if spread <= MIN_SPREAD * abs(center):
                what = "constant" if spread == 0 else "nearly constant, too close for float32"
                raise DubitoError(
                    f"target {name!r} is {what}: mean {center:g}, standard deviation {spread:g}"
                )
        if isinstance(tolerance, int | float | np.number):
            tolerance = [float(tolerance)] * len(names)
        return cls(
            names=tuple(names),
            mean=tuple(mean.tolist()),
            std=tuple(std.tolist()),
            tolerance=None if tolerance is None else tuple(tolerance),
            low=tuple(np.nanmin(array, 0).tolist()),
            high=tuple(np.nanmax(array, 0).tolist()),
        )

    @property
    def defines_errors(self) -> bool:
        """Whether there is a tolerance."""
        return self.tolerance is not None

    def encode(self, values: Any) -> Tensor:
        """Convert numbers (N,) or (N, T) to a tensor (N, T) float32."""
        array, _ = numbers(values, self.names)
        return torch.from_numpy(array).float()

    def target(self, values: Any, weight: Any = None) -> Tensor | Target:
        """Convert numbers, see `Task.target`.

        Cells of text such as ">1000", "<0.1" or "0.1..0.5" are censored: the number is above,
        below or between.
        """
        found, bounds = super().target(values, weight), _bounds(values, self.names)
        return found if bounds is None else Target(*values_and_weight(found), *bounds)

    def _known(self, values: Any) -> tuple[Tensor, Tensor]:
        array, _ = numbers(values, self.names, partial=True)
        absent = np.isnan(array)
        filled = torch.from_numpy(np.where(absent, self.mean, array)).float()
        return filled, torch.from_numpy(~absent)

    def decode(self, point: Tensor) -> Array:
        """Convert means (N, T) to an array, (N,) if T is 1."""
        array: Array = point.detach().cpu().numpy()
        return array[..., 0] if self.size == 1 else array

    def point(self, dist: RealDistribution) -> Tensor:
        """Return the mean: (N, T)."""
        return dist.mean

    def errors(self, point: Tensor, target: Tensor) -> Tensor:
        """Return whether a value is off by more than its tolerance: bool (N,)."""
        if self.tolerance is None:
            raise DubitoError(
                f"errors of a regression need a tolerance for {_checks.listed(self.names)}: "
                "pass tolerance=... to Regression"
            )
        return ((point - target).abs() > point.new_tensor(self.tolerance)).any(-1)

    def metrics(self, predictive: Any, target: Tensor | Target) -> dict[str, float]:
        """Compute rmse, mae, nll (nats), coverage90 and crps; see `Task.metrics`.

        Mixtures have no crps here: it is an integral that takes seconds for a thousand samples.

        coverage90 is the share of targets in the central 90 % intervals of the predictive. With
        several values all but nll are averages over them, nll is of all jointly: of
        the known ones of a sample, which counts with their mean weight. Censored ones count in
        nll only, with the probability of their bounds.
        """
        values, weight = values_and_weight(target)
        log_probs, rows, each = predictive.log_prob(target), None, exact_weight(target)
        if weight is not None:
            known = weight.reshape(len(weight), -1)
            rows = known.sum(-1) / (known > 0).sum(-1).clamp_min(1)
        mean, columns, cdf = predictive.mean.mT, values.mT, predictive.cdf(values)
        if each is not None:  # A column without an exact value does not count.
            some = each.any(0)
            mean, columns, each, cdf = mean[some], columns[some], each.mT[some], cdf[:, some]
        found = {
            "rmse": metrics.rmse(mean, columns, each).mean().item(),
            "mae": metrics.mae(mean, columns, each).mean().item(),
            "nll": -metrics.mean(log_probs, rows).item(),
            "coverage90": _central_coverage(cdf, 0.9, each),
        }
        if isinstance(predictive, RealPredictive):  # in closed form
            crps = predictive.crps(values).mT
            crps = crps if each is None else crps[some]
            found["crps"] = metrics.mean(crps, each).mean().item()
        return found

    def reliability(self, predictive: td.Distribution, target: Tensor) -> Curve:
        """Compute the coverage of central intervals by their level; see `Task.reliability`."""
        levels = [place / RELIABILITY_BINS for place in range(1, RELIABILITY_BINS)]
        cdf = predictive.cdf(target)
        observed = [_central_coverage(cdf, level) for level in levels]
        return {"expected": levels, "observed": observed, "count": [len(target)] * len(levels)}

    def tensors(self, point: Tensor, predictive: td.Distribution) -> dict[str, Tensor]:
        """Return the prediction: (N,), or (N, T) if T > 1; see `Task.tensors`."""
        return {"prediction": point[..., 0] if self.size == 1 else point}

    def notes(self, point: Tensor) -> dict[int, str]:
        """Name predictions outside the range of the training data; see `Task.notes`."""
        found: dict[int, list[str]] = {}
        ranges = zip(self.names, self.low or (), self.high or (), point.unbind(-1), strict=False)
        for name, low, high, values in ranges:
            for row in ((values < low) | (values > high)).nonzero().flatten().tolist():
                text = f"{name} is predicted outside [{low:g}, {high:g}]"
                found.setdefault(row, []).append(text)
        return {row: ", ".join(texts) for row, texts in found.items()}

    def to_training_units(self, target: AnyTarget) -> AnyTarget:
        """Standardize targets (N, T)."""
        if isinstance(target, Target):
            return target.map(self.to_training_units, weight=False)
        return (target - target.new_tensor(self.mean)) / target.new_tensor(self.std)

    def to_user_units(self, dist: RealDistribution) -> RealDistribution:
        """Undo the standardization of a distribution."""
        mean = dist.mean
        return dist.affine(mean.new_tensor(self.std), mean.new_tensor(self.mean))


#: any task, discriminated by `kind`
AnyTask = Annotated[Classification | Regression, Field(discriminator="kind")]


def _distinct(names: tuple[str, ...], what: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{what} must be distinct, but {_checks.listed(twice)} occurs twice")


def are_numbers(values: Any) -> bool:
    """Return whether targets look like measurements rather than classes.

    Classes are few, seen often, or numbered without gaps.

    Args:
        values: Targets, (N,) or (N, T).

    >>> are_numbers(np.linspace(0, 1, 50)), are_numbers(np.arange(500) % 100)
    (True, False)
    """
    array = np.asarray(values)
    if array.dtype.kind not in "iuf":
        return is_censored(values)
    distinct = np.unique(array[np.isfinite(array)])
    if len(distinct) <= max(MOST_CLASSES, array.size / MOST_CLASSES):
        return False
    return bool((distinct % 1).any() or np.ptp(distinct) > 1.2 * len(distinct))


def class_names(values: Any) -> list[str]:
    """Return the class of each row as text."""
    if getattr(values, "ndim", 1) > 1:
        raise DubitoError(
            f"target has shape {tuple(values.shape)}; expected one class per sample, (N,)"
        )
    rows = values.tolist() if hasattr(values, "tolist") else list(values)
    names = []
    for row, value in enumerate(rows):
        if getattr(value, "ndim", None) == 0:  # a scalar of NumPy or torch
            value = value.item()
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # a table with an empty cell has its integers as floats
        is_finite = not isinstance(value, float) or math.isfinite(value)
        if not isinstance(value, str | int | float) or not is_finite:
            raise DubitoError(f"row {row} of target is {value!r}, not a class: a name or a number")
        names.append(str(value))
    return names


def _sort_key(name: str) -> tuple[float, str]:
    """Order numbers by value, before other names."""
    try:
        number = float(name)
    except ValueError:
        number = math.inf
    return (number if number < math.inf else math.inf, name)


def numbers(
    values: Any, names: Sequence[str] | None = None, partial: bool = False
) -> tuple[Array, Sequence[str]]:
    """Return finite numbers (N, T) in float64 and the names of the columns.

    Args:
        values: Numbers, (N,) or (N, T).
        names: Names of the columns; None: those of a table, or default names.
        partial: Return NaN for missing numbers, and a number within the bounds of censored ones,
            in place of an error.
    """
    array = _columns(values)
    if array.ndim != 2 or not array.size:
        raise DubitoError(
            f"target has shape {array.shape}; expected numbers (N,) or (N, T), N >= 1"
        )
    names = _target_names(values, array.shape[1]) if names is None else names
    if len(names) != array.shape[1]:
        raise DubitoError(f"target has {array.shape[1]} columns, expected {_checks.listed(names)}")

    absent = missing(array) if partial else np.zeros(array.shape, bool)
    is_text = array.dtype.kind not in "biuf"
    array = array.astype(object) if is_text else array
    for (row, column), value in np.ndenumerate(array) if is_text else ():
        if partial and (ends := cell_bounds(value)) is not None:
            finite = [end for end in ends if math.isfinite(end)]
            array[row, column] = sum(finite) / len(finite) if finite else ends[0]
        elif not absent[row, column] and not isinstance(value, int | float | np.number):
            raise DubitoError(f"row {row} of target {names[column]!r} is {value!r}, not a number")
    array = np.where(absent, np.nan, array).astype(np.float64)
    for row, column in np.argwhere(~np.isfinite(array) & ~absent):
        value = array[row, column]
        raise DubitoError(f"row {row} of target {names[column]!r} is {value}, not a finite number")
    return array, names


def _columns(values: Any) -> Array:
    """Return targets as columns, (N, T) if they are numbers, of any type."""
    array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    if array.dtype.kind == "U":  # of a list with numbers and text
        array = np.array(values, dtype=object)
    return array[:, None] if array.ndim == 1 else array


def _bounds(values: Any, names: Sequence[str]) -> tuple[Tensor, Tensor] | None:
    """Return the bounds of numbers, (N, T) each, infinite if not censored; None if none is."""
    array = _columns(values)
    if not is_censored(array):
        return None
    lower, upper = np.full(array.shape, -math.inf), np.full(array.shape, math.inf)
    for (row, column), value in np.ndenumerate(array):
        low, high = cell_bounds(value) or (0, 0)
        if low > high:
            raise DubitoError(
                f"row {row} of target {names[column]!r} is {value!r}: the first number of an "
                "interval must be the smaller one"
            )
        if low < high:
            lower[row, column], upper[row, column] = low, high
    return torch.from_numpy(lower).float(), torch.from_numpy(upper).float()


def _target_names(values: Any, size: int) -> list[str]:
    """Return the names of a table's columns, or default names."""
    columns = getattr(values, "columns", [getattr(values, "name", None)])
    if len(columns) == size and all(isinstance(name, str) for name in columns):
        return list(columns)
    return ["target"] if size == 1 else [f"target_{place}" for place in range(size)]


def _central_coverage(cdf: Tensor, level: float, weight: Tensor | None = None) -> float:
    """Return the share of targets in central intervals, given the cdf at the targets (N, T)."""
    columns = cdf.mT
    tail = torch.full_like(columns, (1 - level) / 2)
    return metrics.coverage(tail, 1 - tail, columns, weight).mean().item()
