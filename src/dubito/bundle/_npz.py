"""Inputs from an .npz file, in portions; nothing in it is unpickled."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from dubito.bundle._bundle import Bundle
from dubito.bundle._portion import Portion, named
from dubito.data.tables import INPUTS, as_inputs

__all__ = ["read_npz"]

MOST_BYTES = 1 << 26  # of an array read at once


def read_npz(bundle: Bundle, path: Path, size: int) -> Iterator[Portion]:
    """An array in parts: however large, or however large it claims to be, one part is in memory."""
    columns = bundle.preprocessing.columns
    if columns is not None and not columns.numeric:
        raise ValueError("this bundle's table has categories: give a .csv file")
    with zipfile.ZipFile(path) as archive:
        member = _member(archive)
        with archive.open(member) as stream:
            shape, ordered, dtype = _header(stream)
            _check_array(shape, dtype, bundle)
            if not ordered:
                whole = _columnwise(stream, shape, dtype, archive.getinfo(member).file_size)
                for start in range(0, shape[0], size):
                    yield _arrays(bundle, path, whole[start : start + size], start)
                return
            row = math.prod(shape[1:]) * dtype.itemsize
            step = max(1, min(size, MOST_BYTES // row))
            for start in range(0, shape[0], step):
                count = min(step, shape[0] - start)
                values = np.frombuffer(_exactly(stream, count * row), dtype)
                yield _arrays(bundle, path, values.reshape(count, *shape[1:]), start)


def _exactly(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise ValueError("the array ends before its last row")
    return data


def _columnwise(
    stream: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any], most: int
) -> np.ndarray[Any, Any]:
    """An array in Fortran order, whose rows are spread over all of it: read as a whole."""
    count = math.prod(shape) * dtype.itemsize
    if count > most:
        raise ValueError("the array ends before its last row")
    return np.frombuffer(_exactly(stream, count), dtype).reshape(shape[::-1]).T


def _member(archive: zipfile.ZipFile) -> str:
    names = [name for name in archive.namelist() if name.endswith(".npy")]
    found = next((f"{name}.npy" for name in INPUTS if f"{name}.npy" in names), None)
    if found is None:
        held = sorted(name.removesuffix(".npy") for name in names)
        raise ValueError(f"no array called {' or '.join(INPUTS[:3])}: it holds {held or 'nothing'}")
    return found


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f"arrays of the format {version} are not known")
    shape, fortran, dtype = read(stream)
    return shape, not fortran, dtype


def _check_array(shape: tuple[int, ...], dtype: np.dtype[Any], bundle: Bundle) -> None:
    if dtype.kind not in "biuf":
        raise ValueError(f"inputs must be numbers, not {dtype}")
    if not shape or not shape[0] or min(shape) < 1:
        raise ValueError(f"inputs have shape {shape}: expected (N, *{bundle.shape}), N >= 1")
    seen = tuple(shape[1:])
    if seen != bundle.shape and _arranged(seen, dtype) != bundle.shape:
        raise ValueError(f"inputs of shape {seen}, but this bundle takes {bundle.shape}")
    if dtype == np.uint8 and not bundle.preprocessing.pixels:
        raise ValueError("bytes are read as pixels, but this bundle was trained with numbers")


def _arranged(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...] | None:
    """The shape that images get their channels in front to."""
    if len(shape) == 2 and dtype == np.uint8:
        return (1, *shape)
    return (shape[2], *shape[:2]) if len(shape) == 3 else None


def _arrays(bundle: Bundle, path: Path, values: np.ndarray[Any, Any], start: int) -> Portion:
    name = named(path)
    sources = [f"{name}[{start + row}]" for row in range(len(values))]
    errors: dict[int, str] = {}
    if values.dtype != np.uint8:
        flat = values.reshape(len(values), -1)
        with np.errstate(over="ignore"):
            numbers = flat.astype(np.float32)
        for row in np.flatnonzero(~np.isfinite(numbers).all(1)):
            errors[int(row)] = "it holds values that are not finite float32 numbers"
        if bundle.preprocessing.pixels:
            outside = ((numbers < 0) | (numbers > 1)).any(1)
            for row in np.flatnonzero(outside):
                errors.setdefault(
                    int(row), "pixels must be bytes (uint8) or numbers in [0, 1]; these are neither"
                )
    good = np.array([row for row in range(len(values)) if row not in errors], np.int64)
    if not len(good):
        return Portion(sources, None, errors)
    kept = values[good]
    if kept.shape[1:] == bundle.shape:
        exact = kept if kept.dtype == np.uint8 else kept.astype(np.float32)
        columns = bundle.preprocessing.columns
        found = {} if columns is None else columns.notes(exact)
        notes = {int(good[at]): text for at, text in found.items()}
        return Portion(sources, torch.from_numpy(np.ascontiguousarray(exact)), errors, notes)
    if kept.ndim == 4:
        kept = np.moveaxis(kept, -1, 1)
    return Portion(sources, as_inputs(kept, named(path)), errors)
