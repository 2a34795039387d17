"""DAPPr: the published loss and gradient, and where the published formula fails."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot, softplus

from dubito.methods import METHODS

METHOD = METHODS.build("dappr")
LOGITS = torch.randn(32, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3
TARGET = torch.arange(32) % 5


def published(logits: Tensor, target: Tensor, weight: float) -> Tensor:
    """Formula of the paper's code, summed."""
    alpha, y = softplus(logits) + 1, target
    star = alpha - y + 1e-8
    star = (star / star.sum(-1, keepdim=True)).detach()
    total = alpha.sum(-1)
    loss = total * total.log() + (alpha * (star / alpha).log()).sum(-1)
    return (loss + weight * (alpha * (1 - y)).square().sum(-1)).sum()


def ours(logits: Tensor, target: Tensor) -> Tensor:
    return METHOD.loss(METHOD.distribution(logits), target, METHOD.weight_tensor(5, 100))[0]


@pytest.mark.parametrize("soft", [False, True])
def test_loss_and_gradient_are_the_published_ones(soft):
    y = one_hot(TARGET, 5).double()
    y = 0.9 * y + 0.02 if soft else y
    logits = LOGITS.clone().requires_grad_()
    loss = ours(logits, y if soft else TARGET)
    expected = published(logits, y, 1e-4)  # half of the weight after half of the ramp
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        *(torch.autograd.grad(value, logits)[0] for value in (loss, expected))
    )


def test_value_and_gradient_are_accurate_in_float32():
    logits = torch.tensor([[1e5, -30.0, 2.0], [-60.0, 40.0, 1.0], [-15.0, 3e7, 0.0]])
    target = torch.tensor([0, 0, 0])
    results = []
    for dtype in (torch.float32, torch.float64):
        leaf = logits.to(dtype).requires_grad_()
        dist = METHOD.distribution(leaf)
        value = METHOD.terms["possibility"](dist, target)
        results.append([value, *torch.autograd.grad(value.sum(), leaf)])
    for single, double in zip(*results, strict=True):
        torch.testing.assert_close(single.double(), double, rtol=2e-5, atol=2e-6)
