"""CIFAR-10H: what some fifty people said of each CIFAR-10 test image (Peterson et al. 2019)."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dubito.data.classes import CIFAR_10
from dubito.data.files import Blob, Release, read

__all__ = ["CIFAR_10H", "human_counts", "read_counts"]

SAMPLES = 10_000
_FILE = "cifar10h-counts.npy"
#: the file of counts; CC BY-NC-SA 4.0
CIFAR_10H = Release(
    "cifar-10h",
    {_FILE: "f1284b6fba48a67d3db69bbafb5685ad"},
    ("https://raw.githubusercontent.com/jcpeterson/cifar-10h/master/data/",),
)


def human_counts(root: str | os.PathLike[str] | None = None, download: bool = True) -> Tensor:
    """How many people chose each class, (10000, 10) int64, in the order of CIFAR-10's test images.

    Looked for in the folder `cifar-10h` of the data folder, and downloaded unless it is there; see
    `dubito.data.load`.
    """
    (blob,) = read(CIFAR_10H, [_FILE], root, download)
    counts = read_counts(blob)
    if counts.shape != (SAMPLES, len(CIFAR_10)):
        raise ValueError(
            f"{blob.path} holds counts of shape {tuple(counts.shape)}, "
            f"not {(SAMPLES, len(CIFAR_10))}"
        )
    return counts


def read_counts(blob: Blob) -> Tensor:
    """Counts (N, K) in a .npy file; nothing in it is unpickled."""
    try:
        counts: Any = np.load(io.BytesIO(blob.data), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{blob.path} is no .npy file of plain numbers: {error}") from error
    whole = isinstance(counts, np.ndarray) and counts.dtype.kind in "iu" and counts.ndim == 2
    if not whole or (counts < 0).any() or not (counts.sum(1) > 0).all():
        seen = f"{counts.dtype} of shape {counts.shape}" if hasattr(counts, "dtype") else "no array"
        raise ValueError(
            f"{blob.path} should hold whole numbers (N, K), none negative and some in each row, "
            f"but holds {seen}"
        )
    return torch.from_numpy(counts.astype(np.int64))
