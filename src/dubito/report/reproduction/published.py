"""The numbers that were published, and how ours compare with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dubito import _checks
from dubito._legacy import MEASURES
from dubito.report.reproduction.names import METHODS_SHOWN, SETS, plain
from dubito.report.tables import Better

__all__ = [
    "VERDICTS", "Key", "Published", "Verdict", "cells", "check", "is_number", "listed", "of_cell",
    "published", "verdict",
]  # fmt: skip

Verdict = Literal["agrees", "better", "worse"]
#: verdict -> the sign that goes with the word
VERDICTS: dict[Verdict, str] = {"agrees": "≈", "better": "▲", "worse": "▼"}
#: data set, method, what it is told from (none: right from wrong), measure, metric
Key = tuple[str, str, str, str, str]
METRICS = ("accuracy", "aupr", "auroc", "fpr95", "ece", "nll", "brier", "aurc")
#: Deviations are published with one decimal: 0.0 stands for anything below this.
LEAST_DEVIATION = 0.05


@dataclass(frozen=True)
class Published:
    """A published mean and deviation, in per cent, the table's label, and what else it says."""

    mean: float
    deviation: float
    table: str
    also: tuple[str, ...] = ()


def key_of(
    data: str, method: str, ood: str = "", measure: str = "", metric: str = "accuracy"
) -> Key:
    """What a number is of, however its names are spelt."""
    return (plain(data), plain(method), plain(ood), measure, metric)


def published(paper: Mapping[str, Any]) -> dict[Key, Published]:
    """The numbers of the tables on the report's data sets, by what they are of.

    Where tables give one number twice and differently, the first one counts and says so.
    """
    found: dict[Key, Published] = {}
    for table, cell in cells(paper):
        if plain(str(cell.get("data", ""))) not in SETS or "ways" in cell:
            continue  # few-shot tables are another report's
        key, said = _read(cell, table)
        before = found.setdefault(key, said)
        if (before.mean, before.deviation) != (said.mean, said.deviation):
            also = f"{said.table} has {said.mean:.2f} ±{said.deviation:g}"
            found[key] = Published(
                before.mean, before.deviation, before.table, (*before.also, also)
            )
    return found


def cells(paper: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All cells of the paper's tables, each with the label of its table."""
    for table in listed(paper.get("table", []), "`table`"):
        label = table.get("label")
        if not isinstance(label, str):
            raise ValueError(f"a table of the paper needs a text as its `label`, not {label!r}")
        for cell in listed(table.get("cell", []), f"`cell` of the table {label!r}"):
            yield label, cell


def listed(values: object, what: str) -> list[Mapping[str, Any]]:
    """A list of tables, or an error that says what came instead."""
    if not isinstance(values, list):
        raise ValueError(f"{what} must be a list of tables, not {type(values).__name__}")
    for one in values:
        if not isinstance(one, Mapping):
            raise ValueError(f"{what} must be a list of tables, and {one!r} is none")
    return values


def check(cell: Mapping[str, Any], needed: Iterable[str], where: str) -> None:
    """An error that says what a cell lacks, or what of it can't be right."""
    for name in needed:
        if name not in cell:
            raise ValueError(f"a cell of {where} lacks {name!r}: {cell}")
    for name, (kind, fits) in _KINDS.items():
        if name in cell and not fits(cell[name]):
            raise ValueError(f"{name!r} in a cell of {where} must be {kind}, not {cell[name]!r}")


def is_number(value: object) -> bool:
    """Whether it is a finite number; true and false are none."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return math.isfinite(value)


def of_cell(cell: Mapping[str, Any], table: str, *needed: str) -> Published:
    """What a cell of a table says, where it has all that it takes."""
    where = f"the table {table!r} of the paper"
    check(cell, ("method", "metric", "mean", "deviation", *needed), where)
    _checks.one_of(METRICS, cell["metric"], f"metric in {where}:")
    if cell.get("measure"):
        _checks.one_of(MEASURES, cell["measure"], f"measure in {where}:")
    return Published(float(cell["mean"]), float(cell["deviation"]), table)


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "mean": ("a number", is_number),
    "deviation": ("a number >= 0", lambda value: is_number(value) and value >= 0),
    **dict.fromkeys(("ways", "shots"), ("a whole number", lambda value: type(value) is int)),
    **dict.fromkeys(
        ("method", "metric", "measure", "data", "ood"),
        ("a text", lambda value: isinstance(value, str)),
    ),
}


def _read(cell: Mapping[str, Any], table: str) -> tuple[Key, Published]:
    said = of_cell(cell, table)
    known = [plain(name) for name in METHODS_SHOWN]
    _checks.one_of(known, plain(cell["method"]), f"method in the table {table!r} of the paper:")
    ood, measure = cell.get("ood", ""), cell.get("measure", "")
    return key_of(cell["data"], cell["method"], ood, measure, cell["metric"]), said


def verdict(ours: float, theirs: Published, better: Better = "higher") -> Verdict | None:
    """How our mean, in per cent, stands to the published one: within its deviation, or not.

    None where ours is not finite. Ends belong to the interval.

    >>> verdict(98.0, Published(98.3, 0.2, "tab")), verdict(98.15, Published(98.3, 0.2, "tab"))
    ('worse', 'agrees')
    """
    if not math.isfinite(ours):
        return None
    off, room = ours - theirs.mean, max(theirs.deviation, LEAST_DEVIATION)
    if math.isclose(abs(off), room, rel_tol=1e-9) or abs(off) < room:
        return "agrees"
    return "better" if (off > 0) == (better == "higher") else "worse"
