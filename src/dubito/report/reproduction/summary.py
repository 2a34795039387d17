"""What the tables come to: how many cells agree, which do not and why, which method is ahead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

from dubito.report.reproduction.layout import Entry, Table
from dubito.report.reproduction.names import SETS, set_of
from dubito.report.reproduction.published import verdict

__all__ = ["Finding", "Group", "Order", "Summary", "grouped", "summary"]

Count = Literal["agrees", "better", "worse", "missing"]


@dataclass(frozen=True)
class Finding:
    """A cell worth naming: the table, the row and the column it is in, and what explains it."""

    table: Table
    row: str
    column: int
    entry: Entry
    note: str = ""
    #: variants of the row that are not worse than the published number, each with ours of it
    reached: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The column in words."""
        return self.entry.name.replace("\u00a0↑", "")

    @property
    def compared(self) -> str:
        """What ours is set beside, in words."""
        variants = f"; variants: {', '.join(self.reached)}" if self.reached else ""
        return f"paper {self.entry.paper}{variants}"


@dataclass(frozen=True)
class Group:
    """The findings of one row of a table, and what explains them and others before them."""

    table: Table
    row: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


def grouped(findings: Iterable[Finding]) -> list[Group]:
    """Findings of the same row of the same table together, in the order of first sight.

    An explanation stands once, with the last group that it is about.
    """
    found: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        found.setdefault((finding.table.key, finding.row), []).append(finding)
    told: dict[str, tuple[str, str]] = {}
    for place, some in found.items():
        told |= {finding.note: place for finding in some if finding.note}
    return [
        Group(
            some[0].table, some[0].row, tuple(some),
            tuple(note for note, last in told.items() if last == place),
        )
        for place, some in found.items()
    ]  # fmt: skip


@dataclass(frozen=True)
class Order:
    """Whether one method is ahead of another where the paper has it so, and what explains it."""

    ahead: str
    behind: str
    kept: int
    compared: int
    broken: tuple[str, ...]
    notes: tuple[str, ...] = ()
    #: what recipes of both vary, the two counts for these, and the data that they are of
    variants: tuple[tuple[str, int, int, str], ...] = ()

    @property
    def sentence(self) -> str:
        """The counts in words; nothing where there is nothing to compare."""
        plain = [("", self.kept, self.compared, "")] if self.compared else []
        counts = [*plain, *self.variants]
        if not counts:
            return ""
        (first, kept, of, _), *others = counts
        suffix = f" ({first})" if first else ""
        more = ", ".join(f"{name} in {kept} of {of} on {on}" for name, kept, of, on in others)
        return (
            f"{self.ahead}{suffix} is ahead of {self.behind}{suffix} in {kept} of the {of} cells "
            f"in which the paper has it so{f' ({more})' if more else ''}."
        )


@dataclass(frozen=True)
class Summary:
    """The counts over cells with a published number, and the cells that ask for an explanation."""

    counts: dict[Count, int]
    worse: tuple[Finding, ...]
    missing: tuple[Finding, ...]
    order: Order
    alone: int

    @property
    def sentence(self) -> str:
        """The counts and the order of methods in words."""
        total, counts = sum(self.counts.values()), self.counts
        varied = sum(bool(finding.reached) for finding in self.worse)
        many = "all" if varied == counts["worse"] else varied
        but = f" (a variant of the method reaches {many} of them)" if varied else ""
        counted = (
            f"Of {total} published numbers {counts['agrees']} agree with ours, {counts['better']} "
            f"are surpassed, {counts['worse']} are not reached{but} and {counts['missing']} have "
            f"no counterpart here; {self.alone} more numbers of ours have none in the paper."
        )
        return f"{counted} {self.order.sentence}".strip()


