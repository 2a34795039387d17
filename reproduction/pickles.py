"""Convert published few-shot features, pickles, to .npz files.

`python -m reproduction.pickles novel.pkl novel.npz`. A pickle contains a dictionary of `features`
and `labels`, or one from labels to lists of feature vectors.

The file is not trusted: it may contain numbers, text, plain containers and numpy arrays of numbers,
and nothing that it names is imported. Arrays are rebuilt from their shape, type and bytes, since
numpy's own unpickling believes any state that a file gives it.
"""

import collections
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dubito.errors import DubitoError
from dubito.fewshot import Features, write_features
from dubito.tasks import Classification

__all__ = ["read", "unpickle"]


def read(path: Path) -> Features:
    """Return the features of a pickle.

    Args:
        path: File.
    """
    content = unpickle(path)
    if not isinstance(content, dict):
        raise DubitoError(f"expected a dictionary, not {type(content).__name__}")
    if "features" in content:
        values, labels = np.asarray(content["features"]), np.asarray(content["labels"])
    else:
        vectors = [np.asarray(rows) for rows in content.values()]
        labels = np.repeat(np.array(list(content)), list(map(len, vectors)))
        values = np.concatenate(vectors)
    task = Classification.from_target(labels)
    tensor = torch.from_numpy(values.astype(np.float32))
    return Features(tensor, task.encode(labels), task.classes, path.stem)


def unpickle(path: Path) -> Any:
    """Return the content of a pickle of plain values; `np.asarray` converts the arrays in it.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "features.pkl"
    ...     _ = path.write_bytes(pickle.dumps({3: [np.arange(2.0)]}))
    ...     np.asarray(unpickle(path)[3])
    array([[0., 1.]])
    """
    with path.open("rb") as stream:
        return _Restricted(stream, encoding="latin1").load()


def _refuse(reason: str) -> DubitoError:
    return DubitoError(
        f"it {reason}, but a pickle may contain only numpy arrays of numbers and plain containers: "
        "save its content as .npz"
    )


class _Dtype:
    """In place of numpy.dtype: a code such as "f4", and the byte order in its state."""

    def __init__(self, code: str, *_: object) -> None:
        self.value = np.dtype(code)
        if self.value.kind not in "biufSU":
            raise _refuse(f"contains an array of {self.value}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.value = self.value.newbyteorder(state[1])


class _Array:
    """In place of numpy.ndarray, whose shape, type, order and bytes come as its state."""

    def __init__(self, *_: object) -> None:
        self.value: npt.NDArray[np.generic] = np.empty(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, data = state
        self.value = _from_buffer(data, dtype, shape, "F" if fortran else "C")

    def __array__(self, *_: object, **__: object) -> npt.NDArray[np.generic]:
        return self.value


def _from_buffer(
    data: Any, dtype: _Dtype, shape: tuple[int, ...], order: Any = "C"
) -> npt.NDArray[np.generic]:
    content = data.encode("latin1") if isinstance(data, str) else data  # str: Python 2
    if not isinstance(content, bytes | bytearray):
        raise _refuse("contains an array of Python objects")
    # A copy, since bytes are read-only.
    return np.frombuffer(content, dtype.value).reshape(shape, order=order).copy(order)


def _scalar(dtype: _Dtype, data: Any) -> object:
    return _from_buffer(data, dtype, (1,))[0]


#: (module, name) in the file -> replacement; numpy and Python have moved theirs over time
ALLOWED: dict[tuple[str, str], Any] = {
    **{(m, kind.__name__): kind for m in ("builtins", "__builtin__") for kind in (dict, list, set)},
    ("collections", "defaultdict"): collections.defaultdict,
    ("_codecs", "encode"): lambda text, _: text.encode("latin1"),  # bytes of old protocols
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Array for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise _refuse(f"names {module}.{name}")
        return ALLOWED[module, name]


if __name__ == "__main__":
    write_features(read(Path(sys.argv[1])), sys.argv[2])
