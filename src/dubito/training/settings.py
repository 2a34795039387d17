"""How to train: everything that is not the method, the network or the data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from dubito import _checks
from dubito.data.augment import Augment

__all__ = ["OPTIMIZERS", "Settings"]

#: name -> torch optimiser: every one that torch has
OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    name.lower(): value
    for name, value in vars(torch.optim).items()
    if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and name != "Optimizer"
}
#: learning rate schedules: fraction of the training done -> factor
SCHEDULES = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
}
KEEP = ("accuracy", "loss")
PRECISIONS = ("float32", "tf32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a training run; the defaults are the published MNIST protocol.

    Every `validate_every` epochs the network is validated; the weights with the best `keep` are
    kept. The run stops once the first of the last `patience` checks is their best; 0: never.

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
    augment: Augment | None = None
    precision: str = "tf32"
    channels_last: bool = True
    graph: bool | None = None
    compile: bool = False
    workers: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "validate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if self.patience < 0:
            raise ValueError(f"patience must be >= 0, not {self.patience!r}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be > 0, not {self.learning_rate!r}")
        _checks.one_of(OPTIMIZERS, self.optimizer, "optimizer")
        _checks.one_of(SCHEDULES, self.schedule, "schedule")
        _checks.one_of(KEEP, self.keep, "keep")
        _checks.one_of(PRECISIONS, self.precision, "precision")

    def rate(self, epoch: int) -> float:
        """The learning rate in `epoch` (from 0)."""
        return self.learning_rate * SCHEDULES[self.schedule](epoch / self.epochs)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return {**asdict(self), "optimizer_options": dict(self.optimizer_options)}
