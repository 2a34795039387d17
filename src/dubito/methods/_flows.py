r"""Radial flows (Rezende and Mohamed 2015) for the density of each class, all classes at once.

A layer moves a point x along the ray from its center c, by the distance r = |x - c| alone:

.. math::
    T(x) = c + \frac{r + s}{r + a}(x - c), \quad
    \ln|\det T'(x)| = (D - 1)\ln\frac{r + s}{r + a} + \ln\frac{r + a\frac{r + s}{r + a}}{r + a}

In the usual form T(x) = x + b h(r)(x - c), h = 1/(a + r), this is b = s - a, and the condition for
T to be invertible, b > -a, is s > 0. Written in s, every factor is a sum of positive terms: nothing
cancels, and no value of the parameters leaves the invertible maps.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

__all__ = ["RadialFlows"]


class RadialFlows(nn.Module):
    """The log-densities of a latent point under K flows: (..., D) -> (..., K).

    Each flow takes the point through its own `length` layers to a standard normal.

    >>> flows = RadialFlows(classes=3, dim=2)
    >>> flows(torch.zeros(5, 2)).shape
    torch.Size([5, 3])
    """

    def __init__(self, classes: int, dim: int, length: int = 6) -> None:
        super().__init__()
        self.center = nn.Parameter(torch.empty(length, classes, dim))
        self.raw_radius = nn.Parameter(torch.empty(length, classes))
        self.raw_stretch = nn.Parameter(torch.empty(length, classes))
        # Uniform within 1/sqrt(D), as the published networks are initialized.
        bound = 1 / math.sqrt(dim)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Where each flow takes x, and ln|det| on the way: (..., D) -> (..., K, D), (..., K)."""
        point = x.unsqueeze(-2)
        ratios, slopes = [], []
        layers = zip(
            self.center, softplus(self.raw_radius), softplus(self.raw_stretch), strict=True
        )
        for center, radius, stretch in layers:
            offset = point - center
            r = torch.linalg.vector_norm(offset, dim=-1)  # its gradient at the center is 0
            inverse = (r + radius).reciprocal()
            ratio = (r + stretch) * inverse
            point = torch.addcmul(center, ratio.unsqueeze(-1), offset)
            ratios.append(ratio)
            slopes.append((r + radius * ratio) * inverse)
        across = torch.stack(ratios).log().sum(0)
        along = torch.stack(slopes).log().sum(0)
        return point, (x.shape[-1] - 1) * across + along

    def forward(self, x: Tensor) -> Tensor:
        """ln q(x|c) of each class c: (..., D) -> (..., K)."""
        point, log_det = self.transform(x)
        normal = -0.5 * (point.square().sum(-1) + x.shape[-1] * math.log(2 * math.pi))
        return normal + log_det
