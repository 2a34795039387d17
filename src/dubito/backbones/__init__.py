"""Backbones: networks from inputs to features, by name.

| name | inputs | network | features |
| --- | --- | --- | --- |
| mlp | any shape | dense layers with ReLU | last hidden size, 128 |
| tabular | numbers | piecewise linear encoding, then dense layers | last hidden size, 128 |
| convnet | images from 8x8 | three 5x5 convolutions, for MNIST | 64 |
| resnet | images from 8x8 | ResNet-18 or 34 | 512 |
| vgg16 | images from 32x32 | VGG16 with batch norm, for CIFAR-10 | 512 |
| efficientnet_lite0 | color images from 32x32 | EfficientNet-Lite0, pretrained on ImageNet | 1280 |
| wide_resnet | images from 8x8 | WideResNet-28-10, for mini-ImageNet | 640 |
| embedding | token ids | mean of embeddings, then dense layers | last hidden size, 128 |
| hf:NAME_OR_FOLDER | images or texts | a network of transformers, pretrained | those of its head |
| timm:NAME | images | a network of timm, pretrained | those of its head |
| module:path.to:factory | any | a module of yours | its `out_features` |

A method adds its own head. A new backbone is one file like its neighbors.
"""

from dubito.backbones.base import BACKBONES, Backbone

__all__ = ["BACKBONES", "Backbone"]

BACKBONES.declare(
    __name__, "convnet", "efficientnet_lite0", "embedding", "hf", "mlp", "module", "resnet",
    "tabular", "timm", "vgg16", "wide_resnet",
)  # fmt: skip
