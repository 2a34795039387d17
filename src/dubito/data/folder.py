"""Images in a folder for each class, of any sizes and modes, decoded to one shape."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dubito import _checks
from dubito.data.arrays import Arrays
from dubito.data.labels import whole

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["ImageFolder", "files_below", "folder_parts", "read_folder", "read_images"]

T = TypeVar("T")
Size = int | tuple[int, int] | None

#: mode of the decoded images -> number of channels
MODES = {"L": 1, "RGB": 3}
GREY = {"1", "L", "LA", "La", "I;16", "I;16B", "I;16L", "I;16N"}
PARTS = ("train", "test")
ON_ERROR = ("raise", "skip")
SIDE = 32  # of images whose own sizes differ or are larger than LARGEST, unless a size is given
LARGEST = 64
NAMED = 5  # unreadable files in a message
THREADS = min(8, os.cpu_count() or 1)


def decode(path: Path, size: tuple[int, int], mode: str) -> Tensor:
    """One image as uint8 (C, H, W), turned as its camera meant, transparency laid on white."""
    from PIL import Image

    # As a stream: Pillow maps an uncompressed file into memory, and garbles a TIFF that is turned.
    with path.open("rb") as stream, Image.open(stream) as opened:
        return torch.from_numpy(pixels(opened, size, mode))


def pixels(opened: Image.Image, size: tuple[int, int], mode: str) -> npt.NDArray[np.uint8]:
    """The same of an image that was opened, its first frame."""
    from PIL import Image, ImageOps

    height, width = size
    # A JPEG can be decoded at a fraction of its size, which saves most of the time.
    opened.draft(mode, (2 * max(size), 2 * max(size)))
    image = _eight_bit(ImageOps.exif_transpose(opened))
    if image.size != (width, height):
        image = image.convert(mode).resize((width, height), Image.Resampling.BILINEAR)
    found = np.asarray(image.convert(mode)).reshape(height, width, MODES[mode])
    return np.array(found.transpose(2, 0, 1), order="C")


def _eight_bit(image: Image.Image) -> Image.Image:
    """An image that converts to any of MODES without clipping or guessing."""
    from PIL import Image

    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode} have no known range; store 8 or 16 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image


def _header(path: Path) -> tuple[tuple[int, int], bool]:
    """The (height, width) that the image decodes to, and whether it is grey."""
    from PIL import Image

    with Image.open(path) as image:
        # Of a TIFF the stored size: Pillow may have turned the other already.
        tags = getattr(image, "tag_v2", None)
        width, height = image.size if tags is None else (tags[256], tags[257])
        turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)  # lies on its side
        return ((width, height) if turned else (height, width)), image.mode in GREY


def _each(function: Callable[[Path], T], paths: Sequence[Path]) -> list[T | Exception]:
    """function(path) or the error it raised; decoding releases the interpreter, so in threads."""

    def attempt(path: Path) -> T | Exception:
        try:
            return function(path)
        except Exception as error:  # decoders raise errors of many kinds for a damaged file
            return error

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(attempt, paths))


def read_images(
    paths: Sequence[str | os.PathLike[str]],
    size: Size = None,
    mode: str | None = None,
    *,
    on_error: str = "raise",
) -> tuple[Tensor, Tensor]:
    """Images (N, C, H, W) as uint8, and the indices (N,) of the paths that they came from.

    `size` is a side or (height, width). Without it the images keep their own size if they all
    share one of at most 64 pixels a side, and become 32 x 32 with a warning otherwise. `mode` is
    "L" (grey) or "RGB"; without it "L" if all are grey. Files that can't be read are counted and
    named, in an error or, with on_error="skip", in a warning.
    """
    _checks.one_of(ON_ERROR, on_error, "on_error")
    files = [Path(path) for path in paths]
    if not files:
        raise ValueError("paths is empty: there is no image to read")
    shape, chosen = _form(files, size, mode)
    read = _each(lambda path: decode(path, shape, chosen), files)
    _report(files, read, on_error)
    kept = [index for index, image in enumerate(read) if isinstance(image, Tensor)]
    if not kept:
        raise ValueError(f"none of the {len(files)} images can be read, the first is {files[0]}")
    return torch.stack([image for image in read if isinstance(image, Tensor)]), torch.tensor(kept)


def _form(files: Sequence[Path], size: Size, mode: str | None) -> tuple[tuple[int, int], str]:
    """The size and the mode to decode to."""
    if mode is not None:
        _checks.one_of(MODES, mode, "mode")
    if size is not None and mode is not None:
        return _pair(size), mode
    headers = [header for header in _each(_header, files) if not isinstance(header, Exception)]
    if mode is None:
        mode = "L" if headers and all(grey for _, grey in headers) else "RGB"
    if size is not None:
        return _pair(size), mode
    sizes = Counter(shape for shape, _ in headers)
    common = next(iter(sizes), (SIDE, SIDE))
    if len(sizes) <= 1 and max(common) <= LARGEST:
        return common, mode
    seen = ", ".join(f"{h} x {w}" for (h, w), _ in sizes.most_common(3))
    warnings.warn(
        f"images of {len(sizes)} size(s) ({seen}{', ...' if len(sizes) > 3 else ''}) in "
        f"{files[0].parent} and beside become {SIDE} x {SIDE}; give a size to choose another",
        stacklevel=3,
    )
    return (SIDE, SIDE), mode


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 1:
        raise ValueError(f"size must be a side or (height, width) of at least 1, not {size!r}")
    return height, width


def _report(files: Sequence[Path], read: Sequence[object], on_error: str) -> None:
    bad = [
        f"{file} ({result})"
        for file, result in zip(files, read, strict=True)
        if isinstance(result, Exception)
    ]
    if not bad:
        return
    more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
    message = f"{len(bad)} of {len(files)} images can't be read: {', '.join(bad[:NAMED])}{more}"
    if on_error == "raise":
        raise ValueError(f"{message}; remove them, or leave them out with on_error='skip'")
    warnings.warn(f"{message}; they are left out", stacklevel=3)


@dataclass(frozen=True)
class Listing:
    """The files of a folder of images, before any is opened."""

    paths: tuple[Path, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def files_below(folder: Path) -> list[Path]:
    """Every file below a folder that is not hidden: a strange one is an error, not overlooked.

    So is a link that leads nowhere, or to a folder, which is not followed.
    """
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() or path.is_symlink())
    return [f for f in files if not any(p.startswith(".") for p in f.relative_to(folder).parts)]


def folder_parts(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Which of "train" and "test" a folder of images has: sub-folders that hold class folders."""
    parts = [Path(path) / part for part in PARTS]
    return tuple(p.name for p in parts if p.is_dir() and any(q.is_dir() for q in _visible(p)))


