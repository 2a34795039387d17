"""The table of data sets known by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from dubito import _checks
from dubito.data import parsers
from dubito.data.arrays import Arrays, join
from dubito.data.arrays import split as divide
from dubito.data.classes import CIFAR_10, CIFAR_100, DIGITS, FASHION, KANA
from dubito.data.files import Release, read

__all__ = ["DATASETS", "Entry", "Generated", "Published"]

Root = str | os.PathLike[str] | None


class Entry(Protocol):
    """What the table promises of each data set."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts it comes in."""

    @property
    def terms(self) -> str:
        """Its licence, or what its authors ask for."""

    @property
    def source(self) -> str:
        """Where it is described."""

    def load(self, split: str, root: Root = None, download: bool = True) -> Arrays:
        """One of its parts, or "all" of them."""


@dataclass(frozen=True)
class Published:
    """A data set in files that a publisher distributes."""

    release: Release
    splits: Mapping[str, tuple[str, ...]]
    parse: parsers.Parser
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    terms: str
    source: str

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts it comes in."""
        return tuple(self.splits)

    def load(self, split: str, root: Root = None, download: bool = True) -> Arrays:
        """One of its parts, or "all" of them."""
        _checks.one_of([*self.splits, "all"], split, f"split of {self.release.name}")
        if split == "all":
            return join([self.load(part, root, download) for part in self.splits])
        blobs = read(self.release, self.splits[split], root, download)
        images, labels = self.parse(blobs)
        if images.shape[1:] != self.shape:
            raise ValueError(
                f"{blobs[0].path} has images of shape {images.shape[1:]}, not {self.shape}"
            )
        return Arrays(
            torch.from_numpy(images), torch.from_numpy(labels), self.classes, self.release.name
        )


@dataclass(frozen=True)
class Generated:
    """A data set that comes with an installed package: nothing to download, divided by us."""

    name: str
    make: Callable[[], Arrays]
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    terms: str
    source: str
    parts: tuple[str, ...] = ("train", "test")

    def load(self, split: str, root: Root = None, download: bool = True) -> Arrays:
        """One of its parts (80 % and 20 %, each class in proportion), or "all" of it."""
        _checks.one_of([*self.parts, "all"], split, f"split of {self.name}")
        everything = self.make()
        if split == "all":
            return everything
        train, test, _ = divide(everything, 0.8, seed=0, stratified=True)
        return train if split == "train" else test


def _digits() -> Arrays:
    from sklearn.datasets import load_digits

    data = load_digits()
    # Grey values from 0 to 16, as counted by the publisher.
    images = torch.from_numpy(data.images).float().div(16).unsqueeze(1)
    return Arrays(images, torch.from_numpy(data.target), DIGITS, "digits")


def _idx(
    name: str,
    mirrors: tuple[str, ...],
    sums: tuple[str, str, str, str],
    classes: tuple[str, ...],
    terms: str,
    source: str,
) -> Published:
    """A set in MNIST's four files; `sums` are of the images and labels of train, then of test."""
    kinds = ("images-idx3-ubyte.gz", "labels-idx1-ubyte.gz")
    files = [f"{part}-{kind}" for part in ("train", "t10k") for kind in kinds]
    return Published(
        release=Release(name, dict(zip(files, sums, strict=True)), mirrors),
        splits={"train": (files[0], files[1]), "test": (files[2], files[3])},
        parse=parsers.mnist,
        shape=(1, 28, 28),
        classes=classes,
        terms=terms,
        source=source,
    )


_TORONTO = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
_KRIZHEVSKY = "cite A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"

#: name -> data set
DATASETS: dict[str, Entry] = {
    "mnist": _idx(
        "mnist",
        # The authors' own server has stopped serving the files.
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        DIGITS,
        "CC BY-SA 3.0",
        "http://yann.lecun.com/exdb/mnist/",
    ),
    "fashion-mnist": _idx(
        "fashion-mnist",
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        FASHION,
        "MIT",
        "https://github.com/zalandoresearch/fashion-mnist",
    ),
    "kmnist": _idx(
        "kmnist",
        (
            "https://codh.rois.ac.jp/kmnist/dataset/kmnist/",
            "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
        ),
        (
            "bdb82020997e1d708af4cf47b453dcf7",
            "e144d726b3acfaa3e44228e80efcd344",
            "5c965bf0a639b31b8f53240b1b52f4d7",
            "7320c461ea6c1c855c0b718fb2a4b134",
        ),
        KANA,
        "CC BY-SA 4.0",
        "https://codh.rois.ac.jp/kmnist/",
    ),
    "cifar-10": Published(
        release=Release(
            "cifar-10",
            {
                "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
                "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
                "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
                "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
                "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
                "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
                "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
            },
            _TORONTO,
            archive="cifar-10-binary.tar.gz",
            inside="cifar-10-batches-bin",
        ),
        splits={
            "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
            "test": ("test_batch.bin",),
        },
        parse=parsers.cifar,
        shape=(3, 32, 32),
        classes=CIFAR_10,
        terms=_KRIZHEVSKY,
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
    ),
    "cifar-100": Published(
        release=Release(
            "cifar-100",
            {
                "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
                "train.bin": "6172c7755cfe09b2fe270c85cebc1b15",
                "test.bin": "4499cfba6c016c1be1438163640a0898",
            },
            _TORONTO,
            archive="cifar-100-binary.tar.gz",
            inside="cifar-100-binary",
        ),
        splits={"train": ("train.bin",), "test": ("test.bin",)},
        parse=partial(parsers.cifar, label_bytes=2),
        shape=(3, 32, 32),
        classes=CIFAR_100,
        terms=_KRIZHEVSKY,
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
    ),
    "svhn": Published(
        release=Release(
            "svhn",
            {
                "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
                "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
            },
            ("http://ufldl.stanford.edu/housenumbers/",),
        ),
        splits={"train": ("train_32x32.mat",), "test": ("test_32x32.mat",)},
        parse=parsers.svhn,
        shape=(3, 32, 32),
        classes=DIGITS,
        terms="non-commercial research",
        source="http://ufldl.stanford.edu/housenumbers/",
    ),
    "digits": Generated(
        name="digits",
        make=_digits,
        shape=(1, 8, 8),
        classes=DIGITS,
        terms="CC BY 4.0",
        source="https://archive.ics.uci.edu/dataset/80",
    ),
}
