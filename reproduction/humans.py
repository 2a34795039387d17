"""CIFAR-10H: how about fifty people labeled each CIFAR-10 test image (Peterson et al. 2019)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dubito.data.known import Release, fetch, reading

__all__ = ["human_counts"]

SHAPE = (10_000, 10)
FILE = "cifar10h-counts.npy"
#: CC BY-NC-SA 4.0
CIFAR_10H = Release(
    md5={FILE: "f1284b6fba48a67d3db69bbafb5685ad"},
    mirrors=("https://raw.githubusercontent.com/jcpeterson/cifar-10h/master/data/",),
)


def human_counts() -> Tensor:
    """Return how many people chose each class: (10000, 10) int64.

    Rows are in the order of the test images of CIFAR-10, columns in that of its classes. The file
    is downloaded unless it is in the data folder.
    """
    (path,) = fetch("cifar-10h", CIFAR_10H, [FILE])
    with reading(path):
        counts = np.load(path, allow_pickle=False).reshape(SHAPE)
        return torch.from_numpy(counts.astype(np.int64))
