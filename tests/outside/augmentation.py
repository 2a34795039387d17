"""Brighter and darker images."""

import torch
from torch import Tensor

from dubito.augmentations import AUGMENTATIONS, Augmentation


@AUGMENTATIONS.register("dim")
class Dim(Augmentation):
    """Multiply all pixels of an image by a number."""

    columns = 1

    darkest: float = 0.5
    """Smallest factor."""

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        share = torch.rand(count, 1, generator=generator, device=generator.device)
        return self.darkest + (1 - self.darkest) * share

    def apply(self, images: Tensor, changes: Tensor) -> Tensor:
        self.check(images, changes)
        return (images * changes[:, :, None, None]).to(images.dtype)
