"""Callbacks: objects with methods for the events of a training."""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from dubito._files import atomic_write, json_text, make_folder
from dubito.errors import DubitoError
from dubito.types import Json

__all__ = ["Callback", "JSONLines", "Progress", "TensorBoard"]

#: least seconds between two calls of the callbacks during an epoch
MIN_INTERVAL = 0.2


@dataclass(frozen=True)
class Progress:
    """State of a training.

    Args:
        seed: Seed of the run.
        epoch: Current epoch, from 1; before the training the one that it begins with; 0 while
            features are computed, which the head of a pretrained network is trained on.
        epochs: Maximum number of epochs.
        step: Steps of this epoch that were launched; a GPU may be a little behind. Of epoch 0,
            samples.
        steps: Steps per epoch.
        record: Record of the epoch, see `History`; None before the epoch ends.
        samples_per_second: Training speed in this epoch; 0 before its first step.
        seconds_left: Estimated time until the last epoch ends, or epoch 0; infinite while it is
            unknown.
        metrics: Metric of the task on the latest batch of the training; empty where reading it
            would wait for a GPU.
        network: Network that is validated: with averaged weights if there are any.
    """

    seed: int
    epoch: int
    epochs: int
    step: int
    steps: int
    record: Json | None
    samples_per_second: float
    seconds_left: float
    network: nn.Module
    metrics: dict[str, float] = field(default_factory=dict)


class Callback:
    """Base class of callbacks; a subclass overrides the events that it needs.

    Networks that train together call the same object in turns: `Progress.seed` tells them apart.
    With several processes only the first one calls it.

    >>> class Losses(Callback):
    ...     def on_epoch_end(self, progress):
    ...         print(progress.epoch, progress.record["loss"])
    """

    def on_train_begin(self, progress: Progress) -> None:
        """Begin a training, or continue one.

        Args:
            progress: State of the training.
        """

    def on_epoch_begin(self, progress: Progress) -> None:
        """Begin an epoch.

        Args:
            progress: State of the training.
        """

    def on_progress(self, progress: Progress) -> None:
        """Show progress within an epoch, at most five times per second.

        Args:
            progress: State of the training.
        """

    def on_epoch_end(self, progress: Progress) -> None:
        """End an epoch; what is added to its record is kept in the history.

        Args:
            progress: State of the training.
        """

    def on_train_end(self, progress: Progress) -> None:
        """End a training that was not interrupted; the network has its final weights.

        Args:
            progress: State of the training.
        """

    def state_dict(self) -> dict[str, object]:
        """Return the state that a checkpoint saves, as JSON values; default: none."""
        return {}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Restore the state of a checkpoint, before `on_train_begin`.

        Args:
            state: Result of `state_dict` after the last epoch in the checkpoint.
        """


def feature_progress(
    callbacks: Sequence[Callback], network: nn.Module, seed: int, epochs: int, count: int
) -> Callable[[int], None]:
    """Return a function that tells callbacks how far a pass over the samples before epoch 1 is.

    Args:
        callbacks: Callbacks of the training.
        network: Network of the pass.
        seed: Seed of the training.
        epochs: Its maximum number of epochs.
        count: Number of samples.
    """
    start = last = time.perf_counter()
    done = 0

    def add(samples: int) -> None:
        nonlocal last, done
        done, now = done + samples, time.perf_counter()
        if now - last < MIN_INTERVAL:
            return
        last, speed = now, done / (now - start)
        progress = Progress(
            seed=seed, epoch=0, epochs=epochs, step=done, steps=count, record=None,
            samples_per_second=speed, seconds_left=(count - done) / speed, network=network,
        )  # fmt: skip
        for callback in callbacks:
            callback.on_progress(progress)

    return add


def callback_states(callbacks: Sequence[Callback]) -> list[tuple[str, dict[str, object]]]:
    """Return the class and the state of each callback that has a state.

    Args:
        callbacks: Callbacks of the training.
    """
    states = [(type(callback).__qualname__, callback.state_dict()) for callback in callbacks]
    return [(name, state) for name, state in states if state]


def load_callback_states(
    callbacks: Sequence[Callback], states: Sequence[tuple[str, dict[str, object]]]
) -> None:
    """Restore states; those of one class in the order of its objects.

    Args:
        callbacks: Callbacks of the training.
        states: Result of `callback_states`.
    """
    left = list(states)
    for callback in callbacks:
        own = next((pair for pair in left if pair[0] == type(callback).__qualname__), None)
        if own is not None:
            left.remove(own)
            callback.load_state_dict(own[1])


class JSONLines(Callback):
    """Write the record of each epoch to a file, one line of JSON per epoch.

    A resumed training replaces the lines of epochs that it repeats.

    Args:
        path: File to write.
        seed: Seed whose records to write; None writes those of all seeds.
    """

    def __init__(self, path: str | os.PathLike[str], *, seed: int | None = None) -> None:
        self.path, self.seed = Path(path), seed

    def on_train_begin(self, progress: Progress) -> None:
        """Remove the lines of an earlier process."""
        if self.seed in (None, progress.seed):
            self._forget(progress.seed, progress.epoch)

    def on_epoch_end(self, progress: Progress) -> None:
        """Write the record of the epoch."""
        if self.seed not in (None, progress.seed):
            return
        entry = json.loads(json_text({"seed": progress.seed, **(progress.record or {})}))
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def _forget(self, seed: int, epoch: int) -> None:
        """Remove the lines from an epoch on, and an incomplete one."""
        make_folder(self.path.parent)
        lines = self.path.read_text("utf-8").splitlines(True) if self.path.exists() else []
        entries = [json.loads(line) for line in lines if line.endswith("\n")]
        kept = [entry for entry in entries if entry["seed"] != seed or entry["epoch"] < epoch]
        atomic_write(self.path, "".join(json.dumps(entry) + "\n" for entry in kept))


class TensorBoard(Callback):
    """Write scalars for TensorBoard: loss, terms, learning rate and validation metrics.

    Args:
        folder: Folder of the event files.
        seed: Seed whose records to write; None writes those of all seeds, each in a subfolder.
    """

    def __init__(self, folder: str | os.PathLike[str], *, seed: int | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise DubitoError("tensorboard is not installed: pip install tensorboard") from error
        self.folder, self.seed = Path(folder), seed
        self._new_writer = SummaryWriter
        self._writers: dict[int, SummaryWriter] = {}

    def on_train_begin(self, progress: Progress) -> None:
        """Open a file; scalars of a killed process from this epoch on are hidden."""
        if self.seed in (None, progress.seed):
            folder = self.folder / str(progress.seed) if self.seed is None else self.folder
            writer = self._new_writer(str(folder), purge_step=progress.epoch)
            self._writers[progress.seed] = writer

    def on_epoch_end(self, progress: Progress) -> None:
        """Write the scalars of the epoch."""
        if progress.seed not in self._writers or progress.record is None:
            return
        writer, record = self._writers[progress.seed], progress.record
        scalars = {name: record[name] for name in ("loss", "lr", "samples_per_second")}
        for group in ("terms", "validation"):
            scalars |= {f"{group}/{name}": v for name, v in record.get(group, {}).items()}
        for name, value in scalars.items():
            writer.add_scalar(name, value, progress.epoch)
        writer.flush()

    def on_train_end(self, progress: Progress) -> None:
        """Close the file."""
        if progress.seed in self._writers:
            self._writers.pop(progress.seed).close()
