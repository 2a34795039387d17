"""The feature extractor of Deng et al. (2023) for mini-ImageNet."""

from __future__ import annotations

from torch import Tensor, nn

from dubito.backbones.base import Shape, dropout_rate, image_shape, positive_size, register
from dubito.errors import DubitoError

__all__ = ["WideResNet"]

GROUPS = ((16, 1), (32, 2), (64, 2))  # channels at width 1, stride


@register("wide_resnet")
class WideResNet(nn.Module):
    """WideResNet-28-10 (Zagoruyko and Komodakis 2016) with global average pooling.

    The first convolution keeps the resolution: made for 32x32 to 84x84 pixels.

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
        rate = dropout_rate(dropout)
        self.stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        blocks, inputs = [], 16
        for base, stride in GROUPS:
            for place in range((depth - 4) // 6):
                blocks.append(_Block(inputs, base * width, 1 if place else stride, rate))
                inputs = base * width
        self.blocks = nn.Sequential(*blocks)
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

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
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
        kept: Tensor = x if self.shortcut is None else self.shortcut(active)
        added: Tensor = kept + self.residual(active)
        return added
