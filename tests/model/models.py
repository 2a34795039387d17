"""Small models for tests."""

from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dubito.formats import ArrayFormat, Preprocessing
from dubito.methods import METHODS
from dubito.model import Model
from dubito.tasks import Classification, Regression, Task

CLASSES = np.array(["cat", "dog", "eel"])


@cache
def samples(count: int = 600) -> tuple[Tensor, Tensor]:
    """Four features, and a latent number that the first two determine."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(count, 4, generator=generator)
    return x, x[:, 0] + 0.5 * x[:, 1] + 0.1 * torch.randn(count, generator=generator)


def names(count: int = 600) -> np.ndarray[Any, Any]:
    """Class names of `samples`."""
    latent = samples(count)[1]
    return CLASSES[torch.bucketize(latent, torch.tensor([-0.5, 0.5])).numpy()]


def numbers(count: int = 600) -> np.ndarray[Any, Any]:
    """Numbers of `samples`, in units far from the training units."""
    return (samples(count)[1] * 50 + 1000).numpy()


def preprocessing() -> Preprocessing:
    x, _ = samples()
    return Preprocessing.fit(ArrayFormat.fit(x.numpy()), x)


def task_of(method: str) -> Task:
    if METHODS[method].tasks == ("regression",):
        return Regression.from_target(numbers(), names=["price"], tolerance=40)
    return Classification.from_target(names())


def target_of(model: Model, count: int = 600) -> np.ndarray[Any, Any]:
    return numbers(count) if model.task.kind == "regression" else names(count)


def build(method: Any = "iedl", **options: Any) -> Model:
    task = task_of(method if isinstance(method, str) else method.get("name"))
    backbone = {"name": "mlp", "hidden": [8]}
    return Model.build(method, task, preprocessing(), backbone, **options)


def train(model: Model, steps: int = 60) -> Model:
    """Fit the samples with a few steps on all of them."""
    x, _ = samples()
    inputs = model.preprocessing.normalize(x)
    target = model.task.to_training_units(model.task.encode(target_of(model)))
    weights = model.method.weight_tensor(0, 1)
    optimizer = torch.optim.Adam(model.network.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        dist = model.method.distribution(model.network(inputs))
        loss, _ = model.method.loss(dist, target, weights)
        (loss / len(x)).backward()
        optimizer.step()
    return model.eval()


@cache
def _trained(method: str) -> Model:
    return train(build(method))


def trained(method: str = "iedl") -> Model:
    """A trained model of one's own; the training is shared by the tests of a process."""
    return deepcopy(_trained(method))


def fitted(method: str = "iedl") -> Model:
    """A trained model with calibration and policy."""
    x, _ = samples()
    model = trained(method)
    target = target_of(model)
    return model.calibrate(x, target).fit_policy(x, target, error_rate=0.1)


class Custom(nn.Module):
    """A network without features."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x)
        return outputs
