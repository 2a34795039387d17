"""Formats: how inputs become tensors. A format is one file and an entry of `FORMATS`."""

from dubito.formats.arrays import ArrayFormat
from dubito.formats.base import FORMATS, Encoded, InputFormat
from dubito.formats.images import ImageFormat, Resize
from dubito.formats.preprocessing import Preprocessing
from dubito.formats.tables import TableFormat

__all__ = [
    "FORMATS", "ArrayFormat", "Encoded", "ImageFormat", "InputFormat", "Preprocessing", "Resize",
    "TableFormat",
]  # fmt: skip

FORMATS.declare(__name__, "text", "tokens")
