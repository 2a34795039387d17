"""Small data and models for the tests of training."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dubito import methods
from dubito.data import Source
from dubito.formats import ArrayFormat, Encoded, Preprocessing
from dubito.model import Model
from dubito.tasks import Classification, Regression
from dubito.training import Callback, Progress, TrainConfig, Trainer

Pair = tuple[Tensor, Tensor]
TASK = Classification(classes=("a", "b"), counts=(64, 64))
SHORT = TrainConfig(epochs=3, batch_size=32, validate_every=1, patience=0)


def blobs(count: int = 128, seed: int = 1, shift: float = 1.5) -> Pair:
    """Two classes of four features each."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.arange(count) % 2
    return torch.randn(count, 4, generator=generator) + shift * target[:, None], target


TRAIN, VALIDATION = blobs(), blobs(50, seed=2)


class Normed(nn.Module):
    """A network with batch norm."""

    def __init__(self, seed: int = 0, outputs: int = 2) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.norm(self.first(x)).relu())
        return outputs


def wrap(
    network: nn.Module, method: Any = "iedl", task: Any = TASK, shape: tuple[int, ...] = (4,)
) -> Model:
    """Make a model of a network."""
    built = methods.METHODS.build(method) if isinstance(method, str) else method
    return Model(network, built, task, Preprocessing(inputs=ArrayFormat(shape=shape)))


def small_model(method: Any = "iedl", seed: int = 0, task: Any = TASK, **options: Any) -> Model:
    """Build a small MLP for the blobs."""
    backbone = {"name": "mlp", "hidden": (8,), **options}
    return Model.build(
        method, task, Preprocessing(inputs=ArrayFormat(shape=(4,))), backbone, seed=seed
    )


def regression() -> tuple[Regression, Pair, Pair]:
    """Make a task with targets far from standard units, and its samples."""
    x, _ = blobs(160, seed=3)
    target = 1000 + 100 * x[:, :1]
    return Regression.from_target(target[:128]), (x[:128], target[:128]), (x[128:], target[128:])


class Stream(Source):
    """Source that reads rows of a tensor when they are needed."""

    def __init__(self, inputs: Tensor) -> None:
        dtype = "uint8" if inputs.dtype == torch.uint8 else "float32"
        self.name, self.inputs = "stream", inputs
        self.format = ArrayFormat(shape=tuple(inputs.shape[1:]), dtype=dtype)

    def __len__(self) -> int:
        return len(self.inputs)

    def encode(self, indices: Sequence[int]) -> Encoded:
        return Encoded(self.inputs[list(indices)], {}, {})

    def item(self, index: int) -> str:
        return f"row {index}"

    def fingerprint(self) -> str:
        return str(self.inputs.double().sum().item())


def weights(model: Model) -> Tensor:
    """Return all weights and buffers of a network."""
    return torch.cat([v.detach().flatten().double() for v in model.network.state_dict().values()])


class StopIn(Callback):
    """Interrupts a training at the end of an epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_epoch_end(self, progress: Progress) -> None:
        if progress.epoch == self.epoch:
            raise KeyboardInterrupt


class AtEpochEnd(Callback):
    """Calls a function of the progress at the end of each epoch."""

    def __init__(self, function: Callable[[Progress], object]) -> None:
        self.on_epoch_end = function  # type: ignore[method-assign, assignment]


def trained(model: Model, config: TrainConfig = SHORT, **options: Any) -> Model:
    """Train a model on the blobs."""
    Trainer(config).fit(model, TRAIN, VALIDATION, **options)
    return model
