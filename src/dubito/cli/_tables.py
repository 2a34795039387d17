"""Results as tables in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from dubito.model import Prediction

__all__ = ["demo_table", "fewshot_table", "row_lines", "tables"]

Result = Mapping[str, Any]
#: metrics that are shown in percent
SHARES = ("accuracy", "ece", "coverage90", "error_rate")
DETECTION = {"aupr": "AUPR ↑", "auroc": "AUROC ↑", "fpr95": "FPR95 ↓", "aurc": "AURC ↓"}
#: rows that are printed together, with columns of one width
PORTION = 200


def tables(result: Result) -> Iterator[Table]:
    """Yield the tables of an evaluation.

    Args:
        result: Result of `api.evaluate`, of one or several seeds.
    """
    yield _metrics(result)
    if "policy" in result:
        yield _decisions(result)
    if "error_detection" in result:
        found = {
            name: {**values, "aurc": result["aurc"][name]}
            for name, values in result["error_detection"].items()
        }
        yield _detection("Detection of errors (%)", found)
    for name, one in result.get("ood", {}).items():
        title = f"{result['data']} or {name} ({one['samples']})? (%)"
        yield _detection(title, one["detection"])
    for sigma, one in result.get("noise", {}).items():
        yield _detection(f"Clean or with noise {sigma}? (%)", one["detection"])


def _metrics(result: Result) -> Table:
    columns = [result[key] for key in ("metrics", "calibrated") if key in result]
    table = _table(
        f"{result['data']}: {result['samples']} {result['part']} samples",
        ["", "raw", "calibrated"][: len(columns) + 1],
    )
    for name in result["metrics"]:
        unit = " (%)" if name in SHARES else ""
        table.add_row(f"{name}{unit}", *(_number(found[name], name in SHARES) for found in columns))
    for level, share in result.get("interval_coverage", {}).items():
        name = f"coverage of {float(level):.0%} intervals (%)"
        table.add_row(name, *["" for _ in columns[1:]], _number(share, True))
    return table


def _decisions(result: Result) -> Table:
    reasons = [name for name in result["policy"] if name != "error_rate"]
    table = _table("Policy (%)", ["", *reasons, "errors of accepted"])
    sets = {result["data"]: result}
    sets |= result.get("ood", {})
    sets |= {f"noise {sigma}": one for sigma, one in result.get("noise", {}).items()}
    for name, one in sets.items():
        shares = [_number(one["policy"].get(key), True) for key in [*reasons, "error_rate"]]
        table.add_row(Text(name), *shares)
    return table


def _detection(title: str, found: Mapping[str, Mapping[str, Any]]) -> Table:
    shown = [key for key in DETECTION if key in next(iter(found.values()))]
    table = _table(title, ["score", *(DETECTION[key] for key in shown)])
    for name, values in found.items():
        table.add_row(name, *(_number(values[key], True) for key in shown))
    return table


def fewshot_table(result: Result) -> Table:
    """Return the means of an evaluation of episodes, with their 95 % confidence intervals.

    Args:
        result: Result of `dubito.fewshot.fewshot`.
    """
    setting = result["setting"]
    title = f"{setting['ways']}-way {setting['shots']}-shot, {result['episodes']:,} episodes (%)"
    table = _table(title, ["", result["method"]["name"]])
    for name, found in result["metrics"].items():
        table.add_row(name, _number({"mean": found["mean"], "std": found["interval"]}, True))
    return table


def demo_table(content: Any) -> Table:
    """Return a table of the demo; the best cells are bold.

    Args:
        content: One of `dubito.report._demo.tables`.
    """
    table = _table(content.title, content.columns)
    for name, cells in content.rows:
        styles = ("bold green" if cell.best else "" for cell in cells)
        texts = (Text(cell.text, style) for cell, style in zip(cells, styles, strict=True))
        table.add_row(name, *texts)
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=Text(title), title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for place, column in enumerate(columns):
        table.add_column(Text(column), justify="right" if place else "left")
    return table


def _number(value: Any, share: bool) -> str:
    """Format a number, or mean and standard deviation over seeds."""
    if value is None:
        return "–"
    if isinstance(value, Mapping):
        spread = "" if value["std"] is None else f" ±{_number(value['std'], share)}"
        return _number(value["mean"], share) + spread
    return f"{100 * value:.2f}" if share else f"{value:.4f}"


def row_lines(prediction: Prediction, scores: Sequence[str]) -> Iterator[str]:
    """Yield the rows of a prediction as lines of text.

    Args:
        prediction: Prediction of any number of inputs.
        scores: Further scores.
    """
    for start in range(0, len(prediction), PORTION):
        columns = prediction[start : start + PORTION].columns(scores, probs=False)
        cells = {
            name: [_cell(value) for value in values]
            for name, values in columns.items()
            if name not in ("note", "error") or any(values)
        }
        widths = {name: max(map(len, [name, *texts])) for name, texts in cells.items()}
        if not start:
            yield "  ".join(name.ljust(width) for name, width in widths.items()).rstrip()
        for texts in zip(*cells.values(), strict=True):
            pairs = zip(texts, widths.values(), strict=True)
            yield "  ".join(text.ljust(width) for text, width in pairs).rstrip()


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    return "" if value is None else " ".join(str(value).split())
