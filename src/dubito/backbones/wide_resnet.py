"""Wide residual network (Zagoruyko and Komodakis, BMVC 2016, https://arxiv.org/abs/1605.07146)."""

from typing import Annotated

from pydantic import AfterValidator
from torch import Tensor, nn

from dubito.backbones.base import BACKBONES, Backbone, Shape, Size, image_shape, pooled

__all__: list[str] = []

#: channels at width 1 and stride of each group
GROUPS = ((16, 1), (32, 2), (64, 2))


def _depth(depth: int) -> int:
    if depth < 10 or depth % 6 != 4:
        raise ValueError(f"depth must be 6 n + 4 with n >= 1 (10, 16, 22, 28, ...), not {depth}")
    return depth


@BACKBONES.register("wide_resnet")
class WideResNet(Backbone):
    """WideResNet-28-10 with global average pooling.

    The feature extractor of Deng et al. (2023) for mini-ImageNet. The first convolution keeps the
    resolution: made for 32x32 to 84x84 pixels. Dropout, if there is a rate, stands between the two
    convolutions of a block.

    >>> WideResNet(depth=10, width=2).build((3, 32, 32)).out_features
    128
    """

    depth: Annotated[int, AfterValidator(_depth)] = 28
    """Number of layers, 6 n + 4."""
    width: Size = 10
    """Factor of the channels."""

    def build(self, shape: Shape, *, pretrained: bool = False) -> nn.Module:
        """Build the network for images from 8x8."""
        channels, _, _ = image_shape(shape, 8, "wide_resnet")
        blocks, inputs = nn.Sequential(), 16
        stem = nn.Conv2d(channels, inputs, 3, padding=1, bias=False)
        for base, stride in GROUPS:
            for place in range((self.depth - 4) // 6):
                outputs = base * self.width
                blocks.append(_Block(inputs, outputs, 1 if place else stride, self.dropout))
                inputs = outputs
        norm, relu = nn.BatchNorm2d(inputs), nn.ReLU(inplace=True)
        return pooled(inputs, dropout=None, stem=stem, blocks=blocks, norm=norm, relu=relu)


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
