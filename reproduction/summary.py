"""Summary of the tables: how many published numbers are reached, and which are not."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pandas as pd

from dubito.errors import DubitoError
from reproduction.published import Number, verdict
from reproduction.results import DATASETS, METHODS, Results
from reproduction.tables import Table, number

__all__ = ["Summary", "summarize"]

NOTES = Path(__file__).with_name("notes.toml")


@dataclass(frozen=True)
class Summary:
    """Counts over cells with a published number, and explanations of the worse ones."""

    counts: dict[str, int]
    """Cells that agree, are better, are worse, or are missing."""
    worse: tuple[str, ...]
    """A line for each row with cells that are worse than published."""
    behind: tuple[str, ...]
    """Cells in which I-EDL is not ahead of EDL, though the paper has it so."""
    sentence: str


def summarize(results: Results, tables: Sequence[Table], notes: Path = NOTES) -> Summary:
    """Summarize tables of trainings; a cell of several tables counts once.

    Args:
        results: Results.
        tables: Tables; few-shot tables are left out.
        notes: File that explains cells: "recipe/quantity" = "text", with * for anything.
    """
    frames = [t.cells.assign(table=t.title) for t in tables if not t.is_fewshot]
    every = pd.concat(frames, ignore_index=True)
    cells = every.drop_duplicates(["recipe", "quantity"])
    judged = cells[cells["published"].notna()]
    counts = {
        name: int((judged["verdict"] == name).sum()) for name in ("agrees", "better", "worse")
    }
    counts["missing"] = int((judged["verdict"] == "").sum())
    alone = int((cells["published"].isna() & (cells["seeds"] > 0)).sum())
    worse = judged[judged["verdict"] == "worse"]
    names = [recipe.name for dataset in DATASETS for recipe in results.trained(dataset)]
    methods = cells[cells["recipe"].isin(names)]
    reached = [_reached(cell, methods) for cell in worse.itertuples()]
    varied = sum(map(bool, reached))
    many = "all" if varied == len(worse) else varied
    but = f" (a variant of the method reaches {many} of them)" if varied else ""
    order, behind = _order(methods)
    sentence = (
        f"Of {sum(counts.values())} published numbers {counts['agrees']} agree with ours, "
        f"{counts['better']} are surpassed, {counts['worse']} are not reached{but} and "
        f"{counts['missing']} have no counterpart here; {alone} more numbers of ours have none in "
        f"the paper. {order}"
    )
    explained = {} if results.quick else _notes(notes, cells)
    lines = _lines(worse, reached, explained)
    return Summary(counts, tuple(lines), tuple(behind), sentence.strip())


def _name(cell: Any) -> str:
    """Return the column of a cell in words."""
    return f"{cell.group} {cell.column}".strip().replace("\u00a0↑", "")


def _ours(cell: Any) -> str:
    """Return our number as text."""
    spread = cell.spread
    off = "" if pd.isna(spread) else f" ±{number(spread, cell.digits)}"
    return f"{cell.shown}{off}"


def _reached(cell: Any, cells: pd.DataFrame) -> str:
    """Return the variants of a method that reach a published number, with ours."""
    alike = cells[
        (cells["dataset"] == cell.dataset)
        & (cells["method"] == cell.method)
        & (cells["quantity"] == cell.quantity)
        & (cells["variant"] != "")
    ]
    variants = [
        f"{row.variant} {_ours(row)}"
        for row in alike.itertuples()
        if verdict(row.mean, cell.published, cell.higher) in ("agrees", "better")
    ]
    return ", ".join(variants)


def _lines(worse: pd.DataFrame, reached: Sequence[str], notes: dict[str, str]) -> list[str]:
    """Return a line for each row of a table; a note follows the last row that it is about."""
    rows: dict[tuple[str, str], list[str]] = {}
    last: dict[str, tuple[str, str]] = {}
    for cell, variants in zip(worse.itertuples(), reached, strict=True):
        also = f"; variants: {variants}" if variants else ""
        text = f"{_name(cell)} {_ours(cell)} (paper {cell.published}{also})"
        place = str(cell.table), str(cell.row)
        rows.setdefault(place, []).append(text)
        for pattern, note in notes.items():
            if fnmatchcase(f"{cell.recipe}/{cell.quantity}", pattern):
                last[note] = place
    return [
        " ".join([f"{place[0]}, {place[1]}: {'; '.join(texts)}."]
                 + [note for note, where in last.items() if where == place])
        for place, texts in rows.items()
    ]  # fmt: skip


def _notes(path: Path, cells: pd.DataFrame) -> dict[str, str]:
    notes: dict[str, str] = tomllib.loads(path.read_text("utf-8"))
    labels = list(cells["recipe"] + "/" + cells["quantity"])
    for pattern in notes:
        if not any(fnmatchcase(label, pattern) for label in labels):
            raise DubitoError(f"{path}: the note on {pattern!r} is about no cell")
    return notes


def _order(cells: pd.DataFrame, ahead: str = "iedl", behind: str = "edl") -> tuple[str, list[str]]:
    """Compare two methods, and their variants, where the paper has the first one ahead."""
    place = ["dataset", "quantity"]
    pair = cells[cells["method"].isin([ahead, behind])].copy()
    pair["theirs"] = [p.mean if isinstance(p, Number) else None for p in pair["published"]]
    parts, lines, first = [], [], ""
    plain = pair[pair["variant"] == ""].pivot(index=place, columns="method", values="theirs")
    if not {ahead, behind} <= set(plain):
        return "", []
    claimed = plain.index[plain[ahead].astype(float) > plain[behind].astype(float)]
    for variant, some in pair.groupby("variant", sort=True):
        ours = some.pivot(index=place, columns="method", values="mean")
        if not {ahead, behind} <= set(ours):
            continue
        both = ours.loc[ours.index.intersection(claimed, sort=False)].dropna()
        if both.empty:
            continue
        kept = both[ahead] > both[behind]
        names = [DATASETS[one][1] for one in dict.fromkeys(both.index.get_level_values(0))]
        if variant == "":
            first = (
                f"{METHODS[ahead]} is ahead of {METHODS[behind]} in {kept.sum()} of the "
                f"{len(both)} cells in which the paper has it so"
            )
            lines = [
                f"{DATASETS[dataset][1]}, {quantity}: {row[ahead]:.2f} against {row[behind]:.2f}"
                for (dataset, quantity), row in both[~kept].iterrows()
            ]
        else:
            parts.append(f"{variant} in {kept.sum()} of {len(both)} on {' and '.join(names)}")
    more = f" ({', '.join(parts)})" if parts else ""
    return (f"{first}{more}." if first else ""), lines
