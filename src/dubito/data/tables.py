"""Data of one's own in a file: arrays in .npz, rows in .csv."""

from __future__ import annotations

import contextlib
import csv
import math
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dubito import _checks
from dubito.data.arrays import Arrays
from dubito.data.labels import encode, encode_words, flat, whole, word

__all__ = ["as_inputs", "npz_parts", "read_csv", "read_npz"]

AnyArray = npt.NDArray[np.generic]

#: names under which an .npz may hold inputs and labels
INPUTS = ("inputs", "x", "X", "images", "features", "data")
LABELS = ("labels", "y", "Y", "targets", "target")
PARTS = ("train", "test")
CHANNELS = (1, 3, 4)
MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}
UNLABELLED = {"", "nan"}  # "none" may well be a class
NAMELESS = {"", "Unnamed: 0"}  # what pandas calls its index, and calls it when it reads it again


def read_npz(
    path: str | os.PathLike[str], split: str = "all", *, classes: Sequence[str] | None = None
) -> Arrays:
    """Inputs and labels from an .npz file; nothing in it is unpickled.

    The arrays are called `inputs` and `labels` (or `x`, `y`, ...; see INPUTS and LABELS), with
    `train` or `test` before or after the name where the file has parts, and perhaps `classes`.
    Bytes are pixels; other numbers become float32. Images may be (N, H, W) if they are bytes,
    (N, C, H, W) or (N, H, W, C), and get their channels in front.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "flowers.npz"
    ...     np.savez(path, x=np.ones((3, 4)), y=np.array(["rose", "iris", "rose"]))
    ...     read_npz(path)
    Arrays('flowers': 3 x (4,) float32, 2 classes, cpu)
    """
    file = Path(path)
    with _npz(file) as arrays:
        return _from_arrays(arrays, file, split, classes)


def _from_arrays(
    arrays: Mapping[str, AnyArray], file: Path, split: str, classes: Sequence[str] | None
) -> Arrays:
    parts = _parts(arrays)
    if not parts:
        whole(split, str(file))
        wanted: tuple[str, ...] = ("",)
    else:
        _checks.one_of([*parts, "all"], split, f"split of {file}")
        wanted = parts if split == "all" else (split,)
    pairs = [(_pick(arrays, INPUTS, p, file), _pick(arrays, LABELS, p, file)) for p in wanted]
    names = classes if classes is not None else _names(arrays, parts, file)
    inputs = torch.cat([as_inputs(x, str(file)) for x, _ in pairs])
    labels, known = encode(_joined([y for _, y in pairs], file), names, str(file))
    return Arrays(inputs, labels, known, file.stem)


