r"""Distance from the k-th nearest training sample (Sun et al., ICML 2022).

.. math:: s = -\|n(f) - n(f_{(k)})\|, \quad n(f) = f/\|f\|

https://arxiv.org/abs/2204.06507
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from dubito import _checks
from dubito.scores.base import SCORES, Head, Score

__all__: list[str] = []

#: products of inputs and training samples in memory at once
PAIRS = 1 << 26
#: least number of training samples for each neighbor
SHARE = 20


@SCORES.register("knn")
class KNN(Score):
    """Negative distance of the normalized features from those of the k-th nearest training sample.

    Features of an ensemble are those of its members side by side.
    """

    k: Annotated[int, Field(ge=1)] = 50
    """Neighbor; at most a twentieth of the training samples."""

    def fit(self, features: Tensor, outputs: Tensor, target: Tensor, head: Head) -> None:
        self.register_buffer("bank", normalize(_checks.at_least_float32(features)))

    def forward(self, features: Tensor, outputs: Tensor) -> Tensor:
        """Return the negative distance; higher means more familiar: (N,)."""
        points = normalize(_checks.at_least_float32(features))
        if torch.compiler.is_compiling():  # a graph has no loop over a batch of any size
            return -self._distances(points)
        parts = points.split(max(1, PAIRS // len(self.bank)))
        return -torch.cat([self._distances(part) for part in parts])

    def _distances(self, points: Tensor) -> Tensor:
        k = max(1, min(self.k, len(self.bank) // SHARE))
        indices = (points @ self.bank.mT).topk(k).indices[:, -1]
        # From the difference: 2 - 2 cos would lose half of the digits.
        return (points - self.bank[indices]).square().sum(-1).sqrt()