def _listing(folder: Path, split: str, classes: Sequence[str] | None) -> Listing:
    parts = folder_parts(folder)
    if parts:
        _checks.one_of([*parts, "all"], split, f"split of {folder}")
    else:
        whole(split, str(folder))
    every = [folder / part for part in parts] or [folder]
    homes = every if split == "all" or not parts else [folder / split]
    # A part may lack a class that another has, and labels must mean the same in both.
    found = {sub.name for home in every for sub in _visible(home) if sub.is_dir()}
    names = tuple(sorted(found)) if classes is None else tuple(classes)
    _enough_classes(folder, found, names)
    places = [(home / name, label) for home in homes for label, name in enumerate(names)]
    files = {place: files_below(place) for place, _ in places if place.is_dir()}
    empty = [str(place) for place, inside in files.items() if not inside]
    if empty:
        raise ValueError(f"{folder}: there is no file in {', '.join(empty[:NAMED])}")
    pairs = [(file, label) for place, label in places for file in files.get(place, ())]
    return Listing(tuple(f for f, _ in pairs), tuple(label for _, label in pairs), names)


def _enough_classes(folder: Path, found: set[str], names: tuple[str, ...]) -> None:
    layout = "expected a sub-folder of images for each class, at least two"
    if not found:
        loose = len(files_below(folder))
        raise ValueError(f"{folder} has no sub-folders, and {loose} loose file(s): {layout}")
    if len(names) < 2:
        raise ValueError(f"{folder} has one class only, {names[0]!r}: {layout}")
    strange = sorted(found - set(names))
    if strange:
        raise ValueError(
            f"{folder}: sub-folders {strange[:5]} are outside the classes {list(names[:20])}"
        )


def read_folder(
    path: str | os.PathLike[str],
    split: str = "all",
    *,
    size: Size = None,
    mode: str | None = None,
    on_error: str = "raise",
    classes: Sequence[str] | None = None,
) -> Arrays:
    """All images of a folder with a sub-folder for each class; see `read_images`.

    The folder may have the parts `train` and `test`, each with the class folders in it.
    """
    folder = Path(path)
    listing = _listing(folder, split, classes)
    inputs, kept = read_images(listing.paths, size, mode, on_error=on_error)
    labels = torch.tensor(listing.labels)
    lost = set(listing.labels) - set(labels[kept].tolist())
    if lost:
        names = [listing.classes[label] for label in sorted(lost)]
        raise ValueError(f"{folder}: no image of {names} can be read, so these classes are empty")
    return Arrays(inputs, labels[kept], listing.classes, folder.resolve().name)


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """The same folder as a dataset that decodes an image when it is asked for.

    For folders that do not fit into memory: give it to `dubito.data.from_dataset`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        split: str = "all",
        *,
        size: int | tuple[int, int],
        mode: str = "RGB",
        classes: Sequence[str] | None = None,
    ) -> None:
        listing = _listing(Path(path), split, classes)
        self.size, self.mode = _form(listing.paths, size, mode)
        self.paths, self.labels, self.classes = listing.paths, listing.labels, listing.classes

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> tuple[Tensor, int]:
        path = self.paths[index]
        try:
            return decode(path, self.size, self.mode), self.labels[index]
        except Exception as error:
            raise ValueError(f"{path} can't be read: {error}") from error
