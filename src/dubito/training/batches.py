"""Batches of samples: read, augmented and normalized."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils.data import DataLoader, Dataset, get_worker_info

from dubito import _checks
from dubito.data.base import Source, digest
from dubito.errors import DubitoError
from dubito.methods import Method
from dubito.model import Model
from dubito.targets import Target, scaled, values_and_weight
from dubito.training.config import TrainConfig
from dubito.training.teachers import Teachers

__all__: list[str] = []

#: encoded inputs in memory or a source to stream them from, and encoded targets
Samples = tuple[Tensor | Source, Tensor | Target]
#: samples, and values of their inputs, in a batch without gradients
_BATCH, _VALUES = 1024, 1 << 22
#: name of the samples that a network learns from
TRAINING = "training"


class SeededBatches(Dataset[Tensor]):
    """Batches of a source; an index is the seed of a batch and the indices of its samples.

    What a worker process draws at random depends on neither the epochs nor the batches before.

    Args:
        source: Inputs.
    """

    def __init__(self, source: Source) -> None:
        self.source = source

    def __getitem__(self, index: tuple[int, list[int]]) -> Tensor:
        seed, rows = index
        if get_worker_info() is not None:  # this process has the generator of dropout
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % (1 << 32))  # noqa: NPY002 - what transforms of users draw from
        return self.source.load(rows)


class Reader:
    """Reads samples in memory, which are on the device, or streams them to it.

    Worker processes start once, so that only one reading of a stream may go on at a time.

    Float inputs are normalized before they are augmented, once if they are in memory; pixels are
    bytes and normalized after that.

    Args:
        samples: Inputs and targets.
        model: Model in training.
        config: Training configuration.
        device: Device of the training.
        part: Name of the samples in messages.
        ood: Encoded out-of-distribution inputs (M, *shape), for methods that train with them.
            None: uniform noise, in [0, 1] or within three standard deviations for standardized
            inputs.

    Attributes:
        target: Targets in training units. Weights have mean 1 over all samples, so that the loss of
            a batch, the sum over its number of samples, has that of its weights as its denominator
            on average.
        encoded: Targets in user units.
    """

    def __init__(
        self,
        samples: Samples,
        model: Model,
        config: TrainConfig,
        device: torch.device,
        part: str,
        ood: Tensor | None = None,
    ) -> None:
        inputs, encoded = self._samples = samples
        _check(inputs, encoded, model.task.size, part)
        self.device, self.config, self.method = device, config, model.method
        self.preprocessing = model.preprocessing
        self.in_memory = isinstance(inputs, Tensor)
        self.inputs = self.to_device(inputs) if isinstance(inputs, Tensor) else inputs
        #: seed and indices of each batch to read
        self._batches: list[tuple[int, list[int]]] = []
        #: device of the indices of samples
        self.index_device = device if self.in_memory else torch.device("cpu")
        self.encoded = scaled(encoded).to(self.index_device)
        self.target = model.task.to_training_units(self.encoded)
        if ood is not None:
            _check_ood(ood, tuple(self.inputs[0].shape), model.method)
        elif part == TRAINING and model.method.ood_terms and self.inputs[0].dtype == torch.int64:
            raise DubitoError(
                f"{type(model.method).__name__} trains with out-of-distribution inputs, and noise "
                "is no text: pass some (ood or train_ood)"
            )
        self.ood = None if ood is None else self.to_device(ood)
        folders = model.method.teachers if part == TRAINING else ()
        self.teachers = Teachers(folders, model, device) if folders else None

    def __len__(self) -> int:
        return len(self.target)

    def to_device(self, x: Tensor) -> Tensor:
        """Move inputs to the device, and normalize them unless they are pixels."""
        x = x.to(self.device, non_blocking=True)
        return self.preprocessing.normalize(x) if x.is_floating_point() else x

    def read(
        self, rows: Sequence[Tensor], changes: Sequence[Tensor | None] = (), seed: int = 0
    ) -> Iterator[tuple[Tensor, Tensor | Target]]:
        """Yield inputs and targets of batches.

        Args:
            rows: Indices of the samples of each batch.
            changes: Augmentation of each batch; empty for none.
            seed: Seed of the worker processes.
        """
        inputs = self._load(rows, seed)
        for batch, x, change in zip(rows, inputs, changes or [None] * len(rows), strict=True):
            target = self.target.index_select(0, batch)
            yield self.prepare(x, change), target.to(self.device, non_blocking=True)

    def chunks(self, rows: Tensor) -> list[Tensor]:
        """Split samples into batches of nearly one size that fit into memory without gradients."""
        values = self.inputs[0].numel()
        size = max(self.config.batch_size, min(_BATCH, _VALUES // values))
        return list(rows.tensor_split(-(-len(rows) // size)))

    def _load(self, rows: Sequence[Tensor], seed: int) -> Iterator[Tensor]:
        if isinstance(self.inputs, Tensor):
            return map(partial(self.inputs.index_select, 0), rows)
        drawn = torch.Generator().manual_seed(seed)
        seeds = torch.randint(1 << 62, (len(rows),), generator=drawn).tolist()
        self._batches[:] = zip(seeds, (batch.tolist() for batch in rows), strict=True)
        return map(self.to_device, self._loader)

    @cached_property
    def _loader(self) -> DataLoader[Tensor]:
        assert isinstance(self.inputs, Source)
        return DataLoader(
            SeededBatches(self.inputs),
            batch_size=None,
            sampler=self._batches,
            num_workers=self.config.workers,
            persistent_workers=self.config.workers > 0,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # leaves that of dropout alone
        )

    def prepare(self, x: Tensor, change: Tensor | None = None) -> Tensor:
        """Augment inputs and normalize pixels."""
        if change is not None and self.config.augment is not None:
            x = self.config.augment.apply(x, change)
        if x.dtype == torch.uint8:
            x = self.preprocessing.normalize(x)
        if self.config.channels_last and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return x

    def with_ood(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Append as many OOD inputs to a batch, if the method trains with them."""
        if not self.method.ood_terms:
            return x
        if self.ood is not None:
            rows = torch.randint(len(self.ood), (len(x),), generator=generator, device=x.device)
            return torch.cat([x, self.prepare(self.ood[rows])])
        noise = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        return torch.cat([x, noise if self.preprocessing.mean is None else 6 * noise - 3])

    def taught(self, x: Tensor, target: Tensor | Target) -> Tensor | Target:
        """Return the predictions of the method's teachers, if it has some, as targets.

        Args:
            x: Prepared inputs.
            target: Targets from labels.
        """
        if self.teachers is None:
            return target
        logs = self.teachers(x)
        return replace(target, values=logs) if isinstance(target, Target) else logs

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor | Target]]:
        """Yield all samples in order, not augmented, with targets in training units."""
        return self.read(self.chunks(torch.arange(len(self), device=self.index_device)))

    @cached_property
    def fingerprint(self) -> str:
        """Hash by which a checkpoint recognizes the training data."""
        leaves = _pytree.tree_leaves(self._samples)  # tensors, and perhaps a source
        tensors = (leaf.cpu().contiguous().numpy() for leaf in leaves if isinstance(leaf, Tensor))
        sources = (leaf.fingerprint().encode() for leaf in leaves if isinstance(leaf, Source))
        return digest(*tensors, *sources)


