"""Training configuration."""

import inspect
import math
from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from pydantic import BaseModel, Field, model_validator
from torch import Tensor, nn

from dubito import _checks
from dubito.augmentations.base import AnyAugmentation
from dubito.methods import Method

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
#: value of `keep` for the last weights
LAST = "last"
#: fields that change the speed of a training and not its result
_SPEED_ONLY = {"channels_last", "graph", "compile", "workers"}


class TrainConfig(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """Training configuration.

    >>> TrainConfig(epochs=3, optimizer="sgd", optimizer_options={"momentum": 0.9}).lr
    0.001
    """

    epochs: int = Field(default=200, ge=1)
    """Maximum number of epochs."""
    batch_size: int = Field(default=64, ge=1)
    """Samples per step and process."""
    optimizer: str = "adam"
    """Name of a `torch.optim` optimizer."""
    lr: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    """Learning rate."""
    optimizer_options: dict[str, Any] = {}
    """Further arguments of the optimizer, such as weight_decay."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate over the epochs."""
    validate_every: int = Field(default=2, ge=1)
    """Epochs between two validations; the last epoch is always validated."""
    keep: str | None = None
    """Validation metric that selects the best weights, "loss", or "last" for those of the last
    epoch, however they validate; None is the task's choice."""
    patience: int = Field(default=10, ge=0)
    """Validations without improvement before stopping; 0, or to keep the last, disables."""
    average_epochs: int | None = Field(default=None, ge=0)
    """Epochs of weight averaging; None chooses, 0 disables."""
    augment: AnyAugmentation | None = None
    """Random changes of images: "shift", "photo", or a dict with the name and options."""
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
        _checks.one_of(OPTIMIZERS, self.optimizer, "optimizer")
        return self

    @property
    def averaged_epochs(self) -> int:
        """Epochs of weight averaging; 0 if weights are not averaged.

        By default a tenth of the epochs, at most 10, at a constant learning rate: a schedule that
        ends at 0 settles the weights by itself.

        >>> [TrainConfig(epochs=epochs).averaged_epochs for epochs in (200, 30, 5)]
        [10, 3, 0]
        """
        if self.average_epochs is not None:
            return self.average_epochs
        tenth = min(self.epochs // 10, 10)
        return tenth if tenth > 1 and self.schedule == "constant" else 0

    def lr_at(self, epoch: int) -> float:
        """Return the learning rate of an epoch.

        Args:
            epoch: Number of the epoch, from 0.
        """
        if self.schedule == "constant":
            return self.lr
        return self.lr * 0.5 * (1 + math.cos(math.pi * epoch / self.epochs))

    def loss_weights(self, method: Method, epoch: int) -> Tensor:
        """Return the weights of the loss terms in an epoch.

        Args:
            method: Method in training.
            epoch: Number of the epoch, from 0.
        """
        return method.weight_tensor(self.first_epoch + epoch, self.first_epoch + self.epochs)

    def build_optimizer(self, network: nn.Module, device: torch.device) -> torch.optim.Optimizer:
        """Build the optimizer of the trainable parameters, fused if possible.

        Args:
            network: Network on the device.
            device: Device of the training.
        """
        options: dict[str, Any] = dict(self.optimizer_options)
        lr: float | Tensor = self.lr
        if self.optimizer in FUSED and device.type in ("cpu", "cuda"):
            options.setdefault("fused", True)
            if device.type == "cuda":  # a captured step reads its learning rate from the device
                lr = torch.tensor(lr, device=device)
                if self.optimizer != "sgd":
                    options.setdefault("capturable", True)
        parameters = [p for p in network.parameters() if p.requires_grad]
        return OPTIMIZERS[self.optimizer](parameters, lr=lr, **options)

    def identity(self) -> dict[str, Any]:
        """Return the fields that a training must share with its checkpoint."""
        values = self.model_dump(mode="json", exclude=_SPEED_ONLY)
        return {**values, "average_epochs": self.averaged_epochs}
