"""Datasets by name: those in known.json, the digits of scikit-learn, and registered ones."""

import gzip
import os
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, TypeAdapter

from dubito._extras import need
from dubito.data.base import PARTS, Items, Source, split
from dubito.errors import DubitoError
from dubito.formats.images import ImageFormat
from dubito.registry import Entry, Registry
from dubito.types import Array

__all__ = ["DATASETS", "Dataset"]

#: reads the files of a part as images (N, C, H, W) uint8 and labels (N,) int64
Parser = Callable[[Sequence[Path]], tuple[Array, Array]]
SIDE = 32  # of CIFAR's and SVHN's images
TIMEOUT = 30  # seconds without a byte


class Dataset(Entry, ABC):
    """A dataset that is known by name; its fields are options.

    Attributes:
        parts: Names of the parts.
    """

    parts: ClassVar[tuple[str, ...]] = PARTS

    @abstractmethod
    def load(self, part: str) -> Source:
        """Load a part.

        Args:
            part: One of `parts`.
        """


DATASETS: Registry[Dataset] = Registry("dataset", Dataset)


# --- published files, in the data folder or downloaded ---


class Release(BaseModel, frozen=True, extra="forbid"):
    """Files as their publisher distributes them.

    Attributes:
        md5: Checksum of each file, and of the archive.
        mirrors: Addresses that a file's name is appended to, best first.
        archive: File that contains the others.
        inside: Folder of the files in the archive.
    """

    md5: dict[str, str]
    mirrors: tuple[str, ...]
    archive: str | None = None
    inside: str = ""


def data_folder() -> Path:
    """Return the folder of known datasets: DUBITO_DATA, or the user's cache folder."""
    folder = os.environ.get("DUBITO_DATA") or need("pooch", "data").os_cache("dubito")
    return Path(folder).expanduser()


def fetch(name: str, release: Release, files: Sequence[str]) -> list[Path]:
    """Return files of a release; those that are not in the data folder are downloaded.

    Args:
        name: Name of the dataset, and of its folder in the data folder.
        release: Description of the files.
        files: Files to return.
    """
    folder = data_folder() / name
    for file in files:
        if _find(folder, release, file) is None:
            _download(folder, release, release.archive or file)
    return [_checked(_find(folder, release, file) or folder / file, release) for file in files]


def _find(folder: Path, release: Release, file: str) -> Path | None:
    """Return where a file is: as published or decompressed, in the folder or as unpacked."""
    places = [folder / file, folder / release.inside / file, folder / file.removesuffix(".gz")]
    return next((place for place in places if place.is_file()), None)


def _download(folder: Path, release: Release, file: str) -> None:
    pooch = need("pooch", "data")
    bar = sys.stderr.isatty() and find_spec("tqdm") is not None
    # Some servers call .gz files an encoding of their content, which requests would undo.
    headers = {"Accept-Encoding": "identity"}
    failures = []
    for address in release.mirrors:
        try:
            pooch.retrieve(
                address + file,
                known_hash=f"md5:{release.md5[file]}",
                fname=file,
                path=folder,
                processor=pooch.Untar(extract_dir=".") if file == release.archive else None,
                downloader=pooch.HTTPDownloader(progressbar=bar, timeout=TIMEOUT, headers=headers),
            )
            return
        except (OSError, ValueError) as error:  # no connection, no such file, a wrong checksum
            failures.append(f"{address + file} ({' '.join(str(error).split())[:80]})")
    raise DubitoError(
        f"cannot download {file} from {', '.join(failures)}: put the file into {folder}, or set "
        f"DUBITO_DATA to a folder with {folder.name}/{file}"
    )


