"""A run's folder: its configuration, the division of its data, and its weights.

| file | what |
| --- | --- |
| config.json | the four sections with every default, what was found in the data, versions |
| split.npz | the order that divides the data, and how many of it come first for training |
| metrics.jsonl | a line an epoch |
| checkpoint.safetensors | what an interrupted run goes on from; gone once it is finished |
| model.safetensors | the best weights |
| policy.json, card.md | calibration and abstention policy; what the model is and is not |
| report.html | the same in pictures, where the command line was asked to |
| manifest.json | written last: the folder of a finished run is a bundle, see `dubito.bundle` |

Nothing in a folder is run: the network is built by its name, and files hold numbers and text alone.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dubito import bundle
from dubito._legacy import Method, Prediction
from dubito.bundle import Limits, Preprocessing, joined, says, versions
from dubito.report import files
from dubito.runs._config import SECTIONS, Config, configure
from dubito.runs._sections import checked, known_of
from dubito.training import CheckpointError, checkpoint
from dubito.training.loop import CHECKPOINT

__all__ = ["Facts", "Recorded", "Run", "folders", "joined", "load", "save", "versions"]

CONFIG, SPLIT, WEIGHTS = "config.json", "split.npz", "model.safetensors"
FORMAT = "dubito-run-1"


def folders(path: str | os.PathLike[str]) -> list[Path]:
    """The folder itself, or those of the seeds in it: path/seed-1, path/seed-2, ..."""
    place = Path(path)
    seeds = [one for one in place.glob("seed-*") if re.fullmatch(r"seed--?\d+", one.name)]
    if (place / CONFIG).exists() or not seeds:
        return [place]
    return sorted(seeds, key=lambda one: int(one.name.removeprefix("seed-")))


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
    preprocessing: dict[str, Any] | None = None
    versions: dict[str, str] = field(default_factory=versions)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in config.json."""
        found = {
            "facts": asdict(self.facts),
            "preprocessing": self.preprocessing,
            "versions": dict(self.versions),
        }
        return {"format": FORMAT, **self.sections(), **found}

    def prepared(self) -> Preprocessing:
        """How inputs are made."""
        made = self.preprocessing
        return Preprocessing() if made is None else Preprocessing.from_dict(made)


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

    def predict(self, x: Tensor, batch_size: int = 1024) -> Prediction:
        """What the network says of inputs (N, *shape), bytes or floats, as tensors on the CPU.

        Inputs are as the data has them, not yet standardised.
        """
        if x.ndim < 1 or tuple(x.shape[1:]) != self.shape or not len(x):
            raise ValueError(
                f"x has shape {tuple(x.shape)}, but this run takes (N, *{self.shape}), N >= 1"
            )
        prepared = self.config.prepared()
        return says(self.method, self.model, prepared, x, batch_size)


def save(
    folder: str | os.PathLike[str],
    model: nn.Module,
    config: Recorded,
    summary: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
) -> None:
    """Write a trained network as a bundle, so that `load` gives it again.

    `summary` are facts about it; `limits` its calibration and policy.
    """
    held = limits or Limits()
    facts = config.facts
    text = bundle.card(
        method=config.method, backbone=config.backbone, classes=facts.classes, shape=facts.shape,
        preprocessing=config.prepared(), limits=held, about=_about(config), chosen=True,
    )  # fmt: skip
    bundle.write(Path(folder), model, config.as_dict(), held, text, summary)


def _about(config: Recorded) -> list[str]:
    """What a card says of the data."""
    source, facts = config.data["source"], config.facts
    counts = facts.class_counts
    weighed = ", weighed so that classes count alike" if config.data["class_weight"] else ""
    return [
        f"Source: `{Path(source).name}`, {facts.train} training and {facts.validation} validation "
        "samples",
        f"Training samples of a class: {min(counts)} to {max(counts)}{weighed}",
    ]


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
        found.setdefault("preprocessing", None)  # not known to the first release
        known = {"format", *SECTIONS, "facts", "preprocessing", "versions"}
        if set(found) != known:
            raise ValueError(f"it should have the keys {sorted(known)}, and has {sorted(found)}")
        config = configure({name: found[name] for name in SECTIONS})
        facts = Facts(**checked(known_of(Facts), found["facts"], "facts"))
        made = Recorded(
            **config.sections(), facts=facts, preprocessing=found["preprocessing"],
            versions=dict(found["versions"]),
        )  # fmt: skip
        made.prepared()
        return made
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
    loaded = bundle.load(place, device=device)
    return Run(loaded.method, loaded.model, config, place)


def summary_of(folder: Path) -> dict[str, Any] | None:
    """What `save` was told of a finished run; None where the run is not finished."""
    return checkpoint.load(folder / WEIGHTS)[1] if (folder / WEIGHTS).exists() else None


def is_finished(folder: Path) -> bool:
    """Whether the folder is a whole bundle, which its manifest says."""
    return (folder / bundle.MANIFEST).exists()


def has_weights(folder: Path) -> bool:
    """Whether training is done, whatever else is left to do."""
    return (folder / WEIGHTS).exists()


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
