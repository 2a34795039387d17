"""Training report of a model: one page for both tasks.

The words are in templates/training.html.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from dubito import __version__
from dubito._files import atomic_write, json_text, make_folder
from dubito.data import Source
from dubito.errors import DubitoError
from dubito.model import Model, Prediction
from dubito.model._card import PERCENT
from dubito.report import _figures
from dubito.report._figures import Curve
from dubito.report._html import render
from dubito.report._views import VIEWS, View

__all__ = ["write"]

Record = Mapping[str, Any]

REPORT = "report.html"


def write(
    model: Model,
    folder: Path | str,
    source: Source | None = None,
    *,
    history: Sequence[Record] = (),
    role: Literal["validation", "test"] = "validation",
    prediction: Prediction | None = None,
    title: str | None = None,
) -> Path:
    """Write report.html, a page that needs no other file.

    Args:
        model: Any model, trained here or elsewhere.
        folder: Folder of the page.
        source: Labeled samples; without them the page shows no predictions.
        history: Records of the epochs, `History.records`; without them it has no learning curves.
        role: Whether the samples chose the epoch, the calibration and the policy ("validation").
        prediction: Result of `model.predict(source)`, if it is known already.
        title: Heading; by default the name of the source.
    """
    page = render(
        "training.html",
        title=title or (model.task.kind.capitalize() if source is None else source.name),
        role=role,
        model=model,
        parameters=sum(parameter.numel() for parameter in model.network.parameters()),
        config=json_text(model.record.config) if model.record and model.record.config else "",
        view=None if source is None else _view(model, source, prediction),
        learning=_learning(model, history) if history else None,
        version=__version__,
    )
    return atomic_write(make_folder(Path(folder)) / REPORT, page)


def _view(model: Model, source: Source, prediction: Prediction | None) -> View:
    if source.target is None:
        raise DubitoError(f"a report needs labeled samples, but {source.name} has no target")
    task = model.task
    prediction = model.predict(source) if prediction is None else prediction
    target = task.encode(source.target)
    return VIEWS[task.kind](
        model=model,
        source=source,
        prediction=prediction,
        target=target,
        errors=task.errors(prediction.point, target) if task.defines_errors else None,
        evaluation=model.evaluate(prediction, source.target),
    )


def _learning(model: Model, history: Sequence[Record]) -> dict[str, Any]:
    """Return learning curves, and the terms whose weight rises."""
    config = {} if model.record is None else model.record.config.get("training", {})
    epochs = config.get("epochs", len(history))
    weights = [model.method.weights(epoch, epochs) for epoch in range(epochs)]
    final = weights[-1]
    rising = [name for name in final if abs(weights[0][name]) < abs(final[name])]
    rises = [all(one[name] == final[name] for name in rising) for one in weights]
    last = rises.index(True) + 1
    validated = [record for record in history if "validation" in record]
    lines = {"training": _line(history, lambda record: record["loss"])}
    if validated:
        lines["validation"] = _line(validated, lambda record: record["validation"]["loss"])
    if rising:  # comparable between epochs, as the validation loss is
        lines["training, final weights"] = _line(
            history, lambda record: sum(final[k] * v for k, v in record["terms"].items())
        )
    best = None if model.record is None else model.record.best_epoch
    span = (1, min(last, len(history)), "rising weight") if rising else None
    loss = _figures.curves(lines, "epoch", "", span=span, at=best)
    charts = {"loss": _figures.svg(loss, "Loss by epoch")}
    metric = model.task.monitor.metric
    if validated:
        line = {"validation": _line(validated, lambda record: record["validation"][metric])}
        percent = "y" if metric in PERCENT else ""
        chart = _figures.curves(line, "epoch", "", percent=percent, at=best)
        charts[metric] = _figures.svg(chart, f"Validation {metric} by epoch")
    return {"charts": charts, "rising": rising, "last": last, "best": best}


def _line(records: Sequence[Record], value: Callable[[Record], float]) -> Curve:
    return Curve([record["epoch"] for record in records], [value(record) for record in records])
