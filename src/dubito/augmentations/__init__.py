"""Random changes of training images, one file per augmentation."""

from dubito.augmentations.base import AUGMENTATIONS, Augmentation

__all__ = ["AUGMENTATIONS", "Augmentation"]

AUGMENTATIONS.declare(__name__, "photo", "shift")
