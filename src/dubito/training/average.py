"""Averages of the weights, over epochs or steps."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from dubito.errors import DubitoError

__all__: list[str] = []


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

    return _averaged(network, multi_avg_fn=update)


def moving_average(network: nn.Module, device: torch.device) -> AveragedModel:
    """Create an average of a network's weights for `update_moving_average`.

    Args:
        network: Network in training.
        device: Its device, which counts the updates.
    """
    return _averaged(network, device=device)


@torch.no_grad()
def update_moving_average(average: AveragedModel, network: nn.Module, decay: float) -> None:
    """Move an average towards the weights after a step.

    The decay rises to its value, so that the initial weights are soon forgotten. Nothing is read
    from the device, for which `AveragedModel.update_parameters` would wait.

    Args:
        average: Result of `moving_average`.
        network: Network in training.
        decay: Share of the average that stays.
    """
    updates = average.n_averaged
    averages: list[Tensor] = [*average.module.parameters()]
    weights: list[Tensor] = [*network.parameters()]
    differences = [*torch._foreach_sub(weights, averages)]
    torch._foreach_mul_(differences, 1 - ((1 + updates) / (10 + updates)).clamp_max(decay))
    torch._foreach_add_(averages, differences)
    updates += 1


def _averaged(network: nn.Module, **options: Any) -> AveragedModel:
    try:
        average = AveragedModel(network, **options)
    except Exception as error:
        raise DubitoError(
            f"{type(network).__name__} cannot be copied ({error}), as weight averaging needs: "
            "train it with average_epochs=0 and without ema_decay"
        ) from error
    average.eval().requires_grad_(False)
    return average
