"""The first directory of a TIFF, read before a decoder does: it says what decoding would take."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["pixels"]

#: tags of a directory; cameras and scanners write less than a hundred
MOST_TAGS = 500
#: type of a tag's values -> bytes of each; what is in no such type nobody reads
UNITS = {
    **dict.fromkeys((1, 2, 6, 7), 1),
    **dict.fromkeys((3, 8), 2),
    **dict.fromkeys((4, 9, 11, 13), 4),
    **dict.fromkeys((5, 10, 12, 16, 17, 18), 8),
}
WIDTH, LENGTH, TILE_WIDTH, TILE_LENGTH = SIDES = (256, 257, 322, 323)
SHORT, LONG = 3, 4
#: how a file begins -> its byte order, and whether it is a BigTIFF. Pillow takes them all for TIFF,
#: but the last for a plain one, so that nobody can say what it would decode
BEGINNINGS: dict[bytes, tuple[str, bool] | None] = {
    b"II*\0": ("<", False), b"II\0*": ("<", False), b"MM\0*": (">", False), b"MM*\0": (">", False),
    b"II+\0": ("<", True), b"MM\0+": None,
}  # fmt: skip
Entries = np.ndarray[tuple[int], np.dtype[np.void]]


def pixels(content: bytes) -> int:
    """How many pixels a TIFF decodes to, with those of its tiles that lie beyond its edges.

    It is 0 for another file. A ValueError says what is wrong with the directory: decoders copy the
    values of each tag, so many tags that share theirs would take many times the file.

    >>> pixels(b"GIF89a")
    0
    >>> pixels(b"II*" + bytes(1))
    Traceback (most recent call last):
    ValueError: the file ends before its directory
    """
    if content[:4] not in BEGINNINGS:
        return 0
    layout = BEGINNINGS[content[:4]]
    if layout is None:
        raise ValueError("a BigTIFF must be little-endian")
    order, big = layout
    entries = _entries(content, order, big)
    units = [UNITS.get(kind, 0) for kind in entries["type"].tolist()]
    held = sum(n * unit for n, unit in zip(entries["count"].tolist(), units, strict=True))
    if held > len(content):
        raise ValueError("its tags hold more than the file does")
    width, length, tile_width, tile_length = (_side(entries, tag, order) for tag in SIDES)
    return _padded(width, tile_width) * _padded(length, tile_length)


def _entries(content: bytes, order: str, big: bool) -> Entries:
    word = f"{order}u{8 if big else 4}"
    entry = np.dtype([("tag", f"{order}u2"), ("type", f"{order}u2"), ("count", word),
                      ("value", f"V{8 if big else 4}")])  # fmt: skip
    at = _number(content, word, 8 if big else 4)
    count = _number(content, word if big else f"{order}u2", at)
    if count > MOST_TAGS:
        raise ValueError(f"a TIFF may have {MOST_TAGS} tags, and this has {count}")
    start = at + (8 if big else 2)
    if start + count * entry.itemsize > len(content):
        raise ValueError("the file ends before its directory")
    found: Entries = np.frombuffer(content, entry, count, start)
    return found


def _number(content: bytes, kind: str, at: int) -> int:
    if at + np.dtype(kind).itemsize > len(content):
        raise ValueError("the file ends before its directory")
    found: npt.NDArray[np.unsignedinteger] = np.frombuffer(content, kind, 1, at)
    return int(found[0])


def _side(entries: Entries, tag: int, order: str) -> int:
    """A side of the image or of its tiles, 0 where none is told; decoders must find the same."""
    found = entries[entries["tag"] == tag]
    if not len(found):
        return 0
    kind, count, value = found[0]["type"], found[0]["count"], found[0]["value"]
    if len(found) > 1 or count != 1 or kind not in (SHORT, LONG):
        raise ValueError(f"the tag {tag} must be there once, and hold one whole number")
    return int.from_bytes(value.tobytes()[: UNITS[kind]], "little" if order == "<" else "big")


def _padded(side: int, tile: int) -> int:
    return side if tile == 0 else -(-side // tile) * tile
