"""The paper's network for MNIST."""

from __future__ import annotations

from torch import Tensor, nn

from dubito import _checks
from dubito.backbones.base import Backbone, Shape, count, dense, image, rate
from dubito.backbones.spectral import SpectralConv2d

CHANNELS = 64
POOLED = 8  # three poolings by two
INITS = ("torch", "he")


class ConvNet(Backbone):
    """Three 5x5 convolutions of 64 channels, each ReLU and 2x2 max-pool, then dense 64-64-64.

    For 28x28 pixels 576 values enter the dense layers. `dropout` follows each of these; the default
    is none. `init` "torch" draws the weights as published. It lets the signal fade by the seventh
    layer, so that on small images or little data some losses find no start; "he" (He et al. 2015)
    keeps its size.

    >>> ConvNet((1, 28, 28), 10).dense[0]
    Linear(in_features=576, out_features=64, bias=True)
    """

    def __init__(
        self, shape: Shape, outputs: int, *, dropout: float | None = None, init: str = "torch"
    ) -> None:
        super().__init__()
        channels, height, width = image(shape, POOLED, "convnet")
        _checks.one_of(INITS, init, "init")
        self.init = init
        layers: list[nn.Module] = []
        for entering in (channels, CHANNELS, CHANNELS):
            # pooled first: the same values and gradients, and a quarter of the ReLU's work
            layers += [SpectralConv2d(entering, CHANNELS, 5), nn.MaxPool2d(2), nn.ReLU()]
        self.convolutions = nn.Sequential(*layers)
        pooled = CHANNELS * (height // POOLED) * (width // POOLED)
        self.dense: nn.Sequential = dense((pooled, 64, 64, 64), rate(dropout))
        self.head = nn.Linear(64, count(outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the hidden layers anew where `init` is "he"; torch's layers have their own."""
        for module in (*self.convolutions, *self.dense) if self.init == "he" else ():
            if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)

    def features(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, 64)."""
        features: Tensor = self.dense(self.convolutions(x).flatten(1))
        return features
