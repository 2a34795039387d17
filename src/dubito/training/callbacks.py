"""Callbacks: functions of a `Progress`, called during each epoch and at its end."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from dubito._files import atomic_write, json_text, make_folder
from dubito.errors import DubitoError

__all__ = ["JSONLines", "Progress", "TensorBoard"]


@dataclass(frozen=True)
class Progress:
    """State of a training.

    Args:
        seed: Seed of the run.
        epoch: Current epoch, from 1.
        epochs: Maximum number of epochs.
        step: Steps of this epoch that were launched; a GPU may be a little behind.
        steps: Steps per epoch.
        record: Record of the epoch, see `History`; None during the epoch.
        samples_per_second: Training speed in this epoch.
        seconds_left: Estimated time until the last epoch ends.
        network: Network that is validated: with averaged weights if there are any.
    """

    seed: int
    epoch: int
    epochs: int
    step: int
    steps: int
    record: dict[str, Any] | None
    samples_per_second: float
    seconds_left: float
    network: nn.Module


Callback = Callable[[Progress], None]


class JSONLines:
    """Write the record of each epoch to a file, one line of JSON per epoch.

    A resumed training replaces the lines of epochs that it repeats.

    Args:
        path: File to write.
        seed: Seed whose records to write; None writes those of all seeds.
    """

    def __init__(self, path: str | os.PathLike[str], *, seed: int | None = None) -> None:
        self.path, self.seed = Path(path), seed
        self._started: set[int] = set()

    def __call__(self, progress: Progress) -> None:
        """Write the record of an epoch that has ended."""
        if progress.record is None or self.seed not in (None, progress.seed):
            return
        if progress.seed not in self._started:
            self._started.add(progress.seed)
            self._forget(progress.seed, progress.epoch)
        entry = json.loads(json_text({"seed": progress.seed, **progress.record}))
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def _forget(self, seed: int, epoch: int) -> None:
        """Remove lines of an earlier process: those from an epoch on, and an incomplete one."""
        make_folder(self.path.parent)
        lines = self.path.read_text("utf-8").splitlines(True) if self.path.exists() else []
        entries = [json.loads(line) for line in lines if line.endswith("\n")]
        kept = [entry for entry in entries if entry["seed"] != seed or entry["epoch"] < epoch]
        atomic_write(self.path, "".join(json.dumps(entry) + "\n" for entry in kept))


class TensorBoard:
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
        self._new_writer: Any = SummaryWriter
        self._writers: dict[int, Any] = {}

    def __call__(self, progress: Progress) -> None:
        """Write the scalars of an epoch that has ended."""
        if progress.record is None or self.seed not in (None, progress.seed):
            return
        if progress.seed not in self._writers:
            folder = self.folder / str(progress.seed) if self.seed is None else self.folder
            # Scalars of a killed process from this epoch on are hidden.
            self._writers[progress.seed] = self._new_writer(str(folder), purge_step=progress.epoch)
        writer, record = self._writers[progress.seed], progress.record
        scalars = {name: record[name] for name in ("loss", "lr", "samples_per_second")}
        for group in ("terms", "validation"):
            scalars |= {f"{group}/{name}": v for name, v in record.get(group, {}).items()}
        for name, value in scalars.items():
            writer.add_scalar(name, value, progress.epoch)
        writer.flush()