def summary(tables: Sequence[Table], notes: Mapping[str, str] | None = None) -> Summary:
    """The summary of tables; a cell that stands in several of them counts once.

    `notes` explains cells by their label, in which * stands for anything. One that is about no
    cell is an error.
    """
    found = _findings(tables, notes or {})
    judged = [f for f in found if not f.table.apart]
    compared = [f for f in judged if f.entry.published is not None]
    worse = [replace(f, reached=_reached(f)) for f in compared if f.entry.verdict == "worse"]
    missing = [f for f in compared if f.entry.verdict is None]
    counts: dict[Count, int] = {
        "agrees": sum(f.entry.verdict == "agrees" for f in compared),
        "better": sum(f.entry.verdict == "better" for f in compared),
        "worse": len(worse),
        "missing": len(missing),
    }
    alone = sum(f.entry.published is None and bool(f.entry.runs) for f in judged)
    order = _order([table for table in tables if not table.apart], "I-EDL", "EDL", notes or {})
    return Summary(counts, tuple(worse), tuple(missing), order, alone)


def _findings(tables: Sequence[Table], notes: Mapping[str, str]) -> list[Finding]:
    found: dict[str, Finding] = {}
    for table in tables:
        for row in table.rows:
            for place, entry in enumerate(row.entries):
                note = _note(entry.label, notes)
                found.setdefault(entry.label, Finding(table, row.name, place, entry, note))
    for pattern in notes:
        if not any(fnmatchcase(label, pattern) for label in found):
            near = difflib.get_close_matches(pattern, found, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"the note on {pattern!r} is about no cell of the report{hint}")
    return list(found.values())


def _reached(finding: Finding) -> tuple[str, ...]:
    theirs, better = finding.entry.published, finding.table.columns[finding.column].better
    assert theirs is not None  # or it would not be judged
    assert better is not None
    found = []
    for row in finding.table.rows:
        entry, variant = row.entries[finding.column], _variant(row.name, finding.row)
        ours = entry.mean if variant else None
        if ours is not None and verdict(ours, theirs, better) in ("agrees", "better"):
            found.append(f"{variant} {entry.ours} {entry.spread}".strip())
    return tuple(found)


def _note(label: str, notes: Mapping[str, str]) -> str:
    """What explains a cell: the note with its own label, or else all that include it."""
    if label in notes:
        return notes[label]
    return " ".join(text for pattern, text in notes.items() if fnmatchcase(label, pattern))


def _order(tables: Sequence[Table], ahead: str, behind: str, notes: Mapping[str, str]) -> Order:
    told = _orders(tables, ahead, behind)
    broken = {label: words for label, words in told.items() if words}
    explained = dict.fromkeys(note for label in broken if (note := _note(label, notes)))
    kept = len(told) - len(broken)
    varied = []
    for variant in _variants(tables, ahead, behind):
        if found := _orders(tables, ahead, behind, variant):
            on = dict.fromkeys(name for label in found if (name := set_of(label)) is not None)
            shown = " and ".join(SETS[name].label for name in on)
            varied.append((variant, list(found.values()).count(""), len(found), shown))
    return Order(
        ahead, behind, kept, len(told), tuple(broken.values()), tuple(explained), tuple(varied)
    )


def _orders(tables: Iterable[Table], ahead: str, behind: str, variant: str = "") -> dict[str, str]:
    """The label of each cell in which the paper has the order -> words where ours is another."""
    told: dict[str, str] = {}
    suffix = f" ({variant})" if variant else ""
    for table in tables:
        rows = {row.name: row.entries for row in table.rows}
        asked = [ahead, behind, ahead + suffix, behind + suffix]
        if not all(name in rows for name in asked):
            continue
        for said, of, ours, base in zip(*(rows[name] for name in asked), strict=True):
            a, b = ours.mean, base.mean
            if _claimed(said, of) and a is not None and b is not None:
                words = f"{table.title}, {ours.name}: {ours.ours} against {base.ours}"
                told.setdefault(ours.label, "" if a > b else words.replace("\u00a0↑", ""))
    return told


def _variants(tables: Iterable[Table], ahead: str, behind: str) -> list[str]:
    """What recipes of both methods vary."""
    names = {row.name for table in tables for row in table.rows}
    found = {_variant(name, ahead) for name in names} & {_variant(name, behind) for name in names}
    return sorted(found - {""})


def _variant(name: str, method: str) -> str:
    """What a row varies of a method: the words in brackets after it; nothing of other rows."""
    return name[len(method) + 2 : -1] if name.startswith(f"{method} (") else ""


def _claimed(ours: Entry, base: Entry) -> bool:
    """Whether the paper has the first number above the second."""
    if ours.published is None or base.published is None:
        return False
    return ours.published.mean > base.published.mean
