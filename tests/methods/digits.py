"""Small trainings on scikit-learn's digits and diabetes data, shared by the tests of methods."""

from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from dubito.distributions import Distribution
from dubito.methods import Method, PosteriorNetwork

CLASSES = 10
Split = tuple[Tensor, Tensor, Tensor, Tensor]


@cache
def digits() -> Split:
    """Images in [0, 1] and labels: 1,400 for training, 397 for testing."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    x = (torch.as_tensor(data.images, dtype=torch.float32) / 16).flatten(1)[order]
    y = torch.as_tensor(data.target, dtype=torch.long)[order]
    return x[:1400], y[:1400], x[1400:], y[1400:]


@cache
def diabetes() -> Split:
    """Standardized features and target (N, 1): 350 for training, 92 for testing."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    x = torch.as_tensor(data.data, dtype=torch.float32)[order] * 20
    y = torch.as_tensor(data.target, dtype=torch.float32)[order].unsqueeze(1)
    y = (y - y.mean()) / y.std()
    return x[:350], y[:350], x[350:], y[350:]


def data_of(method: Method) -> Split:
    return digits() if "classification" in method.tasks else diabetes()


def task_of(method: Method) -> Any:
    _, y, _, _ = data_of(method)
    if y.ndim > 1:
        return SimpleNamespace(size=1, counts=None)
    return SimpleNamespace(size=CLASSES, counts=torch.bincount(y).tolist())


class Backbone(nn.Sequential):
    """Two layers with dropout, features (N, 32)."""

    def __init__(self, in_features: int) -> None:
        super().__init__(
            nn.Linear(in_features, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 32), nn.ReLU()
        )
        self.out_features = 32


def untrained(method: Method, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    features = data_of(method)[0].shape[1]
    return method.network(partial(Backbone, features), task_of(method))


def loss_of(
    method: Method, network: nn.Module, x: Tensor, y: Tensor, epoch: int = 1, epochs: int = 2
) -> tuple[Tensor, Tensor]:
    """Summed loss and term sums; OOD inputs, where the method needs them, are uniform noise."""
    noise = torch.rand_like(x) if method.ood_terms else x[:0]
    outputs = network(torch.cat([x, noise]))
    dist = method.distribution(outputs[: len(x)])
    ood = method.distribution(outputs[len(x) :]) if method.ood_terms else None
    return method.loss(dist, y, method.weight_tensor(epoch, epochs), ood=ood)


@cache
def trained(method: Method, epochs: int = 3) -> nn.Module:
    """A trained network, shared by the tests of a process: do not change it."""
    x, y, _, _ = data_of(method)
    network = untrained(method)
    optimizer = torch.optim.Adam(network.parameters(), lr=4e-3)
    size = 8 if isinstance(method, PosteriorNetwork) else 16
    for epoch in range(epochs):
        for batch in torch.randperm(len(x)).split(size):
            total, _ = loss_of(method, network, x[batch], y[batch], epoch, epochs)
            optimizer.zero_grad()
            (total / len(batch)).backward()
            optimizer.step()
    return network.eval()


def predict(method: Method, network: nn.Module, x: Tensor) -> Distribution:
    with torch.no_grad():
        return method.distribution(network.eval()(x))
