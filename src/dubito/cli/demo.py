"""`dubito demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from dubito.demo import Results, Settings, run
from dubito.report.demo import reading, tables
from dubito.report.tables import terminal


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("dubito-demo"),
    epochs: Annotated[
        int, typer.Option(min=1, help="Passes over the training digits, for each method.")
    ] = Settings.epochs,
    seed: Annotated[
        int, typer.Option(min=0, help="What everything random follows from.")
    ] = Settings.seed,
) -> None:
    """Train EDL and I-EDL on digits, ask them about photo patches and noise, write a report."""
    console = Console()
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("Reading the data", total=None)

        def tell(done: int, total: int, title: str) -> None:
            words = f"Training {title}" if done < total else "Writing the report"
            bar.update(task, completed=done, total=total, description=words)

        results = run(out, epochs, seed, tell)
    _show(results, console)


def _show(results: Results, console: Console) -> None:
    for table in tables(results):
        console.print(terminal(table))
    *others, report = (path.name for path in results.files.values())
    written = f"Wrote {results.files[report]}, and beside it {', '.join(others)}."
    console.print(Text(written), soft_wrap=True)
    console.print(Text(reading(results)))
