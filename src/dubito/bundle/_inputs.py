"""Inputs from files, in portions: images, folders of them, .npz and .csv.

What cannot be read becomes an entry with an error of its own, and the rest go on.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dubito.bundle._bundle import Bundle
from dubito.bundle._columns import Column, Columns
from dubito.bundle._npz import read_npz
from dubito.bundle._portion import Portion, in_one_line, named
from dubito.data.folder import _each as each
from dubito.data.folder import decode
from dubito.data.tables import _is_number as is_number

__all__ = ["portions"]


def portions(
    bundle: Bundle, paths: Iterable[str | os.PathLike[str]], size: int
) -> Iterator[Portion]:
    """All inputs of files and folders, `size` or fewer at a time."""
    loose: list[Path] = []
    for path in _files(paths):
        reader = READERS.get(path.suffix.lower())
        if reader is None:
            loose.append(path)
            if len(loose) < size:
                continue
        if loose:
            yield _images(bundle, loose)
            loose = []
        if reader is not None:
            try:
                yield from reader(bundle, path, size)
            except Exception as error:  # a damaged archive raises errors of many kinds
                yield _failed(path, error)
    if loose:
        yield _images(bundle, loose)


def _files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Path]:
    """The files named, and those below the folders named that are not hidden."""
    for given in paths:
        path = Path(given)
        if not path.is_dir():
            yield path
            continue
        for home, folders, names in os.walk(path):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            yield from (Path(home, name) for name in sorted(names) if not name.startswith("."))


def _failed(path: Path, error: Exception | str) -> Portion:
    return Portion([named(path)], None, {0: in_one_line(error)})


# --- images --------------------------------------------------------------------------------------


def _images(bundle: Bundle, paths: Sequence[Path]) -> Portion:
    mode = bundle.preprocessing.mode
    sources = [named(path) for path in paths]
    if mode is None:
        takes = "a .csv or .npz file" if len(bundle.shape) == 1 else "an .npz file"
        reason = f"this bundle takes inputs of shape {bundle.shape} from {takes}, not images"
        missing = {row: "No such file" for row, path in enumerate(paths) if not path.exists()}
        return Portion(sources, None, {row: missing.get(row, reason) for row in range(len(paths))})
    size = bundle.shape[1], bundle.shape[2]
    read = each(lambda path: decode(path, size, mode), paths)
    errors = {row: in_one_line(one) for row, one in enumerate(read) if isinstance(one, Exception)}
    good = [one for one in read if isinstance(one, Tensor)]
    return Portion(sources, torch.stack(good) if good else None, errors)


# --- .csv ----------------------------------------------------------------------------------------


def _csv(bundle: Bundle, path: Path, size: int) -> Iterator[Portion]:
    columns = _columns_of(bundle)
    # A byte that is no text can't spoil more than its cell, which then is no number or category.
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as stream:
        reader = csv.reader(stream, delimiter=columns.delimiter, strict=True)
        rows = _lines(reader)
        first = next(rows, None)
        if first is None:
            raise ValueError("the file is empty")
        if isinstance(first[1], str):
            raise ValueError(f"not a csv file: {first[1]}")
        names = first[1]
        places = columns.places(names)
        nameless = not columns.header and any(is_number(names[place]) for place in places)
        ahead = [first] if nameless else []
        if not columns.header and not nameless and bundle.preprocessing.columns is not None:
            raise ValueError("row 1 holds no numbers, but the bundle's table has no header")
        seen = False
        while portion := [*ahead, *islice(rows, size - len(ahead))]:
            ahead, seen = [], True
            yield _encoded(columns, path, portion, places, len(names))
        if not seen:
            raise ValueError("the file has a header, but no rows")


def _columns_of(bundle: Bundle) -> Columns:
    if bundle.preprocessing.columns is not None:
        return bundle.preprocessing.columns
    if len(bundle.shape) != 1:
        raise ValueError(f"this bundle takes inputs of shape {bundle.shape}, not rows of a table")
    if bundle.preprocessing.pixels:
        raise ValueError("this bundle was trained with bytes, which a table has none of")
    unnamed = tuple(Column(f"column {n + 1}") for n in range(bundle.shape[0]))
    return Columns(columns=unnamed, header=False)


def _lines(reader: Any) -> Iterator[tuple[str, list[str] | str]]:
    """Each row that is not blank, by its lines: its cells, or what is wrong with it."""
    while True:
        before = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            last = reader.line_num
            where = str(before) if last <= before else f"{before}-{last}"
            yield where, in_one_line(error)
            continue
        if row:
            yield str(reader.line_num), [cell.strip() for cell in row]


def _encoded(
    columns: Columns,
    path: Path,
    portion: Sequence[tuple[str, list[str] | str]],
    places: Sequence[int],
    width: int,
) -> Portion:
    errors: dict[int, str] = {}
    cells: list[list[str]] = []
    rows: list[int] = []
    for row, (_, content) in enumerate(portion):
        if isinstance(content, str):
            errors[row] = content
        elif len(content) != width:
            errors[row] = f"{len(content)} columns, but row 1 has {width}"
        else:
            rows.append(row)
            cells.append([content[place] for place in places])
    found = columns.encode(cells)
    errors |= {rows[at]: text for at, text in found.errors.items()}
    good = [at for at in range(len(rows)) if at not in found.errors]
    notes = {rows[at]: text for at, text in found.notes.items() if at not in found.errors}
    name = named(path)
    sources = [f"{name}:{line}" for line, _ in portion]
    inputs = torch.from_numpy(found.inputs[good]) if good else None
    return Portion(sources, inputs, dict(sorted(errors.items())), notes)


READERS = {".npz": read_npz, ".csv": _csv}
