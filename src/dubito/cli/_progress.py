"""Progress in a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from dubito.model.card import format_metric
from dubito.training import Callback
from dubito.training import Progress as State
from dubito.types import Json

#: reports that a training metric is averaged over
KEPT = 10


@contextmanager
def counter(unit: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that adds to a number on the screen.

    Args:
        unit: What is counted.
    """
    with Progress(TextColumn(f"{{task.completed}} {unit}"), TimeElapsedColumn()) as bars:
        task = bars.add_task(unit, total=None)
        yield lambda count: bars.advance(task, count)


class TrainProgress(Callback):
    """Show a bar for each seed on a terminal, a line per epoch elsewhere.

    Args:
        console: Console to print on.
        verbose: Show the terms of the loss and all validation metrics.
    """

    def __init__(self, console: Console, verbose: bool) -> None:
        text = TextColumn("{task.description}", markup=False, table_column=Column(ratio=1))
        columns, disable = (BarColumn(bar_width=20), text), not console.is_terminal
        self.bars = Progress(*columns, console=console, expand=True, disable=disable)
        self.verbose = verbose
        self._tasks: dict[int, TaskID] = {}
        self._metrics: dict[int, dict[str, str]] = {}
        #: moving averages of training metrics
        self._means: dict[int, dict[str, float]] = {}

    def on_progress(self, progress: State) -> None:
        """Move the bar."""
        seed, share = progress.seed, progress.step / progress.steps
        if seed not in self._tasks:
            self._tasks[seed] = self.bars.add_task("", total=progress.epochs)
        for name, value in progress.metrics.items():  # of few samples each
            mean = self._means.setdefault(seed, {}).get(name, value)
            self._means[seed][name] = mean + (value - mean) / KEPT
        means = self._means.get(seed, {}).items()
        metrics = {f"training {name}": format_metric(name, value) for name, value in means}
        metrics |= self._metrics.get(seed, {})
        line = f"seed {seed}  epoch {progress.epoch}/{progress.epochs}  "
        line += "features  " if progress.epoch == 0 else ""
        line += "".join(f"{name} {value}  " for name, value in metrics.items())
        left = timedelta(seconds=round(progress.seconds_left))
        line += f"{progress.samples_per_second:,.0f} samples/s  at most {left} left"
        total, done = progress.epochs, progress.epoch - 1 + share
        if progress.epoch == 0:  # a bar of its own
            total, done = 1, share
        self.bars.update(self._tasks[seed], total=total, completed=done, description=line)
        if self.bars.disable and progress.record is not None:
            self.bars.console.print(Text(line), soft_wrap=True)

    def on_epoch_end(self, progress: State) -> None:
        """Show the metrics; on a bar, those of a validation stay until the next one."""
        new = _epoch_metrics(progress.record or {}, self.verbose)
        old = {} if self.bars.disable else self._metrics.get(progress.seed, {})
        self._metrics[progress.seed] = old | new
        self.on_progress(progress)


def _epoch_metrics(record: Json, verbose: bool) -> dict[str, str]:
    validation = list(record.get("validation", {}).items())
    shown = validation if verbose else validation[:1]  # the first selects the weights
    terms = record["terms"] if verbose else {}
    return {
        "loss": f"{record['loss']:.4f}",
        **{name: f"{value:.4g}" for name, value in terms.items()},
        **{f"validation {name}": format_metric(name, value) for name, value in shown},
    }
