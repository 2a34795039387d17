"""The densities of a Posterior Network for all classes at once, against a loop over classes."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from benchmarks import Row, seconds
from dubito.methods.posterior_network import RadialFlows

BATCH = 64
DIM = 6
LENGTH = 6
CALLS = 20
REPEATS = 15


class Radial(nn.Module):
    """One layer of one class in its textbook form, x + b h(r) (x - c) with h = 1/(a + r)."""

    def __init__(self, center: Tensor, raw_radius: Tensor, raw_stretch: Tensor) -> None:
        super().__init__()
        self.center = nn.Parameter(center.detach().clone())
        self.raw_radius = nn.Parameter(raw_radius.detach().clone())
        self.raw_stretch = nn.Parameter(raw_stretch.detach().clone())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = softplus(self.raw_radius)
        b = softplus(self.raw_stretch) - a
        offset = x - self.center
        r = offset.norm(dim=-1)
        h = 1 / (a + r)
        log_det = (x.shape[-1] - 1) * torch.log1p(b * h) + torch.log1p(b * h - b * r * h.square())
        return x + (b * h).unsqueeze(-1) * offset, log_det


class LoopedFlows(nn.Module):
    """The same densities as `flows`, class by class."""

    def __init__(self, flows: RadialFlows) -> None:
        super().__init__()
        length, classes, _ = flows.center.shape
        parameters = (flows.center, flows.raw_radius, flows.raw_stretch)
        self.classes = nn.ModuleList(
            nn.ModuleList(Radial(*(p[layer, c] for p in parameters)) for layer in range(length))
            for c in range(classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self._log_density(layers, x) for layers in self.classes], -1)

    @staticmethod
    def _log_density(layers: nn.Module, x: Tensor) -> Tensor:
        total = torch.zeros(x.shape[:-1], dtype=x.dtype)
        for layer in layers.children():
            x, log_det = layer(x)
            total = total + log_det
        return total - 0.5 * (x.square().sum(-1) + x.shape[-1] * math.log(2 * math.pi))


def run() -> list[Row]:
    """One row a number of classes: forward and backward pass on one CPU thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small: more threads only add noise
    try:
        return [_row(classes) for classes in (2, 10, 100)]
    finally:
        torch.set_num_threads(threads)


def _row(classes: int) -> Row:
    torch.manual_seed(0)
    ours = RadialFlows(classes, DIM, LENGTH)
    loop = LoopedFlows(ours)
    x = torch.randn(BATCH, DIM)
    difference = (ours(x) - loop(x)).abs().max().item()
    calls = max(3, CALLS // classes)
    ours_s, loop_s = math.inf, math.inf
    for _ in range(REPEATS):  # in turns, so that a disturbance meets both
        ours_s = min(ours_s, seconds(lambda: _step(ours, x), CALLS))
        loop_s = min(loop_s, seconds(lambda: _step(loop, x), calls))
    return {
        "classes": classes,
        "batch": BATCH,
        "loop_s": loop_s,
        "ours_s": ours_s,
        "ratio": loop_s / ours_s,
        "max_difference": difference,
    }


def _step(flows: nn.Module, x: Tensor) -> None:
    latent = x.requires_grad_()
    flows.zero_grad()
    latent.grad = None
    flows(latent).sum().backward()
