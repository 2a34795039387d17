"""What all backbones share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise

from torch import Tensor, nn

Shape = tuple[int, ...]


class Backbone(nn.Module, ABC):
    """A network whose last layer is one linear map, `head`, of its features.

    Shapes: (N, *shape) -> (N, outputs).
    """

    head: nn.Linear

    @property
    def feature_size(self) -> int:
        """D, the number of features."""
        return self.head.in_features

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """The input of the last layer: (N, *shape) -> (N, D)."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, *shape) -> (N, outputs)."""
        logits: Tensor = self.head(self.features(x))
        return logits


def dense(sizes: tuple[int, ...], dropout: float) -> nn.Sequential:
    """Linear layers from size to size, each with ReLU, and dropout where it is not 0.

    >>> dense((4, 3), 0.0)
    Sequential(
      (0): Linear(in_features=4, out_features=3, bias=True)
      (1): ReLU()
    )
    """
    layers: list[nn.Module] = []
    for size, following in pairwise(sizes):
        layers += [nn.Linear(size, following), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers)


def image(shape: Shape, least: int, name: str) -> Shape:
    """(channels, height, width) of at least `least` pixels a side, or an error that says so."""
    if len(shape) != 3 or shape[0] < 1 or min(shape[1:]) < least:
        raise ValueError(
            f"the backbone {name!r} expects images (channels, height, width) of at least "
            f"{least}x{least} pixels, but shape is {shape}"
        )
    return shape


def rate(dropout: float | None, default: float = 0.0) -> float:
    """The dropout rate in [0, 1), `default` for None."""
    value = default if dropout is None else dropout
    if not 0 <= value < 1:
        raise ValueError(f"dropout must be in [0, 1), not {value!r}")
    return value


def count(outputs: int, name: str = "outputs") -> int:
    """A number of units: at least 1."""
    if outputs < 1:
        raise ValueError(f"{name} must be at least 1, not {outputs!r}")
    return outputs
