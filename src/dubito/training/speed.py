"""Speed of a network, measured on some of its samples."""

import time
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from dubito.model import Model
from dubito.training.config import TrainConfig
from dubito.training.optimizer import frozen

__all__: list[str] = []


def seconds_per_sample(
    model: Model, inputs: Tensor, config: TrainConfig, device: torch.device
) -> tuple[float, float]:
    """Return the seconds of a forward pass and of a training step, both per sample.

    Neither weights nor statistics nor random states change.

    Args:
        model: Model.
        inputs: Encoded inputs of a batch.
        config: Configuration of the training.
        device: Device of the training.
    """
    network, x = model.to(device).network, model.preprocessing.normalize(inputs.to(device))
    if config.channels_last:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    is_training = network.training
    autocast = torch.autocast(device.type, torch.bfloat16)
    gpus = [device] if device.type == "cuda" else []
    try:
        with (
            torch.random.fork_rng(gpus),
            frozen(config, [network]),
            autocast if config.precision == "bfloat16" else nullcontext(),
        ):
            network.eval()  # batch norm keeps its statistics
            with torch.no_grad():
                forward = _fastest(network, x, backward=False)
            return forward, _fastest(network, x, backward=True)
    finally:
        network.train(is_training)
        for parameter in network.parameters():
            parameter.grad = None


def _fastest(network: nn.Module, x: Tensor, *, backward: bool) -> float:
    """Return the seconds of the fastest of three passes; the first one prepares kernels."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        outputs = network(x)
        if backward:
            outputs.float().sum().backward()
        outputs.sum().item()  # waits for a GPU
        times.append(time.perf_counter() - start)
    return min(times) / len(x)
