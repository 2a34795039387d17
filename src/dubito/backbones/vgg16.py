"""VGG16 with batch norm (Simonyan and Zisserman, ICLR 2015, https://arxiv.org/abs/1409.1556)."""

import math

from torch import nn

from dubito.backbones.base import BACKBONES, Backbone, Shape, chain, image_shape

__all__: list[str] = []

FEATURES = 512
#: channels of the convolutions of each stage, which ends with a max-pooling
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


@BACKBONES.register("vgg16")
class VGG16(Backbone):
    """The feature extractor of Deng et al. (2023) for CIFAR-10.

    Thirteen 3x3 convolutions in five stages, then twice dropout (0.5), a dense layer of 512 and
    ReLU. Convolutions start from N(0, 2/(9 c_out)) and have no bias: batch norm would remove it,
    and its gradient costs a GPU 7 % of a step.

    >>> VGG16().build((3, 32, 32)).classifier[0]
    Dropout(p=0.5, inplace=False)
    """

    def build(self, shape: Shape, *, pretrained: bool = False) -> nn.Module:
        """Build the network for images from 32x32."""
        channels, height, width = image_shape(shape, 32, "vgg16")
        convolutions = nn.Sequential()
        for stage in STAGES:
            for outputs in stage:
                convolution = nn.Conv2d(channels, outputs, 3, padding=1, bias=False)
                nn.init.normal_(convolution.weight, std=math.sqrt(2 / (9 * outputs)))
                layers = [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
                convolutions.extend(layers)
                channels = outputs
            # Pool before the last ReLU: the same values and gradients, and a quarter of its work.
            convolutions.insert(-1, nn.MaxPool2d(2))
        pooled = 512 * (height // 32) * (width // 32)  # five poolings by two
        rate = 0.5 if self.dropout is None else self.dropout
        classifier = nn.Sequential(
            nn.Dropout(rate),
            nn.Linear(pooled, FEATURES),
            nn.ReLU(inplace=True),
            nn.Dropout(rate),
            nn.Linear(FEATURES, FEATURES),
            nn.ReLU(inplace=True),
        )
        return chain(
            FEATURES, convolutions=convolutions, flatten=nn.Flatten(), classifier=classifier
        )
