"""A bundle in memory, and its way to a folder and back."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dubito import __version__, _legacy, methods
from dubito._legacy import Method, Prediction
from dubito.bundle import _manifest, _network
from dubito.bundle._card import card as card_of
from dubito.bundle._described import FORMAT, Described
from dubito.bundle._limits import Limits
from dubito.bundle._manifest import CARD, CONFIG, MANIFEST, POLICY, WEIGHTS, BundleError
from dubito.bundle._network import Factory
from dubito.bundle._preprocessing import Preprocessing
from dubito.bundle._said import says
from dubito.calibration import Calibration
from dubito.policy import Decision, Policy
from dubito.report import files
from dubito.training import CheckpointError, checkpoint

__all__ = ["Bundle", "load", "read_limits", "save", "versions", "write"]


@dataclass(frozen=True, eq=False)
class Bundle:
    """A trained network with all that its predictions need; see `load`.

    `config` is what config.json holds, as plain values, and `card` the text of card.md.
    """

    method: Method
    model: nn.Module = field(repr=False)
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    preprocessing: Preprocessing = field(repr=False)
    limits: Limits = field(repr=False)
    card: str = field(repr=False)
    config: Mapping[str, Any] = field(repr=False)
    folder: Path

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.model.parameters()).device

    @property
    def calibration(self) -> Calibration | None:
        """What makes probabilities mean what they say."""
        return self.limits.calibration

    @property
    def policy(self) -> Policy | None:
        """What decides whether to answer."""
        return self.limits.policy

    def predict(self, inputs: Tensor | np.ndarray[Any, Any], batch_size: int = 1024) -> Prediction:
        """What the network says of inputs (N, *shape), before calibration, on the CPU.

        Inputs are as the training data was: bytes or floats, not yet standardised; the columns of a
        table as `preprocessing.columns.encode` gives them.
        """
        if isinstance(inputs, np.ndarray):
            # torch takes no flipped array, and warns of a locked one
            inputs = np.require(inputs, requirements=("C", "W"))
        x = torch.as_tensor(inputs)
        if x.ndim < 1 or tuple(x.shape[1:]) != self.shape or not len(x):
            raise ValueError(
                f"inputs have shape {tuple(x.shape)}, but this bundle takes (N, *{self.shape}), "
                "N >= 1"
            )
        if x.is_complex() or x.dtype == torch.bool:
            raise TypeError(f"inputs must be numbers, not {x.dtype}")
        _check_kind(x, self.preprocessing.pixels)
        said = says(self.method, self.model, self.preprocessing, x, batch_size)
        if said.probs.shape[-1] != len(self.classes):
            raise ValueError(
                f"the network tells {said.probs.shape[-1]} classes apart, but this bundle names "
                f"{len(self.classes)}"
            )
        return said

    def calibrated(self, said: Prediction) -> Prediction:
        """The calibrated probabilities; the labels stay."""
        return said.calibrated(self.calibration)

    def decide(self, said: Prediction) -> Decision:
        """Accept or abstain, by what `predict` said, before calibration."""
        if self.policy is None:
            raise ValueError("this bundle has no policy, so nothing decides whether to answer")
        return self.policy.decide(said.distribution)


def _check_kind(x: Tensor, pixels: bool) -> None:
    """An error for inputs that would be taken for others: bytes are divided by 255, no others."""
    if x.dtype == torch.uint8 and not pixels:
        raise ValueError(
            "inputs are bytes, which are read as pixels, but this bundle was trained with numbers: "
            "convert them to float32, or save the bundle with Preprocessing(pixels=True)"
        )
    if pixels and x.dtype != torch.uint8 and not x.is_floating_point():
        raise TypeError(f"pixels must be bytes (uint8) or floats from 0 to 1, not {x.dtype}")


def versions() -> dict[str, str]:
    """What made a file: dubito, torch and Python."""
    return {
        "dubito": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def save(
    folder: str | os.PathLike[str],
    model: nn.Module,
    *,
    method: Method | methods.Method | str,
    classes: Sequence[str],
    shape: Sequence[int],
    backbone: Mapping[str, Any] | None = None,
    class_counts: Sequence[int] | None = None,
    preprocessing: Preprocessing | None = None,
    calibration: Calibration | None = None,
    policy: Policy | None = None,
    about: Sequence[str] = (),
) -> Path:
    """Write a network that was trained anywhere as a bundle; what `load` needs to make it again.

    `method` says how outputs are read, by name or with its hyperparameters; `model` is what was
    trained with it. `backbone` is the name and options of one of `dubito.backbones.BACKBONES`;
    without it `load` needs a factory. `class_counts` are for Posterior Networks. `calibration` and
    `policy` come from data that was held out; `about` are lines on the data for card.md.
    """
    chosen = _legacy.method(method)
    # what torch.compile wraps has the weights by their own names
    model = getattr(model, "_orig_mod", model)
    prepared = preprocessing or Preprocessing(pixels=False)
    names = [str(name) for name in classes]
    if len(names) < 2 or len(set(names)) < len(names):
        raise ValueError(f"classes must be at least two different names, not {names[:10]}")
    prepared.check(tuple(shape))
    config: dict[str, Any] = {
        "format": FORMAT,
        "backbone": None if backbone is None else dict(backbone),
        "method": _network.described(chosen),
        "facts": {
            "classes": names,
            "shape": [int(side) for side in shape],
            "class_counts": None if class_counts is None else [int(n) for n in class_counts],
        },
        "preprocessing": prepared.as_dict(),
        "versions": versions(),
    }
    if backbone is not None:
        _buildable(config, model)
    limits = Limits(calibration, policy)
    text = card_of(
        method=config["method"], backbone=backbone, classes=names, shape=tuple(shape),
        preprocessing=prepared, limits=limits, about=about,
    )  # fmt: skip
    return write(Path(folder), model, config, limits, text)


def _buildable(config: Mapping[str, Any], model: nn.Module) -> None:
    """An error now, not when it is loaded, for a description of another network."""
    facts = config["facts"]
    with torch.random.fork_rng(devices=[]):
        made = _network.build(
            _network.made(config["method"]), config["backbone"], facts["shape"],
            len(facts["classes"]), facts["class_counts"],
        )  # fmt: skip
    ours, theirs = (
        {name: tuple(value.shape) for name, value in one.state_dict().items()}
        for one in (model, made)
    )
    if ours != theirs:
        wrong = sorted(n for n in {*ours, *theirs} if ours.get(n) != theirs.get(n))[0]
        raise ValueError(
            f"backbone {dict(config['backbone'])} is not that of model: {wrong!r} has shape "
            f"{theirs.get(wrong, 'none')} in it and {ours.get(wrong, 'none')} in model"
        )


def write(
    folder: Path,
    model: nn.Module,
    config: Mapping[str, Any],
    limits: Limits,
    text: str,
    summary: Mapping[str, Any] | None = None,
) -> Path:
    """All files of a bundle, the manifest last: a folder without it is not finished."""
    described, limited = files.json_text(config), files.json_text(limits.as_dict())
    place = files.folder(folder)
    (place / MANIFEST).unlink(missing_ok=True)  # from here on what was there before is gone
    files.write(place / CONFIG, described)
    files.write(place / POLICY, limited)
    files.write(place / CARD, text)
    checkpoint.save(place / WEIGHTS, dict(model.state_dict()), dict(summary or {}))
    _manifest.sign(place)
    return place


def load(
    folder: str | os.PathLike[str],
    *,
    factory: Factory | None = None,
    device: torch.device | str = "cpu",
) -> Bundle:
    """The bundle in a folder, in evaluation mode on a device.

    Nothing in the folder is run: names are looked up in tables, and files hold numbers and text. A
    module of one's own is built by its `factory`, a function (shape, outputs) -> module.
    """
    place = Path(folder)
    _present(place)
    _manifest.check(place)
    config = _manifest.read_json(place / CONFIG)
    try:
        described = Described.read(config)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise BundleError(f"could not read {place / CONFIG}: {error}") from error
    limits = read_limits(place)
    tensors = _weights(place / WEIGHTS)
    model = _network.filled(
        described.method, described.builder(factory, place), described.shape,
        len(described.classes), described.class_counts, tensors, place / WEIGHTS,
    )  # fmt: skip
    try:
        text = (place / CARD).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise BundleError(f"could not read {place / CARD}: {error}") from error
    return Bundle(
        described.method, model.to(device).eval(), described.classes, described.shape,
        described.preprocessing, limits, text, config, place,
    )  # fmt: skip


def _weights(path: Path) -> dict[str, Tensor]:
    try:
        return checkpoint.load(path)[0]
    except CheckpointError as error:
        raise BundleError(str(error)) from error
    except Exception as error:  # a header that is forged raises errors of many kinds
        raise BundleError(f"could not read {path}: {type(error).__name__} {error}") from error


def read_limits(folder: Path) -> Limits:
    """The calibration and the policy of a bundle alone."""
    try:
        return Limits.from_dict(_manifest.read_json(folder / POLICY))
    except (ValueError, TypeError, OverflowError) as error:
        raise BundleError(f"could not read {folder / POLICY}: {error}") from error


def _present(folder: Path) -> None:
    """An error that says what the folder is instead, where it has no manifest."""
    if (folder / MANIFEST).is_file():
        return
    if not folder.is_dir():
        raise BundleError(f"there is no folder {folder}")
    several = sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST}"))
    if several:
        raise BundleError(f"{folder} holds several bundles, name one of them: {', '.join(several)}")
    if (folder / CONFIG).exists():
        raise BundleError(
            f"{folder} is not finished: it has no {MANIFEST}; start the same `dubito train` again, "
            "and it goes on from where it stopped"
        )
    raise BundleError(f"{folder} is no bundle: it has no {MANIFEST}; `dubito train` makes one")
