"""Images, and folders of them."""

from __future__ import annotations

import io
import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from dubito import _checks
from dubito._extras import need
from dubito.data import base
from dubito.data.arrays import CHANNELS, as_numpy, channels_first
from dubito.data.base import Array, Encoded, InputFormat, Items, Source
from dubito.errors import DubitoError

__all__ = ["ImageFormat"]

T = TypeVar("T")
Size = int | tuple[int, int] | None
Mode = Literal["L", "RGB"] | None

#: mode -> number of channels
MODES = {"L": 1, "RGB": 3}
#: extensions of image files; other files in a folder are ignored
EXTENSIONS = (
    *(".avif", ".bmp", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png"),
    *(".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp"),
)
#: media type -> Pillow's name; formats of files that are not trusted
UNTRUSTED = {f"image/{name}": name.upper() for name in ("jpeg", "png", "webp", "gif", "bmp")}
#: largest side of such a file in pixels; resizing takes memory for each
MAX_SIDE = 16_384
#: A decoder passes over all pixels for each scan of a JPEG: a small file could take hours.
MAX_SCANS, START_OF_SCAN = 100, b"\xff\xda"
#: tag of the orientation of a camera
ORIENTATION = 0x0112
GRAY = {"1", "L", "LA", "La", "I;16", "I;16B", "I;16L", "I;16N"}
#: modes that can be reduced, and the pixels from which images are, to save memory and time
REDUCIBLE, LARGE = ("L", "LA", "RGB", "RGBA"), 1 << 20
#: side of decoded images whose own sizes differ or exceed LARGEST
SIDE, LARGEST = 32, 64


class ImageFormat(InputFormat, frozen=True):
    """Images, decoded to one size.

    >>> ImageFormat(size=(8, 8), mode="L").shape
    (1, 8, 8)
    """

    kind: Literal["image"] = "image"
    media_types: ClassVar[tuple[str, ...]] = tuple(UNTRUSTED)
    size: tuple[PositiveInt, PositiveInt]
    """Height and width in pixels."""
    mode: Literal["L", "RGB"]
    """Gray or color."""

    @classmethod
    def of(cls, values: Array) -> ImageFormat:
        """Return the format of images.

        Args:
            values: Images (N, C, H, W), C in MODES.
        """
        return cls(size=values.shape[2:], mode="L" if values.shape[1] == 1 else "RGB")

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width."""
        return (MODES[self.mode], *self.size)

    def open(self, content: bytes) -> tuple[Any, int]:
        """Read the header of an image that is not trusted, and count its pixels.

        Args:
            content: JPEG, PNG, WebP, GIF or BMP file.
        """
        formats = tuple(UNTRUSTED.values())
        try:
            image = need("PIL.Image", "data").open(io.BytesIO(content), formats=formats)
            largest = max(image.size)
            self._draft(image)
        except Exception:  # decoders raise errors of many kinds
            raise DubitoError(f"damaged, or not one of {', '.join(formats)}") from None
        if largest > MAX_SIDE:
            raise DubitoError(f"a side has {largest} pixels; at most {MAX_SIDE} are allowed")
        if image.format in ("JPEG", "MPO") and content.count(START_OF_SCAN) > MAX_SCANS:
            raise DubitoError(f"more than {MAX_SCANS} scans")
        return image, math.prod(image.size)

    def _draft(self, image: Any) -> None:
        """Let a JPEG be decoded at a fraction of its size, which saves most of the time."""
        image.draft(self.mode, (2 * max(self.size), 2 * max(self.size)))

    def encode(self, items: Any) -> Encoded:
        """Decode images to uint8 (N, C, H, W); see `InputFormat.encode`.

        Camera orientation is applied, transparency becomes white, and other sizes are resized.

        Args:
            items: List of paths, bytes of image files, Pillow images or uint8 arrays; or a uint8
                array or tensor (N, C, H, W), (N, H, W, C) or (N, H, W).
        """
        if isinstance(items, Tensor | np.ndarray):
            items = channels_first(as_numpy(items))
            if items.dtype != np.uint8:
                raise DubitoError(f"arrays of images must be uint8, not {items.dtype}")
            if items.shape[1:] == self.shape:
                return Encoded(torch.from_numpy(np.array(items, order="C")), {}, {})
        elif isinstance(items, str | os.PathLike | bytes):
            items = [items]
        need("PIL.Image", "data")
        inputs = torch.zeros((len(items), *self.shape), dtype=torch.uint8)
        errors = {}
        for row, image in enumerate(each(self._decode, items)):
            if isinstance(image, Exception):
                errors[row] = " ".join(str(image).split()) or type(image).__name__
            else:
                inputs[row] = torch.from_numpy(image)
        return Encoded(inputs, errors, {})

    def _decode(self, item: Any) -> Array:
        image_class = need("PIL.Image", "data")
        if isinstance(item, Tensor | np.ndarray):
            return self._pixels(image_class.fromarray(_channels_last(np.asarray(item))))
        if isinstance(item, image_class.Image):
            return self._pixels(item)
        # As a stream: Pillow maps an uncompressed file into memory and garbles a rotated TIFF.
        with (
            io.BytesIO(item) if isinstance(item, bytes) else Path(item).open("rb") as stream,
            image_class.open(stream) as opened,
        ):
            return self._pixels(opened)

    def _pixels(self, opened: Any) -> Array:
        """Convert the first frame of an image to (C, H, W)."""
        height, width = self.size
        self._draft(opened)
        opened = _reduced(opened, 2 * max(self.size))
        image = eight_bit(need("PIL.ImageOps", "data").exif_transpose(opened)).convert(self.mode)
        bilinear = need("PIL.Image", "data").Resampling.BILINEAR
        pixels = np.array(image.resize((width, height), bilinear))
        return pixels.reshape(height, width, -1).transpose(2, 0, 1)

    def __str__(self) -> str:
        return f"{self.size[0]} x {self.size[1]} {self.mode} images"


def _reduced(image: Any, side: int) -> Any:
    """Average blocks of a large image, whose shorter side remains at least `side`."""
    factor = min(image.size) // side
    if factor < 2 or math.prod(image.size) < LARGE or image.mode not in REDUCIBLE:
        return image
    reduced = image.reduce(factor)
    # `reduce` loses the orientation of some formats; a TIFF is turned when it is loaded.
    reduced.getexif()[ORIENTATION] = image.getexif().get(ORIENTATION, 1)
    return reduced


def eight_bit(image: Any) -> Any:
    """Return an image that converts to any of MODES without clipping or guessing."""
    image_class = need("PIL.Image", "data")
    if image.mode.startswith("I;16"):
        return image_class.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise DubitoError(f"pixels of mode {image.mode} have no known range; store 8 or 16 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = image_class.new("RGBA", image.size, "white")
        return image_class.alpha_composite(white, image).convert("RGB")
    return image


def _channels_last(pixels: Array) -> Array:
    if pixels.dtype != np.uint8:
        raise DubitoError(f"an array of pixels must be uint8, not {pixels.dtype}")
    if pixels.ndim == 3 and pixels.shape[0] in CHANNELS and pixels.shape[-1] not in CHANNELS:
        pixels = np.moveaxis(pixels, 0, -1)
    return np.ascontiguousarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def each(function: Callable[[Any], T], items: Iterable[Any]) -> list[T | Exception]:
    """Return function(item) or the error it raised; decoding releases the interpreter's lock."""

    def attempt(item: Any) -> T | Exception:
        try:
            return function(item)
        except Exception as error:  # decoders raise errors of many kinds for a damaged file
            return error

    items = list(items)
    if len(items) == 1:  # starting threads takes longer than decoding
        return [attempt(items[0])]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(attempt, items))


