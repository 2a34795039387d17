"""What is known of a training while it goes on: a live table, or a line an epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

__all__ = ["Progress", "shown"]


class Progress:
    """Keeps what the runs told last; time left is that of all of them, if none stops early."""

    def __init__(self, seeds: Sequence[int], epochs: int) -> None:
        self.epochs = epochs
        self.last: dict[int, dict[str, Any]] = {seed: {"epoch": 0} for seed in seeds}
        self.told = 0
        self.start = time.perf_counter()

    def note(self, entry: dict[str, Any]) -> None:
        """Take what a run told; its last validation stays until the next."""
        before = self.last.get(entry["seed"], {})
        kept = {name: value for name, value in before.items() if name.startswith("validation_")}
        self.last[entry["seed"]] = kept | entry
        self.told += 1

    @property
    def done(self) -> int:
        """Epochs of all runs."""
        return sum(entry["epoch"] for entry in self.last.values())

    def left(self) -> str:
        """Time left, from the time that epochs took until now."""
        if not self.told:
            return "–"
        a_step = (time.perf_counter() - self.start) / self.told
        seconds = a_step * (len(self.last) * self.epochs - self.done)
        return str(timedelta(seconds=round(seconds)))

    def line(self, entry: dict[str, Any]) -> str:
        """One epoch of one run as text."""
        head = f"seed {entry['seed']}  " if len(self.last) > 1 else ""
        rows = "  ".join(f"{name} {value}" for name, value in self._figures(entry))
        return f"{head}epoch {entry['epoch']}/{self.epochs}  {rows}  left {self.left()}"

    @staticmethod
    def _figures(entry: dict[str, Any]) -> Iterator[tuple[str, str]]:
        if "loss" not in entry:
            return
        yield "loss", f"{entry['loss']:.4f}"
        for name, value in entry["terms"].items():
            yield name, f"{value:.4g}"
        if "validation_loss" in entry:
            yield "validation loss", f"{entry['validation_loss']:.4f}"
        if "validation_accuracy" in entry:
            yield "validation accuracy", f"{100 * entry['validation_accuracy']:.2f} %"
        yield "samples/s", f"{entry['samples_per_second']:,.0f}"

    def __rich__(self) -> Group:
        """A bar, and a column of figures for each run."""
        table = Table(box=None, pad_edge=False, show_header=len(self.last) > 1)
        table.add_column("seed", style="dim")
        for seed in self.last:
            table.add_column(str(seed), justify="right")
        figures = [
            {"epoch": f"{entry['epoch']}/{self.epochs}", **dict(self._figures(entry))}
            for entry in self.last.values()
        ]
        for name in max(figures, key=len):
            table.add_row(name, *(one.get(name, "–") for one in figures))
        elapsed = timedelta(seconds=round(time.perf_counter() - self.start))
        total = max(len(self.last) * self.epochs, 1)
        bar = Table.grid()  # a bar alone ends no line
        bar.add_row(ProgressBar(total=total, completed=self.done, width=40))
        return Group(bar, table, Text(f"{elapsed} so far, at most {self.left()} left", style="dim"))


@contextmanager
def shown(
    console: Console, seeds: Sequence[int], epochs: int
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show the progress of runs: live in a terminal, in plain lines elsewhere."""
    progress = Progress(seeds, epochs)
    if console.is_terminal and not console.quiet:
        with Live(progress, console=console, refresh_per_second=4):
            yield progress.note
        return

    def tell(entry: dict[str, Any]) -> None:
        progress.note(entry)
        console.print(Text(progress.line(entry)), soft_wrap=True)

    yield tell
