"""Tables: rows of cells, for the terminal, Markdown and HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import rich.table

__all__ = ["Better", "Cell", "Table", "cells", "deviation", "markdown", "mean_cells", "terminal"]

Better = Literal["higher", "lower"]
NONE = "–"  # where there is no number


@dataclass(frozen=True)
class Cell:
    """A text, and whether it is the best of those it is compared with."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Table:
    """A title, the columns' names, and rows of a name and cells."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


def cells(
    values: Sequence[float | None], better: Better | None = None, form: str = ".2f"
) -> list[Cell]:
    """Numbers as cells, a dash where there is none; the best is marked as it is shown.

    What reads alike is marked alike. Nothing is marked where all read alike or `better` is None.

    >>> [(cell.text, cell.best) for cell in cells([0.971, 0.969, 0.9712], "higher")]
    [('0.97', False), ('0.97', False), ('0.97', False)]
    >>> [cell.best for cell in cells([0.2, 0.1, None], "lower")]
    [False, True, False]
    """
    texts = [NONE if value is None else format(value, form) for value in values]
    shown = {float(text) for text in texts if text != NONE}
    best = None
    if better is not None and len(shown) > 1:
        best = max(shown) if better == "higher" else min(shown)
    return [Cell(text, text != NONE and float(text) == best) for text in texts]


def deviation(values: Sequence[float]) -> float | None:
    """The standard deviation; None without two values, or where one is infinite.

    >>> deviation([1.0, 3.0]), deviation([1.0]), deviation([1.0, float("inf")])
    (1.414..., None, None)
    """
    return stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None


def mean_cells(
    samples: Sequence[Sequence[float]], better: Better | None = None, form: str = ".1f"
) -> list[Cell]:
    """The mean of each sample as a cell, with the standard deviation where it has several numbers.

    >>> [cell.text for cell in mean_cells([[97.25, 97.75], [98.0], []])]
    ['97.5 ±0.4', '98.0', '–']
    """
    means = cells([mean(sample) if sample else None for sample in samples], better, form)
    offs = [deviation(sample) for sample in samples]
    spreads = ["" if off is None else f" ±{off:{form}}" for off in offs]
    return [
        Cell(cell.text + spread, cell.best) for cell, spread in zip(means, spreads, strict=True)
    ]


def markdown(table: Table) -> str:
    """The table in Markdown, the best in bold.

    >>> print(markdown(Table("", ("", "A", "B"), (("ECE", tuple(cells([2, 1], "lower"))),))))
    | | A | B |
    | --- | ---: | ---: |
    | ECE | 2.00 | **1.00** |
    """
    lines = [
        "| " + " | ".join(table.columns).lstrip() + " |",
        "| --- | " + " | ".join("---:" for _ in table.columns[1:]) + " |",
    ]
    for name, row in table.rows:
        texts = [f"**{cell.text}**" if cell.best else cell.text for cell in row]
        lines.append("| " + " | ".join([name, *texts]) + " |")
    heading = f"## {table.title}\n\n" if table.title else ""
    return heading + "\n".join(lines)


def terminal(table: Table) -> rich.table.Table:
    """The table for the terminal, the best in bold."""
    import rich.box
    import rich.table
    from rich.text import Text

    shown = rich.table.Table(
        title=Text(table.title), title_justify="left", title_style="bold", box=rich.box.SIMPLE_HEAD
    )
    for i, column in enumerate(table.columns):
        shown.add_column(Text(column), justify="right" if i else "left")
    for name, row in table.rows:
        texts = [Text(cell.text, style="bold green" if cell.best else "") for cell in row]
        shown.add_row(Text(name), *texts)
    return shown
