"""Parsers of published files: idx (MNIST), CIFAR's binary version, SVHN's .mat.

A parser reads the files of one part as images (N, C, H, W) uint8 and labels (N,) int64.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dubito._extras import need
from dubito.data._files import reading
from dubito.errors import DubitoError

__all__: list[str] = []

Array = np.ndarray[Any, Any]
Parser = Callable[[Sequence[Path]], tuple[Array, Array]]

SIDE = 32  # of CIFAR's and SVHN's images


def mnist(paths: Sequence[Path]) -> tuple[Array, Array]:
    """Parse a file of images (N, H, W) and a file of labels (N,)."""
    images, labels = _idx(paths[0], 3), _idx(paths[1], 1)
    if len(images) != len(labels):
        raise DubitoError(
            f"{paths[0]} has {len(images):,} images, but {paths[1]} has {len(labels):,} labels"
        )
    return images[:, None], labels.astype(np.int64)


def cifar(paths: Sequence[Path], label_bytes: int = 1) -> tuple[Array, Array]:
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


def svhn(paths: Sequence[Path]) -> tuple[Array, Array]:
    """Parse a MATLAB file of X (32, 32, 3, N) and y (N, 1), where 10 means 0."""
    (path,) = paths
    loadmat = need("scipy.io", "sklearn").loadmat
    with reading(path), path.open("rb") as file:
        content = loadmat(file, variable_names=["X", "y"])
        images = content["X"].transpose(3, 2, 0, 1).reshape(-1, 3, SIDE, SIDE)
        labels = content["y"].astype(np.int64).reshape(len(images))
    return images, labels % 10


#: name -> parser
PARSERS: dict[str, Parser] = {
    "mnist": mnist,
    "cifar": cifar,
    "cifar_fine": partial(cifar, label_bytes=2),
    "svhn": svhn,
}


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
