"""Tables: .csv and .parquet files, DataFrames and lists of rows.

Cells of a .csv file are read as text, so that codes such as 04109 keep their zeros.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, Field, FiniteFloat, Strict
from torch import Tensor
from typing_extensions import TypedDict

from dubito import _checks
from dubito._extras import need
from dubito.errors import DubitoError
from dubito.formats.arrays import as_tensor, check_resolution, margins
from dubito.formats.base import FORMATS, Encoded, InputFormat, joined, listing
from dubito.types import Array, Frame, Series

__all__ = ["TableFormat"]

T = TypeVar("T")

#: spellings of a missing number
MISSING = frozenset(["", "na", "n/a", "nan", "<na>", "null", "none", "?"])
#: spellings of a missing category; "none" may be one
MISSING_CATEGORY = MISSING - {"none"}
#: spellings of a missing target; "NA" may be a class
MISSING_TARGET = frozenset(["", "nan", "<na>"])
#: a code, not a number
CODE = re.compile(r"\s*[+-]?0\d")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
#: extensions of files of rows
TABLES = (".csv", ".tsv", ".parquet")
DELIMITERS = ",;\t|"
#: name of the index of a table that was read from a file
LINE = "line"
#: names of a column without a name, in a file and in pandas
NAMELESS = ("", "Unnamed: 0")
MOST_CATEGORIES = 1000
#: with fewer rows, identifiers and categories look the same
FEW_ROWS = 20


class Column(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """An input column: numbers, or categories."""

    name: str
    """Name in the header."""
    categories: tuple[str, ...] | None = None
    """Categories in the training data, "" for a missing one; None for numbers."""
    low: FiniteFloat = 0.0
    """Smallest number in the training data."""
    high: FiniteFloat = 0.0
    """Largest number in the training data."""
    fill: FiniteFloat | None = None
    """Median, in place of missing numbers; None if the training data has none missing."""

    @property
    def width(self) -> int:
        """Number of encoded inputs: categories, or the number and whether it is missing."""
        return len(self.categories) if self.categories is not None else 1 + (self.fill is not None)

    @classmethod
    def fit(cls, series: Series, category: bool, rows: Array) -> Column:
        """Create from a column of the training data.

        Args:
            series: Column of a DataFrame.
            category: Read numbers as categories.
            rows: Rows that determine range, median and categories.
        """
        name, (numbers, missing, wrong) = series.name, _numbers(series)
        numeric = ~wrong & ~missing
        if category or not numeric.any() or _has_codes(series[numeric]):
            return cls(name=name, categories=_distinct(series, category, rows))
        if wrong.any():
            row = int(wrong.argmax())
            raise DubitoError(
                f"column {name!r} has numbers, but {_place(series, row)} is "
                f"{_short(series.iloc[row])}: correct it, {_ignore(name)}, or read the column as "
                f"categories (categories=[{name!r}])"
            )
        values = numbers[numeric & np.isin(np.arange(len(series)), rows)]
        if not len(values):
            raise DubitoError(
                f"column {name!r} has no values in the training part: {_ignore(name)}"
            )
        low, high = float(values.min()), float(values.max())
        check_resolution(f"column {name!r}", values.mean(), values.std(), low, high)
        fill = float(np.median(values)) if missing.any() else None
        return cls(name=name, low=low, high=high, fill=fill)

    def encode(self, series: Series, errors: dict[int, str]) -> Array:
        """Convert a column to inputs (N, width); errors of rows are added to `errors`."""
        if self.categories is not None:
            words, count = _words(series), len(self.categories)
            missing, wrong = words == "", np.zeros(len(words), bool)
            places = need("pandas", "data").Index(self.categories).get_indexer(words)
            inputs: Array = np.eye(count + 1, count, dtype=np.float32)[places]  # -1: zeros
            expects_missing = "" in self.categories
        else:
            values, missing, wrong = _numbers(series)
            expects_missing = self.fill is not None
            values = np.where(missing | wrong, self.fill or 0.0, values)
            inputs = np.stack([values, missing] if expects_missing else [values], 1)
        for row in np.flatnonzero(wrong if expects_missing else wrong | missing).tolist():
            reason = "missing, as in no row of the training data"
            if wrong[row]:
                reason = f"{_short(series.iloc[row])}, not a finite number"
            errors.setdefault(row, f"column {self.name!r} is {reason}")
        return inputs

    def decode(self, inputs: Array) -> str | float | None:
        """Return the category or number of inputs (width,); "" if missing, None if unseen."""
        if self.categories is not None:
            return self.categories[inputs.argmax()] if inputs.any() else None
        return "" if self.fill is not None and inputs[1] else float(inputs[0])

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """Bounds of each encoded input; the column is in range if one is within its bounds."""
        if self.categories is not None:
            return [(0.5, 1.5)] * self.width
        low, high = margins(self.low, self.high).tolist()
        return [(low, high), (np.inf, np.inf)][: self.width]


@FORMATS.register("table")
class TableFormat(InputFormat):
    """Rows of a table: numbers as they are, categories one-hot.

    A missing number becomes the median, and 1 in an input of its own; a missing category is a
    category. Both only if the training data has such rows.
    """

    json_key: ClassVar[str] = "rows"
    columns: tuple[Column, ...] = Field(min_length=1)
    """Input columns."""
    target: tuple[str, ...] = ()
    """Target columns."""

    @classmethod
    def accepts(cls, items: object) -> bool:
        """Return whether the format reads such inputs: a DataFrame, rows, or a file of them."""
        if isinstance(items, str | os.PathLike):
            return Path(items).suffix.lower() in TABLES
        rows = items if isinstance(items, list) else [items]
        return hasattr(items, "iloc") or all(isinstance(row, Mapping) for row in rows)

    @classmethod
    def fit(
        cls,
        items: Any,
        rows: Sequence[int] | None = None,
        *,
        target: Sequence[str] = (),
        ignore: Sequence[str] = (),
        categories: Sequence[str] = (),
    ) -> Self:
        """Create from the training data.

        Types of columns and whether values are missing follow from all rows.

        Args:
            items: DataFrame, or rows as `encode` takes them.
            rows: Rows that determine ranges, medians and categories; None: all.
            target: Target columns, which are not inputs.
            ignore: Columns to leave out.
            categories: Columns of numbers to read as categories.
        """
        frame = as_frame(items)
        names = [name for name in frame.columns if name not in (*target, *ignore)]
        if not names:
            raise DubitoError("the table has no input columns")
        training = np.arange(len(frame)) if rows is None else np.asarray(rows)
        columns = collected(
            partial(Column.fit, frame[name], name in categories, training) for name in names
        )
        return cls(columns=tuple(columns), target=tuple(target))

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of encoded inputs."""
        return (sum(column.width for column in self.columns),)

    @property
    def json_type(self) -> Any:
        """A dict with a cell for each column."""
        whole = Annotated[int, Strict(), Field(ge=-(2**63), lt=2**63)]
        number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
        text = Annotated[str, Strict()]
        cell = Annotated[whole | number | text | None, Field(union_mode="left_to_right")]
        names = [column.name for column in self.columns]
        return TypedDict("Row", dict.fromkeys(names, cell))  # type: ignore[operator]

    def encode(self, items: Any) -> Encoded:
        """Convert rows; see `InputFormat.encode`.

        Args:
            items: DataFrame, list of dicts, or path of a .csv or .parquet file. Columns may be in
                any order and among others.
        """
        frame = as_frame(items)
        lacking = [column.name for column in self.columns if column.name not in frame.columns]
        if lacking:
            raise DubitoError(
                f"the table lacks the column{'s' * (len(lacking) > 1)} "
                f"{_checks.listed(lacking[:10])}; it has {_checks.listed(list(frame.columns)[:10])}"
            )
        errors: dict[int, str] = {}
        parts = [column.encode(frame[column.name], errors) for column in self.columns]
        inputs, _ = as_tensor(np.concatenate(parts, 1))
        rows = sorted(errors)
        inputs[rows] = 0
        outside = ~self._near(inputs)
        outside[rows] = False

        def note(row: int, place: int) -> str:
            column = self.columns[place]
            cell = frame[column.name].iloc[row]
            if column.categories is not None:
                return f"{column.name} is {_short(cell)}, unseen in training"
            return f"{column.name} is {float(cell):.6g}, far from [{column.low:g}, {column.high:g}]"

        return Encoded(inputs, {row: errors[row] for row in rows}, joined(outside, note))

    def describe(self, inputs: Tensor) -> dict[str, str | float | None]:
        """Return the cells of a row by column, "" for a missing one, None for an unseen category.

        Args:
            inputs: Encoded row.
        """
        parts = inputs.cpu().split([column.width for column in self.columns])
        cells = zip(self.columns, parts, strict=True)
        return {column.name: column.decode(part.numpy()) for column, part in cells}

    def _near(self, inputs: Tensor) -> Tensor:
        bounds = [pair for column in self.columns for pair in column.bounds]
        low, high = inputs.new_tensor(bounds).unbind(-1)
        within = (inputs >= low) & (inputs <= high)
        widths = [column.width for column in self.columns]
        return torch.stack([part.any(-1) for part in within.split(widths, -1)], -1)

    def __str__(self) -> str:
        return f"tables with the columns {_checks.listed(c.name for c in self.columns[:10])}"


