"""Labels as they stand in files, numbers or words, to indices of classes."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["encode", "encode_words", "flat", "numeric", "whole", "word"]

CODE = re.compile(r"[+-]?0\d|.*_")  # 007 is not 7


def encode(
    labels: npt.NDArray[np.generic], classes: Sequence[str] | None, name: str
) -> tuple[Tensor, tuple[str, ...]]:
    """Indices (N,) of classes, and the classes' names.

    Without `classes` these are the sorted labels that occur. With them, words are looked up, and
    so are numbers where all the classes are called by numbers; otherwise numbers are indices.

    >>> encode(np.array(["dog", "cat", "dog"]), None, "pets")
    (tensor([1, 0, 1]), ('cat', 'dog'))
    >>> encode(np.array([7, 3]), None, "digits")
    (tensor([1, 0]), ('3', '7'))
    >>> encode(np.array([1, 1]), ("cat", "dog"), "pets")
    (tensor([1, 1]), ('cat', 'dog'))
    """
    values = flat(labels, name)
    if classes is None:
        known, indices = np.unique(values, return_inverse=True)
        return torch.from_numpy(indices.astype(np.int64)), tuple(str(value) for value in known)
    names = tuple(word(value) for value in classes)
    if values.dtype.kind == "i" and not all(_is_integer(value) for value in names):
        return torch.from_numpy(values), names
    return torch.from_numpy(_looked_up(values, names, name)), names


def encode_words(
    words: npt.NDArray[np.generic], classes: Sequence[str] | None, name: str
) -> tuple[Tensor, tuple[str, ...]]:
    """`encode` of labels in a text file, where a number may be the name of a class.

    >>> encode_words(np.array(["2", "1"]), ("1", "2", "x"), "grades")  # no indices
    (tensor([1, 0]), ('1', '2', 'x'))
    """
    named = classes is not None and set(words.tolist()) <= {word(value) for value in classes}
    return encode(words if named else numeric(words), classes, name)


def word(name: object) -> str:
    """The name of a class as text, also where it is stored as bytes.

    >>> word(np.bytes_(b"cat")), word(7)
    ('cat', '7')
    """
    return name.decode() if isinstance(name, bytes) else str(name)


def flat(labels: npt.NDArray[np.generic], name: str) -> npt.NDArray[np.generic]:
    """Labels (N,) or (N, 1), numbers or words, as int64 (N,) or words (N,)."""
    values = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if values.ndim != 1:
        raise ValueError(f"{name}: labels have shape {labels.shape}: expected (N,), one a sample")
    if values.dtype.kind == "f":
        fractional = ~np.isfinite(values) | (values != np.floor(values))
        if fractional.any():
            row = int(fractional.argmax())
            raise ValueError(
                f"{name}: labels must be classes, but label {row} is {values[row]}: "
                "a continuous target cannot be classified"
            )
    if values.dtype.kind in "biuf":
        return values.astype(np.int64)
    if values.dtype.kind in "US":
        return values.astype(np.str_)
    raise TypeError(f"{name}: labels must be integers or words, not {values.dtype}")


def numeric(words: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Labels as numbers if all are, so that 10 follows 9 and not 1; codes such as 007 are words.

    >>> numeric(np.array(["9", "10"])), numeric(np.array(["09", "10"]))
    (array([ 9., 10.]), array(['09', '10'], dtype='<U2'))
    """
    try:
        numbers = words.astype(np.float64)
    except ValueError:
        return words
    # From 2^53 on different numbers become one.
    inexact = np.isfinite(numbers) & (np.abs(numbers) >= 2**53)
    return words if inexact.any() or any(map(CODE.match, set(words.tolist()))) else numbers


def _is_integer(word: str) -> bool:
    return word.removeprefix("-").isdecimal()


def _looked_up(
    values: npt.NDArray[np.generic], names: tuple[str, ...], name: str
) -> npt.NDArray[np.int64]:
    index = {each: at for at, each in enumerate(names)}
    known, inverse = np.unique(values, return_inverse=True)
    strange = [str(value) for value in known if str(value) not in index]
    if strange:
        first = int(np.isin(values.astype(np.str_), strange).argmax())
        raise ValueError(
            f"{name}: labels {strange[:5]} are outside the classes {list(names[:20])}; "
            f"the first is label {first}"
        )
    return np.array([index[str(value)] for value in known], np.int64)[inverse]


def whole(split: str, name: str) -> None:
    """An error where a named part is asked of data that has none."""
    if split not in ("train", "all"):
        raise ValueError(
            f"{name} has no part called {split!r}: it can only be read as a whole "
            "(split='all') and divided with dubito.data.split"
        )
