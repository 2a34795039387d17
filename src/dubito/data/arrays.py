"""Labelled data as tensors, and its division into two parts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dubito import _checks

__all__ = ["Arrays", "as_floats", "join", "split"]


def as_floats(inputs: Tensor) -> Tensor:
    """Inputs as float32: bytes are pixels and are divided by 255, numbers stay as they are.

    >>> as_floats(torch.tensor([0, 51, 255], dtype=torch.uint8))
    tensor([0.0000, 0.2000, 1.0000])
    """
    return (inputs / 255).float() if inputs.dtype == torch.uint8 else inputs.float()


@dataclass(frozen=True, eq=False)
class Arrays:
    """Inputs (N, *shape), uint8 or float32, their labels (N,) and the names of the K classes.

    Labels are indices into `classes`, held as int64. `name` says in messages whose data this is.

    >>> pixels = torch.tensor([[[0, 255]], [[51, 0]]], dtype=torch.uint8)
    >>> data = Arrays(pixels, torch.tensor([1, 0]), ("cat", "dog"), "pets")
    >>> data
    Arrays('pets': 2 x (1, 2) uint8, 2 classes, cpu)
    >>> data.subset(torch.tensor([0])).floats()
    tensor([[[0., 1.]]])
    """

    inputs: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str = "data"

    def __post_init__(self) -> None:
        _check_inputs(_checks.tensor(self.inputs, "inputs"), self.name)
        _check_labels(_checks.tensor(self.labels, "labels"), len(self.inputs), self.name)
        object.__setattr__(self, "labels", self.labels.long())
        object.__setattr__(self, "classes", tuple(self.classes))
        if len(set(self.classes)) < len(self.classes):
            twice = sorted({c for c in self.classes if self.classes.count(c) > 1})
            raise ValueError(f"{self.name}: classes must differ, but {twice} occur twice")
        if _checks.visible(self.labels):
            _check_range(self.labels, self.classes, self.name)

    def __len__(self) -> int:
        return len(self.labels)

    def fingerprint(self, numbers: bool = True) -> str:
        """A hash of all inputs and labels; on request without inputs that are numbers, not pixels,
        whose last digit may show where they were prepared.

        >>> data = Arrays(torch.zeros(2, 3), torch.tensor([0, 1]), ("a", "b"))
        >>> len(data.fingerprint()), data.fingerprint() == data.fingerprint(numbers=False)
        (32, False)
        """
        digest = hashlib.sha256(repr((self.shape, self.classes)).encode())
        if numbers or not self.inputs.is_floating_point():
            digest.update(self.inputs.cpu().contiguous().numpy().data)
        digest.update(self.labels.cpu().contiguous().numpy().data)
        return digest.hexdigest()[:32]

    def __repr__(self) -> str:
        kind = str(self.inputs.dtype).removeprefix("torch.")
        return (
            f"Arrays({self.name!r}: {len(self)} x {self.shape} {kind}, "
            f"{len(self.classes)} classes, {self.device})"
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.inputs.shape[1:])

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.inputs.device

    @property
    def nbytes(self) -> int:
        """The memory that the tensors take."""
        return self.inputs.nbytes + self.labels.nbytes

    @property
    def class_counts(self) -> Tensor:
        """How many samples each class has, (K,) int64."""
        return torch.bincount(self.labels, minlength=len(self.classes))

    def floats(self) -> Tensor:
        """All inputs as float32 (N, *shape); see `as_floats`."""
        return as_floats(self.inputs)

    def subset(self, indices: Tensor | Sequence[int]) -> Arrays:
        """The samples at `indices`, in that order."""
        chosen = torch.as_tensor(indices, dtype=torch.long, device=self.device)
        return replace(self, inputs=self.inputs[chosen], labels=self.labels[chosen])

    def to(self, device: torch.device | str) -> Arrays:
        """The same data on another device."""
        if torch.device(device) == self.device:
            return self
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))


def _check_inputs(inputs: Tensor, name: str) -> None:
    if inputs.dtype not in (torch.uint8, torch.float32):
        raise TypeError(
            f"{name}: inputs must be uint8 (pixels) or float32, not {inputs.dtype}; call .float()"
        )
    if inputs.ndim < 2 or inputs.numel() == 0:
        raise ValueError(
            f"{name}: inputs have shape {tuple(inputs.shape)}: "
            "expected (N, *shape) with at least one sample"
        )


def _check_labels(labels: Tensor, count: int, name: str) -> None:
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"{name}: labels must be integers, not {labels.dtype}; call .long()")
    if labels.shape != (count,):
        raise ValueError(
            f"{name}: labels have shape {tuple(labels.shape)}, but {count} inputs need ({count},)"
        )


def _check_range(labels: Tensor, classes: tuple[str, ...], name: str) -> None:
    wrong = ((labels < 0) | (labels >= len(classes))).nonzero().flatten()
    if len(wrong):
        seen = sorted(set(labels[wrong].tolist()))[:5]
        raise ValueError(
            f"{name}: labels must be from 0 to {len(classes) - 1} for its {len(classes)} classes, "
            f"but {len(wrong)} are not: {seen}, the first at index {int(wrong[0])}"
        )


def join(parts: Sequence[Arrays]) -> Arrays:
    """Parts of one data set, one after the other.

    >>> one = Arrays(torch.zeros(2, 3), torch.tensor([0, 1]), ("a", "b"), "x")
    >>> join([one, one])
    Arrays('x': 4 x (3,) float32, 2 classes, cpu)
    """
    first = parts[0]
    for part in parts[1:]:
        if (part.classes, part.shape, part.inputs.dtype) != (
            first.classes,
            first.shape,
            first.inputs.dtype,
        ):
            raise ValueError(f"only alike data can be joined, not {first!r} and {part!r}")
    inputs = torch.cat([part.inputs for part in parts])
    return replace(first, inputs=inputs, labels=torch.cat([part.labels for part in parts]))


def split(
    arrays: Arrays, fraction: float, seed: int, *, stratified: bool = False
) -> tuple[Arrays, Arrays, Tensor]:
    """Two random parts, the first with `fraction` of the samples, and the order that made them.

    The order (N,) lists the indices of the first part and then those of the second, so a stored
    order gives the same parts again without a seed: `arrays.subset(order[:len(first)])`.
    With `stratified` every class is divided in that proportion, to within one sample.

    >>> data = Arrays(torch.rand(10, 3), torch.arange(10) % 2, ("a", "b"))
    >>> train, validation, order = split(data, 0.8, seed=0, stratified=True)
    >>> len(train), len(validation), train.class_counts.tolist()
    (8, 2, [4, 4])
    """
    count = len(arrays)
    size = round(count * fraction) if 0 < fraction < 1 else 0
    if not 0 < size < count:
        raise ValueError(
            f"fraction={fraction!r} of {count} samples leaves a part empty: "
            f"it must be between 0 and 1, with at least one sample on each side"
        )
    # On the CPU, so that a seed means the same parts on every device.
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    if stratified:
        order = _stratify(order, arrays.labels.cpu(), len(arrays.classes), size)
    return arrays.subset(order[:size]), arrays.subset(order[size:]), order


def _stratify(order: Tensor, labels: Tensor, classes: int, size: int) -> Tensor:
    """Move `size` samples to the front, from each class its share, and keep the order otherwise."""
    counts = torch.bincount(labels, minlength=classes)
    share = counts.double() * size / len(order)
    quota = share.floor().long()
    # The samples that rounding left over go to the classes that lost most by it.
    left = size - int(quota.sum())
    quota[(share - quota).argsort(descending=True, stable=True)[:left]] += 1
    # Rank of each sample among those of its class, in the drawn order.
    drawn = labels[order]
    by_class = drawn.argsort(stable=True)
    rank = torch.empty_like(order)
    start = counts.cumsum(0) - counts
    rank[by_class] = torch.arange(len(order)) - start[drawn[by_class]]
    first = rank < quota[drawn]
    return torch.cat([order[first], order[~first]])
