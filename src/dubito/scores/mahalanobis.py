r"""Mahalanobis distance from the nearest class (Lee et al., NeurIPS 2018).

.. math:: s = -\min_c (f - \mu_c)^T \Sigma^{-1} (f - \mu_c)

with the means of the features of each class and one covariance for all of them. Papers:
https://arxiv.org/abs/1807.03888; with normalized features, Mahalanobis++ (Müller and Hein, ICML
2025): https://arxiv.org/abs/2505.18032.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from dubito import _checks
from dubito.numerics.covariance import shrunk
from dubito.scores.base import SCORES, Head, Score

__all__: list[str] = []

#: features in float64 at once
ROWS = 8192
#: Directions whose deviation is below this many units in the last place of the features are left
#: out: they contain rounding alone.
ROUNDING = 8


@dataclass(frozen=True)
class ClassNormals:
    """Normal distributions of the classes with one covariance; float64.

    Attributes:
        center: Mean of all features, (D,), as float32 has it.
        whitening: Deviations from the center times this have the covariance 1 within the classes,
            (D, R).
        means: Whitened means of the classes that have samples, (K, R).
        shares: Share of the samples of each of these classes, (K,).
    """

    center: Tensor
    whitening: Tensor
    means: Tensor
    shares: Tensor

    @classmethod
    def fit(cls, features: Tensor, target: Tensor) -> "ClassNormals":
        """Estimate means and covariance, which is shrunk (Ledoit and Wolf) where samples are few.

        Args:
            features: Features, (N, D).
            target: Class indices, (N,).
        """
        count, size = features.shape
        codes = target.unique(return_inverse=True)[1]
        counts = codes.bincount()
        parts = [*zip(features.split(ROWS), codes.split(ROWS), strict=True)]
        sums = torch.zeros(len(counts), size, dtype=torch.float64, device=features.device)
        for rows, own in parts:
            sums.index_add_(0, own, rows.double())
        center = (sums.sum(0) / count).float().double()
        means = sums / counts[:, None] - center
        covariance = torch.zeros(size, size, dtype=torch.float64, device=features.device)
        fourth = square = torch.zeros((), dtype=torch.float64, device=features.device)
        for rows, own in parts:
            exact = rows.double()
            rest = exact - center - means[own]
            covariance += rest.mT @ rest / count
            fourth = fourth + rest.square().sum(1).square().sum() / count
            square = square + exact.square().sum() / count
        values, vectors = torch.linalg.eigh(shrunk(covariance, fourth, count))
        kept = exceeds_rounding(values, square)
        whitening = vectors[:, kept] / values[kept].sqrt()
        return cls(center, whitening, means @ whitening, counts.double() / count)


def exceeds_rounding(variances: Tensor, square: Tensor) -> Tensor:
    """Return which variances are not those of rounding alone, given the mean squared length."""
    return variances > (ROUNDING * torch.finfo(torch.float32).eps) ** 2 * square


@SCORES.register("mahalanobis")
class Mahalanobis(Score):
    """Negative squared distance of the features from the nearest class.

    Features of an ensemble are those of its members side by side.
    """

    tasks: ClassVar[tuple[str, ...]] = ("classification",)

    normalize: bool = True
    """Whether features are scaled to length 1, as in Mahalanobis++."""

    def fit(self, features: Tensor, outputs: Tensor, target: Tensor, head: Head) -> None:
        found = ClassNormals.fit(self.scaled(features), target)
        self.keep(found.center, found.whitening, found.means, torch.zeros_like(found.shares))

    def keep(self, center: Tensor, projection: Tensor, means: Tensor, offsets: Tensor) -> None:
        """Keep the state of max_c offset_c - |(f - center) projection - mean_c|^2."""
        if not projection.shape[-1]:  # of constant features; the sum over no axis has no graph
            projection, means = pad(projection, (0, 1)), pad(means, (0, 1))
        self.register_buffer("center", center.float())
        self.register_buffer("projection", projection.float())
        self.register_buffer("means", means.float())
        self.register_buffer("offsets", offsets.float())

    def forward(self, features: Tensor, outputs: Tensor) -> Tensor:
        """Return the score of the nearest class; higher means more familiar: (N,)."""
        points = (self.scaled(features) - self.center) @ self.projection
        products = 2 * points @ self.means.mT + self.offsets - self.means.square().sum(-1)
        label = products.argmax(-1)
        # From the difference: the products would lose digits where classes are far apart.
        return self.offsets[label] - (points - self.means[label]).square().sum(-1)

    def scaled(self, features: Tensor) -> Tensor:
        """Return the features in float32, of length 1 if they are normalized."""
        values = _checks.at_least_float32(features)
        return normalize(values, dim=-1) if self.normalize else values
