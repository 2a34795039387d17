"""Output in a terminal: tables of results, and rows of predictions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from dubito.evaluation import chosen_scores
from dubito.model import Prediction
from dubito.model.card import PERCENT
from dubito.policy import Policy

Result = Mapping[str, Any]
#: AUPR comes last
DETECTION = {"auroc": "AUROC ↑", "fpr95": "FPR95 ↓", "aurc": "AURC ↓", "aupr": "AUPR ↑"}
AUPR = "Prefer AUROC: AUPR is high where one set is much larger than the other."
#: letters of a name that a narrow terminal does not wrap
LONGEST = 28
#: letters of the name of data: the end of a path says more than its beginning
SHORT = 24
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
    rows = list(rows)
    for index, column in enumerate(columns):
        # Long names and headings wrap; numbers do not.
        width = max(map(len, column.split()), default=0)
        if index == 0:
            width = min(LONGEST, max((len(name) for name, _ in rows), default=0))
        justify: Any = "right" if index else "left"
        result.add_column(Text(column), justify=justify, overflow="fold", min_width=width)
    for name, cells in rows:
        result.add_row(Text(name), *cells)
    return result


def evaluation_tables(result: Result, verbose: bool = False) -> Iterator[Table]:
    """Yield the tables of an evaluation.

    Args:
        result: Result of `api.evaluate`, of one or several seeds.
        verbose: Show all scores, not only the declared ones, the best and the worst.
    """
    ood = result.get("ood", {})
    noise = {f"noise {sigma}": part for sigma, part in result.get("noise", {}).items()}
    yield _metrics(result)
    if "policy" in result:
        yield _policy({result["data"]: result, **ood, **noise})
    declared = {} if verbose else result["declared"]
    for name, part in {**ood, **noise}.items():
        accepted = part["policy"]["accepted"] if "policy" in part else None
        share = "" if accepted is None else f"; {_number(accepted, True)} are accepted"
        yield _detection(f"Detection of {name} (%{share})", part["detection"], declared)
    if "error_detection" in result:
        scores = result["error_detection"]
        rows = {name: {**scores[name], "aurc": result["aurc"][name]} for name in scores}
        yield _detection("Detection of errors (%; positives: correct predictions)", rows, declared)


def _policy(parts: Mapping[str, Result]) -> Table:
    """Return a table of decisions, without those that nothing has."""
    names = {name: name if len(name) <= SHORT else f"…{name[1 - SHORT :]}" for name in parts}
    if len({*names.values()}) < len(names):  # their ends are the same
        names = {name: name for name in parts}
    rows = {names[name]: part["policy"] for name, part in parts.items()}
    decisions = [name for name in next(iter(rows.values())) if name != "error_rate"]
    cells = {name: {_number(row[name], True) for row in rows.values()} for name in decisions}
    columns = {name: name.replace("_", " ") for name in decisions if cells[name] != {"0.00"}}
    return _shares("Policy (%)", "", {**columns, "error_rate": "errors of accepted"}, rows)


def _detection(title: str, scores: Mapping[str, Result], declared: Mapping[str, str]) -> Table:
    """Return a table of how well scores detect something; of all scores if none is declared."""
    rows = scores
    if declared:
        chosen = chosen_scores(scores, declared)
        rows = {f"{name} ({what})": scores[name] for name, what in chosen.items()}
    columns = {key: text for key, text in DETECTION.items() if key in next(iter(rows.values()))}
    return _shares(title, "score", columns, rows)


def _metrics(result: Result) -> Table:
    columns = [result[key] for key in ("metrics", "calibrated") if key in result]
    rows = []
    for name in result["metrics"]:
        is_share = name in PERCENT
        cells = [_number(values[name], is_share) for values in columns]
        rows.append((f"{name} (%)" if is_share else name, cells))
    blank = ["" for _ in columns[1:]]
    for what, size in (("interval", "width"), ("set", "size")):
        for level, share in result.get(f"{what}_coverage", {}).items():
            name, mean = f"{100 * float(level):g}% {what}s", result[f"{what}_{size}"][level]
            rows.append((f"coverage of {name} (%)", [*blank, _number(share, True)]))
            rows.append((f"mean {size} of {name}", [*blank, _number(mean, False)]))
    title = f"{result['data']}: {result['samples']} {result['part']} samples"
    return table(title, ["", "raw", "calibrated"][: len(columns) + 1], rows)


def promises(policy: Policy) -> Table:
    """Return the share answered at each promised error rate.

    Args:
        policy: Policy with a table.
    """
    columns = [f"{point.error_rate:.0%}" for point in policy.table]
    cells = [_number(point.coverage, True) for point in policy.table]
    return table("", ["promised error rate", *columns], [("answered (%)", cells)])


def means(values: Result) -> dict[str, float]:
    """Return numbers, those of several seeds as their means."""
    return {k: v["mean"] if isinstance(v, Mapping) else v for k, v in values.items()}


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
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    return "" if value is None else " ".join(str(value).split())