def _check(inputs: Tensor | Source, encoded: Tensor | Target, size: int, part: str) -> None:
    """Raise if inputs or targets cannot be trained on, or do not belong together."""
    target, weight = values_and_weight(encoded)
    if not len(target):
        raise DubitoError(f"there are no {part} samples")
    if len(inputs) != len(target):
        raise DubitoError(f"{part} data: {len(inputs)} inputs, but {len(target)} targets")
    if isinstance(inputs, Tensor) and inputs.is_floating_point():
        _checks.finite(inputs, f"{part} inputs")
    if weight is not None:
        _checks.non_negative(weight, "weight")
        if not bool(weight.any()):
            raise DubitoError(f"no {part} sample has a weight above 0")
    if not target.is_floating_point():
        _checks.labels(target, target.shape[:1], size, f"{part} data needs labels (N,)")
        return
    if target.shape[-1] != size:
        raise DubitoError(
            f"{part} targets have shape {tuple(target.shape)}; expected values (N, {size})"
        )
    _checks.finite(target, f"{part} targets")


def _check_ood(ood: Tensor, shape: tuple[int, ...], method: Method) -> None:
    """Raise if OOD inputs are of no use or of another shape."""
    if not method.ood_terms:
        name = type(method).__name__
        raise DubitoError(f"{name} does not train with out-of-distribution inputs: drop ood")
    if tuple(ood.shape[1:]) != shape or not len(ood):
        raise DubitoError(f"ood has shape {tuple(ood.shape)}; expected (M, {str(shape)[1:-1]})")
