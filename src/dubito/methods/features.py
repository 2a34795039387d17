"""Features and outputs of a network in one pass.

Features are the input of the last layer, (N, D). A network says them itself with a method
`forward_with_features(x)`, which returns features and outputs. Of other networks the input of the
last `nn.Linear` whose size is that of the outputs is recorded while they run.

A head whose outputs are not those of its linear layer, but follow from them, says this layer with
an attribute `linear`.
"""

from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dubito.methods.base import Network

__all__: list[str] = []

#: largest difference of the outputs from a linear layer of the features, relative to the largest
TOLERANCE = 1e-2

Pass = tuple[Tensor | None, Tensor]


def forward_with_features(network: nn.Module, x: Tensor) -> Pass:
    """Run a network once.

    Args:
        network: Any network.
        x: Its input, (N, ...).

    Returns:
        Features (N, D), None if there are none, and outputs.
    """
    own: Callable[[Tensor], Pass] | None = getattr(network, "forward_with_features", None)
    if own is not None:
        return own(x)
    thread, calls = get_ident(), list[tuple[nn.Linear, Tensor]]()

    def record(layer: nn.Linear, args: tuple[Tensor, ...]) -> None:
        if args and get_ident() == thread:
            calls.append((layer, args[0]))

    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    hooks = [layer.register_forward_pre_hook(record) for layer in layers]
    try:
        outputs = network(x)
    finally:
        for hook in hooks:
            hook.remove()
    for layer, features in reversed(calls):
        fits = isinstance(outputs, Tensor) and layer.out_features == outputs.shape[-1]
        # len() would fix the size of the batch in an exported graph.
        if fits and features.ndim == 2 and features.shape[0] == x.shape[0]:
            return features, outputs
    return None, outputs


def linear_head(
    network: nn.Module, features: Tensor, outputs: Tensor
) -> nn.Linear | nn.ModuleList | None:
    """Return the linear layer that maps features to outputs, None if there is none.

    Args:
        network: Network, or a ModuleList of members, whose layers are returned as a ModuleList.
        features: Features of some inputs, (N, D).
        outputs: Their outputs, (N, M), or (N, S, M) for members or samples.
    """
    if isinstance(network, nn.ModuleList):
        parts = zip(network, features.tensor_split(len(network), 1), outputs.unbind(1), strict=True)
        heads = [head for head in (linear_head(*part) for part in parts) if head is not None]
        return nn.ModuleList(heads) if len(heads) == len(network) else None
    if isinstance(network, Network) and hasattr(network.head, "linear"):
        own: Any = network.head.linear
        return own if isinstance(own, nn.Linear) else None
    outputs = outputs.flatten(1, -2).mean(1) if outputs.ndim > 2 else outputs
    for layer in reversed([*network.modules()]):
        if isinstance(layer, nn.Linear) and _maps(layer, features, outputs):
            return layer
    return None


def _maps(layer: nn.Linear, features: Tensor, outputs: Tensor) -> bool:
    """Return whether a layer maps features to outputs."""
    if (layer.in_features, layer.out_features) != (features.shape[-1], outputs.shape[-1]):
        return False
    bias = None if layer.bias is None else layer.bias.float()
    gap = functional.linear(features.float(), layer.weight.float(), bias) - outputs
    return bool(gap.abs().max() <= TOLERANCE * outputs.abs().max())


def stacked(passes: list[Pass]) -> tuple[list[Tensor] | None, Tensor]:
    """Return the features of several passes, None if one has none, and their outputs (N, S, M)."""
    features = [part for part, _ in passes if part is not None]
    outputs = torch.stack([part for _, part in passes], 1)
    return features if len(features) == len(passes) else None, outputs
