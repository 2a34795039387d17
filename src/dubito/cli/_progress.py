"""Progress of a training: a bar for each seed on a terminal, a line per epoch elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

from dubito.model._card import format_metric
from dubito.training import Progress
from dubito.training.callbacks import Callback

__all__ = ["shown"]


@contextmanager
def shown(console: Console, verbose: bool) -> Iterator[Callback]:
    """Yield a callback that shows the progress.

    Args:
        console: Console to print on.
        verbose: Show the terms of the loss and all validation metrics.
    """
    tasks: dict[int, TaskID] = {}
    figures: dict[int, dict[str, str]] = {}  # a validation's stay until the next one
    text = TextColumn("{task.description}", markup=False, table_column=Column(ratio=1))

    def update(state: Progress) -> None:
        seed = state.seed
        if seed not in tasks:
            tasks[seed], figures[seed] = bars.add_task("", total=state.epochs), {}
        if state.record is not None:
            figures[seed] |= _figures(state.record, verbose)
        line = f"seed {seed}  epoch {state.epoch}/{state.epochs}  "
        line += "".join(f"{name} {value}  " for name, value in figures[seed].items())
        left = timedelta(seconds=round(state.seconds_left))
        line += f"{state.samples_per_second:,.0f} samples/s  {left} left"
        done = state.epoch - 1 + state.step / max(state.steps, 1)
        bars.update(tasks[seed], completed=done, description=line)
        if bars.disable and state.record is not None:
            console.print(Text(line), soft_wrap=True)

    columns = BarColumn(bar_width=20), text
    with Bars(*columns, console=console, expand=True, disable=not console.is_terminal) as bars:
        yield update


def _figures(record: dict[str, Any], verbose: bool) -> dict[str, str]:
    validation = list(record.get("validation", {}).items())
    terms = record["terms"].items() if verbose else ()
    return {
        "loss": f"{record['loss']:.4f}",
        **{name: f"{value:.4g}" for name, value in terms},
        **{
            f"validation {name}": format_metric(name, value)
            for name, value in (validation if verbose else validation[:1])  # the one that selects
        },
    }
