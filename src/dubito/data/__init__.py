"""Data: formats, sources and known datasets."""

from typing import Annotated

from pydantic import Field

from dubito.data.arrays import ArrayFormat
from dubito.data.base import Source, split
from dubito.data.images import ImageFormat
from dubito.data.known import DATASETS, register
from dubito.data.sources import open
from dubito.data.tables import TableFormat

#: any format, discriminated by `kind`
AnyFormat = Annotated[ImageFormat | TableFormat | ArrayFormat, Field(discriminator="kind")]

__all__ = [
    "DATASETS", "ArrayFormat", "ImageFormat", "Source", "TableFormat", "open", "register", "split",
]  # fmt: skip
