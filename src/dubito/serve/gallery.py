"""Samples for the page, read from a folder.

Each sub-folder of images is a group. Sub-folders with the name of a class form the group of known
samples; each of the rest is a group of unknown samples. A file drawing.json, for models whose
inputs can be drawn, is a `Drawing`.
"""

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from dubito._extras import need
from dubito.data.folders import files_below
from dubito.errors import DubitoError
from dubito.formats.images import ImageFormat, upright

__all__: list[str] = []

DRAWING_FILE = "drawing.json"
MOST_ITEMS = 400
#: largest side of a sample in pixels; larger images are reduced
LARGEST = 512
Kind = Literal["known", "unknown"]
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


class Sample(TypedDict):
    """A sample: its picture, and its class if that is known."""

    id: str
    src: str
    truth: str | None


class Group(TypedDict):
    """Samples of the classes of the model, or samples of another kind."""

    name: str
    kind: Kind
    items: list[Sample]


class Gallery(NamedTuple):
    """Samples for the page.

    Attributes:
        groups: Groups of samples, as GET /v1/gallery returns them.
        pictures: PNG files by the ids of the samples.
        drawing: How the page prepares drawings; None for its defaults.
    """

    groups: Sequence[Group] = ()
    pictures: Mapping[str, bytes] = {}
    drawing: Drawing | None = None


def read(folder: str | os.PathLike[str], classes: Sequence[str] = ()) -> Gallery:
    """Read a gallery.

    Args:
        folder: Folder of the gallery.
        classes: Classes of the model.
    """
    place = Path(folder)
    if not place.is_dir():
        raise DubitoError(f"there is no folder {place} for the gallery")
    samples: dict[tuple[Kind, str], list[tuple[Path, str | None]]] = {}
    for home in sorted(path for path in place.iterdir() if path.is_dir()):
        known = home.name in classes
        group: tuple[Kind, str] = ("known", "Known classes") if known else ("unknown", home.name)
        files = [(file, home.name if known else None) for file in files_below([home], ImageFormat)]
        samples[group] = samples.get(group, []) + files
    count = sum(map(len, samples.values()))
    if not 1 <= count <= MOST_ITEMS:
        raise DubitoError(f"{place} has {count} images; a gallery has 1 to {MOST_ITEMS}")
    groups: list[Group] = []
    pictures: dict[str, bytes] = {}
    for (kind, name), files in sorted(samples.items()):
        items: list[Sample] = []
        for file, truth in files:
            pictures[key := f"{len(groups)}-{len(items)}"] = _png(file)
            items.append({"id": key, "src": f"gallery/{key}.png", "truth": truth})
        groups.append({"name": name, "kind": kind, "items": items})
    return Gallery(groups, pictures, _drawing(place / DRAWING_FILE))


def _drawing(path: Path) -> Drawing | None:
    try:
        return TypeAdapter(Drawing).validate_json(path.read_bytes()) if path.is_file() else None
    except ValidationError as error:
        reason = " ".join(str(error).split()[:30])  # pydantic's are long
        raise DubitoError(f"{path} does not describe a drawing: {reason}") from None


def _png(path: Path) -> bytes:
    try:
        with need("PIL.Image", "data").open(path) as opened:
            image = upright(opened)
            image = image.convert("L" if image.mode in ("1", "L") else "RGB")
            image.thumbnail((LARGEST, LARGEST))
            image.save(buffer := io.BytesIO(), "PNG")
            return buffer.getvalue()
    except (OSError, DubitoError) as error:
        raise DubitoError(f"{path} cannot be shown in the gallery: {error}") from None
