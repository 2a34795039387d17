"""Sources: sequences of inputs in one format, with optional targets, in memory or on disk."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dubito.errors import DubitoError
from dubito.formats.base import FORMATS, Encoded, InputFormat
from dubito.tasks import Classification
from dubito.types import Array, Frame

__all__ = ["Source", "split"]

#: parts of folders and .npz files
PARTS = ("train", "test")
#: bytes of encoded inputs up to which a source is held in memory
IN_MEMORY = 1 << 31
#: batches that are read before they are asked for
AHEAD = 2


class Source(ABC):
    """A sequence of inputs in one format, with optional targets.

    Attributes:
        name: Name in messages and reports.
        format: Format of the inputs.
        target: Class names or numbers, (N,) or (N, T): an array or columns of a table; None if
            unlabeled. Of several numbers single ones may be missing.
        weight: Weight of each sample, (N,); None: all count alike.
    """

    name: str
    format: InputFormat
    target: Array | Frame | None = None
    weight: Array | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def encode(self, indices: Sequence[int]) -> Encoded:
        """Read some of the inputs; an error of one does not affect the others.

        Args:
            indices: Positions of the inputs.
        """

    @abstractmethod
    def item(self, index: int) -> str:
        """Return the name of an input for users: a file name or the number of a row.

        Args:
            index: Position of the input.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash of inputs and targets."""

    def __getitem__(self, index: int) -> Tensor:
        index = range(len(self))[index]
        return self.encode([index]).checked(lambda _: self.item(index))[0]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        """Return the inputs of a batch, read at once; `DataLoader` calls this."""
        return self.load(indices).unbind()

    @property
    def is_in_memory(self) -> bool:
        """Whether inputs are held in memory, rather than read when they are needed."""
        return False

    def batches(self, size: int) -> Iterator[Encoded]:
        """Yield all inputs in batches, in order; the next ones are read in the background.

        Args:
            size: Inputs in a batch.
        """
        parts = (range(len(self))[start : start + size] for start in range(0, len(self), size))
        if self.is_in_memory:
            yield from map(self.encode, parts)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="dubito-ahead") as reader:
            futures = deque(reader.submit(self.encode, part) for part in islice(parts, AHEAD))
            try:
                while futures:
                    batch = futures.popleft().result()
                    futures.extend(reader.submit(self.encode, part) for part in islice(parts, 1))
                    yield batch
            finally:  # also if the caller stops early, or a batch raises
                for future in futures:
                    future.cancel()

    def load(self, indices: Sequence[int] | None = None) -> Tensor:
        """Return inputs at once: (N, *shape).

        Args:
            indices: Positions of the inputs; None for all.
        """
        rows = range(len(self)) if indices is None else indices
        return self.encode(rows).checked(lambda row: self.item(rows[row]))

    def subset(self, indices: Sequence[int] | Tensor) -> Subset:
        """Return some of the samples, in the order of their indices.

        Args:
            indices: Positions of the samples.
        """
        return Subset(self, [int(index) for index in indices])

    def refit(self, indices: Sequence[int]) -> Source:
        """Fit ranges and categories of the format to some of the samples.

        Args:
            indices: Positions of the training samples.
        """
        return self

    def __repr__(self) -> str:
        labels = "unlabeled" if self.target is None else "labeled"
        kind = FORMATS.name_of(self.format)
        return f"<{self.name}: {len(self)} x {self.format.shape}, {kind}, {labels}>"


@dataclass(eq=False, repr=False)
class Items(Source):
    """Inputs as users have them, encoded at once or when they are needed.

    Args:
        items: Image files, array or DataFrame.
        names: Name of each input for users.
        encoded: Encoded inputs in memory; None: `items` are read when they are needed.
        fit: Fits a format to some of the items; None: the format was given.
    """

    name: str
    format: InputFormat
    items: Sequence[Any] | Array | Frame
    target: Array | Frame | None = None
    names: Sequence[str] | None = None
    encoded: Encoded | None = None
    fit: Callable[[Any, Sequence[int]], InputFormat] | None = None
    weight: Array | None = None

    def __len__(self) -> int:
        return len(self.items)

    @property
    def is_in_memory(self) -> bool:
        return self.encoded is not None

    def in_memory(self) -> Items:
        """Encode all inputs now."""
        return replace(self, encoded=self.format.encode(self.items))

    def refit(self, indices: Sequence[int]) -> Source:
        if self.fit is None:
            return self
        fitted = replace(self, format=self.fit(self.items, indices))
        if fitted.format == self.format:
            return self
        return fitted if self.encoded is None else fitted.in_memory()

    def encode(self, indices: Sequence[int]) -> Encoded:
        if self.encoded is None:
            return self.format.encode(take(self.items, indices))
        if indices == range(len(self)):
            return self.encoded
        inputs, errors, notes = self.encoded
        if isinstance(indices, range) and indices.step == 1:  # a view is enough
            selected = inputs[indices.start : indices.stop]
        else:
            selected = inputs[torch.as_tensor(indices)]
        return Encoded(selected, take_texts(errors, indices), take_texts(notes, indices))

    def item(self, index: int) -> str:
        return f"{self.name}[{index}]" if self.names is None else self.names[index]

    def fingerprint(self) -> str:
        if self.encoded is not None:
            content: Any = np.ascontiguousarray(self.encoded.inputs)
        else:
            content = str((len(self), [*map(_version, self.items)])).encode()
        labels = "" if self.target is None else str(np.asarray(self.target).tolist())
        weights = [] if self.weight is None else [str(np.asarray(self.weight).tolist()).encode()]
        return digest(content, labels.encode(), *weights)


def _version(item: Any) -> tuple[Any, ...]:
    """Return what identifies an input: name, size and time of a file, or the input itself."""
    if not isinstance(item, os.PathLike):
        return (digest(item) if isinstance(item, bytes) else item,)
    stat = os.stat(item)
    return (str(item), stat.st_size, stat.st_mtime_ns)


class Subset(Source):
    """Some of the samples of a source."""

    def __init__(self, source: Source, indices: list[int]) -> None:
        self.source, self.indices = source, indices
        self.name, self.format = source.name, source.format
        self.target, self.weight = take(source.target, indices), take(source.weight, indices)

    @property
    def is_in_memory(self) -> bool:
        return self.source.is_in_memory

    def __len__(self) -> int:
        return len(self.indices)

    def encode(self, indices: Sequence[int]) -> Encoded:
        return self.source.encode([self.indices[index] for index in indices])

    def item(self, index: int) -> str:
        return self.source.item(self.indices[index])

    def fingerprint(self) -> str:
        return digest(f"{self.source.fingerprint()} {self.indices}".encode())


def take(values: Any, indices: Sequence[int]) -> Any:
    """Return some of the rows of a list, an array or a table; None for None."""
    if values is None:
        return None
    if isinstance(values, list):
        return [values[index] for index in indices]
    return values.iloc[indices] if hasattr(values, "iloc") else values[np.asarray(indices)]


def take_texts(texts: Mapping[int, str], rows: Sequence[int]) -> dict[int, str]:
    """Return texts about some of the rows, by their new positions."""
    return {new: texts[row] for new, row in enumerate(rows) if row in texts} if texts else {}


def digest(*parts: bytes | Array) -> str:
    """Return a hash of several parts, bytes or contiguous arrays, which are not copied."""
    result = hashlib.sha256()
    for part in parts:
        content = part.data if isinstance(part, np.ndarray) else memoryview(part)
        result.update(content.nbytes.to_bytes(8, "big"))
        result.update(content)
    return result.hexdigest()[:32]


def split(
    source: Source, fraction: float, seed: int, *, stratify: bool = False
) -> tuple[Subset, Subset]:
    """Divide a source at random into two parts.

    Args:
        source: Source to divide.
        fraction: Share of the samples in the first part.
        seed: Seed of the order.
        stratify: Divide every class in that proportion, to within one sample.

    >>> import torch
    >>> from dubito import data
    >>> pets = data.open((torch.rand(10, 3), ["cat", "dog"] * 5))
    >>> first, second = split(pets, 0.8, seed=0, stratify=True)
    >>> sorted(first.target.tolist())
    ['cat', 'cat', 'cat', 'cat', 'dog', 'dog', 'dog', 'dog']
    """
    count = len(source)
    size = round(count * fraction) if 0 < fraction < 1 else 0
    if not 0 < size < count:
        raise DubitoError(
            f"fraction={fraction!r} of {count} samples leaves a part empty: it must be between 0 "
            "and 1, with at least one sample in each part"
        )
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    if stratify and source.target is not None:
        task = Classification.from_target(source.target)
        order = _stratified(order, task.encode(source.target), task.size, size)
    return source.subset(order[:size]), source.subset(order[size:])


def _stratified(order: Tensor, labels: Tensor, classes: int, size: int) -> Tensor:
    """Move `size` samples to the front, from each class its share, and keep the order otherwise."""
    counts = torch.bincount(labels, minlength=classes)
    share = counts.double() * size / len(order)
    quota = share.floor().long()
    # Samples that rounding leaves over go to the classes that lose most by it.
    left = size - int(quota.sum())
    quota[(share - quota).argsort(descending=True, stable=True)[:left]] += 1
    # Positions of each class in the drawn order, class after class.
    by_class = labels[order].argsort(stable=True).split(counts.tolist())
    first = torch.zeros(len(order), dtype=torch.bool)
    for positions, number in zip(by_class, quota, strict=True):
        first[positions[:number]] = True
    return torch.cat([order[first], order[~first]])
