"""Built-in backbones: a multilayer perceptron and the networks of Deng et al. (2023)."""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from dubito import _checks
from dubito.backbones._spectral import SpectralConv2d
from dubito.backbones.base import Shape, image_shape, positive_size, register
from dubito.errors import DubitoError


@register("mlp")
class MLP(nn.Sequential):
    """Dense layers with ReLU on the flattened input.

    Args:
        shape: Shape of one input.
        dropout: Dropout rate after each layer; default 0.
        hidden: Sizes of the layers.

    >>> MLP((8, 8), hidden=(32, 16)).out_features
    16
    """

    def __init__(
        self, shape: Shape, *, dropout: float | None = None, hidden: Sequence[int] = (128, 128)
    ) -> None:
        super().__init__()
        if not shape or min(shape) < 1:
            raise DubitoError(f"the backbone 'mlp' needs a shape of sizes >= 1, not {shape}")
        if not isinstance(hidden, Sequence):
            raise DubitoError(f"hidden must be a list of sizes, not {hidden!r}")
        sizes = (math.prod(shape), *(positive_size(size, "a hidden size") for size in hidden))
        self.flatten = nn.Flatten()
        self.layers = dense(sizes, dropout)
        self.out_features = sizes[-1]


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


@register("convnet")
class ConvNet(nn.Sequential):
    """The network of Deng et al. (2023) for MNIST.

    Three 5x5 convolutions of 64 channels with ReLU and 2x2 max-pooling, then dense 64-64-64.

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
        channels, height, width = image_shape(shape, 8, "convnet")
        _checks.one_of(("torch", "he"), init, "init")
        self.convolutions = nn.Sequential()
        first = nn.Conv2d(channels, 64, 5, padding=2)
        for convolution in (first, SpectralConv2d(64, 64, 5), SpectralConv2d(64, 64, 5)):
            # Pool first: the same values and gradients, and a quarter of the ReLU's work.
            self.convolutions.extend([convolution, nn.MaxPool2d(2), nn.ReLU()])
        self.flatten = nn.Flatten()
        pooled = 64 * (height // 8) * (width // 8)  # three poolings by two
        self.dense = dense((pooled, 64, 64, self.out_features), dropout)
        if init == "he":
            self.apply(_he_init)


def _he_init(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.zeros_(module.bias)


#: channels of the convolutions of each stage of VGG16, which ends with a max-pooling
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


@register("vgg16")
class VGG16(nn.Sequential):
    """VGG16 with batch norm (Simonyan and Zisserman 2015), of Deng et al. (2023) for CIFAR-10.

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
        channels, height, width = image_shape(shape, 32, "vgg16")
        self.convolutions = nn.Sequential()
        for stage in STAGES:
            for outputs in stage:
                convolution = nn.Conv2d(channels, outputs, 3, padding=1, bias=False)
                nn.init.normal_(convolution.weight, std=math.sqrt(2 / (9 * outputs)))
                layers = [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
                self.convolutions.extend(layers)
                channels = outputs
            # Pool before the last ReLU: the same values and gradients, and a quarter of its work.
            self.convolutions.insert(-1, nn.MaxPool2d(2))
        self.flatten = nn.Flatten()
        pooled = 512 * (height // 32) * (width // 32)  # five poolings by two
        rate = 0.5 if dropout is None else dropout
        self.classifier = nn.Sequential(
            nn.Dropout(rate),
            nn.Linear(pooled, self.out_features),
            nn.ReLU(inplace=True),
            nn.Dropout(rate),
            nn.Linear(self.out_features, self.out_features),
            nn.ReLU(inplace=True),
        )


#: channels at width 1 and stride of each group of WideResNet
GROUPS = ((16, 1), (32, 2), (64, 2))


@register("wide_resnet")
class WideResNet(nn.Module):
    """WideResNet-28-10 (Zagoruyko and Komodakis 2016) with global average pooling.

    The feature extractor of Deng et al. (2023) for mini-ImageNet. The first convolution keeps the
    resolution: made for 32x32 to 84x84 pixels.

    Args:
        shape: Shape of one image, (channels, height, width).
        dropout: Dropout rate between the two convolutions of a block; default 0.
        depth: Number of layers, 6 n + 4.
        width: Factor of the channels.

    >>> WideResNet((3, 32, 32), depth=10, width=2).out_features
    128
    """

    def __init__(
        self, shape: Shape, *, dropout: float | None = None, depth: int = 28, width: int = 10
    ) -> None:
        super().__init__()
        channels, _, _ = image_shape(shape, 8, "wide_resnet")
        if depth < 10 or depth % 6 != 4:
            raise DubitoError(
                f"depth must be 6 n + 4 with n >= 1 (10, 16, 22, 28, ...), not {depth!r}"
            )
        positive_size(width, "width")
        self.stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.blocks, inputs = nn.Sequential(), 16
        for base, stride in GROUPS:
            for place in range((depth - 4) // 6):
                self.blocks.append(_Block(inputs, base * width, 1 if place else stride, dropout))
                inputs = base * width
        self.norm = nn.BatchNorm2d(inputs)
        self.relu = nn.ReLU(inplace=True)
        self.out_features = inputs
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return the features: (N, out_features)."""
        maps: Tensor = self.relu(self.norm(self.blocks(self.stem(x))))
        return maps.mean((-2, -1))


class _Block(nn.Module):
    """Norm, ReLU and 3x3 convolution, twice, added to the input."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float | None) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.relu = nn.ReLU(inplace=True)
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            *([nn.Dropout(dropout)] if dropout else []),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        )
        grows = inputs != outputs or stride != 1
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if grows else None

    def forward(self, x: Tensor) -> Tensor:
        active: Tensor = self.relu(self.norm(x))
        # As in the original, an input that grows is added after its activation.
        shortcut: Tensor = x if self.shortcut is None else self.shortcut(active)
        added: Tensor = shortcut + self.residual(active)
        return added
