"""Random flips, shifted crops and rotations of a whole batch, on the device it is on.

All three only move pixels, so their chain is one table of source pixels and one gather: exactly
what a flip, a crop of the padded image and a rotation with nearest pixels do one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Augment"]


@dataclass(frozen=True)
class Augment:
    """Flip left and right with probability `flip`, crop after padding, rotate within +-`degrees`.

    In that order, all filled with zeros, and the rotation about the centre. The defaults are the
    paper's for CIFAR-10. `draw` makes the random numbers and `apply` uses them, so that a captured
    CUDA graph can get new ones in a fixed tensor.

    >>> augment = Augment()
    >>> images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    >>> chosen = augment.draw(2, torch.Generator().manual_seed(0))
    >>> augment.apply(images, chosen).shape
    torch.Size([2, 3, 32, 32])
    >>> still = torch.tensor([[0.0, 4.0, 4.0, 0.0]]).expand(2, 4)
    >>> torch.equal(augment.apply(images, still), images)
    True
    """

    flip: float = 0.5
    padding: int = 4
    degrees: float = 15.0

    def __post_init__(self) -> None:
        if not 0 <= self.flip <= 1:
            raise ValueError(f"flip must be a probability, not {self.flip!r}")
        if self.padding < 0 or self.padding != int(self.padding):
            raise ValueError(f"padding must be a whole number of pixels >= 0, not {self.padding!r}")
        if not 0 <= self.degrees <= 180:
            raise ValueError(f"degrees must be from 0 to 180, not {self.degrees!r}")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Images (N, C, H, W) of any type, each changed in its own way."""
        return self.apply(images, self.draw(len(images), generator).to(images.device))

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Random changes (count, 4), float32 on the generator's device.

        Columns: 1 to flip or 0, the crop's top and left in the padded image (0 ... 2 padding), and
        the angle in degrees, counter-clockwise.
        """
        uniform = torch.rand(count, 4, generator=generator, device=generator.device)
        flip, corner, turn = uniform[:, :1], uniform[:, 1:3], uniform[:, 3:]
        places = 2 * self.padding + 1
        return torch.cat(
            [
                (flip < self.flip).float(),
                (corner * places).floor().clamp(max=places - 1),
                (2 * turn - 1) * self.degrees,
            ],
            dim=1,
        )

    def apply(self, images: Tensor, changes: Tensor) -> Tensor:
        """Images (N, C, H, W) after changes (N, 4), on the same device; shapes are static."""
        if images.ndim != 4 or changes.shape != (len(images), 4):
            raise ValueError(
                f"expected images (N, C, H, W) and changes (N, 4), "
                f"not {tuple(images.shape)} and {tuple(changes.shape)}"
            )
        # At least one pixel of border: its corner is the zero that everything outside points to.
        border = max(self.padding, 1)
        padded = F.pad(images, (border,) * 4)
        source = self._source(changes, images.shape[-2], images.shape[-1], border)
        index = source.unsqueeze(1).expand(-1, images.shape[1], -1)
        return padded.flatten(2).gather(2, index).view(images.shape)

    def _source(self, changes: Tensor, height: int, width: int, border: int) -> Tensor:
        """For each pixel of the result the index of its source in the padded image, (N, H * W)."""
        flip, top, left, angle = changes[:, :, None, None].unbind(1)
        # Centres of the pixels, from the centre of the image.
        x = torch.arange(width, device=changes.device) - (width - 1) / 2
        y = (torch.arange(height, device=changes.device) - (height - 1) / 2)[:, None]
        turn = angle.deg2rad()
        cos, sin = turn.cos(), turn.sin()
        column = ((cos * x + width / 2) - sin * y).floor().int()
        row = ((sin * x + height / 2) + cos * y).floor().int()
        # -1 where a coordinate or its distance to the far edge is negative, else 0; on the CPU
        # four comparisons take several times as long.
        outside = (column | (width - 1 - column) | row | (height - 1 - row)) >> 31
        # Padding is the same on both sides, so the flip may come after it.
        stride = width + 2 * border
        mirrored = flip.int()
        start = left.int() + (border - self.padding)
        start = start + mirrored * (stride - 1 - 2 * start)
        above = (top.int() + (border - self.padding)) * stride
        index = column * (1 - 2 * mirrored) + (start + above) + row * stride
        return (index & ~outside).flatten(1).long()
