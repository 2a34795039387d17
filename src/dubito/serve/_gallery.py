"""Samples to click on: known kinds and unknown ones."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dubito.data.folder import _eight_bit as eight_bit

__all__ = ["NAME", "Gallery", "Group", "Item", "read"]

NAME = "gallery.json"
MOST_ITEMS = 400
LARGEST_SIDE = 512  # pixels of an item; larger images are made smaller
KINDS = ("known", "unknown")


@dataclass(frozen=True)
class Item:
    """An image as the bytes of a .png file, and the class it truly has, if any."""

    id: str
    png: bytes = field(repr=False)
    truth: str | None = None


@dataclass(frozen=True)
class Group:
    """Items of one kind: the model knows such, or not."""

    name: str
    kind: str
    about: str
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Gallery:
    """Groups of samples, and how a person's drawing is made like them, where that is known."""

    groups: tuple[Group, ...] = ()
    drawing: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """What GET /v1/gallery answers."""
        return {
            "groups": [
                {
                    "name": group.name,
                    "kind": group.kind,
                    "about": group.about,
                    "items": [
                        {"id": item.id, "src": f"/gallery/{item.id}.png", "truth": item.truth}
                        for item in group.items
                    ],
                }
                for group in self.groups
            ]
        }

    def pngs(self) -> dict[str, bytes]:
        """The images by their identifiers."""
        return {item.id: item.png for group in self.groups for item in group.items}


def read(folder: Path, classes: Sequence[str]) -> Gallery:
    """The gallery in a folder.

    With a file gallery.json it is as described there: {"groups": [{"name", "kind", "about",
    "items": [{"file", "truth"}]}]}. Without one each sub-folder is a group: of known samples where
    it is called like one of the classes, and of unknown ones otherwise.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder} for the gallery")
    described = folder / NAME
    drawing = None
    if described.is_file():
        told = json.loads(described.read_text("utf-8"))
        groups, drawing = _described(described, told), told.get("drawing")
    else:
        groups = _found(folder, classes)
    count = sum(len(items) for *_, items in groups)
    if not 1 <= count <= MOST_ITEMS:
        raise ValueError(f"{folder} holds {count} images; a gallery has 1 to {MOST_ITEMS}")
    return Gallery(
        tuple(
            Group(
                name, kind, about,
                tuple(
                    Item(f"{place}-{number}", _png(path), truth)
                    for number, (path, truth) in enumerate(items)
                ),
            )
            for place, (name, kind, about, items) in enumerate(groups)
        ),
        drawing,
    )  # fmt: skip


Found = tuple[str, str, str, list[tuple[Path, str | None]]]


def _described(path: Path, told: Any) -> list[Found]:
    try:
        groups: list[Found] = [
            (
                str(group["name"]), str(group["kind"]), str(group["about"]),
                [(_inside(path.parent, one["file"]), one.get("truth")) for one in group["items"]],
            )
            for group in told["groups"]
        ]  # fmt: skip
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no description of a gallery: {error!r}") from error
    for name, kind, *_ in groups:
        if kind not in KINDS:
            raise ValueError(f"{path}: the kind of {name!r} must be one of {KINDS}, not {kind!r}")
    return groups


def _inside(folder: Path, name: str) -> Path:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ValueError(f"{name!r} is not in the folder of the gallery")
    return path


def _found(folder: Path, classes: Sequence[str]) -> list[Found]:
    known: list[tuple[Path, str | None]] = []
    others: list[Found] = []
    for home in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = sorted(p for p in home.iterdir() if p.is_file() and not p.name.startswith("."))
        if home.name in classes:
            known += [(path, home.name) for path in files]
        else:
            about = "Samples of none of the classes."
            others.append((home.name, "unknown", about, [(path, None) for path in files]))
    about = "Samples of classes that the model knows."
    return ([("Known classes", "known", about, known)] if known else []) + others


def _png(path: Path) -> bytes:
    """The file as .png, as it is where it is one of a small image already."""
    from PIL import Image, ImageOps

    content = path.read_bytes()
    try:
        with Image.open(io.BytesIO(content)) as opened:
            if opened.format == "PNG" and max(opened.size) <= LARGEST_SIDE:
                opened.verify()
                return content
            image = eight_bit(ImageOps.exif_transpose(opened))  # as predictions see it
            image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
            made = io.BytesIO()
            image.convert("L" if image.mode in ("1", "L", "LA") else "RGB").save(made, "PNG")
            return made.getvalue()
    except Exception as error:
        raise ValueError(f"{path} can't be shown in the gallery: {error}") from error
