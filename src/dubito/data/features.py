"""Features for few-shot classification: .npz, .safetensors, and the published pickles."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dubito import _checks
from dubito.data.arrays import Arrays
from dubito.data.labels import encode, whole
from dubito.data.pickles import unpickle
from dubito.data.tables import as_inputs, read_npz

__all__ = ["read_features"]

AnyArray = npt.NDArray[np.generic]


def read_features(
    path: str | os.PathLike[str], split: str = "all", *, classes: Sequence[str] | None = None
) -> Arrays:
    """Features (N, D) as float32 with their labels, from an .npz, .safetensors or .pkl file.

    The first two hold `features` and `labels`; the classes' names are an array `classes`, or in
    .safetensors a JSON list in the metadata. A pickle holds a dictionary of these, or one from
    label to feature vectors, and may contain numpy arrays and plain containers only.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "novel.npz"
    ...     np.savez(path, features=np.ones((3, 640), np.float16), labels=np.array([4, 9, 9]))
    ...     read_features(path)
    Arrays('novel': 3 x (640,) float32, 2 classes, cpu)
    """
    file = Path(path)
    reader = _checks.entry(READERS, file.suffix.lower(), f"kind of feature file, {file}:")
    whole(split, str(file))
    arrays = reader(file, classes)
    if arrays.inputs.ndim != 2:
        raise ValueError(
            f"{file}: features must be (N, D), but have shape {tuple(arrays.inputs.shape)}"
        )
    return arrays


def _from_npz(file: Path, classes: Sequence[str] | None) -> Arrays:
    arrays = read_npz(file, classes=classes)
    # Bytes are numbers here, and not pixels.
    return replace(arrays, inputs=arrays.inputs.float())


def _from_safetensors(file: Path, classes: Sequence[str] | None) -> Arrays:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as content:
            # By torch, because numpy has no bfloat16.
            tensors = {key: content.get_tensor(key) for key in content.keys()}  # noqa: SIM118
            names = (content.metadata() or {}).get("classes")
    except SafetensorError as error:
        raise ValueError(f"{file} is not a .safetensors file: {error}") from error
    arrays = {
        key: (t.float() if t.is_floating_point() else t).numpy() for key, t in tensors.items()
    }
    return _from_mapping(arrays, classes or (json.loads(names) if names else None), file)


def _from_pickle(file: Path, classes: Sequence[str] | None) -> Arrays:
    content = unpickle(file)
    if not isinstance(content, Mapping) or not content:
        raise ValueError(
            f"{file} must hold a dictionary with features, not {type(content).__name__}"
        )
    if "features" in content:
        return _from_mapping(content, classes, file)
    labels: list[object] = []
    rows: list[AnyArray] = []
    for key, vectors in content.items():
        if not isinstance(vectors, list | tuple | np.ndarray):
            raise ValueError(
                f"{file} must map labels to feature vectors, but {key!r} maps to "
                f"{type(vectors).__name__}"
            )
        rows.extend(np.asarray(vector) for vector in vectors)
        labels.extend([key] * len(vectors))
    if len({row.shape for row in rows}) != 1:
        shapes = sorted({row.shape for row in rows})[:5]
        raise ValueError(f"{file}: feature vectors must have one shape, but have {shapes}")
    return _from_mapping({"features": np.stack(rows), "labels": np.array(labels)}, classes, file)


def _from_mapping(content: Mapping[str, Any], classes: Sequence[str] | None, file: Path) -> Arrays:
    absent = [name for name in ("features", "labels") if name not in content]
    if absent:
        raise ValueError(
            f"{file} has no {' and no '.join(absent)}: it holds {sorted(map(str, content))[:10]}"
        )
    names = classes if classes is not None else content.get("classes")
    inputs = as_inputs(np.asarray(content["features"]), str(file)).float()
    labels, known = encode(np.asarray(content["labels"]), names, str(file))
    return Arrays(inputs, labels, known, file.stem)


#: suffix -> reader of a feature file
READERS: dict[str, Callable[[Path, Sequence[str] | None], Arrays]] = {
    ".npz": _from_npz,
    ".safetensors": _from_safetensors,
    ".pkl": _from_pickle,
    ".plk": _from_pickle,
    ".pickle": _from_pickle,
}
