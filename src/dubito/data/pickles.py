"""Read a pickle without trusting it: numbers, words, plain containers and numpy arrays of numbers.

Nothing that the file names is imported. Arrays are rebuilt here from their shape, type and bytes,
because numpy's own unpickling believes whatever state a file gives it.
"""

from __future__ import annotations

import collections
import math
import os
import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

__all__ = ["unpickle"]

AnyArray = npt.NDArray[np.generic]
CONTAINERS = (bool, bytearray, bytes, complex, dict, float, frozenset, int, list, set, str, tuple)


def unpickle(path: str | os.PathLike[str]) -> object:
    """What a pickle holds, if that is plain; a file that names anything else is refused.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "features.pkl"
    ...     _ = path.write_bytes(pickle.dumps({3: [np.arange(2.0)]}))
    ...     unpickle(path)
    {3: [array([0., 1.])]}
    """
    with Path(path).open("rb") as stream:
        try:
            return _plain(_Restricted(stream).load())
        except Refused as error:
            raise ValueError(
                f"{path} is refused: {error}. A pickle may hold numpy arrays of numbers and plain "
                "Python containers only; store its content as .npz"
            ) from None
        except Exception as error:  # a damaged pickle brings errors of many kinds
            raise ValueError(
                f"{path} is not a valid pickle: {type(error).__name__}: {error}"
            ) from error


class Refused(Exception):
    """The file asks for something that is not admitted."""


class _Dtype:
    """Stands in for numpy.dtype: a code such as "f4", and the byte order in its state."""

    def __init__(self, code: str, *_: object) -> None:
        self.value = np.dtype(code)
        if self.value.kind not in "biufSU":
            raise Refused(f"it holds an array of {self.value}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.value = self.value.newbyteorder(state[1])


class _Array:
    """Stands in for numpy.ndarray: shape, type, order and bytes come as its state."""

    def __init__(self, *_: object) -> None:
        self.value: AnyArray = np.empty(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, data = state
        self.value = _frombuffer(data, dtype, shape, "F" if fortran else "C")


def _frombuffer(data: Any, dtype: _Dtype, shape: tuple[int, ...], order: Any = "C") -> AnyArray:
    if isinstance(data, list):
        raise Refused("it holds an array of Python objects")
    # Python 2 wrote bytes as text.
    content = data.encode("latin1") if isinstance(data, str) else bytes(data)
    if math.prod(shape) == 0:
        return np.empty(shape, dtype.value)
    # Copied, because bytes can't be written to and an array can.
    return np.frombuffer(content, dtype.value).reshape(shape, order=order).copy(order)


def _scalar(dtype: _Dtype, data: Any) -> object:
    return _frombuffer(data, dtype, (1,))[0]


def _latin(text: str, encoding: str) -> bytes:
    """How old protocols write bytes; no other encoding belongs in such a file."""
    if encoding not in ("latin1", "latin-1"):
        raise Refused(f"it asks for the encoding {encoding!r}")
    return text.encode("latin1")


#: (module, name) in the file -> what it becomes; numpy and Python have moved theirs over time
ADMITTED: dict[tuple[str, str], Any] = {
    **{(m, kind.__name__): kind for m in ("builtins", "__builtin__") for kind in CONTAINERS},
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "defaultdict"): collections.defaultdict,
    ("_codecs", "encode"): _latin,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Array for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _frombuffer for core in ("core", "_core")},
}


class _Restricted(pickle.Unpickler):
    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream, encoding="latin1")

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise Refused(f"it names {module}.{name}")
        return ADMITTED[module, name]


def _plain(value: Any) -> Any:
    """The content with arrays in the place of their stand-ins."""
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(each) for each in value)
    return value
