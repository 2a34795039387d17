"""The columns of a table: numbers as they are, categories as one number for each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dubito import _checks
from dubito.data.arrays import Arrays
from dubito.data.labels import encode_words
from dubito.data.tables import MISSING, UNLABELLED, as_inputs
from dubito.data.tables import _column as column_at
from dubito.data.tables import _no_missing as no_missing
from dubito.data.tables import _rows as read_rows

__all__ = ["Column", "Columns", "Encoded"]

Cells = Sequence[Sequence[str]]
#: of the words for a missing value, those that can hardly be a category
ABSENT = MISSING - {"none"}


@dataclass(frozen=True)
class Column:
    """A column's name, and its categories or, where it holds numbers, the span that training saw.

    >>> Column("colour", ("blue", "red")).width
    2
    """

    name: str
    categories: tuple[str, ...] | None = None
    span: tuple[float, float] | None = None

    @property
    def width(self) -> int:
        """How many inputs it becomes."""
        return 1 if self.categories is None else len(self.categories)


@dataclass(frozen=True)
class Encoded:
    """Rows as inputs (N, D) float32; what is wrong with some of them, and what was noted."""

    inputs: npt.NDArray[np.float32]
    errors: dict[int, str]
    notes: dict[int, str]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """How the rows of a .csv file become inputs.

    With a `header` columns are found by their names, in any order and among any others; without
    one by their places, `label_at` being the place of the label in a row that has one.

    >>> columns = Columns(columns=(Column("size"), Column("colour", ("blue", "red"))))
    >>> columns.encode([["2.5", "red"], ["1", "mauve"], ["?", "blue"]])
    Encoded(inputs=array([[2.5, 0. , 1. ], [1. , 0. , 0. ], [0. , 1. , 0. ]], dtype=float32),
        errors={2: "column 'size' is missing"}, notes={1: "unseen colour 'mauve'"})
    """

    columns: tuple[Column, ...]
    header: bool = True
    label: str | None = None
    label_at: int = -1
    delimiter: str = ","

    @property
    def width(self) -> int:
        """D, the number of inputs."""
        return sum(column.width for column in self.columns)

    @property
    def numeric(self) -> bool:
        """Whether all columns hold numbers, so that rows and inputs are the same."""
        return all(column.categories is None for column in self.columns)

    def places(self, first: Sequence[str]) -> list[int]:
        """Where the columns are, by the first row of a file."""
        if self.header:
            lacking = [column.name for column in self.columns if column.name not in first]
            if lacking:
                raise ValueError(
                    f"the header lacks the column {lacking[0]!r}"
                    + (f" and {len(lacking) - 1} more" if len(lacking) > 1 else "")
                    + f"; it has {_checks.listed(list(first)[:10])}"
                )
            twice = [column.name for column in self.columns if list(first).count(column.name) > 1]
            if twice:
                raise ValueError(f"the header has the column {twice[0]!r} twice")
            return [list(first).index(column.name) for column in self.columns]
        count = len(self.columns)
        if len(first) == count:
            return list(range(count))
        if len(first) == count + 1 and self.label_at >= 0:
            return [place for place in range(count + 1) if place != self.label_at]
        raise ValueError(f"row 1 has {len(first)} columns; expected {count} without a label")

    def encode(self, rows: Cells) -> Encoded:
        """Cells (N, columns) as inputs (N, D); a row with an error holds zeros where it is."""
        inputs = np.zeros((len(rows), self.width), np.float32)
        errors: dict[int, str] = {}
        unseen: dict[int, str] = {}
        at = 0
        for place, column in enumerate(self.columns):
            words = [row[place] for row in rows]
            if column.categories is None:
                inputs[:, at] = _numbers(words, column.name, errors)
            else:
                _one_hot(words, column, inputs[:, at : at + column.width], errors, unseen)
            at += column.width
        notes = self.notes(inputs)
        for row, text in unseen.items():
            _note(notes, row, text)
        return Encoded(inputs, errors, notes)

    def notes(self, inputs: npt.NDArray[np.float32]) -> dict[int, str]:
        """What is strange about numbers among inputs (N, D), by row.

        >>> columns = Columns(columns=(Column("size", span=(0.0, 5.0)),))
        >>> columns.notes(np.array([[3.0], [900.0]], np.float32))
        {1: 'size 900 is far from [0, 5]'}
        """
        notes: dict[int, str] = {}
        at = 0
        for column in self.columns:
            if column.categories is None:
                _note_strange(inputs[:, at], column, notes)
            at += column.width
        return notes

    def read(self, path: Path, classes: Sequence[str] | None = None) -> Arrays:
        """A whole labelled file."""
        header, rows, lines = read_rows(path, self.delimiter)
        places = self.places(header if self.header else rows[0])
        at = column_at(header, self.label, path) if self.header and self.label else self.label_at
        if len(places) == len(header):
            raise ValueError(f"{path} has no column of labels")
        words = np.array([row[at] for row in rows])
        no_missing(words, header[at], lines, path, UNLABELLED)
        labels, names = encode_words(words, classes, str(path))
        return Arrays(as_inputs(self._all(rows, places, lines, path), str(path)), labels, names,
                      path.stem)  # fmt: skip

    def read_inputs(self, path: Path) -> npt.NDArray[np.float32]:
        """The inputs of a whole file, labelled or not."""
        header, rows, lines = read_rows(path, self.delimiter)
        return self._all(rows, self.places(header if self.header else rows[0]), lines, path)

    def _all(
        self, rows: Cells, places: Sequence[int], lines: Sequence[int], path: Path
    ) -> npt.NDArray[np.float32]:
        found = self.encode([[row[place] for place in places] for row in rows])
        if found.errors:
            first = min(found.errors)
            raise ValueError(
                f"{path}, line {lines[first]}: {found.errors[first]}"
                + (f" ({len(found.errors)} such rows)" if len(found.errors) > 1 else "")
            )
        return found.inputs

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a file; `from_dict` makes it again."""
        plain = asdict(self)
        plain["columns"] = [
            {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(column).items()}
            for column in self.columns
        ]
        return plain

    @classmethod
    def from_dict(cls, values: Any) -> Columns:
        """What `as_dict` described."""
        known = {"columns": list, "header": bool, "label": (str, type(None)), "label_at": int,
                 "delimiter": str}  # fmt: skip
        if not isinstance(values, Mapping) or set(values) != set(known):
            raise ValueError(f"a table has the keys {_checks.listed(known)}, but is {values!r}")
        for key, kind in known.items():
            if not isinstance(values[key], kind):  # type: ignore[arg-type]
                raise ValueError(f"{key!r} of a table is {values[key]!r}")
        columns = tuple(_read_column(one) for one in values["columns"])
        if not columns or len(values["delimiter"]) != 1:
            raise ValueError("a table has at least one column and a delimiter of one character")
        return cls(**{**values, "columns": columns})


