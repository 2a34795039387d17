"""Data as tensors: known sets, image folders, tables and features; batches and augmentation."""

from dubito.data.arrays import Arrays, as_floats, join, split
from dubito.data.augment import Augment
from dubito.data.download import data_root
from dubito.data.features import read_features
from dubito.data.folder import ImageFolder, read_folder, read_images
from dubito.data.loader import Batches, Stream, fits, from_dataset
from dubito.data.registry import DATASETS
from dubito.data.sources import FORMATS, load, parts
from dubito.data.tables import read_csv, read_npz

__all__ = [
    "DATASETS",
    "FORMATS",
    "Arrays",
    "Augment",
    "Batches",
    "ImageFolder",
    "Stream",
    "as_floats",
    "data_root",
    "fits",
    "from_dataset",
    "join",
    "load",
    "parts",
    "read_csv",
    "read_features",
    "read_folder",
    "read_images",
    "read_npz",
    "split",
]
