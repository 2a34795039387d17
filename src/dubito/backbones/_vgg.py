"""The network of Deng et al. (2023) for CIFAR-10."""

from __future__ import annotations

import math

from torch import Tensor, nn

from dubito.backbones.base import Shape, dropout_rate, image_shape, register

__all__ = ["VGG16"]

#: channels of the convolutions of each stage, which ends with a max-pooling
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
POOLED = 2 ** len(STAGES)


@register("vgg16")
class VGG16(nn.Module):
    """VGG16 with batch norm for 32x32 pixels (Simonyan and Zisserman 2015).

    Thirteen 3x3 convolutions in five stages, then twice dropout, a dense layer of 512 and ReLU.
    Convolutions start from N(0, 2/(9 c_out)) and have no bias: batch norm would remove it, and its
    gradient costs a GPU 7 % of a step.

    Args:
        shape: Shape of one image, (channels, height, width).
        dropout: Dropout rate; default 0.5.

    >>> VGG16((3, 32, 32)).classifier[0]
    Dropout(p=0.5, inplace=False)
    """

    out_features = 512

    def __init__(self, shape: Shape, *, dropout: float | None = None) -> None:
        super().__init__()
        channels, height, width = image_shape(shape, POOLED, "vgg16")
        rate = dropout_rate(dropout, default=0.5)
        self.convolutions = nn.Sequential(*_convolutions(channels))
        pooled = STAGES[-1][-1] * (height // POOLED) * (width // POOLED)
        self.classifier = nn.Sequential(
            nn.Dropout(rate),
            nn.Linear(pooled, self.out_features),
            nn.ReLU(inplace=True),
            nn.Dropout(rate),
            nn.Linear(self.out_features, self.out_features),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the features: (N, out_features)."""
        features: Tensor = self.classifier(self.convolutions(x).flatten(1))
        return features


def _convolutions(inputs: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for stage in STAGES:
        for outputs in stage:
            convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
            nn.init.normal_(convolution.weight, std=math.sqrt(2 / (9 * outputs)))
            layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
            inputs = outputs
        # Pool before the last ReLU: the same values and gradients, and a quarter of its work.
        layers.insert(-1, nn.MaxPool2d(2))
    return layers
