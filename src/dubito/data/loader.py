"""Batches for training and evaluation: from tensors on a device, or from any torch dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dubito.data.arrays import Arrays, as_floats
from dubito.data.augment import Augment

__all__ = ["Batches", "Stream", "fits", "from_dataset"]

AHEAD = 4096  # samples gathered at once on an accelerator


def fits(arrays: Arrays, device: torch.device | str, share: float = 0.5) -> bool:
    """Whether the data takes at most `share` of the memory that is free on a CUDA device.

    >>> fits(Arrays(torch.zeros(2, 3), torch.tensor([0, 1]), ("a", "b")), "cpu")
    True
    """
    place = torch.device(device)
    if place.type != "cuda" or place == arrays.device:
        return True
    free, _ = torch.cuda.mem_get_info(place)
    return arrays.nbytes <= share * free


def _check(batch_size: int, generator: torch.Generator | None, augment: Augment | None) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size!r}")
    if augment is not None and generator is None:
        raise ValueError("augment draws random numbers: give a generator")


class Batches:
    """Batches (x float, y) of data that is in memory, shuffled anew in each pass by a generator.

    Without a generator the samples come in order. Samples are gathered where the data is and then
    moved to `device`, if that is another one; `ahead` batches at a time are gathered and augmented
    together, which on an accelerator leaves next to nothing of the cost of doing so.

    >>> data = Arrays(torch.arange(10.0)[:, None], torch.arange(10) % 2, ("even", "odd"))
    >>> [len(y) for x, y in Batches(data, 4, torch.Generator().manual_seed(0))]
    [4, 4, 2]
    """

    def __init__(
        self,
        arrays: Arrays,
        batch_size: int,
        generator: torch.Generator | None = None,
        augment: Augment | None = None,
        drop_last: bool = False,
        device: torch.device | str | None = None,
        ahead: int | None = None,
    ) -> None:
        _check(batch_size, generator, augment)
        if drop_last and len(arrays) < batch_size:
            raise ValueError(
                f"{arrays.name}: {len(arrays)} samples make no batch of {batch_size} with drop_last"
            )
        self.arrays = arrays
        self.batch_size = batch_size
        self.generator = generator
        self.augment = augment
        self.drop_last = drop_last
        self.device = torch.device(device) if device is not None else arrays.device
        # On the CPU a batch that was just gathered is still in the cache.
        self.ahead = ahead or (1 if self.device.type == "cpu" else max(1, AHEAD // batch_size))

    def __len__(self) -> int:
        whole, rest = divmod(len(self.arrays), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def order(self) -> Tensor:
        """Indices (N,) for one pass: a new permutation, or the order of the data."""
        count, place, generator = len(self.arrays), self.arrays.device, self.generator
        if generator is None:
            return torch.arange(count, device=place)
        return torch.randperm(count, generator=generator, device=generator.device).to(place)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The batch (x, y) at `indices`, as floats, augmented if so chosen."""
        x = self.arrays.inputs.index_select(0, indices).to(self.device, non_blocking=True)
        y = self.arrays.labels.index_select(0, indices).to(self.device, non_blocking=True)
        if self.augment is not None and self.generator is not None:
            x = self.augment(x, self.generator)
        return as_floats(x), y

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        size = self.batch_size
        for indices in self.order()[: len(self) * size].split(self.ahead * size):
            x, y = self.take(indices)
            yield from zip(x.split(size), y.split(size), strict=True)


class Stream:
    """Batches (x float, y) of a `DataLoader`, moved to a device; made by `from_dataset`."""

    def __init__(
        self,
        loader: DataLoader[Any],
        device: torch.device,
        generator: torch.Generator | None,
        augment: Augment | None,
    ) -> None:
        self.loader = loader
        self.device = device
        self.generator = generator
        self.augment = augment

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in self.loader:
            inputs = x.to(self.device, non_blocking=True)
            if self.augment is not None and self.generator is not None:
                inputs = self.augment(inputs, self.generator)
            yield as_floats(inputs), y.to(self.device, non_blocking=True)


def from_dataset(
    dataset: Dataset[Any],
    batch_size: int,
    generator: torch.Generator | None = None,
    augment: Augment | None = None,
    drop_last: bool = False,
    device: torch.device | str = "cpu",
    workers: int = 0,
) -> Stream:
    """Batches of any torch dataset of pairs (x, y), by worker processes if `workers` > 0.

    For data that does not fit into memory or is made as it is read. The generator is the CPU's.

    >>> from torch.utils.data import TensorDataset
    >>> data = TensorDataset(torch.full((5, 1, 2, 2), 255, dtype=torch.uint8), torch.arange(5))
    >>> [(x.max().item(), len(y)) for x, y in from_dataset(data, 3)]
    [(1.0, 3), (1.0, 2)]
    """
    _check(batch_size, generator, augment)
    place = torch.device(device)
    loader = DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=generator is not None,
        generator=generator,
        drop_last=drop_last,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=place.type == "cuda",
    )
    return Stream(loader, place, generator, augment)
