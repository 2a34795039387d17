"""Optimizers, groups of parameters with their learning rates, and averages of the weights."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import filter as matching
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from dubito.errors import DubitoError
from dubito.methods.base import Network
from dubito.training.config import FUSED, OPTIMIZERS, TrainConfig
from dubito.types import Options

__all__: list[str] = []


def build_optimizer(
    config: TrainConfig, network: nn.Module, device: torch.device
) -> torch.optim.Optimizer:
    """Build the optimizer of the trainable parameters, fused if possible.

    Args:
        config: Training configuration.
        network: Network on the device.
        device: Device of the training.
    """
    groups, options = parameter_groups(config, network), dict(config.optimizer_options)
    for group in groups:
        group["lr"] = group["initial_lr"]
    if config.optimizer in FUSED and device.type in ("cpu", "cuda"):
        options.setdefault("fused", True)
        if device.type == "cuda":  # a captured step reads its learning rates from the device
            for group in groups:
                group["lr"] = torch.tensor(group["initial_lr"], device=device)
            if config.optimizer != "sgd":
                options.setdefault("capturable", True)
    optimizer = OPTIMIZERS[config.optimizer](groups, lr=groups[0]["lr"], **options)
    if "weight_decay" not in optimizer.defaults and any("weight_decay" in g for g in groups):
        raise DubitoError(f"param_groups: the optimizer {config.optimizer!r} has no weight_decay")
    return optimizer


def parameter_groups(config: TrainConfig, network: nn.Module) -> list[Options]:
    """Return a group for each learning rate and weight decay of the trainable parameters.

    Args:
        config: Training configuration.
        network: Network.
    """
    depth = depths(network) if config.layer_decay is not None else {}
    groups: dict[tuple[float, float | None], list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            lr, weight_decay = config.group_options(name)
            if config.layer_decay is not None:
                lr *= config.layer_decay ** depth.get(name, 0)
            groups.setdefault((lr, weight_decay), []).append(parameter)
    if not groups:
        raise DubitoError("there is nothing to train: all parameters of the network are frozen")
    return [
        {"params": parameters, "initial_lr": lr}
        | ({} if weight_decay is None else {"weight_decay": weight_decay})
        for (lr, weight_decay), parameters in groups.items()
    ]


def depths(network: nn.Module) -> dict[str, int]:
    """Return the number of stages between each parameter and the outputs.

    A stage is a run of parameters whose names agree up to their first number: a block of a
    Sequential or a ModuleList. Parameters before the first block are the first stage, those after
    the last block and the head the last one. Each member of an ensemble has stages of its own.

    Args:
        network: Network.

    >>> depths(Network(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), nn.Linear(2, 2)))
    {'head.bias': 0, 'head.weight': 0, 'backbone.2.bias': 1, 'backbone.2.weight': 1, ...}
    """
    parts: dict[str, nn.Module] = {
        name: part for name, part in network.named_modules() if isinstance(part, Network)
    }
    found = {}
    for prefix, part in (parts or {"": network}).items():
        depth, last = 0, ""
        for name, _ in reversed(list(part.named_parameters())):
            stage = "" if parts and name.startswith("head.") else _block(name)
            depth, last = depth + (stage != last), stage
            found[f"{prefix}.{name}" if prefix else name] = depth
    return found


def _block(name: str) -> str:
    """Return the name of a parameter up to its first number; empty without one."""
    parts = name.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdecimal()), -1)
    return ".".join(parts[: number + 1])


@contextmanager
def frozen(config: TrainConfig, networks: Sequence[nn.Module]) -> Iterator[None]:
    """Freeze the first stages and parameters whose learning rate is 0, as long as it lasts.

    Args:
        config: Training configuration.
        networks: Networks of one architecture.
    """
    names = [name for name, _ in networks[0].named_parameters()]
    for pattern in config.param_groups:
        if not matching(names, pattern):
            raise DubitoError(
                f"param_groups: no parameter matches {pattern!r}; the network has {names[0]!r} to "
                f"{names[-1]!r}"
            )
    depth = depths(networks[0]) if config.freeze_stages else dict.fromkeys(names, 0)
    deepest = (1 - config.freeze_stages) * max(depth.values(), default=0)
    parameters = [
        parameter
        for network in networks
        for name, parameter in network.named_parameters()
        if parameter.requires_grad and (config.group_options(name)[0] == 0 or depth[name] > deepest)
    ]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def read_rates(optimizer: torch.optim.Optimizer, rates: Tensor, step: Tensor) -> None:
    """Set learning rates on the device to those of a step; nothing is read from the device.

    Args:
        optimizer: Optimizer whose learning rates are tensors.
        rates: Learning rate of each group in each step, (groups, steps).
        step: Number of the step from 0, (1,).
    """
    for group, row in zip(optimizer.param_groups, rates, strict=True):
        group["lr"].copy_(row.index_select(0, step).squeeze(0))


# --- averages of the weights ---


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
