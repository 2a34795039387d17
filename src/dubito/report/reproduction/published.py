"""The numbers that were published, and how ours compare with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dubito import _checks
from dubito.measures import MEASURES
from dubito.report.reproduction.names import METHODS_SHOWN, SETS, plain
from dubito.report.tables import Better

__all__ = ["VERDICTS", "Key", "Published", "Verdict", "published", "verdict"]

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
    for table in paper.get("table", ()):
        for cell in table.get("cell", ()):
            if plain(str(cell.get("data", ""))) not in SETS or "ways" in cell:
                continue  # few-shot tables are another report's
            key, number = _read(cell, str(table["label"]))
            before = found.setdefault(key, number)
            if (before.mean, before.deviation) != (number.mean, number.deviation):
                also = f"{number.table} has {number.mean:.2f} ±{number.deviation:g}"
                found[key] = Published(
                    before.mean, before.deviation, before.table, (*before.also, also)
                )
    return found


def _read(cell: Mapping[str, Any], table: str) -> tuple[Key, Published]:
    for name in ("method", "metric", "mean", "deviation"):
        if name not in cell:
            raise ValueError(f"a cell of the table {table!r} of the paper lacks {name!r}: {cell}")
    known = [plain(name) for name in METHODS_SHOWN]
    _checks.one_of(known, plain(cell["method"]), f"method in the table {table!r} of the paper:")
    _checks.one_of(METRICS, cell["metric"], f"metric in the table {table!r} of the paper:")
    measure = cell.get("measure", "")
    if measure:
        _checks.one_of(MEASURES, measure, f"measure in the table {table!r} of the paper:")
    key = key_of(cell["data"], cell["method"], cell.get("ood", ""), measure, cell["metric"])
    return key, Published(float(cell["mean"]), float(cell["deviation"]), table)


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
