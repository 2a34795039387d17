"""Datasets by name: those in known.json, the digits of scikit-learn, and registered ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import resources

import numpy as np
from pydantic import TypeAdapter

from dubito._extras import need
from dubito.data._files import Release, fetch
from dubito.data._parsers import PARSERS, Array
from dubito.data.base import Items, Source, split
from dubito.data.images import ImageFormat

__all__ = ["DATASETS", "register"]

Loader = Callable[[str], Source]


@dataclass(frozen=True)
class Dataset:
    """A dataset that is known by name."""

    load: Loader
    """Returns one of the parts."""
    parts: tuple[str, ...] = ("train", "test")
    """Names of the parts."""


#: name -> dataset
DATASETS: dict[str, Dataset] = {}


def register(
    name: str, *, parts: tuple[str, ...] = ("train", "test")
) -> Callable[[Loader], Loader]:
    """Add a function (part) -> `Source` to `DATASETS`.

    Args:
        name: Name of the dataset.
        parts: Names of its parts.
    """

    def add(load: Loader) -> Loader:
        DATASETS[name] = Dataset(load, parts)
        return load

    return add


class Published(Release, frozen=True):
    """A dataset in files that a publisher distributes."""

    parser: str
    """One of PARSERS."""
    parts: dict[str, tuple[str, ...]]
    """Files of each part."""
    classes: tuple[str, ...]
    """Names of the classes, in the order of the labels."""
    terms: str
    """License, or what the authors ask for."""
    url: str
    """Where it is described."""

    def load(self, name: str, part: str) -> Source:
        """Load a part."""
        images, labels = PARSERS[self.parser](fetch(name, self, self.parts[part]))
        return _memory(name, images, np.array(self.classes)[labels])


def _memory(name: str, images: Array, target: Array) -> Source:
    format = ImageFormat.of(images)
    assert format is not None
    return Items(name, format, images, target).in_memory()


_TEXT = resources.files(__package__).joinpath("known.json").read_text("utf-8")
for _name, _entry in TypeAdapter(dict[str, Published]).validate_json(_TEXT).items():
    register(_name, parts=tuple(_entry.parts))(partial(_entry.load, _name))


@register("digits")
def _digits(part: str) -> Source:
    """Load the digits of scikit-learn (CC BY 4.0), 80 % for training, each class in proportion."""
    data = need("sklearn.datasets", "sklearn").load_digits()
    pixels = (data.images[:, None] * 255 / 16).round().astype(np.uint8)  # published as 0 to 16
    train, test = split(_memory("digits", pixels, data.target.astype(str)), 0.8, 0, stratify=True)
    return train if part == "train" else test
