"""Two epochs on scikit-learn's digits with a plain loop: what the tests of the methods share."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from dubito.backbones import build
from dubito.methods import Method, PosteriorNetwork
from dubito.prediction import Prediction

CLASSES = 10
SHAPE = (1, 8, 8)
#: backbone -> its options here: at 8x8 pixels the published start is too weak for two epochs
BACKBONES: dict[str, dict[str, Any]] = {"mlp": {}, "convnet": {"init": "he"}}

#: smaller batches for more steps: the densities must part before there is any evidence
BATCH = {PosteriorNetwork: 8}


@cache
def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images in [0, 1] and labels: 1,400 to train, 397 to test."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    x = (torch.as_tensor(data.images, dtype=torch.float32) / 16).unsqueeze(1)[order]
    y = torch.as_tensor(data.target, dtype=torch.long)[order]
    return x[:1400], y[:1400], x[1400:], y[1400:]


def counts() -> Tensor:
    return torch.bincount(digits()[1], minlength=CLASSES)


def untrained(method: Method, backbone: str = "mlp", seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    outputs, options = method.outputs(CLASSES), BACKBONES[backbone]
    network = build(backbone, SHAPE, outputs, dropout=method.dropout, **options)
    return method.model(network, CLASSES, counts())


def total(method: Method, terms: dict[str, Tensor], epoch: int = 1, epochs: int = 2) -> Tensor:
    weights = method.weights(epoch, epochs)
    assert weights.keys() == terms.keys()
    return torch.stack([weights[name] * term.mean() for name, term in terms.items()]).sum()


@cache
def trained(method: Method, backbone: str, epochs: int = 2) -> nn.Module:
    """A trained model, which the tests of one process share: leave it as it is.

    Adam goes from 4e-3 down to 0, so that the averages of batch norm catch up with the weights.
    """
    x, y, _, _ = digits()
    model = untrained(method, backbone)
    optimiser = torch.optim.Adam(model.parameters(), lr=4e-3, fused=True)
    batch = BATCH.get(type(method), 16)
    steps = epochs * (len(x) // batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / steps)
    generator = torch.Generator().manual_seed(0)
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=generator)
        for chosen in order.split(batch)[: len(x) // batch]:
            terms = method.terms(model, x[chosen], y[chosen], generator)
            optimiser.zero_grad()
            total(method, terms, epoch, epochs).backward()
            optimiser.step()
            schedule.step()
    return model.eval()


def predict(method: Method, model: nn.Module, x: Tensor) -> Prediction:
    """In evaluation mode, without gradients, and always with the same draws."""
    torch.manual_seed(0)
    with torch.no_grad():
        return method.predict(model.eval(), x)