def _checked(path: Path, release: Release) -> Path:
    published = release.md5.get(path.name)
    md5 = None if published is None else need("pooch", "data").file_hash(path, alg="md5")
    if md5 != published:
        warnings.warn(
            f"{path} is not the published file: its md5 is {md5}, expected {published}; "
            "delete it to download it again",
            stacklevel=2,
        )
    return path


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors about the content of a file into one with the remedy.

    Args:
        path: File that is read.
    """
    try:
        yield
    except Exception as error:  # readers raise errors of many kinds for a damaged file
        raise DubitoError(
            f"{path} is truncated or another file ({type(error).__name__}: {error}); delete it to "
            "download it again"
        ) from error


# --- parsers of published files ---


def _mnist(paths: Sequence[Path]) -> tuple[Array, Array]:
    """Parse idx files of images (N, H, W) and labels (N,)."""
    return _idx(paths[0], 3)[:, None], _idx(paths[1], 1).astype(np.int64)


def _cifar(paths: Sequence[Path], label_bytes: int = 1) -> tuple[Array, Array]:
    """Parse records of label bytes and 3 x 32 x 32 pixels, channel by channel.

    The last label byte counts: CIFAR-100 has two, coarse and fine.
    """
    parts = []
    for path in paths:
        with reading(path):
            data = np.frombuffer(path.read_bytes(), np.uint8)
            if not len(data):
                raise ValueError("it is empty")
            parts.append(data.reshape(-1, label_bytes + 3 * SIDE * SIDE))
    records = np.concatenate(parts)
    images = records[:, label_bytes:].reshape(-1, 3, SIDE, SIDE)
    return images, records[:, label_bytes - 1].astype(np.int64)


def _svhn(paths: Sequence[Path]) -> tuple[Array, Array]:
    """Parse a MATLAB file of X (32, 32, 3, N) and y (N, 1), where 10 means 0."""
    (path,) = paths
    loadmat = need("scipy.io", "sklearn").loadmat
    with reading(path), path.open("rb") as file:
        content = loadmat(file, variable_names=["X", "y"])
        images = content["X"].transpose(3, 2, 0, 1).reshape(-1, 3, SIDE, SIDE)
        labels = content["y"].astype(np.int64).reshape(len(images))
    return images, labels % 10


def _idx(path: Path, ndim: int) -> Array:
    """Parse an array of bytes with `ndim` axes from an idx file, compressed or not.

    The format: two zero bytes, a type code (8 is uint8), the number of axes, the length of each
    axis as a big-endian uint32, and the values.
    """
    data = path.read_bytes()
    with reading(path):
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        if data[:4] != bytes([0, 0, 8, ndim]):
            raise ValueError(f"it starts with {data[:4].hex(' ')}, not 00 00 08 0{ndim}")
        shape = np.frombuffer(data, ">u4", ndim, offset=4)
        return np.frombuffer(data, np.uint8, offset=4 + 4 * ndim).reshape(shape)


#: name -> parser
PARSERS: dict[str, Parser] = {
    "mnist": _mnist,
    "cifar": _cifar,
    "cifar_fine": partial(_cifar, label_bytes=2),
    "svhn": _svhn,
}


# --- built-in datasets ---


class Published(Release, frozen=True):
    """A dataset in files that a publisher distributes.

    Attributes:
        parser: One of PARSERS.
        parts: Files of each part.
        classes: Names of the classes, in the order of the labels.
        terms: License, or the terms of the authors.
        url: Where it is described.
    """

    parser: str
    parts: dict[str, tuple[str, ...]]
    classes: tuple[str, ...]
    terms: str
    url: str

    def load(self, name: str, part: str) -> Source:
        """Load a part under the name of the dataset."""
        if self.parser == "svhn":
            need("scipy.io", "sklearn")  # before the download
        images, labels = PARSERS[self.parser](fetch(name, self, self.parts[part]))
        return _memory(name, images, np.array(self.classes)[labels])


def _memory(name: str, images: Array, target: Array) -> Source:
    return Items(name, ImageFormat.fit(images), images, target).in_memory()


def _register(name: str, published: Published) -> None:
    @DATASETS.register(name)
    class PublishedDataset(Dataset):
        parts: ClassVar[tuple[str, ...]] = tuple(published.parts)

        def load(self, part: str) -> Source:
            return published.load(name, part)


_TEXT = resources.files(__package__).joinpath("known.json").read_text("utf-8")
for _name, _published in TypeAdapter(dict[str, Published]).validate_json(_TEXT).items():
    _register(_name, _published)


@DATASETS.register("digits")
class Digits(Dataset):
    """The digits of scikit-learn (CC BY 4.0), 80 % for training, each class in proportion."""

    def load(self, part: str) -> Source:
        data = need("sklearn.datasets", "sklearn").load_digits()
        pixels = (data.images[:, None] * 255 / 16).round().astype(np.uint8)  # published as 0 to 16
        source = _memory("digits", pixels, data.target.astype(str))
        train, test = split(source, 0.8, 0, stratify=True)
        return train if part == "train" else test