def _read_column(values: Any) -> Column:
    if not isinstance(values, Mapping) or set(values) != {"name", "categories", "span"}:
        raise ValueError(f"a column has the keys 'name', 'categories', 'span', but is {values!r}")
    name, categories, span = values["name"], values["categories"], values["span"]
    words = categories is None or (
        isinstance(categories, list) and categories and all(isinstance(c, str) for c in categories)
    )
    if not isinstance(name, str) or not words:
        raise ValueError(f"a column has a name and perhaps categories, but is {values!r}")
    if span is not None and not (
        isinstance(span, list) and len(span) == 2 and all(isinstance(v, int | float) for v in span)
    ):
        raise ValueError(f"the span of a column is two numbers, not {span!r}")
    return Column(
        name,
        None if categories is None else tuple(categories),
        None if span is None else (float(span[0]), float(span[1])),
    )


def _numbers(words: list[str], name: str, errors: dict[int, str]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            found = np.array(words, dtype=np.str_).astype(np.float64).astype(np.float32)
            if np.isfinite(found).all():
                return found
        except ValueError:
            pass
        values = [_number(word) for word in words]
        found = np.array(values, np.float64).astype(np.float32)
    for row in np.flatnonzero(~np.isfinite(found)):
        errors.setdefault(int(row), _wrong(words[row], name))
    return np.where(np.isfinite(found), found, np.float32(0))


def _note_strange(values: npt.NDArray[np.float32], column: Column, notes: dict[int, str]) -> None:
    """Note what lies further outside the span than the span is wide: evidence may grow there."""
    if column.span is None:
        return
    low, high = column.span
    width = (high - low) or abs(low) or 1.0
    for row in np.flatnonzero((values < low - width) | (values > high + width)):
        _note(notes, int(row), f"{column.name} {values[row]:.6g} is far from [{low:g}, {high:g}]")


def _note(notes: dict[int, str], row: int, text: str) -> None:
    notes[row] = f"{notes[row]}; {text}" if row in notes else text


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan


def _wrong(word: str, name: str) -> str:
    if word.lower() in MISSING:
        return f"column {name!r} is missing"
    return f"column {name!r} must be a finite number, not {_short(word)}"


def _one_hot(
    words: list[str],
    column: Column,
    into: npt.NDArray[np.float32],
    errors: dict[int, str],
    notes: dict[int, str],
) -> None:
    assert column.categories is not None
    index = {category: place for place, category in enumerate(column.categories)}
    for row, word in enumerate(words):
        if word in index:
            into[row, index[word]] = 1
        elif word.lower() in ABSENT:
            errors.setdefault(row, f"column {column.name!r} is missing")
        else:
            _note(notes, row, f"unseen {column.name} {_short(word)}")


def _short(word: str) -> str:
    return repr(word if len(word) <= 40 else word[:40] + "...")
