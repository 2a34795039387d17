"""Published formats to arrays: idx (MNIST and its kin), CIFAR's binary version, SVHN's .mat.

A parser takes the files of one part and gives images (N, C, H, W) uint8 and labels (N,) int64.
"""

from __future__ import annotations

import gzip
import io
import math
import zlib
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dubito.data.files import Blob

__all__ = ["Parsed", "Parser", "cifar", "idx", "mnist", "svhn"]

Pixels: TypeAlias = npt.NDArray[np.uint8]
Parsed: TypeAlias = tuple[Pixels, npt.NDArray[np.int64]]
Parser: TypeAlias = Callable[[Sequence[Blob]], Parsed]

SIDE = 32  # of CIFAR's and SVHN's images
PIXELS = 3 * SIDE * SIDE


def _decompressed(blob: Blob) -> bytes:
    if not blob.data.startswith(b"\x1f\x8b"):
        return blob.data
    try:
        return gzip.decompress(blob.data)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(
            f"{blob.path} ({len(blob.data):,} bytes) cannot be decompressed: {error}. "
            "Is it truncated? Delete it to download it again"
        ) from error


def idx(blob: Blob, ndim: int) -> Pixels:
    """An array of bytes with `ndim` axes from an idx file, compressed or not.

    The format: two zero bytes, a type code (8 is uint8), the number of axes, each axis' length as
    a big-endian uint32, and the values.

    >>> from pathlib import Path
    >>> content = bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9])
    >>> idx(Blob(Path("labels-idx1-ubyte"), content), 1)
    array([7, 8, 9], dtype=uint8)
    """
    data = _decompressed(blob)
    magic, wanted = data[:4], bytes([0, 0, 8, ndim])
    if magic != wanted:
        raise ValueError(
            f"{blob.path} is not an idx file of {ndim}-dimensional bytes: "
            f"it begins with {magic.hex(' ')}, not {wanted.hex(' ')}"
        )
    head = 4 + 4 * ndim
    shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, head, 4))
    if len(data) - head != math.prod(shape):
        raise ValueError(
            f"{blob.path} is truncated or too long: its header says {shape}, that is "
            f"{math.prod(shape):,} values, but {max(len(data) - head, 0):,} follow"
        )
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape)


def mnist(blobs: Sequence[Blob]) -> Parsed:
    """MNIST and the sets in its format: a file of images (N, H, W) and a file of labels (N,)."""
    images, labels = idx(blobs[0], 3), idx(blobs[1], 1)
    if len(images) != len(labels):
        raise ValueError(
            f"{blobs[0].path} has {len(images):,} images, "
            f"but {blobs[1].path} has {len(labels):,} labels"
        )
    # Copied, because bytes can't be written to and a tensor can.
    return images[:, None].copy(), labels.astype(np.int64)


def cifar(blobs: Sequence[Blob], label_bytes: int = 1) -> Parsed:
    """CIFAR's binary version: records of label bytes and 3 x 32 x 32 pixels, channel by channel.

    The last label byte counts. CIFAR-100 has two label bytes: coarse and fine.
    """
    record = label_bytes + PIXELS
    parts = []
    for blob in blobs:
        if not blob.data or len(blob.data) % record:
            raise ValueError(
                f"{blob.path} is truncated or no such file: {len(blob.data):,} bytes "
                f"are not a multiple of the {record} bytes of a record"
            )
        parts.append(np.frombuffer(blob.data, np.uint8).reshape(-1, record))
    images = np.concatenate([part[:, label_bytes:] for part in parts])
    labels = np.concatenate([part[:, label_bytes - 1] for part in parts])
    return images.reshape(-1, 3, SIDE, SIDE), labels.astype(np.int64)


def svhn(blobs: Sequence[Blob]) -> Parsed:
    """SVHN's cropped digits: a MATLAB file of X (32, 32, 3, N) and y (N, 1), where 10 means 0."""
    from scipy.io import loadmat

    (blob,) = blobs
    try:
        content = loadmat(io.BytesIO(blob.data), variable_names=["X", "y"])
    except Exception as error:  # a damaged file brings errors of many kinds out of the reader
        raise ValueError(
            f"{blob.path} ({len(blob.data):,} bytes) cannot be read as a MATLAB file: "
            f"{type(error).__name__}: {error}. Is it truncated? Delete it to download it again"
        ) from error
    shapes = {name: content[name].shape for name in ("X", "y") if name in content}
    images, count = shapes.get("X", ()), math.prod(shapes.get("y", ()))
    if len(images) != 4 or images != (SIDE, SIDE, 3, count) or content["X"].dtype != np.uint8:
        raise ValueError(
            f"{blob.path} must hold bytes X ({SIDE}, {SIDE}, 3, N) and y (N, 1), but has {shapes}"
        )
    labels = content["y"].astype(np.int64).reshape(-1)
    return content["X"].transpose(3, 2, 0, 1).copy(), np.where(labels == 10, 0, labels)
