"""The paper's feature extractor for mini-ImageNet."""

from __future__ import annotations

from torch import Tensor, nn

from dubito.backbones.base import Backbone, Shape, count, image, rate

GROUPS = ((16, 1), (32, 2), (64, 2))  # channels at width 1, stride


class WideResNet(Backbone):
    """WideResNet-28-10 (Zagoruyko and Komodakis 2016), globally average-pooled to 640 features.

    The first convolution keeps the resolution: made for 32x32 to 84x84 pixels. `dropout` is between
    the two convolutions of a block; the default is none. `depth` is 6 n + 4 layers.

    >>> WideResNet((3, 32, 32), 10, depth=10, width=2).feature_size
    128
    """

    def __init__(
        self,
        shape: Shape,
        outputs: int,
        *,
        dropout: float | None = None,
        depth: int = 28,
        width: int = 10,
    ) -> None:
        super().__init__()
        channels, _, _ = image(shape, 8, "wide_resnet")
        if depth < 10 or depth % 6 != 4:
            raise ValueError(
                f"depth must be 6 n + 4 with n >= 1 (10, 16, 22, 28, ...), not {depth!r}"
            )
        count(width, "width")
        self.stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        blocks, entering = [], 16
        for base, stride in GROUPS:
            for index in range((depth - 4) // 6):
                leaving = base * width
                first = stride if index == 0 else 1
                blocks.append(Block(entering, leaving, first, rate(dropout)))
                entering = leaving
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(entering)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(entering, count(outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the convolutions anew (He et al. 2015); the other layers have their own."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, 640)."""
        maps: Tensor = self.relu(self.norm(self.blocks(self.stem(x))))
        return maps.mean((-2, -1))


class Block(nn.Module):
    """Norm, ReLU, 3x3 convolution, twice, added to the input (by a 1x1 convolution if it grows)."""

    def __init__(self, entering: int, leaving: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(entering)
        self.relu = nn.ReLU(inplace=True)
        self.residual = nn.Sequential(
            nn.Conv2d(entering, leaving, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(leaving),
            nn.ReLU(inplace=True),
            *([nn.Dropout(dropout)] if dropout else []),
            nn.Conv2d(leaving, leaving, 3, padding=1, bias=False),
        )
        grows = entering != leaving or stride != 1
        self.shortcut = nn.Conv2d(entering, leaving, 1, stride, bias=False) if grows else None

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C', H', W')."""
        active: Tensor = self.relu(self.norm(x))
        # an input that grows is taken after its activation, as the original does
        kept: Tensor = x if self.shortcut is None else self.shortcut(active)
        added: Tensor = kept + self.residual(active)
        return added