def pair(size: int | tuple[int, int]) -> tuple[int, int]:
    """Return height and width."""
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 1:
        raise DubitoError(f"size must be a side or (height, width) of at least 1, not {size!r}")
    return height, width


# --- files and folders ----------------------------------------------------------------------------


def folders(folder: Path) -> list[Path]:
    """Return the sub-folders of a folder that are not hidden."""
    return sorted(folder.glob("[!.]*/"))


def class_files(folder: Path, parts: Sequence[str]) -> tuple[list[Path], Array]:
    """Return the images in the sub-folders of classes, and their classes.

    Args:
        folder: Folder.
        parts: Sub-folders to read; empty: the folder itself.
    """
    classes = [place for part in parts or [""] for place in folders(folder / part)]
    if not classes:
        raise DubitoError(
            f"{folder} has no sub-folders, and {len(_images(folder))} images: expected one "
            "sub-folder of images per class, at least two"
        )
    images = {place: _images(place) for place in classes}
    empty = [str(place) for place, files in images.items() if not files]
    if empty:
        raise DubitoError(
            f"there is no image in {base.listing(empty)}: add images with one of the extensions "
            f"{' '.join(EXTENSIONS)}, or remove the folder"
        )
    pairs = [(file, place.name) for place, files in images.items() for file in files]
    return [file for file, _ in pairs], np.array([name for _, name in pairs])


