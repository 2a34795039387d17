"""A run's folder: its configuration, the division of its data, and its weights.

| file | what |
| --- | --- |
| config.json | the four sections with every default, what was found in the data, versions |
| split.npz | the order that divides the data, and how many of it come first for training |
| metrics.jsonl | a line an epoch |
| checkpoint.safetensors | what an interrupted run goes on from; gone once it is finished |
| model.safetensors | the best weights; there once the run is finished |

Nothing in a folder is run: the network is built by its name, and files hold numbers and text alone.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dubito import __version__
from dubito.data import as_floats
from dubito.methods import Method
from dubito.prediction import Prediction
from dubito.report import files
from dubito.runs._config import SECTIONS, Config, configure
from dubito.runs._sections import checked, known_of
from dubito.training import CheckpointError, checkpoint
from dubito.training.loop import CHECKPOINT

__all__ = ["Facts", "Recorded", "Run", "folders", "joined", "load", "save", "versions"]

CONFIG, SPLIT, WEIGHTS = "config.json", "split.npz", "model.safetensors"
FORMAT = "dubito-run-1"
SEED = 0  # of what a method draws when it predicts


def folders(path: str | os.PathLike[str]) -> list[Path]:
    """The folder itself, or those of the seeds in it: path/seed-1, path/seed-2, ..."""
    place = Path(path)
    seeds = [one for one in place.glob("seed-*") if one.name.removeprefix("seed-").isdigit()]
    if (place / CONFIG).exists() or not seeds:
        return [place]
    return sorted(seeds, key=lambda one: int(one.name.removeprefix("seed-")))


def versions() -> dict[str, str]:
    """What made a file: dubito, torch and Python."""
    return {
        "dubito": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a run found: the classes, the shape of an input, and how many samples there are.

    `class_counts` are those of the training samples. `fingerprint` tells whether the data is still
    the same; `processes` share each batch.
    """

    classes: list[str]
    shape: list[int]
    class_counts: list[int]
    train: int
    validation: int
    fingerprint: str
    processes: int = 1
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class Recorded(Config):
    """A configuration with what was found when it was used: all of config.json."""

    facts: Facts
    versions: dict[str, str] = field(default_factory=versions)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in config.json."""
        found = {"facts": asdict(self.facts), "versions": dict(self.versions)}
        return {"format": FORMAT, **self.sections(), **found}


@dataclass(frozen=True, eq=False)
class Run:
    """A trained network, how its outputs are read, and how it came about; see `load`."""

    method: Method
    model: nn.Module = field(repr=False)
    config: Recorded = field(repr=False)
    folder: Path

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.model.parameters()).device

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the labels."""
        return tuple(self.config.facts.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.config.facts.shape)

    def predict(self, x: Tensor, batch_size: int = 1024, *, seed: int = SEED) -> Prediction:
        """What the network says of inputs (N, *shape), bytes or floats, as tensors on the CPU.

        What a method draws when it predicts follows from `seed`, so that a second call says the
        same.
        """
        if x.ndim < 1 or tuple(x.shape[1:]) != self.shape or not len(x):
            raise ValueError(
                f"x has shape {tuple(x.shape)}, but this run takes (N, *{self.shape}), N >= 1"
            )
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size!r}")
        with torch.no_grad(), torch.random.fork_rng(), _full_precision():
            torch.manual_seed(seed)
            return joined(
                [
                    self.method.predict(self.model, as_floats(batch.to(self.device)))
                    for batch in x.split(batch_size)
                ]
            )


