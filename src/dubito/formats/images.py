"""Images, decoded to pixels of one size."""

from __future__ import annotations

import io
import math
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from pydantic import BaseModel, Field, PositiveInt
from torch import Tensor

from dubito import _checks
from dubito._extras import need
from dubito.errors import DubitoError
from dubito.formats.arrays import CHANNELS, as_numpy, channels_first
from dubito.formats.base import FORMATS, Encoded, InputFormat, each
from dubito.types import Array

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["ImageFormat", "Resize"]

Mode = Literal["L", "RGB"]
Fit = Literal["stretch", "crop", "pad"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Transparency = Literal["white", "drop"]

FITS: tuple[str, ...] = get_args(Fit)
#: mode -> number of channels
MODES: dict[str, int] = {"L": 1, "RGB": 3}
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
GRAY = {"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N"}
#: modes that can be reduced, and the pixels from which images are, to save memory and time
REDUCIBLE, LARGE = ("L", "LA", "RGB", "RGBA"), 1 << 20
#: largest side that images keep if all share it; limits and steps of the side of others
KEPT, SIDES, STEP = 64, (32, 224), 32
#: pixels by which a side may be too short by rounding
ROUNDING = 1e-6


class Resize(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """How images of other sizes become images of one size, with antialiasing.

    >>> from PIL import Image
    >>> Resize(fit="crop", crop_pct=0.875)(Image.new("RGB", (500, 375)), (224, 224)).size
    (224, 224)
    """

    fit: Fit = "stretch"
    """Crop the center of an image of which the shorter side has been resized to the size divided by
    `crop_pct`; stretch to that size, and crop its center; or pad the whole image with black."""
    interpolation: Interpolation = "bilinear"
    """Filter, by its name in Pillow."""
    crop_pct: float = Field(default=1.0, gt=0, le=1)
    """Share of a side that `crop` and `stretch` keep, as in timm; of transformers' names, the side
    of `crop_size` divided by that of `size`."""

    def scaled(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the least height and width of an image before it is cropped.

        Args:
            size: Height and width of the result.
        """
        share = 1 if self.fit == "pad" else self.crop_pct
        # 54 divided by 54/57 is below 57.
        height, width = (int(side / share + ROUNDING) for side in size)
        return height, width

    def __call__(self, image: Image, size: tuple[int, int]) -> Image:
        """Resize a Pillow image.

        Args:
            image: Image of mode L or RGB.
            size: Height and width of the result.
        """
        filter = need("PIL.Image", "data").Resampling[self.interpolation.upper()]
        (height, width), box = size, (size[1], size[0])
        if self.fit == "pad":
            padded: Image = need("PIL.ImageOps", "data").pad(image, box, filter)
            return padded
        least_height, least_width = self.scaled(size)
        if self.fit == "stretch":
            full = (least_width, least_height)
        elif least_height * image.width >= least_width * image.height:
            full = (image.width * least_height // image.height, least_height)
        else:
            full = (least_width, image.height * least_width // image.width)
        left, top = (full[0] - width) // 2, (full[1] - height) // 2
        return image.resize(full, filter).crop((left, top, left + width, top + height))


@FORMATS.register("image")
class ImageFormat(InputFormat):
    """Images, decoded to one size.

    >>> ImageFormat(size=(8, 8), mode="L").shape
    (1, 8, 8)
    """

    extensions: ClassVar[tuple[str, ...]] = EXTENSIONS
    media_types: ClassVar[tuple[str, ...]] = tuple(UNTRUSTED)
    resizes: ClassVar[bool] = True
    dtype: ClassVar[str] = "uint8"
    size: tuple[PositiveInt, PositiveInt]
    """Height and width in pixels."""
    mode: Mode
    """Gray or color."""
    resize: Resize = Resize()
    """How images of other sizes are resized."""
    transparency: Transparency = "white"
    """What is behind a transparent pixel: white, or its own color, as where loaders call
    `convert("RGB")`."""
    draft: bool = True
    """Whether large images are decoded at a fraction of their size, which saves most of the time
    and changes pixels a little."""

    @classmethod
    def accepts(cls, items: object) -> bool:
        """Return whether the format reads such inputs: files, or pixels (N, C, H, W), uint8."""
        if not isinstance(items, Tensor | np.ndarray):
            return super().accepts(items)
        values = channels_first(as_numpy(items))
        return values.dtype == np.uint8 and values.ndim == 4 and values.shape[1] in MODES.values()

    @classmethod
    def fit(
        cls,
        items: Any,
        *,
        size: int | tuple[int, int] | None = None,
        mode: Mode | None = None,
        fit: Fit | None = None,
    ) -> Self:
        """Choose a size and a mode.

        Without a size, images keep their own if all share one that is small. Otherwise they become
        squares with about their median shorter side, 32 to 224 pixels, cropped if their shapes
        differ and stretched if not.

        Args:
            items: Paths, contents of files, or an array.
            size: Side, or height and width; None: by the images.
            mode: "L" or "RGB"; None: by the images.
            fit: "stretch", "crop" or "pad"; None: by the images, or "stretch" to a given size.
        """
        for name, known, value in (("mode", MODES, mode), ("fit", FITS, fit)):
            if value is not None:
                _checks.one_of(known, value, name)
        if isinstance(items, Tensor | np.ndarray):
            channels, *own = channels_first(as_numpy(items)).shape[1:]
            shapes, gray = [(own[0], own[1])], channels == 1
            size = shapes[0] if size is None else size
        elif size is None or mode is None:
            headers = [head for head in each(_header, items) if not isinstance(head, Exception)]
            shapes = [shape for shape, _ in headers]
            gray = bool(headers) and all(gray for _, gray in headers)
        side, chosen = (size, fit or "stretch") if size is not None else _common(shapes, fit)
        mode = mode or ("L" if gray else "RGB")
        return cls(size=_pair(side), mode=mode, resize=Resize(fit=chosen))

    def changed(
        self, *, size: int | tuple[int, int] | None, mode: Mode | None, fit: Fit | None
    ) -> Self:
        """Return this format with some options of `fit`.

        Args:
            size: Side, or height and width; None keeps the size.
            mode: "L" or "RGB"; None keeps the mode.
            fit: "stretch", "crop" or "pad"; None keeps how images are resized.
        """
        is_other = fit not in (None, self.resize.fit)
        return replace(
            self,
            size=self.size if size is None else _pair(size),
            mode=mode or self.mode,
            resize=self.resize.model_copy(update={"fit": fit, "crop_pct": 1.0} if is_other else {}),
        )

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

    @property
    def _enough(self) -> int:
        """Side from which more pixels hardly change the result."""
        return 2 * max(self.resize.scaled(self.size))

    def _draft(self, image: Image) -> None:
        """Let a JPEG be decoded at a fraction of its size."""
        if self.draft:
            image.draft(self.mode, (self._enough, self._enough))

    def encode(self, items: Any) -> Encoded:
        """Decode images to uint8 (N, C, H, W); see `InputFormat.encode`.

        Camera orientation is applied, and images are resized. Arrays of the right size are taken as
        they are.

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
        pixels = inputs.numpy()

        def decode(row: int) -> None:
            pixels[row] = self._decode(items[row])

        errors = {
            row: " ".join(str(error).split()) or type(error).__name__
            for row, error in enumerate(each(decode, range(len(items))))
            if error is not None
        }
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

    def _pixels(self, opened: Image) -> Array:
        """Convert the first frame of an image to pixels (C, H, W)."""
        self._draft(opened)
        if self.draft:
            opened = _reduced(opened, self._enough)
        image = upright(opened, self.transparency).convert(self.mode)
        pixels = np.array(self.resize(image, self.size))
        return pixels.reshape(*self.size, -1).transpose(2, 0, 1)

    def __str__(self) -> str:
        return f"{self.size[0]} x {self.size[1]} {self.mode} images"


def mode_of(channels: int) -> Mode:
    """Return the mode of images that a network takes."""
    if channels not in (1, 3):
        raise DubitoError(f"the network takes images of {channels} channels: 1 and 3 are known")
    return "L" if channels == 1 else "RGB"


def _reduced(image: Image, side: int) -> Image:
    """Average blocks of a large image, whose shorter side remains at least `side`."""
    factor = min(image.size) // side
    if factor < 2 or math.prod(image.size) < LARGE or image.mode not in REDUCIBLE:
        return image
    reduced = image.reduce(factor)
    # `reduce` loses the orientation of some formats; a TIFF is turned when it is loaded.
    reduced.getexif()[ORIENTATION] = image.getexif().get(ORIENTATION, 1)
    return reduced


def upright(opened: Image, transparency: Transparency = "white") -> Image:
    """Return an image upright, in a mode that converts to any of MODES without clipping.

    Args:
        opened: Image.
        transparency: See `ImageFormat`.
    """
    image_class = need("PIL.Image", "data")
    image: Image = need("PIL.ImageOps", "data").exif_transpose(opened)
    # Pillow scales gray pixels of portable formats to 16 bits.
    if image.mode.startswith("I;16") or (image.mode == "I" and opened.format == "PPM"):
        image = image_class.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise DubitoError(f"pixels of mode {image.mode} have no known range; store 8 or 16 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        if transparency == "white":
            white = image_class.new("RGBA", image.size, "white")
            image = image_class.alpha_composite(white, image)
        image = image.convert("RGB")
    return image


def _channels_last(pixels: Array) -> Array:
    if pixels.dtype != np.uint8:
        raise DubitoError(f"an array of pixels must be uint8, not {pixels.dtype}")
    if pixels.ndim == 3 and pixels.shape[0] in CHANNELS and pixels.shape[-1] not in CHANNELS:
        pixels = np.moveaxis(pixels, 0, -1)
    return np.ascontiguousarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    """Return height and width."""
    sides = np.atleast_1d(size)
    if sides.dtype.kind not in "iu" or len(sides) > 2 or not (sides >= 1).all():
        raise DubitoError(f"size must be a side or (height, width) of at least 1, not {size!r}")
    return int(sides[0]), int(sides[-1])


def _common(shapes: Sequence[tuple[int, int]], fit: Fit | None) -> tuple[tuple[int, int], Fit]:
    """Choose height and width, and how images are resized to it."""
    sizes = Counter(shapes)
    common = next(iter(sizes), (KEPT, KEPT))
    if len(sizes) <= 1 and max(common) <= KEPT:
        return common, fit or "stretch"
    side = STEP * round(median(map(min, shapes)) / STEP)
    side = min(max(side, SIDES[0]), SIDES[1])
    ratios = {round(height / width, 2) for height, width in sizes}
    fit = fit or ("crop" if len(ratios) > 1 else "stretch")
    shown = ", ".join(f"{height} x {width}" for (height, width), _ in sizes.most_common(3))
    warnings.warn(
        f"images of {len(sizes)} sizes ({shown}{', ...' if len(sizes) > 3 else ''}) become {side} "
        f"x {side} (fit={fit!r}): pass size=... for another size",
        stacklevel=5,
    )
    return (side, side), fit


def _header(item: Path | bytes) -> tuple[tuple[int, int], bool]:
    """Return the (height, width) that an image decodes to, and whether it is gray."""
    stream = io.BytesIO(item) if isinstance(item, bytes) else item
    with need("PIL.Image", "data").open(stream) as image:
        # A TIFF's own size: Pillow may have turned the other already.
        tags = getattr(image, "tag_v2", None)
        width, height = image.size if tags is None else (tags[256], tags[257])
        turned = image.getexif().get(ORIENTATION, 1) in (5, 6, 7, 8)  # lies on its side
        return ((width, height) if turned else (height, width)), image.mode in GRAY


def kind_of(path: str | os.PathLike[str]) -> tuple[str, int]:
    """Return what loaders treat differently, such as "RGBA" or "L, turned", and the pixels.

    Args:
        path: Image file.
    """
    with need("PIL.Image", "data").open(path) as image:
        turned = image.getexif().get(ORIENTATION, 1) != 1
        mode = f"{image.mode}, transparent" if "transparency" in image.info else image.mode
        return f"{mode}, turned" if turned else mode, math.prod(image.size)
