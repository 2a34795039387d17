"""Data that comes with scikit-learn: digits, patches of two photographs, and digits under noise.

Nothing is downloaded. The digits were made of 32x32 bitmaps by counting ink in blocks of 4x4; the
patches are made alike, of 32x32 pixels of a photograph averaged in blocks of 4x4.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from dubito.data.arrays import Arrays, split
from dubito.data.registry import DATASETS

__all__ = ["Digits", "digits", "noisy", "patches"]

SIDE, BLOCK = 8, 4  # pixels of an image, and of the photograph in each of them
LUMA = (0.299, 0.587, 0.114)  # the grey of red, green and blue (ITU-R BT.601)


@dataclass(frozen=True)
class Digits:
    """The digits, divided."""

    train: Arrays
    validation: Arrays
    test: Arrays


def digits(seed: int = 0) -> Digits:
    """scikit-learn's 1797 digits (N, 1, 8, 8) in [0, 1]: 70 % train, 10 % validation, 20 % test.

    Every part has the classes in the same proportion.

    >>> parts = digits()
    >>> len(parts.train), len(parts.validation), len(parts.test)
    (1258, 180, 359)
    """
    everything = DATASETS["digits"].load("all")
    train, rest, _ = split(everything, 0.7, seed, stratified=True)
    validation, test, _ = split(rest, 1 / 3, seed, stratified=True)
    return Digits(train, validation, test)


def patches(count: int, seed: int = 0) -> Tensor:
    """Grey patches (count, 1, 8, 8) of two photographs, as many of each; contrast is kept.

    >>> found = patches(6)
    >>> found.shape, bool(found.min() >= 0), bool(found.max() <= 1)
    (torch.Size([6, 1, 8, 8]), True, True)
    """
    generator = torch.Generator().manual_seed(seed)
    windows = [_windows(photograph) for photograph in _photographs()]
    most = len(windows) * min(map(len, windows))
    if not 1 <= count <= most:
        raise ValueError(f"count must be from 1 to {most}, the patches there are, not {count!r}")
    shares = [count // len(windows) + (i < count % len(windows)) for i in range(len(windows))]
    drawn = [
        found[torch.randperm(len(found), generator=generator)[:share]]
        for found, share in zip(windows, shares, strict=True)
    ]
    return torch.cat(drawn).unsqueeze(1)


def noisy(images: Tensor, deviation: float, seed: int = 0) -> Tensor:
    """Images in [0, 1] with Gaussian noise of this standard deviation, clipped to [0, 1] again.

    >>> noisy(torch.full((1, 2), 0.5), 0.1)
    tensor([[0.6541, 0.4707]])
    """
    if not deviation >= 0:
        raise ValueError(f"deviation must be >= 0, not {deviation!r}")
    # Drawn on the CPU, so that a seed means the same noise on every device.
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))
    return (images + deviation * noise.to(images)).clamp(0, 1)


def _photographs() -> list[Tensor]:
    """The photographs in grey, in [0, 1]: (height, width) each."""
    from sklearn.datasets import load_sample_images

    # In float64, where the three weights add up to one: no grey is above white.
    weights = torch.tensor(LUMA, dtype=torch.float64)
    images = load_sample_images().images
    return [(torch.tensor(image, dtype=torch.float64) / 255 @ weights).float() for image in images]


def _windows(photograph: Tensor) -> Tensor:
    """Every 8x8 window of the photograph shrunk by blocks: (windows, 8, 8)."""
    small = avg_pool2d(photograph[None], BLOCK)[0]
    return small.unfold(0, SIDE, 1).unfold(1, SIDE, 1).flatten(0, 1)
