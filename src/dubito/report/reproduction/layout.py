"""Tables of results beside published ones: columns that know where their numbers are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from dubito._legacy import MEASURES
from dubito.report.reproduction.names import base_of, label_of, set_of, variant_of
from dubito.report.reproduction.published import Key, Published, Verdict, key_of, verdict
from dubito.report.reproduction.records import Records
from dubito.report.tables import NONE, Better, deviation

__all__ = ["Column", "Entry", "Pooled", "Row", "Table", "number", "table", "with_best"]

#: keys of a record that say nothing to a reader
_SILENT = ("result", "curves", "detection")


@dataclass(frozen=True)
class Column:
    """A column: its heading, that of its group, and where its numbers are in a record."""

    title: str
    group: str
    path: tuple[str, ...]
    better: Better | None = "higher"
    factor: float = 100.0
    form: str = ".2f"

    @property
    def key(self) -> tuple[str, str, str] | None:
        """What a published number of this column is of: (ood, measure, metric)."""
        match self.path:
            case ("result", "ood", ood, "detection", measure, metric):
                return (ood, measure, metric)
            case ("result", "misclassification", measure, metric):
                return ("", measure, metric)
            case ("result", "accuracy"):
                return ("", "", "accuracy")
        return None


@dataclass(frozen=True)
class Pooled:
    """A mean over the episodes of all seeds, half of its 95 % interval, and how many they are."""

    mean: float
    interval: float | None
    episodes: int


@dataclass(frozen=True)
class Entry:
    """One cell: our numbers by seed, the published one, and what is to be said of both.

    Of few-shot episodes what is `pooled` stands for the seeds' mean and deviation. `source` says
    whose the published number is, and `beside` are others that ours is not judged by.
    """

    label: str
    name: str
    runs: Mapping[int, float]
    form: str = ".2f"
    published: Published | None = None
    verdict: Verdict | None = None
    reason: str = ""
    best: bool = False
    pooled: Pooled | None = None
    source: str = "paper"
    beside: tuple[tuple[str, str], ...] = ()

    @property
    def mean(self) -> float | None:
        """The mean over the seeds, or over the episodes of all; None without any."""
        if self.pooled is not None:
            return self.pooled.mean
        return mean(self.runs.values()) if self.runs else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation over the seeds, None without two finite ones."""
        values = list(self.runs.values())
        return deviation(values)

    @property
    def ours(self) -> str:
        """Our mean as text, a dash without one."""
        return NONE if self.mean is None else number(self.mean, self.form)

    @property
    def spread(self) -> str:
        """Our deviation, or half of our interval, as text; nothing without one."""
        off = self.deviation if self.pooled is None else self.pooled.interval
        return "" if off is None else f"±{number(off, self.form)}"

    @property
    def paper(self) -> str:
        """The published number as text, nothing without one."""
        if self.published is None:
            return ""
        off = self.published.deviation
        form = ".1f" if math.isclose(off, round(off, 1), abs_tol=1e-9) else ".2f"
        return f"{number(self.published.mean, '.2f')} ±{number(off, form)}"

    @property
    def lines(self) -> list[tuple[str, str]]:
        """All numbers to set below ours, each with whose it is."""
        return [(self.source, self.paper)] * bool(self.paper) + list(self.beside)

    @property
    def hint(self) -> str:
        """What does not fit into the cell: every seed's number, and the table it is beside."""
        each = ", ".join(f"{s}: {number(v, self.form)}" for s, v in self.runs.items())
        count = len(self.runs)
        told = f"{count} seed{'s' if count > 1 else ''} ({each})" if count else self.reason
        if self.pooled is not None:
            told = f"{self.pooled.episodes} episodes" + (f" of {told}" if count > 1 else "")
        if self.published is not None:
            also = "".join(f"; {words}" for words in self.published.also)
            told += f"; {self.source}: {self.paper}, {self.published.table}{also}"
        return told


@dataclass(frozen=True)
class Row:
    """A row: its name, the recipe, the seeds it was run with, and an entry for each column.

    `told` stands for the number of seeds where there is something else to count, and `of` says how
    many seeds that is of, if of several.
    """

    name: str
    recipe: str
    seeds: tuple[int, ...]
    entries: tuple[Entry, ...]
    told: str = ""
    of: str = ""

    @property
    def count(self) -> str:
        """How many seeds, or whatever is counted, as text."""
        if self.of:
            return f"{self.told} ({self.of})"
        return self.told or (str(len(self.seeds)) if self.seeds else NONE)


