"""Tables: rows of cells, for the terminal, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import rich.table

__all__ = ["Cell", "Table", "cells", "markdown", "terminal"]

Better = Literal["higher", "lower"]


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
    >>> [cell.best for cell in cells([0.2, 0.1], "lower")]
    [False, True]
    """
    texts = ["–" if value is None else format(value, form) for value in values]
    shown = [float(text) for text in texts if text != "–"]
    if better is None or len(set(shown)) < 2:
        return [Cell(text) for text in texts]
    best = max(shown) if better == "higher" else min(shown)
    return [Cell(text, text != "–" and float(text) == best) for text in texts]


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
