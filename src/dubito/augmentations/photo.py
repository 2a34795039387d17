"""Random resized crops, flips and light changes of color, as for ImageNet (Szegedy et al., 2015).

Paper: https://arxiv.org/abs/1409.4842
"""

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from dubito.augmentations.base import AUGMENTATIONS, Augmentation

__all__: list[str] = []

Share = Annotated[float, Field(ge=0, le=1)]
#: share of each color in the brightness of a pixel (ITU-R BT.601)
RGB = (0.299, 0.587, 0.114)


@AUGMENTATIONS.register("photo")
class Photo(Augmentation):
    """Crop a random part of a photo to its whole size, flip it, and change its colors a little.

    >>> photo = Photo(scale=0.7)
    >>> images = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)
    >>> changes = photo.draw(2, torch.Generator().manual_seed(0))
    >>> photo.apply(images, changes).shape
    torch.Size([2, 3, 64, 64])
    """

    columns = 8

    scale: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Smallest share of the image's area in a crop."""
    ratio: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 4 / 3
    """Largest ratio of a crop's sides to those of the image, in both directions."""
    flip: Share = 0.5
    """Probability of a flip from left to right."""
    brightness: Share = 0.2
    """Largest change of the brightness, as a share."""
    contrast: Share = 0.2
    """Largest change of the contrast, as a share."""
    saturation: Share = 0.2
    """Largest change of the saturation, as a share."""

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw changes (count, 8).

        Columns: 1 to flip or 0, height and width of the crop, its top and left edge, all as shares
        of the image, and the factors of brightness, contrast and saturation.

        Args:
            count: Number of images.
            generator: Source of random numbers.
        """
        uniform = torch.rand(count, self.columns, generator=generator, device=generator.device)
        flip, area, ratio, top, left, *factors = uniform.unbind(1)
        area = self.scale + (1 - self.scale) * area
        root = ((2 * ratio - 1) * (math.log(self.ratio) / 2)).exp()
        height = (area.sqrt() * root).clamp(max=1)
        width = (area.sqrt() / root).clamp(max=1)
        amounts = self.brightness, self.contrast, self.saturation
        jitter = [1 + a * (2 * u - 1) for a, u in zip(amounts, factors, strict=True)]
        box = [height, width, top * (1 - height), left * (1 - width)]
        return torch.stack([(flip < self.flip).float(), *box, *jitter], 1)

    def apply(self, images: Tensor, changes: Tensor) -> Tensor:
        """Change images.

        Colors stay in the range of bytes, those of float images in the range of each image.

        Args:
            images: Images (N, C, H, W), uint8 or float.
            changes: Result of `draw`, (N, 8), on the same device.
        """
        self.check(images, changes)
        x = images.float()
        if images.dtype == torch.uint8:
            low, high = x.new_zeros(()), x.new_full((), 255)
        else:
            low, high = x.aminmax(dim=-1, keepdim=True)
            low, high = low.amin((1, 2), keepdim=True), high.amax((1, 2), keepdim=True)
        x = jittered(cropped(x, changes), changes[:, 5:], low, high)
        return (x.round() if images.dtype == torch.uint8 else x).to(images.dtype)


def cropped(x: Tensor, changes: Tensor) -> Tensor:
    """Interpolate the crop of each image at the centers of all pixels, bilinearly."""
    flip, height, width, top, left = changes[:, :5, None].unbind(1)
    rows = places(x.shape[-2], top, height)
    columns = places(x.shape[-1], left, width)
    columns = torch.where(flip > 0, columns.flip(1), columns)
    # In the coordinates of grid_sample: -1 and 1 are the edges of the image.
    y, x_ = ((2 * c + 1) / s - 1 for c, s in ((rows, x.shape[-2]), (columns, x.shape[-1])))
    size = len(x), x.shape[-2], x.shape[-1]
    grid = torch.stack([x_[:, None, :].expand(size), y[:, :, None].expand(size)], -1)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def places(count: int, start: Tensor, share: Tensor) -> Tensor:
    """Return the places of pixels of a crop in the image: (N, count).

    Args:
        count: Pixels of the image, and of the result.
        start: Edge of the crop as a share of the image, (N, 1).
        share: Size of the crop as a share of the image, (N, 1).
    """
    pixels = torch.arange(count, device=start.device)
    first, size = start * count, share * count
    at = first + (pixels + 0.5) * share - 0.5
    # Beyond the centers of the outer pixels their values continue.
    return at.clamp(first, first + (size - 1).clamp_min(0))


def jittered(x: Tensor, factors: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Change brightness, contrast and saturation.

    Args:
        x: Images (N, C, H, W).
        factors: A factor of each, (N, 3).
        low: Smallest value, for each image or for all.
        high: Largest value.
    """
    brightness, contrast, saturation = factors[:, :, None, None, None].unbind(1)
    x = (x * brightness).clamp(low, high)
    x = torch.lerp(gray(x).mean((2, 3), keepdim=True), x, contrast).clamp(low, high)
    return torch.lerp(gray(x), x, saturation).clamp(low, high)


def gray(x: Tensor) -> Tensor:
    """Return the brightness of each pixel: (N, 1, H, W)."""
    if x.shape[1] != len(RGB):
        return x.mean(1, keepdim=True)
    shares = zip(RGB, x.split(1, 1), strict=True)
    return torch.stack([share * channel for share, channel in shares]).sum(0)
