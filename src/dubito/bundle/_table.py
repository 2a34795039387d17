"""What the columns of a training table hold: numbers, or categories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dubito import _checks
from dubito.bundle._columns import ABSENT, Column, Columns
from dubito.data.arrays import Arrays
from dubito.data.tables import MISSING
from dubito.data.tables import _column as column_at
from dubito.data.tables import _is_number as is_number
from dubito.data.tables import _no_index as no_index
from dubito.data.tables import _no_missing as no_missing
from dubito.data.tables import _rows as read_rows

__all__ = ["read_table"]

MOST_CATEGORIES = 1000
RESOLVED = 1e-5  # the least deviation, relative to the mean, that float32 resolves well
FEW_ROWS = 20  # too few to tell an identifier from a category


def read_table(
    path: Path,
    *,
    label: str | None = None,
    delimiter: str = ",",
    categories: Sequence[str] = (),
    classes: Sequence[str] | None = None,
) -> tuple[Arrays, Columns]:
    """A labelled .csv file, and how its columns were read; see `dubito.data.read_csv`.

    Columns of words are categories, and so are those that `categories` names. A missing value is an
    error that tells the column, how many there are, and the first line.
    """
    header, rows, lines = read_rows(path, delimiter)
    at = len(header) - 1 if label is None else column_at(header, label, path)
    no_index(header, rows, at, path)
    for name in categories:
        _checks.one_of([n for n in header if n != header[at]], name, f"column of {path}")
    found = [
        _found(name, np.array([row[place] for row in rows]), lines, path, name in categories)
        for place, name in enumerate(header)
        if place != at
    ]
    named = header != [f"column {number}" for number in range(1, len(header) + 1)]
    columns = Columns(
        columns=tuple(found), header=named, label=header[at], label_at=at, delimiter=delimiter
    )
    _check_header(header, columns, path)
    return columns.read(path, classes), columns


def _found(
    name: str, words: npt.NDArray[Any], lines: list[int], path: Path, category: bool
) -> Column:
    """What a column of a training file holds."""
    kinds = [is_number(str(word)) for word in words if str(word).lower() not in MISSING]
    if not category and kinds and all(kinds):
        no_missing(words, name, lines, path, MISSING)
        numbers = words.astype(np.float64)
        _check_resolution(numbers, name, path)
        return Column(name, None, (float(numbers.min()), float(numbers.max())))
    no_missing(words, name, lines, path, ABSENT)
    if not category and any(kinds):
        word, line = next(
            (str(w), n) for w, n in zip(words, lines, strict=True) if not is_number(str(w))
        )
        raise ValueError(
            f"{path}: column {name!r} holds numbers and words, {word!r} in line {line}; mend it, "
            f"or name it among the categories, as --set 'categories=[\"{name}\"]'"
        )
    values = tuple(sorted({str(word) for word in words}))
    identifies = len(words) >= FEW_ROWS and 2 * len(values) > len(words)
    if len(values) > MOST_CATEGORIES or (identifies and not category):
        raise ValueError(
            f"{path}: column {name!r} has {len(values)} different words in {len(words)} rows; new "
            "rows will have others, so remove it"
        )
    return Column(name, values)


def _check_resolution(values: npt.NDArray[np.float64], name: str, path: Path) -> None:
    """An error for a column such as the seconds since 1970, all of a single hour."""
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large is told elsewhere
        mean, deviation = values.mean(), values.std()
    if values.max() > values.min() and deviation <= RESOLVED * abs(mean):
        raise ValueError(
            f"{path}: column {name!r} varies by {deviation:.3g} around {mean:.10g}, which float32 "
            "hardly tells apart; subtract an offset from it"
        )


def _check_header(header: list[str], columns: Columns, path: Path) -> None:
    """Row 1 was taken for names because of its words, which categories are as well."""
    numbers = [name for name in header if is_number(name)]
    if numbers and not columns.numeric:
        raise ValueError(
            f"{path}: row 1 holds {numbers[0]!r} among words, so it seems to be no header; a table "
            "with categories needs one"
        )
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise ValueError(f"{path}: the header has the column {twice[0]!r} twice")
