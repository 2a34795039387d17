"""Training configuration."""

import inspect
import math
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Literal, Self

import torch
from pydantic import BaseModel, Field, model_validator
from torch import Tensor

from dubito import _checks
from dubito.augmentations.base import AnyAugmentation
from dubito.errors import DubitoError
from dubito.methods import Method
from dubito.types import Json, Options

__all__ = ["TrainConfig"]

#: the base class, and optimizers that need a closure, sparse gradients or only matrices
_UNSUPPORTED = ("Optimizer", "LBFGS", "SparseAdam", "Muon")
#: name -> optimizer of torch.optim
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    name.lower(): kind
    for name, kind in inspect.getmembers(torch.optim, inspect.isclass)
    if issubclass(kind, torch.optim.Optimizer) and name not in _UNSUPPORTED
}
#: optimizers with a fused step, which a CUDA graph can capture
FUSED = ("adam", "adamw", "sgd")
#: epochs without a setting: so many samples are seen in all, within bounds
EPOCH_SAMPLES, FEWEST_EPOCHS, MOST_EPOCHS = 40_000, 40, 200
#: value of `keep` for the last weights
LAST = "last"
#: fields that change the speed of a training and not its result
_SPEED_ONLY = {"channels_last", "graph", "compile", "workers"}


class GroupOptions(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """Options of some parameters; None leaves those of all."""

    lr: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Learning rate; 0 freezes the parameters."""
    weight_decay: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Weight decay."""


class TrainConfig(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """Training configuration.

    >>> TrainConfig(epochs=3, optimizer="sgd", optimizer_options={"momentum": 0.9}).lr
    0.001
    """

    epochs: int | None = Field(default=None, ge=1)
    """Maximum number of epochs; None: by the number of samples, 40 to 200."""
    batch_size: int = Field(default=64, ge=1)
    """Samples per step and process."""
    optimizer: str = "adam"
    """Name of a `torch.optim` optimizer."""
    lr: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    """Learning rate."""
    optimizer_options: Options = {}
    """Further arguments of the optimizer, such as weight_decay."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """Learning rate after the warm-up: constant, or falling to 0 along a cosine or a line."""
    schedule_by: Literal["step", "epoch"] = "step"
    """Whether the learning rate changes with each step or with each epoch."""
    warmup_steps: int | float = Field(default=0, ge=0, allow_inf_nan=False)
    """Steps in which the learning rate rises from 0; below 1 a share of all steps."""
    param_groups: dict[str, GroupOptions] = {}
    """Options by pattern of parameter names, such as `backbone.*`; the first match counts."""
    freeze_stages: float = Field(default=0, ge=0, lt=1)
    """Share of the stages of the network, from the inputs, that keep their weights."""
    layer_decay: float | None = Field(default=None, gt=0, le=1)
    """Factor of the learning rate from each stage of the network to the one before it."""
    max_grad_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Norm of all gradients at which they are clipped."""
    validate_every: int = Field(default=2, ge=1)
    """Epochs between two validations; the last epoch is always validated."""
    keep: str | None = None
    """Validation metric that selects the best weights, "loss", or "last" for those of the last
    epoch, however they validate; None is the task's choice."""
    patience: int = Field(default=10, ge=0)
    """Validations without improvement before stopping; 0, or to keep the last, disables."""
    average_epochs: int | None = Field(default=None, ge=0)
    """Epochs of weight averaging; None chooses, 0 disables."""
    ema_decay: float | None = Field(default=None, gt=0, lt=1)
    """Decay per step of a moving average of the weights, in place of `average_epochs`."""
    freeze_batch_norm: bool = False
    """Keep the statistics of batch norm, as of pretrained weights."""
    augment: AnyAugmentation | None = None
    """Random changes of images: "shift", "photo", or a dict with the name and options."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of each label that is spread evenly over all classes."""
    mixup: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Parameter of the beta distribution by which mixup mixes pairs of samples and their labels,
    such as 0.2; it costs detection of foreign inputs."""
    precision: Literal["tf32", "float32", "bfloat16"] = "tf32"
    """Precision of convolutions and matrix products; tf32 is float32 on a CPU."""
    channels_last: bool = True
    """Store images with the channels last, which is faster."""
    graph: bool | None = None
    """Capture the step in a CUDA graph; None does so on a GPU if the optimizer allows it."""
    compile: bool = False
    """Compile the network with torch.compile; needs a CUDA graph."""
    workers: int = Field(default=0, ge=0)
    """Processes that read streamed data."""
    first_epoch: int = Field(default=0, ge=0)
    """Epochs of earlier trainings of the network, after which loss weights continue."""
    seed: int = 0
    """Seed of shuffling, dropout and augmentation."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        optimizer = _checks.entry(OPTIMIZERS, self.optimizer, "optimizer")
        known = [*inspect.signature(optimizer).parameters][2:]  # without params and lr
        for name in self.optimizer_options:
            _checks.one_of(known, name, f"option of {self.optimizer}")
        if self.warmup_steps > 1 and self.warmup_steps % 1:
            raise DubitoError(
                f"warmup_steps must be a number of steps or a share below 1, not "
                f"{self.warmup_steps}"
            )
        if self.ema_decay is not None and self.average_epochs:
            raise DubitoError(
                f"ema_decay={self.ema_decay} and average_epochs={self.average_epochs} both average "
                "the weights: drop one"
            )
        return self

    @property
    def num_epochs(self) -> int:
        """Maximum number of epochs; without `epochs` that of many samples."""
        return FEWEST_EPOCHS if self.epochs is None else self.epochs

    def for_samples(self, count: int) -> Self:
        """Return this configuration with a number of epochs.

        Args:
            count: Number of training samples.

        >>> [TrainConfig().for_samples(count).epochs for count in (100, 400, 50_000)]
        [200, 100, 40]
        """
        if self.epochs is not None:
            return self
        epochs = min(max(EPOCH_SAMPLES // count, FEWEST_EPOCHS), MOST_EPOCHS)
        return self.model_copy(update={"epochs": epochs})

    @property
    def averaged_epochs(self) -> int:
        """Epochs of weight averaging; 0 if weights are not averaged.

        By default a tenth of the epochs, at most 10, at a constant learning rate: a schedule that
        ends at 0 settles the weights by itself, and so does a moving average.

        >>> [TrainConfig(epochs=epochs).averaged_epochs for epochs in (200, 30, 5)]
        [10, 3, 0]
        """
        if self.average_epochs is not None:
            return self.average_epochs
        tenth = min(self.num_epochs // 10, 10)
        is_settled = self.schedule != "constant" or self.ema_decay is not None
        return 0 if is_settled or tenth < 2 else tenth

    @property
    def changes_lr(self) -> bool:
        """Whether the learning rate changes within an epoch."""
        return self.schedule_by == "step" and (self.schedule != "constant" or self.warmup_steps > 0)

    def lr_factors(self, epoch: int, steps: int) -> list[float]:
        """Return the factor of the learning rate in each step of an epoch.

        Args:
            epoch: Number of the epoch, from 0.
            steps: Steps per epoch.

        >>> config = TrainConfig(epochs=2, schedule="linear", warmup_steps=1)
        >>> config.lr_factors(0, 3), config.lr_factors(1, 3)
        ([0.5, 1.0, 0.8], [0.6, 0.4, 0.2])
        """
        first, total, share = epoch * steps, self.num_epochs * steps, self.warmup_steps
        warmup = math.ceil(share * total) if share < 1 else int(share)
        if self.schedule_by == "epoch":
            return [self._lr_factor(first, warmup, total)] * steps
        return [self._lr_factor(step, warmup, total) for step in range(first, first + steps)]

    def _lr_factor(self, step: int, warmup: int, total: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        if self.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
        return (total - step) / (total - warmup) if self.schedule == "linear" else 1.0

    def group_options(self, name: str) -> tuple[float, float | None]:
        """Return learning rate and weight decay of a parameter, None for that of the optimizer.

        Args:
            name: Name of the parameter in the network.
        """
        for pattern, options in self.param_groups.items():
            if fnmatchcase(name, pattern):
                return self.lr if options.lr is None else options.lr, options.weight_decay
        return self.lr, None

    def loss_weights(self, method: Method, epoch: int) -> Tensor:
        """Return the weights of the loss terms in an epoch.

        Args:
            method: Method in training.
            epoch: Number of the epoch, from 0.
        """
        return method.weight_tensor(self.first_epoch + epoch, self.first_epoch + self.num_epochs)

    def identity(self) -> Json:
        """Return the fields that a training must share with its checkpoint."""
        values = self.model_dump(mode="json", exclude=_SPEED_ONLY)
        return {**values, "average_epochs": self.averaged_epochs}
