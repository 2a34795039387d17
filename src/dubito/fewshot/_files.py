"""Files of features: .npz, and the published pickles.

A file has `features` (N, D) and `labels` (N,), and may have names of the `classes`; then labels may
be indices. A pickle contains a dictionary of these, or one from labels to lists of feature vectors.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dubito import _checks
from dubito._files import atomic_write, make_folder
from dubito.errors import DubitoError
from dubito.fewshot._episodes import Features
from dubito.fewshot._pickles import unpickle
from dubito.tasks import Classification

__all__ = ["read_features", "write_features"]


def read_features(path: str | os.PathLike[str]) -> Features:
    """Read a file of features.

    Args:
        path: .npz or .pkl file.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "novel.npz"
    ...     np.savez(path, features=np.ones((3, 640), np.float16), labels=np.array([4, 9, 9]))
    ...     read_features(path).classes
    ('4', '9')
    """
    file = Path(path)
    reader = _checks.entry(READERS, file.suffix.lower(), f"kind of feature file, {file}:")
    try:
        content = reader(file)
        values = torch.from_numpy(np.asarray(content["features"], np.float32))
        task, labels = _encode(np.asarray(content["labels"]), content.get("classes"))
    except KeyError as error:
        raise DubitoError(f"{file} has no {error}: it needs features and labels") from error
    except Exception as error:  # a damaged file raises errors of many kinds
        raise DubitoError(f"cannot read {file}: {error}") from error
    return Features(values, labels, task.classes, file.stem)


def _encode(labels: Any, names: Any) -> tuple[Classification, torch.Tensor]:
    """Convert labels to class indices; with names of classes, numbers are indices already."""
    if names is None:
        task = Classification.from_target(labels)
    else:
        task = Classification(classes=tuple(map(str, names)))
        if labels.dtype.kind in "iu" and not all(name.isdecimal() for name in task.classes):
            return task, torch.from_numpy(labels.astype(np.int64))
    return task, task.encode(labels)


def _read_npz(file: Path) -> Mapping[str, Any]:
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        return dict(arrays)


def _read_pickle(file: Path) -> Mapping[str, Any]:
    content = unpickle(file)
    if not isinstance(content, Mapping):
        raise DubitoError(f"expected a dictionary, not {type(content).__name__}")
    if "features" in content:
        return content
    vectors = np.concatenate([np.stack(list(rows)) for rows in content.values()])
    counts = [len(rows) for rows in content.values()]
    return {"features": vectors, "labels": np.repeat(np.array(list(content)), counts)}


#: suffix -> reader
READERS: dict[str, Callable[[Path], Mapping[str, Any]]] = {
    ".npz": _read_npz,
    **dict.fromkeys((".pkl", ".plk", ".pickle"), _read_pickle),
}


def write_features(features: Features, path: str | os.PathLike[str]) -> Path:
    """Write a file of features.

    Args:
        features: Features.
        path: .npz file.
    """
    file, buffer = Path(path), io.BytesIO()
    if file.suffix != ".npz":
        raise DubitoError(f"features are written to .npz files, not to {file}")
    arrays = {"features": features.values.numpy(), "labels": features.labels.numpy()}
    np.savez(buffer, **arrays, classes=np.array(features.classes))  # type: ignore[arg-type]
    make_folder(file.parent)
    return atomic_write(file, buffer.getvalue())
