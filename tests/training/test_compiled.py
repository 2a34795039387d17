"""Networks compiled once for all runs do what they do by themselves."""

from __future__ import annotations

import copy

import torch
from torch import nn

from dubito import _legacy as methods
from dubito import backbones
from dubito.training.step import compiled

SHAPE, CLASSES = (3, 32, 32), 4


def _network(seed: int) -> nn.Module:
    """One with batch norm, whose memory moves, and with flows after it."""
    torch.manual_seed(seed)
    method = methods.method("posterior_network", flow_length=2)
    backbone = backbones.build("vgg16", SHAPE, method.outputs(CLASSES), dropout=0.0)
    return method.model(backbone, CLASSES, [5] * CLASSES).train()


def test_one_compilation_serves_all_networks() -> None:
    alone = [_network(seed) for seed in range(3)]
    together = copy.deepcopy(alone)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    x = torch.randn(3, *SHAPE)
    for one, other, forward in zip(alone, together, compiled(together, "aot_eager"), strict=True):
        for _ in range(2):
            expected, outputs = one(x), forward(x)
            torch.testing.assert_close(outputs, expected)
        expected.sum().backward()
        outputs.sum().backward()
        for ours, theirs in zip(other.parameters(), one.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
        for held, buffer in zip(other.buffers(), one.buffers(), strict=True):
            torch.testing.assert_close(held, buffer)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]
