"""Data: sources and known datasets."""

from dubito.data.base import Source, split
from dubito.data.known import DATASETS, Dataset
from dubito.data.sources import open

__all__ = ["DATASETS", "Dataset", "Source", "open", "split"]
