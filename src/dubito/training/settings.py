"""How to train: everything that is not the method, the network or the data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dubito import _checks
from dubito.data.augment import Augment

__all__ = ["OPTIMIZERS", "Settings"]

#: the base class; and what needs a closure, sparse gradients, or matrices and nothing else
_UNUSABLE = ("Optimizer", "LBFGS", "SparseAdam", "Muon")
#: name -> torch optimiser: every one that torch has and a step here can use
OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    name.lower(): value
    for name, value in vars(torch.optim).items()
    if isinstance(value, type)
    and issubclass(value, torch.optim.Optimizer)
    and name not in _UNUSABLE
}
FUSED = ("adam", "adamw", "sgd")
#: learning rate schedules: fraction of the training done -> factor
SCHEDULES = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
}
KEEP = ("accuracy", "loss")
PRECISIONS = ("float32", "tf32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a training run; the defaults are the published MNIST protocol, averaged.

    Every `validate_every` epochs the network is validated; the weights with the best `keep` are
    kept: "accuracy", or "loss" with the terms weighted as in the last epoch. The run stops once the
    first of the last `patience` checks is the best of these; 0: never.
    What is validated and kept is the mean of the weights after about `average` epochs, which is
    better than those of one moment (None: a tenth of the epochs, 10 at most, where the rate is
    constant and does not settle them by itself; 0: no mean).

    `graph` captures the step in a CUDA graph (None: on a GPU, where the optimiser allows it).
    With `compile` the network in that graph goes through torch.compile first, which takes a minute
    at the start and spares much of each step where batch norm and activations are its weight.
    `channels_last` is the memory format of images, the faster one on a CPU and a GPU alike.
    `precision` "tf32" (which a CPU takes for float32) and "bfloat16" trade digits for speed in
    convolutions and matrix products; losses are always computed in float32. `workers` processes
    read a torch dataset; data in memory needs none.

    >>> Settings(epochs=3, optimizer="sgd", optimizer_options={"momentum": 0.9}).optimizer
    'sgd'
    """

    epochs: int = 200
    batch_size: int = 64
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    schedule: str = "constant"
    validate_every: int = 2
    keep: str = "accuracy"
    patience: int = 10
    average: int | None = None
    augment: Augment | None = None
    precision: str = "tf32"
    channels_last: bool = True
    graph: bool | None = None
    compile: bool = False
    workers: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "validate_every", "patience", "average"):
            if (getattr(self, name) or 0) % 1:
                raise ValueError(f"{name} must be a whole number, not {getattr(self, name)!r}")
        for name in ("epochs", "batch_size", "validate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if self.patience < 0 or self.patience == 1:
            raise ValueError(
                f"patience must be 0 or at least 2, not {self.patience!r}: a single check is "
                "always the best of itself"
            )
        if self.average is not None and self.average < 0:
            raise ValueError(f"average must be >= 0, not {self.average!r}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be > 0, not {self.learning_rate!r}")
        _checks.one_of(OPTIMIZERS, self.optimizer, "optimizer")
        _checks.one_of(SCHEDULES, self.schedule, "schedule")
        _checks.one_of(KEEP, self.keep, "keep")
        _checks.one_of(PRECISIONS, self.precision, "precision")
        if not isinstance(self.augment, Augment | None):
            raise TypeError(f"augment must be a dubito.data.Augment, not {self.augment!r}")

    @property
    def averaged(self) -> int:
        """Over how many epochs the weights are averaged; 0: not at all.

        >>> Settings().averaged, Settings(epochs=30).averaged, Settings(epochs=5).averaged
        (10, 3, 0)
        """
        if self.average is not None:
            return self.average
        tenth = min(self.epochs // 10, 10)
        return tenth if tenth > 1 and self.schedule == "constant" else 0

    def rate(self, epoch: int) -> float:
        """The learning rate in `epoch` (from 0)."""
        return self.learning_rate * SCHEDULES[self.schedule](epoch / self.epochs)

    def optimizer_of(self, model: nn.Module, device: torch.device) -> torch.optim.Optimizer:
        """The optimiser of a model's parameters that learn, in as few kernels as there are."""
        options = dict(self.optimizer_options)
        rate: float | Tensor = self.learning_rate
        if self.optimizer in FUSED and device.type in ("cpu", "cuda"):
            options.setdefault("fused", True)
            if device.type == "cuda":  # a captured step reads its rate from the device
                rate = torch.tensor(rate, device=device)
                if self.optimizer != "sgd":
                    options.setdefault("capturable", True)
        kind: Any = OPTIMIZERS[self.optimizer]
        parameters = [p for p in model.parameters() if p.requires_grad]
        made: torch.optim.Optimizer = kind(parameters, lr=rate, **options)
        return made

    def checked_after(self, epoch: int) -> bool:
        """Whether the network is validated after `epoch` (from 0)."""
        return (epoch + 1) % self.validate_every == 0 or epoch + 1 == self.epochs

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return {**asdict(self), "optimizer_options": dict(self.optimizer_options)}
