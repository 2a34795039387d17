"""Formats: how inputs become tensors. A format is one file and an entry of `FORMATS`."""

from dubito.formats.arrays import ArrayFormat
from dubito.formats.base import FORMATS, Encoded, InputFormat
from dubito.formats.images import ImageFormat, Resize
from dubito.formats.preprocessing import Preprocessing
from dubito.formats.tables import TableFormat
from dubito.formats.text import TextFormat
from dubito.formats.tokens import TokensFormat  # noqa: F401 - registers the format

__all__ = [
    "FORMATS", "ArrayFormat", "Encoded", "ImageFormat", "InputFormat", "Preprocessing", "Resize",
    "TableFormat", "TextFormat",
]  # fmt: skip
