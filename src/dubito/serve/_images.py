"""Images that strangers send: known formats alone, and pixels counted before any is decoded."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dubito.data.folder import MODES, pixels
from dubito.serve import _tiff
from dubito.serve._problem import Problem

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["FORMATS", "Decoded", "decode", "measure", "prepare"]

#: formats that are decoded, by Pillow's names; all others are refused unread
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
#: scans of a JPEG. A decoder goes over all pixels for each, so a small file could keep it for hours
MOST_SCANS = 100
START_OF_SCAN = b"\xff\xda"
Decoded = npt.NDArray[np.float32]


def prepare() -> None:
    """Load the decoders now, and let this module be the one that judges images, not warnings."""
    from PIL import Image

    # A file can cause thousands of warnings, and whoever reads the log can't mend it.
    warnings.filterwarnings("ignore", module=r"PIL\b")
    Image.init()


def measure(files: Sequence[bytes], most: int) -> list[tuple[int, int]]:
    """The (width, height) of images, from their headers; a Problem if they are too many pixels."""
    sizes = []
    total = 0
    for index, content in enumerate(files):
        try:
            decoded = _tiff.pixels(content)
        except ValueError as error:
            raise _bad(index, error) from error
        with _opened(content, index) as image:
            sizes.append(image.size)
        total += max(decoded, image.size[0] * image.size[1])
        if total > most:
            raise Problem(
                "too_large",
                f"{'this image has' if len(files) == 1 else 'the images up to this one have'} "
                f"{total} pixels; a request may have {most}",
                index=index,
            )
    return sizes


def decode(content: bytes, index: int, shape: Sequence[int], mode: str) -> Decoded:
    """One image as (C, H, W) in [0, 1], as `dubito predict` reads it; its size was judged before.

    The first frame counts, turned as its camera meant, transparency laid on white.
    """
    channels, height, width = shape
    assert MODES[mode] == channels
    try:
        with _opened(content, index) as opened:
            found = pixels(opened, (height, width), mode)
    except Problem:
        raise
    except Exception as error:  # decoders raise errors of many kinds for a damaged file
        raise _bad(index, error) from error
    return found.astype(np.float32) / np.float32(255)


def _opened(content: bytes, index: int) -> Image.Image:
    from PIL import Image, UnidentifiedImageError

    if not content:
        raise Problem("bad_image", "the file is empty", index=index)
    try:
        image: Any = Image.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError as error:
        known = ", ".join(FORMATS)
        message = f"this is no image that can be read; known formats: {known}"
        raise Problem("bad_image", message, index=index) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise Problem("too_large", "this image has far too many pixels", index=index) from error
    except Exception as error:
        raise _bad(index, error) from error
    # A JPEG that says it has a second picture is called MPO, and is decoded alike.
    if image.format in ("JPEG", "MPO") and content.count(START_OF_SCAN) > MOST_SCANS:
        raise Problem("bad_image", f"a JPEG may have {MOST_SCANS} scans", index=index)
    opened: Image.Image = image
    return opened


def _bad(index: int, error: Exception) -> Problem:
    # Pillow's own words can hold addresses of objects, so only those of a few kinds are passed on.
    told = str(error) if isinstance(error, OSError | ValueError) and "<" not in str(error) else ""
    reason = f": {' '.join(told.split())[:100]}" if told else ""
    return Problem("bad_image", f"this image can't be decoded{reason}", index=index)
