"""Random changes of training images, one file per augmentation."""

from dubito.augmentations.base import AUGMENTATIONS, Augmentation
from dubito.augmentations.photo import Photo
from dubito.augmentations.shift import Shift

__all__ = ["AUGMENTATIONS", "Augmentation", "Photo", "Shift"]
