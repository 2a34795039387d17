"""Output in a terminal: tables of results, rows of predictions, progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from dubito.model import Prediction
from dubito.model.card import PERCENT, format_metric
from dubito.training import Callback
from dubito.training import Progress as State
from dubito.types import Json

Result = Mapping[str, Any]
DETECTION = {"aupr": "AUPR ↑", "auroc": "AUROC ↑", "fpr95": "FPR95 ↓"}
#: rows that are aligned and printed together
CHUNK = 200


# --- tables ---


def table(title: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> Table:
    """Return a table.

    Args:
        title: Heading.
        columns: Headings of the columns.
        rows: Name and cells of each row.
    """
    result = Table(title=Text(title), title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for index, column in enumerate(columns):
        # Names wrap; numbers do not.
        result.add_column(
            Text(column),
            justify="right" if index else "left",
            overflow="fold",
            min_width=max(map(len, column.split()), default=0) if index else None,
        )
    for name, cells in rows:
        result.add_row(Text(name), *cells)
    return result


def evaluation_tables(result: Result) -> Iterator[Table]:
    """Yield the tables of an evaluation.

    Args:
        result: Result of `api.evaluate`, of one or several seeds.
    """
    ood = result.get("ood", {})
    noise = {f"noise {sigma}": part for sigma, part in result.get("noise", {}).items()}
    yield _metrics(result)
    if "policy" in result:
        decisions = {name: name for name in result["policy"] if name != "error_rate"}
        columns = {**decisions, "error_rate": "errors of accepted"}
        parts = {result["data"]: result, **ood, **noise}
        rows = {name: part["policy"] for name, part in parts.items()}
        yield _shares("Policy (%)", "", columns, rows)
    if "error_detection" in result:
        scores = result["error_detection"]
        rows = {name: {**scores[name], "aurc": result["aurc"][name]} for name in scores}
        title = "Detection of errors (%; positives: correct predictions)"
        yield _shares(title, "score", {**DETECTION, "aurc": "AURC ↓"}, rows)
    for name, part in {**ood, **noise}.items():
        yield _shares(f"Detection of {name} (%)", "score", DETECTION, part["detection"])


def _metrics(result: Result) -> Table:
    columns = [result[key] for key in ("metrics", "calibrated") if key in result]
    rows = []
    for name in result["metrics"]:
        is_share = name in PERCENT
        cells = [_number(values[name], is_share) for values in columns]
        rows.append((f"{name} (%)" if is_share else name, cells))
    for level, share in result.get("interval_coverage", {}).items():
        cells = ["" for _ in columns[1:]] + [_number(share, True)]
        rows.append((f"coverage of {float(level):.0%} intervals (%)", cells))
    title = f"{result['data']}: {result['samples']} {result['part']} samples"
    return table(title, ["", "raw", "calibrated"][: len(columns) + 1], rows)


def fewshot_table(result: Result) -> Table:
    """Return the means over episodes, with their 95 % confidence intervals.

    Args:
        result: Result of `dubito.fewshot.fewshot`.
    """
    setting, method = result["setting"], result["method"]["name"]
    title = f"{setting['ways']}-way {setting['shots']}-shot, {result['episodes']:,} episodes (%)"
    means = result["metrics"].items()
    rows = {name: {method: {"mean": v["mean"], "std": v["interval"]}} for name, v in means}
    return _shares(title, "", {method: method}, rows)


def _shares(
    title: str, corner: str, columns: Mapping[str, str], rows: Mapping[str, Mapping[str, Any]]
) -> Table:
    """Return a table of shares in percent; `columns` are keys of the rows and their headings."""
    cells = {name: [_number(row.get(key), True) for key in columns] for name, row in rows.items()}
    return table(title, [corner, *columns.values()], cells.items())


def _number(value: Any, is_share: bool) -> str:
    """Format a number, or mean and standard deviation over seeds."""
    if value is None:
        return "–"
    if isinstance(value, Mapping):
        spread = "" if value["std"] is None else f" ±{_number(value['std'], is_share)}"
        return _number(value["mean"], is_share) + spread
    return f"{100 * value:.2f}" if is_share else f"{value:.4f}"


# --- rows ---


def row_lines(prediction: Prediction, scores: Sequence[str]) -> Iterator[str]:
    """Yield the rows of a prediction as lines of text.

    Args:
        prediction: Prediction of any number of inputs.
        scores: Further scores.
    """
    for start in range(0, len(prediction), CHUNK):
        columns = prediction[start : start + CHUNK].columns(scores, probs=False)
        cells = [
            [name, *map(_cell, values)]
            for name, values in columns.items()
            if name not in ("note", "error") or any(values)
        ]
        widths = [max(map(len, column)) for column in cells]
        lines = zip(*cells, strict=True)
        if start:
            next(lines)  # the header is above the first chunk
        for line in lines:
            yield "  ".join(map(str.ljust, line, widths)).rstrip()


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    return "" if value is None else " ".join(str(value).split())


# --- progress ---


@contextmanager
def counter(unit: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that adds to a number on the screen.

    Args:
        unit: What is counted.
    """
    with Progress(TextColumn(f"{{task.completed}} {unit}"), TimeElapsedColumn()) as bars:
        task = bars.add_task(unit, total=None)
        yield lambda count: bars.advance(task, count)


class TrainProgress(Callback):
    """Show a bar for each seed on a terminal, a line per epoch elsewhere.

    Args:
        console: Console to print on.
        verbose: Show the terms of the loss and all validation metrics.
    """

    def __init__(self, console: Console, verbose: bool) -> None:
        text = TextColumn("{task.description}", markup=False, table_column=Column(ratio=1))
        columns, disable = (BarColumn(bar_width=20), text), not console.is_terminal
        self.bars = Progress(*columns, console=console, expand=True, disable=disable)
        self.verbose = verbose
        self._tasks: dict[int, TaskID] = {}
        self._metrics: dict[int, dict[str, str]] = {}

    def on_train_begin(self, progress: State) -> None:
        """Add a bar."""
        self._tasks[progress.seed] = self.bars.add_task("", total=progress.epochs)
        self._metrics[progress.seed] = {}

    def on_progress(self, progress: State) -> None:
        """Move the bar."""
        line = f"seed {progress.seed}  epoch {progress.epoch}/{progress.epochs}  "
        line += "".join(f"{k} {value}  " for k, value in self._metrics[progress.seed].items())
        left = timedelta(seconds=round(progress.seconds_left))
        line += f"{progress.samples_per_second:,.0f} samples/s  at most {left} left"
        done = progress.epoch - 1 + progress.step / progress.steps
        self.bars.update(self._tasks[progress.seed], completed=done, description=line)
        if self.bars.disable and progress.record is not None:
            self.bars.console.print(Text(line), soft_wrap=True)

    def on_epoch_end(self, progress: State) -> None:
        """Show the metrics; on a bar, those of a validation stay until the next one."""
        new = _epoch_metrics(progress.record or {}, self.verbose)
        old = {} if self.bars.disable else self._metrics[progress.seed]
        self._metrics[progress.seed] = old | new
        self.on_progress(progress)


def _epoch_metrics(record: Json, verbose: bool) -> dict[str, str]:
    validation = list(record.get("validation", {}).items())
    shown = validation if verbose else validation[:1]  # the first selects the weights
    terms = record["terms"] if verbose else {}
    return {
        "loss": f"{record['loss']:.4f}",
        **{name: f"{value:.4g}" for name, value in terms.items()},
        **{f"validation {name}": format_metric(name, value) for name, value in shown},
    }
