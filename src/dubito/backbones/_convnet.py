"""The network of Deng et al. (2023) for MNIST."""

from __future__ import annotations

from torch import Tensor, nn

from dubito import _checks
from dubito.backbones._mlp import dense
from dubito.backbones.base import Shape, dropout_rate, image_shape, register

__all__ = ["ConvNet"]

CHANNELS = 64
POOLED = 8  # three poolings by two
INITS = ("torch", "he")


@register("convnet")
class ConvNet(nn.Module):
    """Three 5x5 convolutions of 64 channels with ReLU and 2x2 max-pooling, then dense 64-64-64.

    The published initialization "torch" lets the signal fade by the seventh layer, so that some
    losses do not start to learn on small images or little data; "he" (He et al. 2015) keeps its
    size.

    Args:
        shape: Shape of one image, (channels, height, width).
        dropout: Dropout rate after each dense layer; default 0.
        init: "torch" or "he".

    >>> ConvNet((1, 28, 28)).dense[0]
    Linear(in_features=576, out_features=64, bias=True)
    """

    out_features = 64

    def __init__(self, shape: Shape, *, dropout: float | None = None, init: str = "torch") -> None:
        super().__init__()
        channels, height, width = image_shape(shape, POOLED, "convnet")
        _checks.one_of(INITS, init, "init")
        layers: list[nn.Module] = []
        for inputs in (channels, CHANNELS, CHANNELS):
            # Pool first: the same values and gradients, and a quarter of the ReLU's work.
            layers += [nn.Conv2d(inputs, CHANNELS, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()]
        self.convolutions = nn.Sequential(*layers)
        pooled = CHANNELS * (height // POOLED) * (width // POOLED)
        self.dense = dense((pooled, 64, 64, self.out_features), dropout_rate(dropout))
        if init == "he":
            self.apply(_he_init)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features: (N, out_features)."""
        features: Tensor = self.dense(self.convolutions(x).flatten(1))
        return features


def _he_init(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.zeros_(module.bias)
