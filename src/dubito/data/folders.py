"""Files with one input each, and folders of them."""

import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import Tensor

from dubito import _checks
from dubito.data import base
from dubito.data.base import Items, Source
from dubito.errors import DubitoError
from dubito.formats.base import FORMATS, Encoded, InputFormat, listing
from dubito.formats.images import ImageFormat
from dubito.plugins import load_plugins
from dubito.targets import is_censored
from dubito.types import Array, Frame

__all__: list[str] = []

#: bytes of inputs that are read at once to find damaged ones
READ = 1 << 24


def folders(folder: Path) -> list[Path]:
    """Return the sub-folders of a folder that are not hidden."""
    return sorted(folder.glob("[!.]*/"))


def class_files(
    folder: Path, parts: Sequence[str], kind: type[InputFormat] | None
) -> tuple[list[Path], Array]:
    """Return the files in the sub-folders of classes, and their classes.

    Args:
        folder: Folder.
        parts: Sub-folders to read; empty: the folder itself.
        kind: Format of the files; None: that of most files.
    """
    classes = [place for part in parts or [""] for place in folders(folder / part)]
    places = {place: _visible(place) for place in classes or [folder]}
    kind = kind or _most_common([file for files in places.values() for file in files])
    name = FORMATS.name_of(kind)
    places = {place: _of(kind, files) for place, files in places.items()}
    if not classes:
        raise DubitoError(
            f"{folder} has no sub-folders, and {len(places[folder])} {name} files: expected one "
            "sub-folder of files per class, at least two"
        )
    empty = [str(place) for place, files in places.items() if not files]
    if empty:
        raise DubitoError(
            f"there is no {name} file in {listing(empty)}: add files with one of the extensions "
            f"{' '.join(kind.extensions)}, or remove the folder"
        )
    pairs = [(file, place.name) for place, files in places.items() for file in files]
    return [file for file, _ in pairs], np.array([name for _, name in pairs])


def files_below(
    paths: Sequence[str | os.PathLike[str]], kind: type[InputFormat] | None = None
) -> list[Path]:
    """Return files as named, and those of a format below folders, unless they are hidden.

    Args:
        paths: Files and folders.
        kind: Format of the files; None: that of most files.
    """
    places = [Path(path) for path in paths]
    visible = {place: _visible(place) for place in places if place.is_dir()}
    kind = kind or _most_common([file for files in visible.values() for file in files])
    found = [_of(kind, visible[place]) if place in visible else [place] for place in places]
    return [file for files in found for file in files]


def _visible(folder: Path) -> list[Path]:
    """Return all files below a folder that are not hidden."""
    found = []
    for place, names, files in os.walk(folder):
        names[:] = [name for name in names if not name.startswith(".")]
        found += [Path(place, file) for file in files if not file.startswith(".")]
    return sorted(found)


def _of(kind: type[InputFormat], files: Sequence[Path]) -> list[Path]:
    return [file for file in files if file.suffix.lower() in kind.extensions]


def _most_common(files: Sequence[Path]) -> type[InputFormat]:
    """Return the format that most of the files have."""
    counts = Counter(file.suffix.lower() for file in files)

    def count(kind: type[InputFormat]) -> int:
        return sum(counts[extension] for extension in kind.extensions)

    if 2 * count(ImageFormat) > len(files):
        return ImageFormat
    if not any(map(count, FORMATS.values())):
        load_plugins()
    kinds: list[type[InputFormat]] = [ImageFormat, *FORMATS.values()]
    return max(kinds, key=count)


def file_names(files: Sequence[Path], labeled: bool) -> list[str]:
    """Return the names of files for users: below the folder that has them all, or as given.

    Args:
        files: Files.
        labeled: Whether they are data with targets; predictions are found again by their paths.
    """
    if not labeled:
        return [str(file) for file in files]
    root = os.path.commonpath([file.absolute().parent for file in files])
    return [os.path.relpath(file, root) for file in files]


def checked(source: Items, on_error: str, stream: bool | None) -> Source:
    """Read all inputs once, and leave out damaged ones; hold the others in memory if they fit.

    Which samples there are is known before the training, and does not depend on the memory.

    Args:
        source: Inputs that are read when they are needed.
        on_error: See `data.open`.
        stream: See `data.open`.
    """
    if on_error == "report":
        return source
    is_large = len(source) * source.format.blank(1).nbytes > base.IN_MEMORY
    held, errors, notes = _read(source, hold=not (is_large if stream is None else stream))
    rows = [row for row in range(len(source)) if row not in errors]
    if errors:
        problems = listing([f"{source.item(row)}: {reason}" for row, reason in errors.items()])
        message = f"{source.name}: {len(errors)} of {len(source)} inputs cannot be read: {problems}"
        if on_error == "raise" or not rows:
            raise DubitoError(message)
        source = _without_damaged(source, rows)
        warnings.warn(f"{message}; they are skipped", stacklevel=3)
        held, notes = held and [held[0][rows]], base.take_texts(notes, rows)
    return replace(source, encoded=Encoded(held[0], {}, notes)) if held else source


def _read(source: Items, hold: bool) -> tuple[list[Tensor], dict[int, str], dict[int, str]]:
    """Read all inputs; return them in a list if they are held, and the errors and notes."""
    held = [source.format.blank(len(source))] if hold else []
    errors: dict[int, str] = {}
    notes: dict[int, str] = {}
    start = 0
    for inputs, new_errors, new_notes in source.batches(1 + READ // source.format.blank(1).nbytes):
        for all_inputs in held:
            all_inputs[start : start + len(inputs)] = inputs
        errors |= {start + row: reason for row, reason in new_errors.items()}
        notes |= {start + row: note for row, note in new_notes.items()}
        start += len(inputs)
    return held, errors, notes


def _without_damaged(source: Items, rows: Sequence[int]) -> Items:
    """Return the samples that can be read, at least one of each class."""
    items, target, names, weight = (
        base.take(values, rows)
        for values in (source.items, source.target, source.names, source.weight)
    )
    if lost := _classes(source.target) - _classes(target):
        raise DubitoError(f"{source.name}: no input of {_checks.listed(sorted(lost))} can be read")
    return replace(source, items=items, target=target, names=names, weight=weight)


def _classes(target: Array | Frame | None) -> set[str]:
    """Return the names of classes; none of numbers, some of which may be known by bounds."""
    cells = np.ravel(np.asarray(target, dtype=object))
    return set() if is_censored(cells) else {cell for cell in cells if isinstance(cell, str)}
