"""Samples for the page, read from a folder.

Without a file gallery.json, each sub-folder of images is a group. Sub-folders with the name of a
class form the group of known samples; each of the rest is a group of unknown samples.

With a file gallery.json, it describes the groups: it is a `Gallery` without its folder.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from dubito._extras import need
from dubito.data.images import _eight_bit, image_files
from dubito.errors import DubitoError

__all__ = ["Drawing", "Gallery", "Group", "Item", "read"]

FILE = "gallery.json"
MOST_ITEMS = 400
#: largest side of a sample in pixels; larger images are reduced
LARGEST = 512
Share = Annotated[float, Field(gt=0, le=1)]


class Drawing(TypedDict):
    """How the page makes a drawing look like the training data.

    `fill` is the longer side of the drawing and `stroke` the width of its strokes, as shares of the
    image. `center` is the part that is moved to the center of the image: the center of mass, or
    that of the bounding box.
    """

    fill: Share
    center: Literal["mass", "box"]
    stroke: Share


class Item(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """A sample."""

    file: str
    """Image, relative to the folder of the gallery."""
    truth: str | None = None
    """Its class; None if it has none of them."""


class Group(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """Samples that are shown together."""

    name: str
    """Heading."""
    kind: Literal["known", "unknown"]
    """Whether the samples belong to classes of the model."""
    about: str = ""
    """Sentence below the heading."""
    items: tuple[Item, ...]


class Gallery(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """Samples for the page."""

    groups: tuple[Group, ...] = ()
    drawing: Drawing | None = None
    """For models whose inputs can be drawn."""
    folder: Path = Field(default=Path(), exclude=True)

    def as_dict(self) -> dict[str, Any]:
        """Return the answer to GET /v1/gallery."""
        groups = [group.model_dump(mode="json") for group in self.groups]
        for place, group in enumerate(groups):
            for n, item in enumerate(group["items"]):
                del item["file"]
                item |= {"id": f"{place}-{n}", "src": f"gallery/{place}-{n}.png"}
        return {"groups": groups}

    def pngs(self) -> dict[str, bytes]:
        """Return the images as PNG, by the ids of `as_dict`."""
        return {
            f"{place}-{n}": _png(self.folder, item.file)
            for place, group in enumerate(self.groups)
            for n, item in enumerate(group.items)
        }


def read(folder: str | os.PathLike[str], classes: Sequence[str] = ()) -> Gallery:
    """Read a gallery.

    Args:
        folder: Folder of the gallery.
        classes: Classes of the model.
    """
    place = Path(folder)
    if not place.is_dir():
        raise DubitoError(f"there is no folder {place} for the gallery")
    gallery = _described(place) if (place / FILE).is_file() else _from_folders(place, classes)
    count = sum(len(group.items) for group in gallery.groups)
    if not 1 <= count <= MOST_ITEMS:
        raise DubitoError(f"{place} has {count} images; a gallery has 1 to {MOST_ITEMS}")
    return gallery


def _described(folder: Path) -> Gallery:
    """Read gallery.json."""
    try:
        content = json.loads((folder / FILE).read_bytes())
        return Gallery.model_validate({**content, "folder": folder})
    except (ValueError, TypeError) as error:
        reason = " ".join(str(error).split()[:30])  # pydantic's are long
        raise DubitoError(f"{folder / FILE} does not describe a gallery: {reason}") from None


def _from_folders(folder: Path, classes: Sequence[str]) -> Gallery:
    """Make groups of the sub-folders of a folder."""
    known: list[Item] = []
    groups: list[Group] = []
    for home in sorted(path for path in folder.iterdir() if path.is_dir()):
        truth = home.name if home.name in classes else None
        files = [path.relative_to(folder).as_posix() for path in image_files([home])]
        items = [Item(file=file, truth=truth) for file in files]
        if truth is not None:
            known += items
        elif items:
            groups.append(Group(name=home.name, kind="unknown", items=tuple(items)))
    if known:
        groups.insert(0, Group(name="Known classes", kind="known", items=tuple(known)))
    return Gallery(groups=tuple(groups), folder=folder)


def _png(folder: Path, file: str) -> bytes:
    path = (folder / file).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise DubitoError(f"{file} is not in the folder of the gallery, {folder}")
    try:
        with need("PIL.Image", "data").open(path) as opened:
            image = _eight_bit(need("PIL.ImageOps", "data").exif_transpose(opened))
            image = image.convert("L" if image.mode in ("1", "L") else "RGB")
            image.thumbnail((LARGEST, LARGEST))
            image.save(buffer := io.BytesIO(), "PNG")
            return buffer.getvalue()
    except (OSError, DubitoError) as error:
        raise DubitoError(f"{path} cannot be shown in the gallery: {error}") from None
