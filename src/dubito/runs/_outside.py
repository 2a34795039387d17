"""Inputs that need no labels, from any source, in the shape that a run was trained with."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dubito import data
from dubito.data.folder import files_below
from dubito.data.tables import INPUTS, LABELS, as_inputs
from dubito.runs._data import is_table
from dubito.runs._folder import Recorded

__all__ = ["adapted", "inputs_of", "part_of", "reader_options"]

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as image libraries make grey
AT_ONCE = 4096  # images converted together
_FOLDER_OPTIONS, _CSV_OPTIONS = ("size", "mode", "on_error"), ("label", "delimiter")


def part_of(source: str, part: str = "test") -> str:
    """The part of a source to judge by, or to train with: all of it where it has no test part."""
    return part if {part, "test"} & set(data.parts(source)) else "all"


def reader_options(config: Recorded, source: str, resize: bool = False) -> dict[str, Any]:
    """How to read a source of one's own: as the run's was, if it has the same format."""
    section, path, shape = config.data, Path(source).expanduser(), config.facts.shape
    if source in data.DATASETS:
        return {}
    if path.is_dir():
        fixed: dict[str, Any] = {}
        if resize and len(shape) == 3 and shape[0] in (1, 3):
            fixed = {"size": tuple(shape[1:]), "mode": "L" if shape[0] == 1 else "RGB"}
        return {k: section[k] for k in _FOLDER_OPTIONS if section[k] is not None} | fixed
    names = _CSV_OPTIONS if path.suffix.lower() == ".csv" else ()
    return {name: section[name] for name in names if section[name] is not None}


def inputs_of(config: Recorded, source: str, resize: bool = False, *, part: str = "test") -> Tensor:
    """The inputs (N, *shape) of a source, labelled or not; images are converted if `resize`."""
    path, part = Path(source).expanduser(), part_of(source, part)
    options = reader_options(config, source, resize)
    columns = config.prepared().columns
    if columns is not None and is_table(source):
        found = as_inputs(columns.read_inputs(path), source)
    elif source not in data.DATASETS and path.is_dir():
        below = path if part == "all" else path / part
        found, _ = data.read_images(files_below(below), **options)
    elif source not in data.DATASETS and (bare := _unlabelled(path)) is not None:
        found = bare
    else:
        found = data.load(source, part, **options).inputs
    return adapted(found, tuple(config.facts.shape), source, resize)


def _unlabelled(path: Path) -> Tensor | None:
    """The inputs of an .npz file without labels; None for any other file."""
    if path.suffix.lower() != ".npz" or not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as held:
            names = list(held.files)
            words = {word for name in names for word in name.split("_")}
            key = next((name for name in INPUTS if name in names), None)
            if key is None or words & set(LABELS):
                return None
            return as_inputs(held[key], str(path))
    except (OSError, EOFError, zipfile.BadZipFile):
        return None  # the ordinary reader says what is wrong


def adapted(inputs: Tensor, shape: tuple[int, ...], name: str, resize: bool) -> Tensor:
    """Inputs (N, *shape): as they are if they have it, else resized and grey or in colour if asked.

    >>> adapted(torch.zeros(5, 3, 32, 32), (1, 28, 28), "colour", resize=True).shape
    torch.Size([5, 1, 28, 28])
    """
    seen = tuple(inputs.shape[1:])
    if seen == shape:
        return inputs
    images = len(seen) == len(shape) == 3 and {seen[0], shape[0]} <= {1, 3}
    if not (images and resize):
        remedy = "; `dubito evaluate --resize` converts images" if images else ""
        raise ValueError(
            f"{name} has inputs of shape {seen}, but the network takes {shape}{remedy}"
        )
    return torch.cat([_converted(batch, shape) for batch in inputs.split(AT_ONCE)])


def _converted(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    x = data.as_floats(images)
    if x.shape[1] == 3 and shape[0] == 1:
        x = (x * torch.tensor(LUMA)[:, None, None]).sum(1, keepdim=True)
    if tuple(x.shape[-2:]) != shape[1:]:
        x = F.interpolate(x, shape[1:], mode="bilinear", antialias=True)
    return x.expand(-1, shape[0], -1, -1)
