"""Few-shot records by setting, the published code's numbers on our features, and the paper's.

The paper's features are not ours, so its numbers stand beside ours without a verdict. What ours are
judged by is the published code on the same features, where it was run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dubito.report.reproduction.layout import Column, Entry, Pooled
from dubito.report.reproduction.names import label_of, plain
from dubito.report.reproduction.published import (
    Published,
    cells,
    check,
    is_number,
    listed,
    of_cell,
    verdict,
)
from dubito.report.reproduction.records import Record, Records, at

__all__ = ["Episodes", "entry", "is_fewshot", "of_code", "of_paper", "pooled"]

PREFIX = "fewshot-"
SWEPT = "iedl-lambda"
_NAME = re.compile(r"fewshot-(?P<variant>.+)-(?P<ways>\d+)w(?P<shots>\d+)s(?:-(?P<value>.+))?")
#: what a number is of: variant, ways, shots, and a figure's name
Key = tuple[str, int, int, str]
ACCURACY = "accuracy"
CONFIDENCE, OOD = "confidence/max_alpha/aupr", "ood/alpha0/aupr"
_OOD_AUROC = "ood/alpha0/auroc"
#: deviations of a mean in half of its 95 % interval, in records
_HALF = 1.96


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
    def by_setting(self) -> dict[tuple[str, int, int], list[Record]]:
        """Records but those of a sweep: (variant, ways, shots) -> those of its seeds."""
        found = {}
        for recipe, records in self.records.by_recipe.items():
            match = _NAME.fullmatch(recipe)
            if match and match["value"] is None:
                found[match["variant"], int(match["ways"]), int(match["shots"])] = records
        return found

    @cached_property
    def sweep(self) -> dict[tuple[int, int], dict[float, list[Record]]]:
        """(ways, shots) -> lambda -> the records of its seeds."""
        found: dict[tuple[int, int], dict[float, list[Record]]] = {}
        for recipe, records in self.records.by_recipe.items():
            match = _NAME.fullmatch(recipe)
            if match and match["value"] is not None and match["variant"] == SWEPT:
                place = found.setdefault((int(match["ways"]), int(match["shots"])), {})
                place[float(match["value"])] = records
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
        return of_paper(self.paper)

    @cached_property
    def code(self) -> dict[Key, tuple[float, ...]]:
        """What the published code gives on our features: a mean, and an interval if known."""
        return of_code(self.paper)

    def entry(self, variant: str, where: tuple[int, int], column: Column) -> Entry:
        """One cell."""
        records = self.by_setting.get((variant, *where), [])
        made = entry(records, f"{PREFIX}{variant}-{where[0]}w{where[1]}s", column)
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


def of_paper(paper: Mapping[str, Any]) -> dict[Key, Published]:
    """The few-shot numbers of the paper's tables."""
    found: dict[Key, Published] = {}
    for table, cell in cells(paper):
        if "ways" in cell:
            measured = cell.get("metric") != ACCURACY
            said = of_cell(cell, table, "shots", *["measure"] * measured)
            key = (plain(cell["method"]), cell["ways"], cell["shots"], _figure(cell))
            found.setdefault(key, said)
    return found


def of_code(paper: Mapping[str, Any]) -> dict[Key, tuple[float, ...]]:
    """The numbers of the published code on our features, which stand beside the paper's."""
    names = {ACCURACY: ACCURACY, "confidence": CONFIDENCE, "aupr": OOD, "auroc": _OOD_AUROC}
    held = paper.get("code", {})
    if not isinstance(held, Mapping):
        raise ValueError(f"`code` must be a table that has a list `cell`, not {held!r}")
    found: dict[Key, tuple[float, ...]] = {}
    for cell in listed(held.get("cell", []), "`cell` of `code`"):
        check(cell, ("method", "ways", "shots", *names), "`code`")
        for name, figure in names.items():
            said = cell[name]
            if (
                not isinstance(said, list)
                or len(said) not in (1, 2)
                or not all(map(is_number, said))
            ):
                raise ValueError(
                    f"{name!r} in a cell of `code` must be [mean] or [mean, interval], not {said!r}"
                )
            found[plain(cell["method"]), cell["ways"], cell["shots"], figure] = tuple(said)
    return found


def _figure(cell: Mapping[str, Any]) -> str:
    """The name of a cell's figure in records."""
    if cell["metric"] == ACCURACY:
        return ACCURACY
    task = "ood" if cell.get("ood") else "confidence"
    return f"{task}/{cell['measure']}/{cell['metric']}"


def entry(records: Sequence[Record], label: str, column: Column) -> Entry:
    """A figure over the episodes of all seeds with its interval; without one, why."""
    figure = column.path[-1]
    name = f"{column.group} {column.title}" if column.group else column.title
    label = f"{label}/{figure}"
    if not records:
        return Entry(label, name, {}, reason="not run")
    held = pooled(records, figure)
    if held is None:
        measure = figure.split("/")[1]
        return Entry(label, name, {}, reason=f"this method has no {label_of(measure)}")
    runs = {seed: 100 * one["mean"] for seed, one in _by_seed(records, figure).items()}
    return Entry(label, name, runs, pooled=held)


def pooled(records: Sequence[Record], figure: str) -> Pooled | None:
    """A figure in per cent over all episodes of all seeds, as one run of them would give it."""
    each = _by_seed(records, figure).values()
    found = [(one["episodes"], one["mean"], one["interval"]) for one in each]
    if not found:
        return None
    if len(found) == 1:
        ((total, mean, half),) = found
    else:
        total = sum(count for count, _, _ in found)
        mean = sum(count * one for count, one, _ in found) / total
        half = _joined(found, mean, total)
    return Pooled(100 * mean, None if half is None else 100 * half, total)


def _joined(
    found: Iterable[tuple[int, float, float | None]], mean: float, total: int
) -> float | None:
    """Half of the interval of all, from each seed's; None where one has none."""
    squares = 0.0
    for count, one, half in found:
        if half is None:
            return None
        squares += count * ((count - 1) * (half / _HALF) ** 2 + (one - mean) ** 2)
    return _HALF * math.sqrt(squares / (total - 1) / total)


def _by_seed(records: Sequence[Record], figure: str) -> dict[int, Mapping[str, Any]]:
    """The figure of each seed that has it."""
    found = {record["seed"]: at(record, ("result", "figures", figure)) for record in records}
    return {seed: one for seed, one in found.items() if one and one["mean"] is not None}
