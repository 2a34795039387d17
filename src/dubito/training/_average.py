"""Weight averaging over the last epochs (Izmailov et al., UAI 2018)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import AveragedModel

from dubito.errors import DubitoError

__all__ = ["averaged", "update_batch_norm"]


def averaged(network: nn.Module, epochs: int) -> AveragedModel:
    """Create an average of a network's weights, to be updated after each epoch.

    The first epochs count alike; later on the share of an epoch falls by the factor 1 - 1/epochs
    with each that follows.

    Args:
        network: Network in training.
        epochs: Number of epochs that the average covers.
    """

    def update(average: Any, weights: Any, updates: Tensor | int) -> None:
        torch._foreach_lerp_(average, weights, 1 / min(int(updates) + 1, epochs))

    try:
        average = AveragedModel(network, multi_avg_fn=update)
    except Exception as error:
        raise DubitoError(
            f"{type(network).__name__} cannot be copied ({error}), as weight averaging needs: "
            "train it with average_epochs=0"
        ) from error
    average.eval().requires_grad_(False)
    return average


@torch.no_grad()
def update_batch_norm(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Recompute the statistics of batch norm: those of the last weights do not fit the average.

    Unlike `torch.optim.swa_utils.update_bn`, layers that the network keeps in evaluation mode keep
    their statistics. Batches count alike and should have one size.
    """
    network.train()
    norms = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.training]
    momenta = [norm.momentum for norm in norms]
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the mean over all batches
        for x in batches if norms else ():
            network(x)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        network.eval()
