"""The augmentation protocol: random numbers of an epoch, and what they do to a batch."""

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from dubito.errors import DubitoError
from dubito.registry import Entry, Registry

__all__ = ["AUGMENTATIONS", "Augmentation"]


class Augmentation(Entry, ABC):
    """Random changes of training images.

    `draw` makes the random numbers of many images and `apply` uses those of a batch, so that a
    captured CUDA graph gets new ones in a fixed tensor. Pixels are changed before they are
    normalized, float images after that.

    Attributes:
        columns: Random numbers per image.
    """

    columns: ClassVar[int]

    @abstractmethod
    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw random numbers (count, columns), float32 on the generator's device.

        Args:
            count: Number of images.
            generator: Source of random numbers.
        """

    @abstractmethod
    def apply(self, images: Tensor, changes: Tensor) -> Tensor:
        """Change images, each in its own way; shape, type and device stay.

        A CUDA graph must be able to capture it: shapes do not depend on values, and nothing is
        read from the device or copied to it.

        Args:
            images: Images (N, C, H, W), uint8 or float.
            changes: Rows of the result of `draw`, (N, columns), on the same device.
        """

    def check(self, images: Tensor, changes: Tensor) -> None:
        """Raise unless the arguments of `apply` have the right shapes.

        Args:
            images: Images (N, C, H, W).
            changes: Random numbers (N, columns).
        """
        if images.ndim != 4 or changes.shape != (len(images), self.columns):
            raise DubitoError(
                f"expected images (N, C, H, W) and changes (N, {self.columns}), "
                f"not {tuple(images.shape)} and {tuple(changes.shape)}"
            )


AUGMENTATIONS: Registry[Augmentation] = Registry("augmentation", Augmentation)

#: field for an augmentation: an augmentation, its name, or a dict with its name
AnyAugmentation = Annotated[Augmentation, AUGMENTATIONS]
