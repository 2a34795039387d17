"""What a report shows of predictions, for each task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dubito import evaluation
from dubito.data import Source, TableFormat
from dubito.model import Model, Prediction
from dubito.report import _figures
from dubito.report._figures import Curve
from dubito.report._html import image, number

__all__ = ["VIEWS", "View"]

#: samples in a group, and values of an input that are shown beside its prediction
MAX_EXAMPLES, MAX_VALUES = 6, 4
#: classes up to which a report has a confusion matrix, and rows of other tables
MAX_CLASSES = 20
MAX_TARGETS = 4
#: a frequency in fewer samples, or an error of fewer, says little
MIN_COUNT, MIN_ERROR_COUNT = 5, 20
#: columns of a prediction that a sample shows
COLUMNS = ("prediction", "probability", "lower", "upper", "reason")


class Example(NamedTuple):
    """A sample to look at."""

    cells: dict[str, str]
    """Name, truth, prediction and further columns."""
    is_error: bool
    image: str | None


@dataclass(frozen=True, kw_only=True)
class View(ABC):
    """Labeled samples, and what a model predicts for them."""

    model: Model
    source: Source
    prediction: Prediction
    target: Tensor
    errors: Tensor | None
    """Which predictions are errors, bool (N,); None if the task does not define errors."""
    evaluation: dict[str, Any]
    """Result of `Model.evaluate`."""

    #: axes of the reliability diagram
    reliability_axes: ClassVar[tuple[str, str]]

    @abstractmethod
    def uncertainty(self) -> tuple[Tensor, str]:
        """Return the uncertainty of each sample (N,) for a histogram, with its name."""

    @abstractmethod
    def surprise(self) -> Tensor:
        """Return how unexpected each target is, (N,); -inf for a sample not to show."""

    # --- charts ---

    def reliability(self) -> str:
        """Return the chart of observed against expected frequencies."""
        predictives = {"not calibrated": self.prediction.distribution.predictive}
        if self.model.calibration is not None:
            predictives["calibrated"] = self.prediction.predictive
        lines = {}
        for name, predictive in predictives.items():
            found = self.model.task.reliability(predictive, self.target)
            least = min(MIN_COUNT, max(found["count"]))
            points = [point for point in zip(*found.values(), strict=True) if point[-1] >= least]
            lines[name] = Curve(*list(zip(*points, strict=True))[:2])
        chart = _figures.curves(lines, *self.reliability_axes, percent="xy", diagonal=True)
        return _figures.svg(chart, "Observed against expected frequency")

    def histogram(self) -> str:
        """Return the chart of the distribution of the uncertainty."""
        values, label = self.uncertainty()
        groups = {"samples": values}
        if self.errors is not None and bool(self.errors.any()):
            groups = {"correct": values[~self.errors], "errors": values[self.errors]}
        chart = _figures.histogram({name: one.numpy() for name, one in groups.items()}, label)
        return _figures.svg(chart, f"Histogram of the {label}")

    def risk(self) -> str:
        """Return the chart of the error rate among the most confident samples."""
        assert self.errors is not None
        found = evaluation.risk_coverage(
            self.prediction.distribution, self.errors, self.ranking_scores()
        )
        lines = {name: Curve(line["coverage"], line["risk"]) for name, line in found.items()}
        accepted, point = self.prediction.accepted, None
        if accepted is not None and bool(accepted.any()):
            rate = self.errors[accepted].double().mean().item()
            point = (accepted.double().mean().item(), rate, "policy")
        axes = "share answered", "errors among the answers"
        chart = _figures.curves(lines, *axes, percent="xy", point=point)
        return _figures.svg(chart, "Error rate among the answers by share answered")

    def ranking_scores(self) -> list[str]:
        """Return the scores that rank samples in charts."""
        dist = self.prediction.distribution
        names = dict.fromkeys((self.model.method.error_score, "total", "epistemic"))
        return [name for name in names if bool(dist.score(name).amin() < dist.score(name).amax())]

    # --- samples to look at ---

    def groups(self) -> Iterator[tuple[str, str, list[Example]]]:
        """Yield a kind of samples, the score that ranks them, and examples."""
        surprise = self.surprise()
        rows = [row for row in _largest(surprise) if surprise[row] > -torch.inf]
        if rows:
            yield "surprising", "", list(self._examples(rows))
        score = self.model.method.error_score
        rows = _largest(-self.prediction.distribution.confidence(score))
        yield "uncertain", score, list(self._examples(rows))

    def _examples(self, rows: Sequence[int]) -> Iterator[Example]:
        truths, format = self.model.task.decode(self.target), self.source.format
        for row, inputs in zip(rows, self.source.encode(rows).inputs, strict=True):
            cells = {"sample": self.source.item(row), "true": truths[row]}
            for name, value in next(self.prediction[row].rows(probs=False)).items():
                if name.split(".")[0] in COLUMNS:
                    cells[name] = value
            if isinstance(format, TableFormat):
                cells |= islice(format.decode(inputs).items(), MAX_VALUES)
            elif inputs.ndim == 1:
                cells |= {f"[{place}]": x for place, x in enumerate(inputs[:MAX_VALUES].tolist())}
            is_error = self.errors is not None and bool(self.errors[row])
            is_image = inputs.ndim == 3 and len(inputs) in (1, 3)
            texts = {name: _text(value) for name, value in cells.items()}
            yield Example(texts, is_error, image(inputs) if is_image else None)


class ClassificationView(View):
    """Predictions of classes."""

    reliability_axes = "probability of the prediction", "share correct"

    @property
    def labels(self) -> Tensor:
        """Most probable true class: (N,)."""
        return self.target.argmax(-1) if self.target.is_floating_point() else self.target

    def uncertainty(self) -> tuple[Tensor, str]:
        return self.prediction.distribution.total, "total uncertainty (nats)"

    def surprise(self) -> Tensor:
        assert self.errors is not None
        probability = self.prediction.tensors()["probability"]
        return probability.masked_fill(~self.errors, -torch.inf)

    def matrix(self) -> Tensor | None:
        """Return the confusion matrix, true classes in rows; None if it would be too large."""
        size = self.model.task.size
        if size > MAX_CLASSES:
            return None
        pairs = torch.bincount(self.labels * size + self.prediction.point, minlength=size**2)
        return pairs.reshape(size, size)

    def classes(self) -> list[tuple[str, int, float, float | None, int | None]]:
        """Return samples, accuracy, share answered and errors among these of each class.

        Of many classes the worst.
        """
        accepted, rows = self.prediction.accepted, []
        for index, name in enumerate(self.model.task.names):
            own = self.labels == index
            correct = (self.prediction.point == index)[own]
            if not len(correct):
                continue
            answered = None if accepted is None else accepted[own]
            share = None if answered is None else answered.double().mean().item()
            errors = None if answered is None else int((answered & ~correct).sum())
            rows.append((name, len(correct), correct.double().mean().item(), share, errors))
        return sorted(rows, key=lambda row: row[2])[:MAX_CLASSES] if self.matrix() is None else rows


class RegressionView(View):
    """Predictions of numbers."""

    reliability_axes = "level of central intervals", "share of targets inside"

    @property
    def spread(self) -> float:
        """Standard deviation of the targets, the error of predicting their mean."""
        return self.target.std(0, correction=0).mean().item()

    @property
    def width(self) -> float | None:
        """Median width of the intervals."""
        interval = self.prediction.interval
        return None if interval is None else (interval[1] - interval[0]).median().item()

    def uncertainty(self) -> tuple[Tensor, str]:
        return self.prediction.distribution.total.sqrt(), "predicted standard deviation"

    def risk(self) -> str:
        """Return the chart of the error among the most confident samples."""
        if self.errors is not None:
            return super().risk()
        squared = (self.prediction.point - self.target).square().mean(-1)
        count = torch.arange(1, len(squared) + 1)
        first = min(MIN_ERROR_COUNT, len(count)) - 1
        lines = {}
        for name in self.ranking_scores():
            order = self.prediction.distribution.confidence(name).argsort(descending=True)
            rmse = (squared[order].cumsum(0) / count).sqrt()
            lines[name] = Curve((count / len(count))[first:].tolist(), rmse[first:].tolist())
        chart = _figures.curves(lines, "share answered", "RMSE of the answers", percent="x")
        return _figures.svg(chart, "RMSE of the answers by share answered")

    def surprise(self) -> Tensor:
        dist: Any = self.prediction.distribution
        deviations: Tensor = (self.target - dist.mean).abs() / dist.variance.sqrt()
        return deviations.amax(-1)

    def predicted(self) -> Iterator[str]:
        """Yield the charts of predictions against true values."""
        columns, interval = [self.target, self.prediction.point], self.prediction.interval
        # With very few samples the calibrated intervals are infinite.
        if interval is not None and bool(interval[1].isfinite().all()):
            columns += interval
        for place, name in enumerate(self.model.task.names[:MAX_TARGETS]):
            chart = _figures.predicted(name, *(column[:, place].numpy() for column in columns))
            yield _figures.svg(chart, f"Predicted against true {name}")


#: kind of a task -> its view
VIEWS: dict[str, type[View]] = {
    "classification": ClassificationView,
    "regression": RegressionView,
}


def _largest(values: Tensor) -> list[int]:
    rows: list[int] = values.argsort(descending=True, stable=True)[:MAX_EXAMPLES].tolist()
    return rows


def _text(value: Any) -> str:
    """Format a cell; a list has a value for each target."""
    if isinstance(value, np.ndarray):
        return ", ".join(map(_text, value.tolist()))
    if isinstance(value, float):
        return number(value)
    return "(unseen)" if value is None else str(value)
