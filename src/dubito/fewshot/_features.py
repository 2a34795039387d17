"""Features: their files and scalings.

An .npz file has `features` (N, D) and `labels` (N,), and may have names of the `classes`; then
labels may be indices.

| scaling | features |
| --- | --- |
| none | unchanged |
| unit | scaled to one length |
| centered | the mean of the reference subtracted, then scaled to one length |

Mean and length come from a reference: base or validation classes, which are known before any novel
class. So nothing of the novel classes or of the out-of-distribution set is used.
"""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from dubito._files import atomic_write, make_folder
from dubito.errors import DubitoError
from dubito.tasks import Classification
from dubito.types import Json

Indices = NDArray[np.int64]

Scaling = Literal["none", "unit", "centered"]


@dataclass(frozen=True, eq=False)
class Features:
    """Labeled features.

    Args:
        values: Features (N, D), float32 and finite.
        labels: Class indices, (N,).
        classes: Names of the classes; those without samples are left out.
        name: Name in messages.

    >>> Features(torch.rand(5, 3), torch.tensor([1, 0, 1, 1, 0]), ("a", "b")).sizes
    array([2, 3])
    """

    values: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str = "features"

    def __post_init__(self) -> None:
        shapes = tuple(self.values.shape), tuple(self.labels.shape)
        if len(shapes[0]) != 2 or shapes[0][:1] != shapes[1]:
            raise DubitoError(
                f"{self.name}: features have shape {shapes[0]} and labels {shapes[1]}; expected "
                "(N, D) and (N,)"
            )
        object.__setattr__(self, "values", self.values.float().contiguous())
        bad = (~self.values.isfinite()).any(-1).nonzero().flatten().tolist()
        if bad:
            raise DubitoError(f"{self.name}: the features of sample {bad[0]} are not finite")
        count = len(self.classes)
        wrong = ((self.labels < 0) | (self.labels >= count)).nonzero().flatten().tolist()
        if wrong:
            label = int(self.labels[wrong[0]])
            raise DubitoError(
                f"{self.name}: label {label} of sample {wrong[0]} is none of the {count} classes"
            )
        present, labels = self.labels.unique(return_inverse=True)
        object.__setattr__(self, "classes", tuple(self.classes[i] for i in present.tolist()))
        object.__setattr__(self, "labels", labels)

    @cached_property
    def order(self) -> Indices:
        """Samples sorted by class."""
        return np.argsort(self.labels.numpy(), kind="stable")

    @cached_property
    def sizes(self) -> Indices:
        """Number of samples of each class."""
        return np.bincount(self.labels.numpy())

    @property
    def smallest(self) -> str:
        """The class with the fewest samples, for messages."""
        least = int(self.sizes.argmin())
        return f"class {self.classes[least]!r} has {self.sizes[least]} samples"

    def check_width(self, other: Features) -> None:
        """Raise if other features have another dimension.

        Args:
            other: Features to compare with.
        """
        widths = self.values.shape[1], other.values.shape[1]
        if widths[0] != widths[1]:
            raise DubitoError(
                f"{self.name} has {widths[0]} features and {other.name} {widths[1]}: use features "
                "of one network"
            )

    def describe(self) -> Json:
        """Return name, shape and hash as JSON values."""
        digest = hashlib.blake2b(digest_size=16)
        for array in (self.values.numpy(), self.order, self.sizes):
            digest.update(np.ascontiguousarray(array).data)
        return {"name": self.name, "shape": list(self.values.shape), "hash": digest.hexdigest()}


def scale(features: Features, scaling: Scaling, reference: Features | None) -> Features:
    """Scale features.

    Args:
        features: Features.
        scaling: Kind of scaling.
        reference: Features of other classes, which determine mean and length.
    """
    if scaling == "none":
        return features
    if reference is None:
        raise DubitoError(
            f"scaling {scaling!r} needs a reference: features of base or validation classes"
        )
    features.check_width(reference)
    exact, values = reference.values.double(), features.values
    if scaling == "centered":
        values = values - exact.mean(0).float()
    length = float(exact.norm(dim=-1).mean())
    return replace(features, values=length * normalize(values, dim=-1))


def read_features(path: str | os.PathLike[str]) -> Features:
    """Read a file of features.

    Args:
        path: .npz file.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "novel.npz"
    ...     np.savez(path, features=np.ones((3, 640), np.float16), labels=np.array([4, 9, 9]))
    ...     read_features(path).classes
    ('4', '9')
    """
    file = _npz(path)
    try:
        with np.load(file, allow_pickle=False) as arrays:
            content = dict(arrays)
        array = content["features"]
        if array.dtype != np.float16:  # which torch converts several times faster
            array = array.astype(np.float32, copy=False)
        values = torch.from_numpy(array)
        labels, names = content["labels"], content.get("classes")
        if names is None:
            task = Classification.from_target(labels)
        else:
            task = Classification(classes=tuple(map(str, names)))
        # Integers are indices of names, unless they are the names.
        is_index = labels.dtype.kind in "iu" and not all(map(str.isdecimal, task.classes))
        target = torch.from_numpy(labels.astype(np.int64)) if is_index else task.encode(labels)
    except KeyError as error:
        raise DubitoError(f"{file} has no {error}: it needs features and labels") from error
    except Exception as error:  # a damaged file raises errors of many kinds
        raise DubitoError(f"cannot read {file}: {error}") from error
    return Features(values, target, task.classes, file.stem)


def write_features(features: Features, path: str | os.PathLike[str]) -> Path:
    """Write a file of features.

    Args:
        features: Features.
        path: .npz file.
    """
    file, buffer = _npz(path), io.BytesIO()
    arrays = {"features": features.values.numpy(), "labels": features.labels.numpy()}
    np.savez(buffer, **arrays, classes=np.array(features.classes))  # type: ignore[arg-type]
    make_folder(file.parent)
    return atomic_write(file, buffer.getvalue())


def _npz(path: str | os.PathLike[str]) -> Path:
    file = Path(path)
    if file.suffix != ".npz":
        raise DubitoError(f"features are kept in .npz files, not in {file}")
    return file
