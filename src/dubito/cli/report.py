"""`dubito report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from dubito.report.reproduction.summary import Summary

NOTES = (
    "Nothing is trained: all of it follows from DIR/RECIPE/seed-S.json, as `dubito reproduce` "
    "leaves them. DIR/notes.toml may explain cells that are worse than published, or in which "
    "I-EDL is not ahead of EDL, by the labels that the page shows on hover: "
    "'cifar10-edl/ood/svhn/*' = 'Why it is so.'"
)


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of results of dubito reproduce.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="The folder to write to.", show_default="DIR/report")
    ] = None,
    paper: Annotated[
        Path | None,
        typer.Option(help="Published numbers to compare with, as .toml.", show_default="I-EDL's"),
    ] = None,
) -> None:
    """Write the reproduction's report again: a page, tables and figures, without training."""
    from dubito.report import reproduction
    from dubito.report.reproduction.tables import unshown

    records, notes = reproduction.read(folder), reproduction.read_notes(folder)
    made = reproduction.report(records, _published(paper), notes)
    written = reproduction.write_report(made, folder / "report" if out is None else out)
    console = Console()
    _show(made.summary, console)
    if left := unshown(made.records):
        console.print(Text(f"No table is of the data of {', '.join(left)}."), soft_wrap=True)
    if made.records.quick:
        console.print(Text(reproduction.QUICK), style="yellow")
    console.print(
        Text(f"Wrote {written[0]} and {len(written) - 1} files beside it."), soft_wrap=True
    )


def _published(path: Path | None) -> dict[str, Any]:
    from dubito import experiments
    from dubito.report import reproduction

    return experiments.paper() if path is None else reproduction.read_paper(path)


def _show(summary: Summary, console: Console) -> None:
    from dubito.report.reproduction.summary import grouped

    console.print(Text(summary.sentence), soft_wrap=True)
    for group in grouped(summary.worse):
        cells = ", ".join(f"{one.name} {one.entry.ours} ({one.compared})" for one in group.findings)
        words = Text.assemble(("▼ ", "red"), f"{group.table.title}, {group.row}: {cells}")
        console.print(words, soft_wrap=True)
