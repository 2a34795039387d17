"""Few-shot records by setting, the published code's numbers on our features, and the paper's.

The paper's features are not ours, so its numbers stand beside ours without a verdict. What ours are
judged by is the published code on the same features, where it was run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dubito.report.reproduction.layout import Column, Entry
from dubito.report.reproduction.names import label_of, plain
from dubito.report.reproduction.published import Published, verdict
from dubito.report.reproduction.records import Record, Records, at

__all__ = ["Episodes", "entry", "is_fewshot"]

PREFIX = "fewshot-"
SWEPT = "iedl-lambda"
_NAME = re.compile(r"fewshot-(?P<variant>.+)-(?P<ways>\d+)w(?P<shots>\d+)s(?:-(?P<value>.+))?")
#: what a number is of: variant, ways, shots, and a figure's name
Key = tuple[str, int, int, str]
ACCURACY = "accuracy"
CONFIDENCE, OOD = "confidence/max_alpha/aupr", "ood/alpha0/aupr"
_OOD_AUROC = "ood/alpha0/auroc"


def is_fewshot(recipe: str) -> bool:
    """Whether a recipe is of episodes.

    >>> is_fewshot("fewshot-iedl-5w1s"), is_fewshot("mnist-iedl")
    (True, False)
    """
    return recipe.startswith(PREFIX)


@dataclass(frozen=True)
class Episodes:
    """The few-shot records, by variant and setting, and the numbers to set beside them."""

    records: Records
    paper: Mapping[str, Any]

    @cached_property
    def by_setting(self) -> dict[tuple[str, int, int], Record]:
        """Records but those of a sweep: (variant, ways, shots) -> the first seed's."""
        found = {}
        for recipe, records in self.records.by_recipe.items():
            match = _NAME.fullmatch(recipe)
            if match and match["value"] is None:
                found[match["variant"], int(match["ways"]), int(match["shots"])] = records[0]
        return found

    @cached_property
    def sweep(self) -> dict[tuple[int, int], dict[float, Record]]:
        """(ways, shots) -> lambda -> its record."""
        found: dict[tuple[int, int], dict[float, Record]] = {}
        for recipe, records in self.records.by_recipe.items():
            match = _NAME.fullmatch(recipe)
            if match and match["value"] is not None and match["variant"] == SWEPT:
                place = found.setdefault((int(match["ways"]), int(match["shots"])), {})
                place[float(match["value"])] = records[0]
        return {where: dict(sorted(held.items())) for where, held in sorted(found.items())}

    def shots(self, ways: int, variants: Iterable[str]) -> list[int]:
        """The shots that any of the variants was run with."""
        wanted = set(variants)
        return sorted({s for v, w, s in self.by_setting if w == ways and v in wanted})

    @cached_property
    def ways(self) -> list[int]:
        """The ways that anything was run with."""
        return sorted({ways for _, ways, _ in self.by_setting})

    @cached_property
    def published(self) -> dict[Key, Published]:
        """The paper's numbers."""
        found: dict[Key, Published] = {}
        for table in self.paper.get("table", ()):
            for cell in table.get("cell", ()):
                if "ways" in cell:
                    key = (plain(cell["method"]), cell["ways"], cell["shots"], _figure(cell))
                    number = Published(
                        float(cell["mean"]), float(cell["deviation"]), table["label"]
                    )
                    found.setdefault(key, number)
        return found

    @cached_property
    def code(self) -> dict[Key, tuple[float, ...]]:
        """What the published code gives on our features: a mean, and an interval if known."""
        names = {ACCURACY: ACCURACY, "confidence": CONFIDENCE, "aupr": OOD, "auroc": _OOD_AUROC}
        return {
            (plain(cell["method"]), cell["ways"], cell["shots"], figure): tuple(cell[name])
            for cell in self.paper.get("code", {}).get("cell", ())
            for name, figure in names.items()
        }

    def entry(self, variant: str, where: tuple[int, int], column: Column) -> Entry:
        """One cell."""
        record = self.by_setting.get((variant, *where))
        made = entry(record, f"{PREFIX}{variant}-{where[0]}w{where[1]}s", column)
        key = (plain(variant), *where, column.path[-1])
        theirs, code = self.published.get(key), self.code.get(key, ())
        beside: list[tuple[str, str]] = []
        if len(code) == 1:
            beside.append(("code", f"{code[0]:.2f}"))
        if theirs is not None:
            beside.append(("paper", f"{theirs.mean:.2f} ±{theirs.deviation:.2f}"))
        judged = Published(*code, table="the published code") if len(code) == 2 else None
        mean = made.mean
        said = None if judged is None or mean is None else verdict(mean, judged)
        return replace(made, published=judged, verdict=said, source="code", beside=tuple(beside))


def _figure(cell: Mapping[str, Any]) -> str:
    """The name of a cell's figure in records."""
    if cell["metric"] == ACCURACY:
        return ACCURACY
    task = "ood" if cell.get("ood") else "confidence"
    return f"{task}/{cell['measure']}/{cell['metric']}"


def entry(record: Record | None, label: str, column: Column) -> Entry:
    """A record's figure with its interval; without one, why."""
    figure = None if record is None else at(record, ("result", "figures", column.path[-1]))
    name = f"{column.group} {column.title}" if column.group else column.title
    label = f"{label}/{column.path[-1]}"
    if record is None:
        return Entry(label, name, {}, reason="not run")
    if figure is None or figure["mean"] is None:
        measure = column.path[-1].split("/")[1]
        return Entry(label, name, {}, reason=f"this method has no {label_of(measure)}")
    interval = figure["interval"]
    return Entry(
        label,
        name,
        {record["seed"]: 100 * figure["mean"]},
        interval=None if interval is None else 100 * interval,
        episodes=figure["episodes"],
    )
