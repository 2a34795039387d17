"""Networks from one input to `outputs` numbers, by name.

| name | inputs | network | features |
| --- | --- | --- | --- |
| mlp | any shape | dense layers with ReLU | the last hidden size, 128 |
| convnet | images from 8x8 | three 5x5 convolutions: the paper's for MNIST | 64 |
| vgg16 | images from 32x32 | VGG16 with batch norm: the paper's for CIFAR-10 | 512 |
| wide_resnet | images from 8x8 | WideResNet-28-10: the paper's for mini-ImageNet | 640 |

Any other `torch.nn.Module` from (N, *shape) to (N, outputs) does as well: methods ask no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

from dubito import _checks
from dubito.backbones.base import Backbone
from dubito.backbones.convnet import ConvNet
from dubito.backbones.mlp import MLP
from dubito.backbones.vgg import VGG16
from dubito.backbones.wide_resnet import WideResNet

__all__ = ["BACKBONES", "MLP", "VGG16", "Backbone", "ConvNet", "WideResNet", "build"]

#: name -> builder(shape, outputs, dropout=..., further options)
BACKBONES: dict[str, Callable[..., Backbone]] = {
    "mlp": MLP,
    "convnet": ConvNet,
    "vgg16": VGG16,
    "wide_resnet": WideResNet,
}


def build(
    name: str, shape: Sequence[int], outputs: int, *, dropout: float | None = None, **options: Any
) -> Backbone:
    """The named backbone for inputs of `shape`, without the batch axis, with `outputs` last units.

    `dropout` None leaves the architecture's own; `options` are the builder's.

    >>> build("convnet", (1, 28, 28), 10).feature_size
    64
    >>> build("mlp", (64,), 10, hidden=(32,)).feature_size
    32
    """
    builder = _checks.entry(BACKBONES, name, "backbone")
    known = [key for key in signature(builder).parameters if key not in ("shape", "outputs")]
    for option in options:
        _checks.one_of(known, option, f"option of the backbone {name!r}:")
    return builder(tuple(shape), outputs, dropout=dropout, **options)
