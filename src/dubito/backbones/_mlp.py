"""Multilayer perceptron."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from dubito.backbones.base import Shape, dropout_rate, positive_size, register
from dubito.errors import DubitoError

__all__ = ["MLP"]


@register("mlp")
class MLP(nn.Module):
    """Dense layers with ReLU on the flattened input.

    Args:
        shape: Shape of one input.
        dropout: Dropout rate after each layer; default 0.
        hidden: Sizes of the layers.

    >>> MLP((8, 8), hidden=(32, 16)).out_features
    16
    """

    def __init__(
        self, shape: Shape, *, dropout: float | None = None, hidden: Sequence[int] = (128, 128)
    ) -> None:
        super().__init__()
        if not shape or min(shape) < 1:
            raise DubitoError(f"the backbone 'mlp' needs a shape of sizes >= 1, not {shape}")
        if not isinstance(hidden, Sequence):
            raise DubitoError(f"hidden must be a list of sizes, not {hidden!r}")
        sizes = (math.prod(shape), *(positive_size(size, "a hidden size") for size in hidden))
        self.layers = dense(sizes, dropout_rate(dropout))
        self.out_features = sizes[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Return the features: (N, out_features)."""
        features: Tensor = self.layers(x.flatten(1))
        return features


def dense(sizes: tuple[int, ...], dropout: float) -> nn.Sequential:
    """Build linear layers from size to size, each with ReLU and, if it is not 0, dropout.

    >>> dense((4, 3), 0.0)
    Sequential(
      (0): Linear(in_features=4, out_features=3, bias=True)
      (1): ReLU()
    )
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers)
