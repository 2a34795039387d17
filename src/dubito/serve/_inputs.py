"""From the body of a request to inputs (N, *shape) for the model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dubito.bundle import Columns
from dubito.serve import _images
from dubito.serve._model import Served
from dubito.serve._multipart import files_of
from dubito.serve._problem import Problem
from dubito.serve._settings import Settings

__all__ = ["Parsed", "parse_images", "parse_json"]

JSON, MULTIPART = "application/json", "multipart/form-data"


@dataclass(frozen=True, eq=False)
class Parsed:
    """Inputs (N, *shape); what is added to the answer about each of them."""

    inputs: npt.NDArray[np.float32]
    extras: Sequence[dict[str, Any]] = field(default=())


def parse_json(body: bytes, served: Served, settings: Settings) -> Parsed:
    """Inputs from {"inputs": [...]} or, for tables, {"rows": [{...}]}."""
    given = _loaded(body)
    known = ("inputs", "rows") if served.kind == "table" else ("inputs",)
    if not isinstance(given, dict) or len(given) != 1 or next(iter(given)) not in known:
        raise Problem("bad_input", f"the body must be an object with one key: {' or '.join(known)}")
    key, values = next(iter(given.items()))
    if not isinstance(values, list) or not values:
        raise Problem("bad_input", f"{key!r} must be a list of at least one input")
    _check_count(len(values), settings)
    columns = served.bundle.preprocessing.columns
    if key == "rows":
        assert columns is not None
        return _table(values, columns)
    inputs = _array(values, served)
    return Parsed(inputs) if columns is None else _noted(inputs, columns.notes(inputs))


def _check_count(count: int, settings: Settings) -> None:
    if count > settings.max_batch:
        raise Problem("too_many", f"{count} inputs; a request may have {settings.max_batch}")


def _loaded(body: bytes) -> Any:
    try:
        return json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is one of the former
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else _short(error)
        raise Problem("bad_request", f"the body is no JSON: {reason}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _short(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return " ".join(str(error).split())[:100]


# --- arrays --------------------------------------------------------------------------------------


def _array(values: list[Any], served: Served) -> npt.NDArray[np.float32]:
    """Nested lists, or each input in one flat list."""
    shape = served.bundle.shape
    flat = (math.prod(shape),)
    for index, value in enumerate(values):
        if not _fits(value, shape) and not _fits(value, flat):
            wanted = " or ".join(f"{list(s)}" for s in dict.fromkeys((tuple(shape), flat)))
            raise Problem(
                "bad_input", f"an input must be numbers in lists of the shape {wanted}", index=index
            )
    with np.errstate(over="ignore"):
        found = np.stack([_numbers(value, index, shape) for index, value in enumerate(values)])
    for index in np.flatnonzero(~np.isfinite(found.reshape(len(found), -1)).all(1))[:1]:
        raise Problem("bad_input", "a number is too large for float32", index=int(index))
    if served.bundle.preprocessing.pixels:
        outside = ((found < 0) | (found > 1)).reshape(len(found), -1).any(1)
        for index in np.flatnonzero(outside)[:1]:
            raise Problem("bad_input", "pixels must be numbers in [0, 1]", index=int(index))
    return found


def _numbers(value: Any, index: int, shape: Sequence[int]) -> npt.NDArray[np.float32]:
    try:
        return np.array(value, np.float32).reshape(shape)
    except OverflowError:  # a whole number of hundreds of digits
        raise Problem("bad_input", "a number is too large for float32", index=index) from None


NUMBERS = frozenset({int, float})


def _fits(value: Any, shape: Sequence[int]) -> bool:
    """Whether nested lists have that shape and hold numbers alone; True and False are none."""
    if not isinstance(value, list) or len(value) != shape[0]:
        return False
    if len(shape) == 1:
        return NUMBERS.issuperset(map(type, value))
    return all(_fits(inner, shape[1:]) for inner in value)


# --- tables --------------------------------------------------------------------------------------


def _table(rows: list[Any], columns: Columns) -> Parsed:
    cells = [_cells(row, columns, index) for index, row in enumerate(rows)]
    found = columns.encode(cells)
    for index in sorted(found.errors)[:1]:
        raise Problem("bad_input", found.errors[index], index=index)
    return _noted(found.inputs, found.notes)


def _noted(inputs: npt.NDArray[np.float32], notes: Mapping[int, str]) -> Parsed:
    return Parsed(inputs, [{"note": notes[i]} if i in notes else {} for i in range(len(inputs))])


def _cells(row: Any, columns: Columns, index: int) -> list[str]:
    if not isinstance(row, dict):
        raise Problem("bad_input", "a row must be an object {column: value}", index=index)
    cells = []
    for column in columns.columns:
        if column.name not in row:
            raise Problem("bad_input", f"the row lacks the column {column.name!r}", index=index)
        value = row[column.name]
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            message = f"column {column.name!r} must be a number or a word"
            raise Problem("bad_input", message, index=index)
        cells.append(_cell(value))
    return cells


def _cell(value: str | float) -> str:
    if isinstance(value, str):
        return value.strip()
    try:
        return repr(float(value)) if isinstance(value, float) else str(value)
    except ValueError:  # a whole number of thousands of digits
        return "inf"


# --- images --------------------------------------------------------------------------------------


def parse_images(body: bytes, kind: str, served: Served, settings: Settings) -> Parsed:
    """Inputs from the files of a form, in its order."""
    mode = served.bundle.preprocessing.mode
    if mode is None:
        raise Problem("unsupported", f"this model takes {served.kind}s as {JSON}, not images")
    files = files_of(body, kind, settings.max_batch)
    sizes = _images.measure(files, settings.max_pixels)
    decoded = [
        _images.decode(content, index, served.bundle.shape, mode)
        for index, content in enumerate(files)
    ]
    extras = [{"input": {"width": width, "height": height}} for width, height in sizes]
    return Parsed(np.stack(decoded), extras)
