"""Multilayer perceptron."""

import math
from itertools import pairwise

from torch import nn

from dubito.backbones.base import BACKBONES, Backbone, Shape, Size, chain
from dubito.errors import DubitoError

__all__: list[str] = []

#: Pixels from which an image is a photo.
PHOTO = 32


@BACKBONES.register("mlp")
class MLP(Backbone):
    """Dense layers with ReLU on the flattened input, each with dropout if there is a rate.

    >>> MLP(hidden=(32, 16)).build((8, 8)).out_features
    16
    """

    hidden: tuple[Size, ...] = (128, 128)
    """Sizes of the layers."""

    def build(self, shape: Shape, *, pretrained: bool = False) -> nn.Module:
        """Build the network for inputs of any shape."""
        if not shape or min(shape) < 1:
            raise DubitoError(f"the backbone 'mlp' needs a shape of sizes >= 1, not {shape}")
        sizes = (math.prod(shape), *self.hidden)
        return chain(sizes[-1], flatten=nn.Flatten(), layers=dense(sizes, self.dropout))

    def warning(self, shape: Shape) -> str | None:
        """Warn of photos."""
        if len(shape) == 3 and shape[0] == 3 and max(shape[1:]) > PHOTO:
            return (
                f"the backbone 'mlp' does not learn photos of {shape[1]}x{shape[2]} pixels: "
                "use 'resnet'"
            )
        return None


def dense(sizes: tuple[int, ...], dropout: float | None) -> nn.Sequential:
    """Build linear layers from size to size, each with ReLU and, if a rate is given, dropout.

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