def npz_parts(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Which of "train" and "test" an .npz file has by the names of its arrays."""
    with _npz(Path(path)) as arrays:
        return _parts(arrays)


@contextlib.contextmanager
def _npz(file: Path) -> Iterator[Mapping[str, AnyArray]]:
    """The arrays of an open file, read when they are asked for."""
    with file.open("rb") as stream:
        try:
            content = np.load(stream, allow_pickle=False)
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{file} is not an .npz file of plain arrays: {error}") from error
        if not isinstance(content, np.lib.npyio.NpzFile):
            raise ValueError(
                f"{file} holds a single array, not an .npz archive: write it with "
                "np.savez(file, inputs=..., labels=...)"
            )
        with content:
            yield content


def _key(names: Iterable[str], known: Sequence[str], part: str) -> str | None:
    spelled = [f"{name}_{part}" for name in known] + [f"{part}_{name}" for name in known]
    present = set(names)
    return next((name for name in (spelled if part else known) if name in present), None)


def _parts(arrays: Mapping[str, AnyArray]) -> tuple[str, ...]:
    return tuple(part for part in PARTS if _key(arrays, INPUTS, part))


def _pick(arrays: Mapping[str, AnyArray], known: Sequence[str], part: str, file: Path) -> AnyArray:
    key = _key(arrays, known, part)
    if key is None:
        raise ValueError(
            f"{file} has no array called {' or '.join(known[:3])}{f' of {part}' if part else ''}: "
            f"it holds {sorted(arrays) or 'nothing'}"
        )
    return _array(arrays, key, file)


def _array(arrays: Mapping[str, AnyArray], key: str, file: Path) -> AnyArray:
    try:
        return arrays[key]
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{file}: array {key!r} cannot be read ({error}). "
            "Arrays of Python objects are refused: store numbers, or labels as words"
        ) from error


def _names(
    arrays: Mapping[str, AnyArray], parts: tuple[str, ...], file: Path
) -> Sequence[str] | None:
    """The classes that the file names, or those of all its parts: each part may lack some."""
    if "classes" in arrays:
        return [word(name) for name in _array(arrays, "classes", file)]
    if not parts:
        return None
    labels = [_pick(arrays, LABELS, part, file) for part in parts]
    return encode(_joined(labels, file), None, str(file))[1]


def _joined(labels: Sequence[AnyArray], file: Path) -> AnyArray:
    return np.concatenate([flat(each, str(file)) for each in labels])


def as_inputs(values: AnyArray, name: str) -> Tensor:
    """An array of numbers as inputs (N, *shape): uint8 stays, the rest becomes finite float32."""
    if values.dtype.kind not in "biuf":
        raise ValueError(f"{name}: inputs must be numbers, not {values.dtype}")
    if values.ndim < 2:
        raise ValueError(f"{name}: inputs have shape {values.shape}: expected (N, *shape)")
    if values.ndim == 3 and values.dtype == np.uint8:
        values = values[:, None]
    elif values.ndim == 4 and values.shape[-1] in CHANNELS and values.shape[1] not in CHANNELS:
        values = np.moveaxis(values, -1, 1)
    if values.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(values))
    with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite, and is reported
        numbers = np.ascontiguousarray(values, dtype=np.float32)
    bad = ~np.isfinite(numbers)
    if bad.any():
        first = tuple(int(at) for at in np.argwhere(bad)[0])
        raise ValueError(
            f"{name}: {int(bad.sum())} of {bad.size} input values are not finite float32 numbers, "
            f"the first at {first}: {values[first]}"
        )
    return torch.from_numpy(numbers)


def read_csv(
    path: str | os.PathLike[str],
    split: str = "all",
    *,
    label: str | None = None,
    classes: Sequence[str] | None = None,
    delimiter: str = ",",
) -> Arrays:
    """Rows of numbers with a label, the last column or the one that the header calls `label`.

    A first row with a word among its inputs is the header, and so is one that only numbers its
    columns or has the only word among the labels; one that may as well be a sample is an error.
    Labels may be numbers or words, and the other columns must hold a number in every row.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "flowers.csv"
    ...     _ = path.write_text("length,width,kind\\n5.1,3.5,iris\\n4.9,3,rose\\n")
    ...     flowers = read_csv(path)
    >>> flowers.classes, flowers.inputs
    (('iris', 'rose'), tensor([[5.1000, 3.5000], [4.9000, 3.0000]]))
    """
    file = Path(path)
    whole(split, str(file))
    header, rows, lines = _rows(file, delimiter)
    at = len(header) - 1 if label is None else _column(header, label, file)
    _no_index(header, rows, at, file)
    columns = [np.array(values) for values in zip(*rows, strict=True)]
    words = columns.pop(at)
    _no_missing(words, header.pop(at), lines, file, UNLABELLED)
    numbers = np.stack(
        [_numbers(c, n, lines, file) for c, n in zip(columns, header, strict=True)], axis=1
    )
    labels, names = encode_words(words, classes, str(file))
    return Arrays(as_inputs(numbers, str(file)), labels, names, file.stem)


def _rows(file: Path, delimiter: str) -> tuple[list[str], list[list[str]], list[int]]:
    """The columns' names, the rows, and the line in the file that each row ends on."""
    with file.open(newline="", encoding="utf-8-sig") as stream:
        reader = csv.reader(stream, delimiter=delimiter, strict=True)
        try:
            read = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{file}, line {reader.line_num}: not a csv file: {error}") from error
    lines, rows = [line for line, _ in read], [row for _, row in read]
    width = len(rows[0]) if rows else 0
    if width < 2:
        raise ValueError(
            f"{file} has {width} column(s) separated by {delimiter!r}, but needs inputs and "
            "a label; is the delimiter another one?"
        )
    for line, row in zip(lines, rows, strict=True):
        if len(row) != width:
            raise ValueError(f"{file}, line {line}: {len(row)} columns, but row 1 has {width}")
    if _is_header(rows, f"{file}, line {lines[0]}"):
        header, rows, lines = rows[0], rows[1:], lines[1:]
    else:
        header = [f"column {number}" for number in range(1, width + 1)]
    if not rows:
        raise ValueError(f"{file} has a header, but no rows")
    return header, rows, lines


def _is_header(rows: list[list[str]], place: str) -> bool:
    """Whether the first row names columns; pandas calls those of an array 0, 1, 2, ..."""
    *inputs, label = rows[0]
    if any(map(_is_word, inputs)):
        _names_nothing_below(rows, place)
        return True
    others = {row[-1] for row in rows[1:]}
    if not others or label in others or not _is_word(label):
        return False
    counted = [str(number) for number in range(len(inputs))]
    if all(map(_is_number, others)) or (len(inputs) > 1 and inputs == counted):
        return True
    if len(others) < len(rows) - 1:  # labels recur, and this one does not
        raise ValueError(
            f"{place}: is row 1 a header or a sample? It has numbers and {label!r}, which is the "
            "label of no other row; call the columns by words if it is a header, and put such a "
            "header above it if it is a sample"
        )
    return False


def _is_word(cell: str) -> bool:
    return not _is_number(cell) and cell.lower() not in MISSING


def _names_nothing_below(rows: list[list[str]], place: str) -> None:
    """An error for a row of categories; a single column may well have a value of its own name."""
    found = [word for word, *below in zip(*rows, strict=True) if _is_word(word) and word in below]
    if len(found) > 1:
        raise ValueError(
            f"{place}: row 1 has {_checks.listed(found[:10])}, which occur in the same columns "
            "below, so it seems to be no header; put one above it, with names that are no values"
        )


def _no_index(header: list[str], rows: list[list[str]], label_at: int, file: Path) -> None:
    """An error for the rows' numbers as pandas writes them: sorted samples are told by these."""
    cells = [row[0] for row in rows]
    if label_at == 0 or header[0] not in NAMELESS or not all(map(str.isdecimal, cells)):
        return
    if len(set(cells)) == len(cells) > 1:
        raise ValueError(
            f"{file}: column 1 has no name and another whole number in each row, so it seems to be "
            "an index and no input; write the file without it (index=False), or name it"
        )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _column(header: list[str], label: str, file: Path) -> int:
    _checks.one_of(header, label, f"column of {file}")
    return header.index(label)


def _no_missing(
    words: AnyArray, column: str, lines: list[int], file: Path, missing: set[str]
) -> None:
    gaps = [line for word, line in zip(words, lines, strict=True) if str(word).lower() in missing]
    if gaps:
        raise ValueError(
            f"{file}: column {column!r} has {len(gaps)} missing value(s), "
            f"the first in line {gaps[0]}; fill them in or remove these rows"
        )


def _numbers(words: AnyArray, column: str, lines: list[int], file: Path) -> npt.NDArray[np.float64]:
    try:
        numbers = words.astype(np.float64)
    except ValueError:
        numbers = np.full(len(words), math.nan)
    if not np.isnan(numbers).any():
        return numbers
    _no_missing(words, column, lines, file, MISSING)
    word, line = next(
        (word, line) for word, line in zip(words, lines, strict=True) if not _is_number(str(word))
    )
    raise ValueError(
        f"{file}: column {column!r} must hold numbers, but line {line} has {str(word)!r}; "
        "replace its categories with numbers or remove the column"
    )
