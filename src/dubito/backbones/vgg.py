"""The paper's network for CIFAR-10."""

from __future__ import annotations

import math

from torch import Tensor, nn

from dubito.backbones.base import Backbone, Shape, count, image, rate

#: channels of each convolution, by the stage that a max-pool ends
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
POOLED = 2 ** len(STAGES)
HIDDEN = 512


class VGG16(Backbone):
    """VGG16 with batch norm for 32x32 pixels (Simonyan and Zisserman 2015).

    Thirteen 3x3 convolutions, each batch norm and ReLU, with five max-pools down to 1x1x512; then
    twice dropout, 512, ReLU. Convolutions start from N(0, 2/(9 c_out)). They have no bias: batch
    norm would take it away again, and its gradient costs a GPU 7 % of a step. The default `dropout`
    is 0.5.

    >>> VGG16((3, 32, 32), 10).classifier[0]
    Dropout(p=0.5, inplace=False)
    """

    def __init__(self, shape: Shape, outputs: int, *, dropout: float | None = None) -> None:
        super().__init__()
        channels, height, width = image(shape, POOLED, "vgg16")
        p = rate(dropout, default=0.5)
        self.convolutions = nn.Sequential(*_convolutions(channels))
        pooled = STAGES[-1][-1] * (height // POOLED) * (width // POOLED)
        self.classifier = nn.Sequential(
            nn.Dropout(p),
            nn.Linear(pooled, HIDDEN),
            nn.ReLU(inplace=True),
            nn.Dropout(p),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(inplace=True),
        )
        self.head = nn.Linear(HIDDEN, count(outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the convolutions anew; the other layers have their own."""
        for module in self.convolutions:
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=math.sqrt(2 / (9 * module.out_channels)))

    def features(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, 512)."""
        features: Tensor = self.classifier(self.convolutions(x).flatten(1))
        return features


def _convolutions(channels: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for stage in STAGES:
        for leaving in stage:
            convolution = nn.Conv2d(channels, leaving, 3, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(leaving), nn.ReLU(inplace=True)]
            channels = leaving
        # pooled before the last ReLU: the same values and gradients, and a quarter of its work
        layers.insert(-1, nn.MaxPool2d(2))
    return layers
