"""Residual network (He et al., CVPR 2016, https://arxiv.org/abs/1512.03385)."""

from typing import Annotated

from pydantic import AfterValidator
from torch import Tensor, nn

from dubito.backbones.base import BACKBONES, Backbone, Shape, Size, image_shape, pooled

__all__: list[str] = []

#: number of blocks in each stage
BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
#: largest sides of images whose resolution the stem keeps, and halves; it quarters others
KEPT, HALVED = 32, 64


def _depth(depth: int) -> int:
    if depth not in BLOCKS:
        raise ValueError(f"depth must be 18 or 34, not {depth}")
    return depth


@BACKBONES.register("resnet")
class ResNet(Backbone):
    """ResNet-18 with global average pooling, for images of any size from 8x8.

    The stem follows the image, so that all sizes cost about the same: up to 32 pixels a 3x3
    convolution that keeps the resolution, as usual for CIFAR; up to 64 pixels the same with stride
    2; above, a 7x7 convolution with stride 2 and a max-pooling, as published. Convolutions start
    from He et al. (2015). Dropout, if there is a rate, follows the pooling.

    >>> ResNet().build((3, 32, 32)).out_features
    512
    """

    depth: Annotated[int, AfterValidator(_depth)] = 18
    """Number of layers, 18 or 34."""
    width: Size = 64
    """Channels of the first stage; each further stage doubles them."""

    def build(self, shape: Shape, *, pretrained: bool = False) -> nn.Module:
        """Build the network for images from 8x8."""
        channels, *size = image_shape(shape, 8, "resnet")
        stages, inputs = nn.Sequential(), self.width
        for number, count in enumerate(BLOCKS[self.depth]):
            outputs, stage = self.width * 2**number, nn.Sequential()
            for place in range(count):
                stride = 2 if number and not place else 1
                stage.append(_Block(inputs, outputs, stride))
                inputs = outputs
            stages.append(stage)
        parts = {"stem": _stem(channels, self.width, max(size)), "stages": stages}
        return pooled(inputs, dropout=self.dropout, **parts)


def _stem(channels: int, width: int, size: int) -> nn.Sequential:
    side, stride = 7 if size > HALVED else 3, 2 if size > KEPT else 1
    convolution = nn.Conv2d(channels, width, side, stride, padding=side // 2, bias=False)
    stem = nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU(inplace=True))
    return stem.append(nn.MaxPool2d(3, 2, padding=1)) if size > HALVED else stem


class _Block(nn.Module):
    """3x3 convolution, norm, ReLU, 3x3 convolution and norm, added to the input; then ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        shortcut: list[nn.Module] = []
        if inputs != outputs or stride != 1:
            shortcut = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
        self.shortcut = nn.Sequential(*shortcut)
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        active: Tensor = self.relu(self.shortcut(x) + self.residual(x))
        return active
