"""Multilayer perceptron on encoded numbers, for tables."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from dubito.backbones.base import BACKBONES, Backbone, Shape, Size, chain
from dubito.backbones.mlp import dense
from dubito.errors import DubitoError

__all__: list[str] = []

#: points at which the encoding of a normal distribution is measured
GRID = 4096
#: deviation of a share; numbers have 1, and networks fit better if these weigh more
SCALE = 0.5


@BACKBONES.register("tabular")
class Tabular(Backbone):
    """Piecewise linear encoding of each number, then dense layers with ReLU.

    >>> Tabular(bins=4).build((13,)).encoding(torch.zeros(2, 13)).shape
    torch.Size([2, 65])
    """

    hidden: tuple[Size, ...] = (128, 128)
    """Sizes of the dense layers."""
    bins: Annotated[int, Field(ge=2)] = 16
    """Bins of the encoding of a number; a standard normal one falls into each equally often."""

    def build(self, shape: Shape, *, pretrained: bool = False) -> nn.Module:
        """Build the network for D numbers."""
        if len(shape) != 1 or shape[0] < 1:
            raise DubitoError(f"the backbone 'tabular' needs numbers (D,), not {shape}")
        sizes = (shape[0] * (self.bins + 1), *self.hidden)
        return chain(
            sizes[-1], encoding=PiecewiseLinear(self.bins), layers=dense(sizes, self.dropout)
        )


class PiecewiseLinear(nn.Module):
    """Standardized numbers and their piecewise linear encoding (Gorishniy et al., NeurIPS 2022,
    https://arxiv.org/abs/2203.05556).

    In the encoding a number is the share of each bin that lies below it; the outer bins have no
    end. Edges are quantiles of a normal distribution rather than of the data, so that they are no
    part of the weights. Shares are centered: networks learn much worse from those in [0, 1].

    Args:
        bins: Number of bins B.
    """

    low: Tensor
    width: Tensor
    least: Tensor
    most: Tensor
    mean: Tensor
    scale: Tensor

    def __init__(self, bins: int) -> None:
        super().__init__()
        grid = torch.special.ndtri((torch.arange(GRID) + 0.5) / GRID)
        inner = torch.special.ndtri(torch.arange(1, bins) / bins)
        gaps = inner.diff() if bins > 2 else torch.ones(1)
        edges = torch.cat([inner[:1] - gaps[:1], inner, inner[-1:] + gaps[-1:]])
        self.register_buffer("low", edges[:-1], persistent=False)
        self.register_buffer("width", edges.diff(), persistent=False)
        least, most = torch.zeros(bins), torch.ones(bins)
        least[0], most[-1] = -torch.inf, torch.inf
        self.register_buffer("least", least, persistent=False)
        self.register_buffer("most", most, persistent=False)
        shares = self.shares(grid)
        self.register_buffer("mean", shares.mean(0), persistent=False)
        self.register_buffer("scale", SCALE / shares.std(0), persistent=False)

    def shares(self, x: Tensor) -> Tensor:
        """Return the share of each bin below numbers (...): (..., B)."""
        shares = (x.unsqueeze(-1) - self.low) / self.width
        return torch.minimum(torch.maximum(shares, self.least), self.most)

    def forward(self, x: Tensor) -> Tensor:
        """Encode numbers (..., D): (..., D (B + 1))."""
        encoded = (self.shares(x) - self.mean) * self.scale
        return torch.cat([x, encoded.flatten(-2)], -1)