# --- cells ----------------------------------------------------------------------------------------


def _numbers(series: Series) -> tuple[Array, Array, Array]:
    """Return the numbers of a column, which cells are missing, and which are not finite numbers."""
    pandas = need("pandas", "data")
    cells = series if _is_numeric(series) else series.astype("str")
    values = pandas.to_numeric(cells, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    with np.errstate(over="ignore"):
        wrong = ~np.isfinite(values.astype(np.float32))
    missing = np.zeros(len(series), bool)
    rows = np.flatnonzero(np.isnan(values))
    missing[rows] = [_word(cell).lower() in MISSING for cell in series.iloc[rows]]
    return values, missing, wrong & ~missing


def _words(series: Series) -> Array:
    """Return the categories of a column, "" for missing ones."""
    try:
        codes, cells = need("pandas", "data").factorize(series, use_na_sentinel=False)
    except TypeError as error:  # lists cannot be hashed
        raise DubitoError(
            f"column {series.name!r} has cells that are neither numbers nor text: "
            f"{_ignore(series.name)}"
        ) from error
    words = ["" if _word(c).lower() in MISSING_CATEGORY else _word(c) for c in cells]
    categories: Array = np.array(words)[codes]
    return categories


def _word(cell: object) -> str:
    """Return a cell as a .csv file has it; an integer may be stored as a float."""
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return "" if cell is None else str(cell).strip()


def _short(cell: object) -> str:
    word = _word(cell)
    return repr(word if len(word) <= 40 else word[:40] + "...")


def _is_numeric(series: Series) -> bool:
    """Return whether a column has numbers; True and False are categories, as in a file."""
    return series.dtype.kind in "iuf"


def _has_codes(series: Series) -> bool:
    return not _is_numeric(series) and any(map(CODE.match, series.astype("str")))


def _distinct(series: Series, requested: bool, rows: Array) -> tuple[str, ...]:
    """Return the categories of a column, unless it looks like an identifier."""
    words, count, name = _words(series), len(series), series.name
    categories = set(words.tolist())
    if categories == {""}:
        raise DubitoError(f"column {name!r} has no values: {_ignore(name)}")
    identifies = count >= FEW_ROWS and 2 * len(categories) > count and not requested
    if len(categories) > MOST_CATEGORIES or identifies:
        raise DubitoError(
            f"column {name!r} has {len(categories)} different values in {count} rows, like an "
            f"identifier: {_ignore(name)}"
        )
    return tuple(sorted(categories & {"", *words[rows].tolist()}))


def _ignore(name: str) -> str:
    return f"ignore it (ignore=[{name!r}])"


def _place(series: Series, row: int) -> str:
    """Return the name of a row in messages."""
    return f"{'line' if series.index.name == LINE else 'row'} {series.index[row]}"


def collected(functions: Iterable[Callable[[], T]], name: str = "") -> list[T]:
    """Return the results of functions, or raise all their problems at once.

    Args:
        functions: Functions without arguments.
        name: Name of the table in the message.
    """
    results, problems = [], []
    for function in functions:
        try:
            results.append(function())
        except DubitoError as error:
            problems.append(str(error))
    if problems:
        raise DubitoError(f"{name}: {listing(problems)}" if name else listing(problems))
    return results


# --- tables ---------------------------------------------------------------------------------------


def as_frame(items: Any) -> Frame:
    """Return a DataFrame of rows as users have them; see `TableFormat.encode`."""
    if isinstance(items, str | os.PathLike):
        items = read_table(Path(items))
    if isinstance(items, Mapping):
        items = [items]
    if not hasattr(items, "iloc"):
        if not all(isinstance(row, Mapping) for row in items):
            raise DubitoError("rows must be a DataFrame, a list of dicts, or the path of a file")
        items = need("pandas", "data").DataFrame.from_records(list(items))
    frame = items.set_axis([str(name) for name in items.columns], axis=1)
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise DubitoError(f"the table has the column {twice!r} twice")
    return frame


def read_table(path: Path) -> Frame:
    """Read a .csv or .parquet file; rows of a .csv file are labeled by their lines."""
    pandas = need("pandas", "data")
    if path.suffix.lower() == ".parquet":
        need("pyarrow", "parquet")
    try:
        if path.suffix.lower() == ".parquet":
            return pandas.read_parquet(path)
        with path.open(encoding="utf-8-sig") as file:
            header = file.readline()
        cells = pandas.read_csv(
            path,
            sep=max(DELIMITERS, key=header.count),
            header=None,
            dtype=str,
            keep_default_na=False,
            skip_blank_lines=False,
            encoding="utf-8-sig",
        )
    except pandas.errors.EmptyDataError as error:
        raise DubitoError(f"{path} is empty") from error
    except (ValueError, OSError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise DubitoError(f"{path} cannot be read as a table: {reason}") from error
    cells.columns = [str(name).strip() for name in cells.iloc[0]]
    numbers = [name for name in cells.columns if NUMBER.fullmatch(name)]
    # pandas names the columns of an array 0, 1, 2, ...
    if numbers != [str(place) for place in range(len(numbers))]:
        raise DubitoError(
            f"{path}: line 1 has {numbers[0]!r} among the names of the columns; is it a sample? "
            "The first line must be a header"
        )
    cells.index = pandas.RangeIndex(1, len(cells) + 1, name=LINE)
    frame = cells.iloc[1:]
    return frame[(frame != "").any(axis=1)]


def target_columns(frame: Frame, names: Sequence[str]) -> Series | Frame:
    """Return the targets of a table: a column of numbers or text, or several columns.

    Args:
        frame: DataFrame.
        names: Target columns.
    """
    columns = collected(partial(_target_column, frame[name]) for name in names)
    return columns[0] if len(columns) == 1 else need("pandas", "data").concat(columns, axis=1)


def missing_targets(frame: Frame, names: Sequence[str]) -> Array:
    """Return the rows of a table without any target: bool (N,).

    Args:
        frame: DataFrame.
        names: Target columns.
    """
    absent: Array = np.all([_is_missing(frame[name]) for name in names], 0)
    return absent


def _is_missing(series: Series) -> Array:
    return np.array([_word(cell).lower() in MISSING_TARGET for cell in series], bool)


def _target_column(series: Series) -> Series:
    """Return a target column; cells of text that are numbers become numbers, codes do not.

    Missing cells are NaN.
    """
    missing = _is_missing(series)
    if missing.all():
        raise DubitoError(
            f"target {series.name!r} is missing in {len(missing)} rows, the first is "
            f"{_place(series, 0)}: fill them in or remove the rows"
        )
    if _is_numeric(series):
        return series
    words = series.map(_word).mask(missing)
    if any(map(CODE.match, words[~missing].unique())):
        return words
    numbers = need("pandas", "data").to_numeric(words, errors="coerce")
    mixed = numbers[~missing].isna().any()
    return words.astype(object).where(numbers.isna(), numbers) if mixed else numbers


def weight_column(series: Series) -> Array:
    """Return a column of sample weights, numbers of at least 0.

    Args:
        series: Column of a DataFrame.
    """
    weights, missing, wrong = _numbers(series)
    bad = missing | wrong | (weights < 0)
    if bad.any():
        row = int(bad.argmax())
        raise DubitoError(
            f"weight {series.name!r} of {_place(series, row)} is {_short(series.iloc[row])}, not a "
            "number of at least 0"
        )
    return weights


def without_index(frame: Frame, name: str) -> Frame:
    """Leave out a column without a name that counts the rows, as pandas writes it.

    A network could recognize the samples of a sorted table by it.
    """
    first = frame.columns[0] if len(frame.columns) else None
    if first not in NAMELESS or not frame[first].astype("str").str.fullmatch(r"\d+").all():
        return frame
    warnings.warn(f"{name}: the first column has no name and counts rows: ignored", stacklevel=4)
    return frame.drop(columns=first)


def row_names(frame: Frame, name: str) -> list[str]:
    """Return the names of rows for users: the line of a file, or the label of a row."""
    prefix = f"{name}:" if frame.index.name == LINE else "row "
    return [f"{prefix}{label}" for label in frame.index]
