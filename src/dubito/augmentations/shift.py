"""Random flips, shifted crops and rotations of a batch, on its device.

All three only move pixels, so their chain is one table of source pixels and one gather. The result
equals that of a flip, a crop of the padded image and a rotation with nearest pixels in turn.
"""

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt
from torch import Tensor

from dubito.augmentations.base import AUGMENTATIONS, Augmentation

__all__: list[str] = []


@AUGMENTATIONS.register("shift")
class Shift(Augmentation):
    """Flip an image, crop it after padding, then rotate it; filled with zeros.

    The defaults are those of the I-EDL paper for CIFAR-10.

    >>> shift = Shift()
    >>> images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    >>> changes = shift.draw(2, torch.Generator().manual_seed(0))
    >>> shift.apply(images, changes).shape
    torch.Size([2, 3, 32, 32])
    """

    columns = 4

    flip: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Probability of a flip from left to right."""
    padding: NonNegativeInt = 4
    """Pixels of padding on each side before the crop."""
    degrees: Annotated[float, Field(ge=0, le=180)] = 15.0
    """Largest angle of the rotation about the center."""

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw changes (count, 4).

        Columns: 1 to flip or 0, the crop's top and left in the padded image (0 to 2 padding), and
        the angle in degrees, counterclockwise.

        Args:
            count: Number of images.
            generator: Source of random numbers.
        """
        changes = torch.rand(count, self.columns, generator=generator, device=generator.device)
        flip, corner, turn = changes.split([1, 2, 1], dim=1)
        places = 2 * self.padding + 1
        flip.copy_(flip < self.flip)
        corner.mul_(places).floor_().clamp_(max=places - 1)
        turn.mul_(2).sub_(1).mul_(self.degrees)
        return changes

    def apply(self, images: Tensor, changes: Tensor) -> Tensor:
        """Change images of any type, each in its own way; shapes are static.

        Args:
            images: Images (N, C, H, W).
            changes: Result of `draw`, (N, 4), on the same device.
        """
        self.check(images, changes)
        # At least one pixel of border: its corner is the zero that everything outside points to.
        border = max(self.padding, 1)
        padded = F.pad(images, (border,) * 4)
        source = self._source(changes, images.shape[-2], images.shape[-1], border)
        index = source.unsqueeze(1).expand(-1, images.shape[1], -1)
        return padded.flatten(2).gather(2, index).view(images.shape)

    def _source(self, changes: Tensor, height: int, width: int, border: int) -> Tensor:
        """Return the index of each pixel's source in the padded image: (N, H * W)."""
        flip, top, left, angle = changes[:, :, None, None].unbind(1)
        # Centers of the pixels, from the center of the image.
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
