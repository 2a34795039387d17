"""Batches of samples: read, augmented and normalized."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dubito import _checks
from dubito.data.base import Source
from dubito.errors import DubitoError
from dubito.model import Model
from dubito.training.config import TrainConfig

#: encoded inputs in memory or a source to stream them from, and encoded targets
Samples = tuple[Tensor | Source, Tensor]
#: samples, and values of their inputs, in a batch without gradients
_BATCH, _VALUES = 1024, 1 << 22


class Reader:
    """Reads samples in memory, which are on the device, or streams them to it.

    Float inputs are normalized before they are augmented, once if they are in memory; pixels are
    bytes and normalized after that.

    Attributes:
        target: Targets in training units.
        encoded: Targets in user units.
    """

    def __init__(
        self, samples: Samples, model: Model, config: TrainConfig, device: torch.device, part: str
    ) -> None:
        inputs, encoded = samples
        _check(inputs, encoded, model.task.size, part)
        self.device, self.config = device, config
        self.normalize = model.preprocessing.normalize
        self.in_memory = isinstance(inputs, Tensor)
        self.inputs: Any = self.to_device(inputs) if isinstance(inputs, Tensor) else inputs
        #: device of the indices of samples
        self.index_device = device if self.in_memory else torch.device("cpu")
        self.encoded = encoded.to(self.index_device)
        self.target = model.task.to_training_units(self.encoded)

    def __len__(self) -> int:
        return len(self.target)

    def to_device(self, x: Tensor) -> Tensor:
        """Move inputs to the device, and normalize them unless they are pixels."""
        x = x.to(self.device, non_blocking=True)
        return self.normalize(x) if x.is_floating_point() else x

    def read(
        self, rows: Sequence[Tensor], changes: Iterable[Tensor] | None = None, seed: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets of batches.

        Args:
            rows: Indices of the samples of each batch.
            changes: Augmentation of each batch; None for none.
            seed: Seed of the worker processes.
        """
        moves: Iterable[Tensor | None] = itertools.repeat(None) if changes is None else changes
        for batch, x, change in zip(rows, self._load(rows, seed), moves, strict=False):
            target = self.target.index_select(0, batch)
            yield self.prepare(x, change), target.to(self.device, non_blocking=True)

    def chunks(self, rows: Tensor) -> list[Tensor]:
        """Split samples into batches of nearly one size that fit into memory without gradients."""
        values = self.inputs[0].numel()
        size = max(self.config.batch_size, min(_BATCH, _VALUES // values))
        return list(rows.tensor_split(-(-len(rows) // size)))

    def _load(self, rows: Sequence[Tensor], seed: int) -> Iterator[Tensor]:
        if self.in_memory:
            yield from (self.inputs.index_select(0, batch) for batch in rows)
            return
        loader: DataLoader[Any] = DataLoader(
            cast("Dataset[Any]", self.inputs),
            batch_sampler=[batch.tolist() for batch in rows],
            num_workers=self.config.workers,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator().manual_seed(seed),
        )
        yield from map(self.to_device, loader)

    def prepare(self, x: Tensor, change: Tensor | None = None) -> Tensor:
        """Augment inputs and normalize pixels."""
        if change is not None and self.config.augment is not None:
            x = self.config.augment.apply(x, change)
        if x.dtype == torch.uint8:
            x = self.normalize(x)
        if self.config.channels_last and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return x

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all samples in order, not augmented, with targets in training units."""
        return self.read(self.chunks(torch.arange(len(self), device=self.index_device)))


class Data:
    """Samples that runs of several seeds share.

    Args:
        model: Model in training.
        config: Training configuration.
        device: Device of the training.
        train: Training samples.
        validation: Validation samples.
        ood: Encoded out-of-distribution inputs (M, *shape), for methods that train with them.
            None: uniform noise, in [0, 1] or within three standard deviations for standardized
            inputs.
        class_weight: Weight of each class.
    """

    def __init__(
        self,
        model: Model,
        config: TrainConfig,
        device: torch.device,
        train: Samples,
        validation: Samples,
        ood: Tensor | None,
        class_weight: Tensor | None,
    ) -> None:
        if class_weight is not None:
            classes = torch.zeros(model.task.size, device=device)
            class_weight = _checks.class_weight(class_weight, classes)
        self.device, self.class_weight, self._samples = device, class_weight, train
        self.train = Reader(train, model, config, device, "training")
        self.validation = Reader(validation, model, config, device, "validation")
        self.has_ood = bool(model.method.ood_terms)
        self.standardized = model.preprocessing.mean is not None
        if ood is not None:
            _check_ood(ood, self.train, model)
        self.ood = None if ood is None else self.train.to_device(ood)

    def with_ood(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Append as many OOD inputs to a batch, if the method trains with them."""
        if not self.has_ood:
            return x
        if self.ood is not None:
            rows = torch.randint(len(self.ood), (len(x),), generator=generator, device=x.device)
            return torch.cat([x, self.train.prepare(self.ood[rows])])
        noise = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        return torch.cat([x, 6 * noise - 3 if self.standardized else noise])

    @cached_property
    def fingerprint(self) -> str:
        """Hash by which a checkpoint recognizes the training data."""
        inputs, target = self._samples
        digest = hashlib.sha256(target.cpu().contiguous().numpy().data)
        if isinstance(inputs, Tensor):
            digest.update(inputs.cpu().contiguous().numpy().data)
        else:
            digest.update(inputs.fingerprint().encode())
        return digest.hexdigest()[:32]


def _check(inputs: Tensor | Source, target: Tensor, size: int, part: str) -> None:
    """Raise if inputs or targets cannot be trained on, or do not belong together."""
    if not len(target):
        raise DubitoError(f"there are no {part} samples")
    if len(inputs) != len(target):
        raise DubitoError(f"{part} data: {len(inputs)} inputs, but {len(target)} targets")
    if isinstance(inputs, Tensor) and inputs.is_floating_point():
        _checks.finite(inputs, f"{part} inputs")
    if not target.is_floating_point():
        _checks.labels(target, target.shape[:1], size, f"{part} data needs labels (N,)")
        return
    if target.shape[-1] != size:
        raise DubitoError(
            f"{part} targets have shape {tuple(target.shape)}; expected values (N, {size})"
        )
    _checks.finite(target, f"{part} targets")


def _check_ood(ood: Tensor, train: Reader, model: Model) -> None:
    """Raise if OOD inputs are of no use or of another shape."""
    if not model.method.ood_terms:
        name = type(model.method).__name__
        raise DubitoError(f"{name} does not train with out-of-distribution inputs: drop ood")
    shape = tuple(train.inputs[0].shape)
    if ood.ndim < 2 or not len(ood) or tuple(ood.shape[1:]) != shape:
        raise DubitoError(
            f"ood has shape {tuple(ood.shape)}; expected (M, {str(shape)[1:-1]}), "
            "as the training data has"
        )
