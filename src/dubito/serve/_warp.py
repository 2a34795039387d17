"""Digits as different hands would write them, made of the embedded ones.

These have 8 x 8 pixels. Enlarged and sharpened about a level of grey they get back much of the
shape that they were counted from; the level makes strokes thinner or thicker.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["SIDE", "plain", "shrunk", "warped"]

SIDE = 16  # pixels of the demonstration's images
WORK = 32  # pixels while they are warped
LEVEL, SPREAD = 0.45, 0.2  # where strokes end, and how far that varies
SHARPEST = 8.0
BENDING = 0.1
SOFT = 0.25  # the share that keeps its soft strokes


def plain(images: Tensor, side: int = SIDE) -> Tensor:
    """Images (N, 1, h, w) in [0, 1], enlarged and brought to (N, 1, side, side), as they are."""
    return shrunk(enlarged(images), side)


def enlarged(images: Tensor) -> Tensor:
    """(N, 1, h, w) -> (N, 1, 32, 32)."""
    return F.interpolate(images, (WORK, WORK), mode="bicubic", align_corners=False).clamp(0, 1)


def shrunk(images: Tensor, side: int = SIDE) -> Tensor:
    """With the triangle filter by which images are resized that clients send."""
    size = (side, side)
    made = F.interpolate(images, size, mode="bilinear", align_corners=False, antialias=True)
    return made.clamp(0, 1)


def warped(images: Tensor, generator: torch.Generator, strength: float = 1.0) -> Tensor:
    """Images (N, 1, h, w) in [0, 1], each written in another way: (N, 1, 16, 16).

    >>> made = warped(torch.rand(2, 1, 8, 8), torch.Generator().manual_seed(0))
    >>> made.shape, bool((made >= 0).all() and (made <= 1).all())
    (torch.Size([2, 1, 16, 16]), True)
    """
    x = enlarged(images)
    moved = F.grid_sample(x, _grid(x, generator, strength), mode="bilinear", align_corners=False)
    return shrunk(_inked(moved, generator, strength))


def _grid(x: Tensor, generator: torch.Generator, strength: float) -> Tensor:
    """Where each pixel comes from: turned, slanted, stretched, shifted, and bent a little."""
    count = len(x)

    def within(most: float) -> Tensor:
        return most * strength * (2 * torch.rand(count, generator=generator) - 1)

    size, stretch = 0.93 + within(0.12), within(0.2).exp()
    turn, slant = within(15).deg2rad(), within(0.3)
    zero = torch.zeros(count)
    rotate = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], -1).view(-1, 2, 2)
    scale = torch.stack([1 / (size * stretch), slant, zero, stretch / size], -1).view(-1, 2, 2)
    shift = torch.stack([within(0.1), within(0.1)], -1)
    grid = F.affine_grid(
        torch.cat([scale @ rotate, shift[..., None]], -1), list(x.shape), align_corners=False
    )
    knots = torch.randn(count, 2, 4, 4, generator=generator)
    bent = F.interpolate(knots, x.shape[-2:], mode="bicubic", align_corners=True)
    return grid + BENDING * strength * bent.permute(0, 2, 3, 1)


def _inked(x: Tensor, generator: torch.Generator, strength: float) -> Tensor:
    """Strokes thinner or thicker, sharper or softer, brighter or darker."""

    def between(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(len(x), 1, 1, 1, generator=generator)

    level = LEVEL + SPREAD * strength * between(-1, 1)
    slope = 4 * between(0, math.log(SHARPEST)).exp()
    low, high = torch.sigmoid(-slope * level), torch.sigmoid(slope * (1 - level))
    sharp = (torch.sigmoid(slope * (x - level)) - low) / (high - low)
    soft = between(0, 1) < SOFT
    return (torch.where(soft, x, sharp) * between(0.75, 1.0)).clamp(0, 1)
