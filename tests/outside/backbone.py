"""A small network with weights and inputs of its own."""

import os

import torch
from torch import nn

from dubito.backbones import BACKBONES, Backbone
from dubito.formats import ImageFormat, Preprocessing, Resize

#: the variable forbids to load weights from elsewhere
OFFLINE = "OUTSIDE_OFFLINE"
WANTED = Preprocessing(
    inputs=ImageFormat(
        size=(16, 16), mode="RGB", resize=Resize(fit="crop", crop_pct=0.8, interpolation="bicubic")
    ),
    mean=(0.5, 0.45, 0.4),
    std=(0.25, 0.25, 0.3),
)


@BACKBONES.register("tiny_cnn")
class TinyCNN(Backbone):
    """A convolution, and the mean of each channel."""

    width: int = 16
    """Number of features."""

    def inputs(self) -> Preprocessing:
        return WANTED

    def build(self, shape: tuple[int, ...], *, pretrained: bool = False) -> nn.Module:
        convolution = nn.Conv2d(shape[0], self.width, 3)
        if pretrained:
            if OFFLINE in os.environ:
                raise RuntimeError("a saved model brings its weights")
            draw = torch.Generator().manual_seed(7)
            nn.init.normal_(convolution.weight, std=0.2, generator=draw)
        pool = nn.AdaptiveAvgPool2d(1)
        network = nn.Sequential(convolution, nn.ReLU(), pool, nn.Flatten())
        network.out_features = self.width
        return network
