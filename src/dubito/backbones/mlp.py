"""A multilayer perceptron."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from dubito.backbones.base import Backbone, Shape, count, dense, rate


class MLP(Backbone):
    """Dense layers with ReLU on the flattened input; `hidden` are their sizes.

    `dropout` follows every hidden layer; the default is none.

    >>> MLP((8, 8), 10, hidden=(32, 16)).feature_size
    16
    """

    def __init__(
        self,
        shape: Shape,
        outputs: int,
        *,
        dropout: float | None = None,
        hidden: Sequence[int] = (128, 128),
    ) -> None:
        super().__init__()
        if not shape or min(shape) < 1:
            raise ValueError(f"the backbone 'mlp' expects a shape of sizes >= 1, not {shape}")
        sizes = (math.prod(shape), *(count(size, "a hidden size") for size in hidden))
        self.layers: nn.Sequential = dense(sizes, rate(dropout))
        self.head = nn.Linear(sizes[-1], count(outputs))

    def features(self, x: Tensor) -> Tensor:
        """(N, *shape) -> (N, D)."""
        features: Tensor = self.layers(x.flatten(1))
        return features