@contextlib.contextmanager
def _full_precision() -> Iterator[None]:
    """Convolutions on a GPU in float32, so that all devices say the same."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def joined(parts: Sequence[Prediction]) -> Prediction:
    """Predictions of one kind, one after the other, on the CPU.

    >>> one = Prediction.from_alpha(torch.tensor([[3.0, 1.0]]))
    >>> joined([one, one]).vacuity
    tensor([0.5000, 0.5000])
    """
    first = parts[0]
    if hasattr(first, "alpha"):
        alpha = torch.cat([said.alpha.cpu() for said in parts])
        return Prediction.from_alpha(alpha, prior=first.prior)
    if hasattr(first, "samples"):
        return Prediction.from_samples(torch.cat([said.samples.cpu() for said in parts], dim=1))
    return Prediction.from_probs(torch.cat([said.probs.cpu() for said in parts]))


def save(
    folder: str | os.PathLike[str],
    model: nn.Module,
    config: Recorded,
    summary: Mapping[str, Any] | None = None,
) -> None:
    """Write a trained network, so that `load` gives it again; `summary` are facts about it."""
    place = files.folder(Path(folder))
    write_config(place, config)
    # last: the folder of a finished run is the one that has weights
    checkpoint.save(place / WEIGHTS, dict(model.state_dict()), dict(summary or {}))


def write_config(folder: Path, config: Recorded) -> None:
    """Write config.json."""
    files.write(folder / CONFIG, json.dumps(config.as_dict(), indent=2) + "\n")


def recorded(folder: Path) -> Recorded:
    """Read config.json."""
    path = folder / CONFIG
    if not path.exists():
        raise CheckpointError(_no_run(folder))
    try:
        found = json.loads(path.read_text("utf-8"))
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        known = {"format", *SECTIONS, "facts", "versions"}
        if set(found) != known:
            raise ValueError(f"it should have the keys {sorted(known)}, and has {sorted(found)}")
        config = configure({name: found[name] for name in SECTIONS})
        facts = Facts(**checked(known_of(Facts), found["facts"], "facts"))
        return Recorded(**config.sections(), facts=facts, versions=dict(found["versions"]))
    except (ValueError, TypeError, OSError) as error:
        raise CheckpointError(f"could not read {path}: {error}") from error


def _no_run(folder: Path) -> str:
    if not folder.is_dir():
        return f"there is no folder {folder}"
    several = sorted(path.parent.name for path in folder.glob(f"*/{CONFIG}"))
    if several:
        return f"{folder} holds several runs, name one of them: {', '.join(several)}"
    return f"{folder} is no run's folder: it has no {CONFIG}; `dubito train` makes one"


def load(folder: str | os.PathLike[str], device: torch.device | str = "cpu") -> Run:
    """The finished run in a folder, in evaluation mode on a device.

    The network is built by the name that config.json gives, and its weights are numbers: nothing in
    the folder is run.
    """
    place = Path(folder)
    config = recorded(place)
    if not (place / WEIGHTS).exists():
        raise CheckpointError(
            f"the run in {place} is not finished: it has no {WEIGHTS}; start the same "
            "`dubito train` again, and it goes on from where it stopped"
        )
    tensors, _ = checkpoint.load(place / WEIGHTS)
    facts = config.facts
    try:
        model = config.network(facts.shape, len(facts.classes), facts.class_counts)
    except ValueError as error:
        raise CheckpointError(f"{place / CONFIG} describes no network: {error}") from error
    _fill(model, tensors, place / WEIGHTS)
    return Run(config.make_method(), model.to(device).eval(), config, place)


def _fill(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Give the network its weights, all of them and no others."""
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    held = {name: tuple(value.shape) for name, value in tensors.items()}
    if wanted != held:
        wrong = sorted(name for name in {*wanted, *held} if wanted.get(name) != held.get(name))
        name = wrong[0]
        raise CheckpointError(
            f"{path} holds the weights of another network: {len(wrong)} tensors differ, the first "
            f"is {name!r}, with shape {held.get(name, 'none')} in the file and "
            f"{wanted.get(name, 'none')} in the network of {CONFIG}"
        )
    model.load_state_dict(tensors, strict=True)


def summary_of(folder: Path) -> dict[str, Any] | None:
    """What `save` was told of a finished run; None where the run is not finished."""
    return checkpoint.load(folder / WEIGHTS)[1] if (folder / WEIGHTS).exists() else None


def has_started(folder: Path) -> bool:
    """Whether there is a checkpoint to go on from."""
    return (folder / CHECKPOINT).exists()


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write an .npz file at once."""
    held = io.BytesIO()
    np.savez(held, **arrays)
    files.write(path, held.getvalue())


def write_split(folder: Path, order: Tensor, train: int) -> None:
    """Write split.npz."""
    write_arrays(folder / SPLIT, {"order": order.numpy(), "train": np.int64(train)})


def read_split(folder: Path, count: int) -> tuple[Tensor, Tensor]:
    """The indices of the training and of the validation samples, of `count` in all."""
    path = folder / SPLIT
    try:
        with np.load(path, allow_pickle=False) as held:
            order, train = torch.from_numpy(held["order"]), int(held["train"])
    except Exception as error:  # a damaged archive raises errors of many kinds
        raise CheckpointError(f"could not read {path}: {error}") from error
    whole = order.dtype == torch.long and torch.equal(order.sort().values, torch.arange(count))
    if not whole or not 0 < train < count:
        raise CheckpointError(f"{path} does not divide {count} samples: the data is another")
    return order[:train], order[train:]
