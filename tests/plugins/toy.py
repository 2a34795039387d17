"""A plug-in: MoDEX with its distribution, a backbone, a score and a dataset."""

import os
import signal
from typing import ClassVar, Literal

import torch
from modex import MoDEX
from torch import Tensor, nn

from dubito import backbones, data, methods, scores

KILL = "TOY_KILLED_IN_EPOCH"


@methods.METHODS.register("toy_method")
class ToyMethod(MoDEX):
    """MoDEX that can kill its process at the start of an epoch."""

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        if os.environ.get(KILL) == str(epoch):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().weights(epoch, epochs)


@backbones.register("toy_backbone")
class ToyBackbone(nn.Module):
    """Two layers.

    Args:
        shape: Shape of one input.
        dropout: Dropout rate.
        width: Number of features.
    """

    def __init__(self, shape: tuple[int, ...], *, dropout: float | None = None, width: int = 16):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(shape[0], width), nn.Tanh())
        self.out_features = width

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@scores.SCORES.register("toy_score")
class ToyScore(scores.Score):
    """Distance of the features from their mean."""

    higher: ClassVar[Literal["confidence", "uncertainty"]] = "uncertainty"

    power: float = 2.0
    """Exponent of the distance."""

    def fit(
        self, features: Tensor, outputs: Tensor, target: Tensor, head: nn.Module | None
    ) -> None:
        self.register_buffer("mean", features.mean(0))

    def forward(self, features: Tensor, outputs: Tensor) -> Tensor:
        return (features - self.mean).norm(dim=-1) ** self.power


@data.DATASETS.register("toy_data")
class ToyData(data.Dataset):
    """Three overlapping clusters in a plane."""

    def load(self, part: str) -> data.Source:
        generator = torch.Generator().manual_seed(len(part))
        label = torch.arange(600) % 3
        x = torch.eye(3)[label, :2] * 3 + torch.randn(600, 2, generator=generator)
        return data.open((x.numpy(), [f"class {one}" for one in label.tolist()]))
