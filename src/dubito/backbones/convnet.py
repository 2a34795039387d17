"""The network of Deng et al. (ICML 2023, https://arxiv.org/abs/2303.02045) for MNIST."""

from torch import nn

from dubito.backbones.base import BACKBONES, Backbone, Shape, chain, image_shape
from dubito.backbones.mlp import dense

__all__: list[str] = []

FEATURES = 64


@BACKBONES.register("convnet")
class ConvNet(Backbone):
    """Three 5x5 convolutions of 64 channels with ReLU and 2x2 max-pooling, then dense 64-64-64.

    Dropout, if there is a rate, follows each dense layer.

    >>> ConvNet().build((1, 28, 28)).dense[0]
    Linear(in_features=576, out_features=64, bias=True)
    """

    def build(self, shape: Shape, *, pretrained: bool = False) -> nn.Module:
        """Build the network for images from 8x8."""
        channels, height, width = image_shape(shape, 8, "convnet")
        convolutions = nn.Sequential()
        for inputs in (channels, 64, 64):
            # Pool first: the same values and gradients, and a quarter of the ReLU's work.
            convolution = nn.Conv2d(inputs, 64, 5, padding=2)
            convolutions.extend([convolution, nn.MaxPool2d(2), nn.ReLU()])
        pooled = 64 * (height // 8) * (width // 8)  # three poolings by two
        last = dense((pooled, 64, 64, FEATURES), self.dropout)
        return chain(FEATURES, convolutions=convolutions, flatten=nn.Flatten(), dense=last)