def image_files(paths: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return files as named, and all images below folders that are not hidden.

    Args:
        paths: Files and folders.
    """
    return [file for path in paths for file in _images(Path(path))]


def _images(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return [file for file in sorted(path.rglob("*")) if _is_image(file.relative_to(path))]


def open_images(
    name: str, files: list[Path], target: Array | None, format: ImageFormat, on_error: str
) -> Source:
    """Open image files; small ones are decoded at once, others when they are needed.

    Args:
        name: Name of the source.
        files: Paths.
        target: Their classes.
        format: Format to decode to.
        on_error: See `data.open`.
    """
    root = os.path.commonpath([file.absolute().parent for file in files])
    names = [os.path.relpath(file, root) for file in files]
    source = Items(name, format, files, target, names)
    if on_error == "report":
        return source
    if len(files) * math.prod(format.shape) <= base.IN_MEMORY:
        source = source.in_memory()
        errors = source.encode(range(len(files))).errors
    else:
        headers = enumerate(each(_header, files))
        errors = {row: str(header) for row, header in headers if isinstance(header, Exception)}
    if not errors:
        return source
    problems = base.listing([f"{names[row]}: {reason}" for row, reason in errors.items()])
    message = f"{name}: {len(errors)} of {len(files)} images cannot be read: {problems}"
    if on_error == "raise" or len(errors) == len(files):
        raise DubitoError(message)
    rows = [row for row in range(len(files)) if row not in errors]
    files, names, labels = (base.take(values, rows) for values in (files, names, target))
    lost = set() if target is None else {*target.tolist()} - {*labels.tolist()}
    if lost:
        raise DubitoError(f"{name}: no image of {_checks.listed(sorted(lost))} can be read")
    warnings.warn(f"{message}; they are skipped", stacklevel=3)
    encoded = source.encoded and source.encode(rows)
    return Items(name, format, files, labels, names, encoded)


def common_format(files: list[Path], size: Size, mode: Mode) -> ImageFormat:
    """Choose the format to decode to.

    Without a size, images keep their own if all share one that is small.

    Args:
        files: Paths.
        size: Side, or height and width; None: by the images.
        mode: "L" or "RGB"; None: by the images.
    """
    if mode is not None:
        _checks.one_of(MODES, mode, "mode")
    if size is None or mode is None:
        headers = [header for header in each(_header, files) if not isinstance(header, Exception)]
        size = _common_size([shape for shape, _ in headers]) if size is None else size
        mode = mode or ("L" if headers and all(gray for _, gray in headers) else "RGB")
    return ImageFormat(size=pair(size), mode=mode)


def _common_size(shapes: list[tuple[int, int]]) -> tuple[int, int]:
    sizes = Counter(shapes)
    common = next(iter(sizes), (SIDE, SIDE))
    if len(sizes) <= 1 and max(common) <= LARGEST:
        return common
    shown = ", ".join(f"{height} x {width}" for (height, width), _ in sizes.most_common(3))
    warnings.warn(
        f"images of {len(sizes)} sizes ({shown}{', ...' if len(sizes) > 3 else ''}) are resized to "
        f"{SIDE} x {SIDE}: pass size=... for another size",
        stacklevel=5,
    )
    return SIDE, SIDE


def _header(path: Path) -> tuple[tuple[int, int], bool]:
    """Return the (height, width) that an image decodes to, and whether it is gray."""
    with need("PIL.Image", "data").open(path) as image:
        # A TIFF's own size: Pillow may have turned the other already.
        tags = getattr(image, "tag_v2", None)
        width, height = image.size if tags is None else (tags[256], tags[257])
        turned = image.getexif().get(ORIENTATION, 1) in (5, 6, 7, 8)  # lies on its side
        return ((width, height) if turned else (height, width)), image.mode in GRAY


def _is_image(path: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.parts)
    return path.suffix.lower() in EXTENSIONS and not hidden