@dataclass(frozen=True)
class Table:
    """A table, named for files and links by `key`, in a section of the report.

    `apart` are tables whose numbers the summary leaves out; `counted` is what rows count.
    """

    key: str
    section: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    first: str = "Method"
    note: str = ""
    quick: bool = False
    apart: bool = False
    counted: str = "Seeds"

    @property
    def entries(self) -> list[Entry]:
        """All cells."""
        return [entry for row in self.rows for entry in row.entries]

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The headings of the groups of columns, each with its number of columns."""
        found: list[tuple[str, int]] = []
        for column in self.columns:
            if found and found[-1][0] == column.group:
                found[-1] = (column.group, found[-1][1] + 1)
            else:
                found.append((column.group, 1))
        return found


def number(value: float, form: str) -> str:
    """A number as text, with signs that are not mistaken for letters or hyphens.

    >>> number(-1.5, ".2f"), number(float("inf"), ".2f")
    ('−1.50', '∞')
    """
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return format(value, form).replace("-", "−")


def table(
    records: Records,
    numbers: Mapping[Key, Published],
    head: Table,
    rows: Iterable[tuple[str, str]],
) -> Table:
    """The table `head` with a row for each (name, recipe)."""
    made = [
        Row(name, recipe, tuple(records.seeds(recipe)), _entries(records, numbers, head, recipe))
        for name, recipe in rows
    ]
    marked = with_best(made, head.columns)
    return replace(head, rows=tuple(marked), quick=records.quick)


def _entries(
    records: Records, numbers: Mapping[Key, Published], head: Table, recipe: str
) -> tuple[Entry, ...]:
    return tuple(_entry(records, numbers, column, recipe) for column in head.columns)


def _entry(
    records: Records, numbers: Mapping[Key, Published], column: Column, recipe: str
) -> Entry:
    runs = {s: column.factor * v for s, v in records.numbers(recipe, column.path).items()}
    theirs, variant = None, variant_of(recipe)
    # a name that is only spelt like a method's has a row of its own, and no number of the paper
    if column.key is not None and (data := set_of(recipe)) and base_of(variant) == variant:
        theirs = numbers.get(key_of(data, variant, *column.key))
    judged = None
    if runs and theirs is not None and column.better is not None:
        judged = verdict(mean(runs.values()), theirs, column.better)
    told = [key for key in column.path if key not in _SILENT]
    return Entry(
        label="/".join([recipe, *told]),
        name=f"{column.group} {column.title}" if column.group else column.title,
        runs=runs,
        form=column.form,
        published=theirs,
        verdict=judged,
        reason="" if runs else _reason(records, recipe, column.path),
    )


def _reason(records: Records, recipe: str, path: Sequence[str]) -> str:
    """Why there is no number: what the first record of the recipe does not have."""
    found = records.of(recipe)
    if not found:
        return "not run"
    value = found[0]
    for key in path:
        if key not in value:
            break
        value = value[key]
    if key in MEASURES:
        return f"this method has no {label_of(key)}" if value else "all predictions are alike"
    return _LACKING.get(key, f"not measured: the records have no {key!r}")


_LACKING = {
    "calibrated": "not calibrated",
    "humans": "not compared with people",
    "after": "not calibrated",
}


def with_best(rows: Sequence[Row], columns: Sequence[Column]) -> list[Row]:
    """The rows with the best of each column marked, as far as it can be told from the others."""
    marks: list[list[bool]] = [[] for _ in rows]
    for at, column in enumerate(columns):
        shown = [_shown(row.entries[at]) for row in rows]
        told = {value for value in shown if value is not None}
        best = None
        if column.better is not None and len(told) > 1:
            best = max(told) if column.better == "higher" else min(told)
        for row_marks, value in zip(marks, shown, strict=True):
            row_marks.append(value is not None and value == best)
    return [
        replace(
            row,
            entries=tuple(replace(e, best=b) for e, b in zip(row.entries, mark, strict=True)),
        )
        for row, mark in zip(rows, marks, strict=True)
    ]


def _shown(entry: Entry) -> float | None:
    """The mean as it is read, so that what reads alike is marked alike."""
    return None if entry.mean is None else float(format(entry.mean, entry.form))
