"""Backbones: networks from inputs to features, by name.

| name | inputs | network | features |
| --- | --- | --- | --- |
| mlp | any shape | dense layers with ReLU | last hidden size, 128 |
| convnet | images from 8x8 | three 5x5 convolutions, for MNIST | 64 |
| vgg16 | images from 32x32 | VGG16 with batch norm, for CIFAR-10 | 512 |
| wide_resnet | images from 8x8 | WideResNet-28-10, for mini-ImageNet | 640 |

A method adds its own head. Any module from (N, *shape) to features (N, D) with an attribute
`out_features` will do; register a function that builds it to use it by name.
"""

from dubito.backbones import _networks  # noqa: F401 - registers the built-in backbones
from dubito.backbones.base import BACKBONES, register

__all__ = ["BACKBONES", "register"]
