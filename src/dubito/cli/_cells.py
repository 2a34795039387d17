"""What is known of many cells while they run: a live table, or a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

__all__ = ["Cells", "shown"]

EVERY = 30.0  # seconds between two lines about one cell's epochs
SHOWN = 20  # cells in the live table
ENOUGH = 0.25  # of a cell, to tell from it how long the others take


class Cells:
    """Keeps what the cells told last; the time left goes by what is done of them."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = self.failed = 0
        self.running: dict[str, dict[str, Any]] = {}
        self.start = time.monotonic()
        self.lines: dict[str, float] = {}

    def note(self, event: dict[str, Any]) -> str | None:
        """Take an event; a line where it is worth one."""
        return _NOTES[event["event"]](self, event)

    def _aside(self, event: dict[str, Any]) -> str:
        return f"{event['cell']}: the recipe has changed, its record is now {event['path']}"

    def _started(self, event: dict[str, Any]) -> str:
        self.running[event["cell"]] = {"epoch": 0}
        verb = {"new": "starts", "stopped": "goes on", "finished": "is trained already"}
        return f"{event['cell']} {verb[event['state']]}"

    def _epoch(self, event: dict[str, Any]) -> str | None:
        cell, now = event["cell"], time.monotonic()
        before = self.running.get(cell, {})
        kept = {name: before[name] for name in ("validation_accuracy", "found") if name in before}
        found = {"found": _share(event | {"epoch": event["epoch"] - 1})}  # by a stopped training
        self.running[cell] = found | kept | event
        if "validation_accuracy" not in event or now - self.lines.get(cell, self.start) < EVERY:
            return None
        self.lines[cell] = now
        return f"{cell} {_progress(self.running[cell])}  {self.summary()}"

    def _episodes(self, event: dict[str, Any]) -> str | None:
        cell, now = event["cell"], time.monotonic()
        self.running[cell] = event
        if now - self.lines.get(cell, self.start) < EVERY:
            return None
        self.lines[cell] = now
        return f"{cell} {_progress(event)}  {self.summary()}"

    def _done(self, event: dict[str, Any]) -> str:
        self.running.pop(event["cell"], None)
        self.done += 1
        accuracy = f"test accuracy {100 * event['accuracy']:.2f} %"
        return f"{event['cell']} is done: {accuracy}  {self.summary()}"

    def _failed(self, event: dict[str, Any]) -> str:
        self.running.pop(event["cell"], None)
        self.failed += 1
        return f"{event['cell']} failed: {event['reason']}"

    def summary(self) -> str:
        """Cells done, running and left, and the time left."""
        waiting = self.total - self.done - self.failed - len(self.running)
        failed = f", {self.failed} failed" if self.failed else ""
        return (
            f"[{self.done} of {self.total} done{failed}, {len(self.running)} running, "
            f"{waiting} left; {self.left()}]"
        )

    def left(self) -> str:
        """About how long all takes from here, if the rest takes as long as what is done."""
        elapsed = time.monotonic() - self.start
        ended = self.done + self.failed
        shares = [_share(entry) for entry in self.running.values()]
        done = ended + sum(shares) - sum(entry.get("found", 0) for entry in self.running.values())
        if done < ENOUGH:
            return f"{_duration(elapsed)} so far"
        rest = _duration(elapsed / done * (self.total - ended - sum(shares)))
        return f"about {rest} more" if ended else f"at most {rest} more"  # trainings may stop early

    def __rich__(self) -> Group:
        """A bar, and a line for each cell that runs."""
        bar = Table.grid()
        ended = self.done + self.failed
        done = ended + sum(_share(entry) for entry in self.running.values())
        bar.add_row(ProgressBar(total=max(self.total, 1), completed=done, width=40))
        table = Table(box=None, pad_edge=False, show_header=False)
        for name, entry in list(self.running.items())[:SHOWN]:
            table.add_row(Text(name), Text(_progress(entry)))
        return Group(bar, table, Text(self.summary(), style="dim"))


_NOTES: dict[str, Callable[[Cells, dict[str, Any]], str | None]] = {
    "aside": Cells._aside,
    "start": Cells._started,
    "epoch": Cells._epoch,
    "episodes": Cells._episodes,
    "done": Cells._done,
    "failed": Cells._failed,
}


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _share(entry: dict[str, Any]) -> float:
    """How much of its episodes or epochs a cell has behind it."""
    done, total = ("done", "total") if entry.get("event") == "episodes" else ("epoch", "epochs")
    return float(entry[done] / entry[total]) if entry.get(total) else 0.0


def _progress(entry: dict[str, Any]) -> str:
    if entry.get("event") == "episodes":
        return f"{entry['done']} of {entry['total']} episodes"
    words = f"epoch {entry['epoch']}" + (f"/{entry['epochs']}" if "epochs" in entry else "")
    if "validation_accuracy" in entry:
        words += f"  validation accuracy {100 * entry['validation_accuracy']:.2f} %"
    return words


@contextmanager
def shown(console: Console, total: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show the progress of cells: live in a terminal, in plain lines elsewhere."""
    cells = Cells(total)

    def tell(event: dict[str, Any]) -> None:
        line = cells.note(event)
        if line is not None and not (live and event["event"] in ("start", "epoch", "episodes")):
            console.print(Text(line), soft_wrap=True)

    live = console.is_terminal and total > 0
    if live:
        with Live(cells, console=console, refresh_per_second=4):
            yield tell
    else:
        yield tell
