"""Arrays in .npz files; nothing is unpickled."""

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dubito.data import base
from dubito.errors import DubitoError
from dubito.types import Array

__all__: list[str] = []

#: names of arrays of inputs and of targets in a file
INPUTS = ("inputs", "x", "X", "images", "features", "data")
TARGETS = ("labels", "y", "Y", "targets", "target")


def npz_parts(path: Path) -> tuple[str, ...]:
    """Return which of "train" and "test" a file has, by the names of its arrays."""
    with path.open("rb") as file:  # numpy leaves a damaged file open
        try:
            arrays = np.load(file, allow_pickle=False)
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise DubitoError(f"{path} is not an .npz file of plain arrays: {error}") from error
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise DubitoError(
                f"{path} has a single array: write it with np.savez(file, inputs=..., labels=...)"
            )
        return tuple(part for part in base.PARTS if _key(arrays, INPUTS, part))


def read_npz(path: Path, parts: Sequence[str], labeled: bool) -> tuple[Array, Array | None]:
    """Read inputs (N, *shape) and targets of a file that `npz_parts` accepts.

    The arrays are named as in INPUTS and TARGETS, with train or test before or after the name if
    the file has parts.

    Args:
        path: File.
        parts: Parts to read; empty: arrays without a part.
        labeled: Whether to read targets.
    """
    with np.load(path, allow_pickle=False) as arrays:

        def read(known: Sequence[str]) -> Array:
            values = [_read(arrays, known, part, path) for part in parts or [""]]
            return values[0] if len(values) == 1 else np.concatenate(values)

        inputs = read(INPUTS)
        if not labeled:
            return inputs, None
        target = read(TARGETS)
        return inputs, target[:, 0] if target.ndim == 2 and target.shape[1] == 1 else target


def _key(arrays: Mapping[str, Array], known: Sequence[str], part: str) -> str | None:
    """Return the name of an array of a part."""
    spelled = [f"{name}_{part}" for name in known] + [f"{part}_{name}" for name in known]
    return next((name for name in (spelled if part else known) if name in arrays), None)


def _read(arrays: Mapping[str, Array], known: Sequence[str], part: str, path: Path) -> Array:
    key = _key(arrays, known, part)
    if key is None:
        raise DubitoError(
            f"{path} has no array named {' or '.join(known[:3])}{f' of {part}' if part else ''}: "
            f"it has {', '.join(sorted(arrays)) or 'none'}"
        )
    try:
        values = arrays[key]
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise DubitoError(
            f"{path}: array {key!r} cannot be read: {error}. Store numbers, and classes as text"
        ) from error
    return np.char.decode(values) if values.dtype.kind == "S" else values
