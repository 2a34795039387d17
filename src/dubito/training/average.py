"""A network whose weights are the mean of another one's over its last epochs."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["SAMPLES", "Average"]

#: training samples that batch norm learns its statistics from anew
SAMPLES = 10_000


class Average:
    """The mean of a network's weights after its epochs, the later ones weighted more.

    At a constant rate a network never settles: it jumps about a place that is better than where it
    happens to stand (Izmailov et al., UAI 2018). The first `epochs` count alike; after them an
    epoch's share falls by the factor 1 - 1/epochs with each that follows.
    """

    def __init__(self, model: nn.Module, epochs: int) -> None:
        self.epochs = epochs
        try:
            self.model = copy.deepcopy(model).eval().requires_grad_(False)
        except Exception as error:
            raise TypeError(
                f"{type(model).__name__} can't be copied, which the mean of its weights needs "
                f"({error}); train it with average=0"
            ) from error

    @torch.no_grad()
    def add(self, model: nn.Module, epoch: int) -> None:
        """Take in the weights after `epoch` (from 0). Buffers are the network's own."""
        share = 1 / min(epoch + 1, self.epochs)
        for held, weight in zip(self.model.parameters(), model.parameters(), strict=True):
            held.lerp_(weight, share)
        for kept, buffer in zip(self.model.buffers(), model.buffers(), strict=True):
            kept.copy_(buffer)

    @torch.no_grad()
    def settle(self, batches: Iterable[Tensor]) -> None:
        """Have batch norm learn its statistics: those of the network do not fit the mean.

        Batches count alike, so they should be of one size. Layers that the network itself holds in
        evaluation mode keep theirs, which torch's `update_bn` would forget.
        """
        self.model.train()
        norms = [m for m in self.model.modules() if isinstance(m, _BatchNorm) and m.training]
        momenta = [norm.momentum for norm in norms]
        try:
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # the mean of all batches
            for x in batches if norms else ():
                self.model(x)
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
            self.model.eval()
