r"""Relative Mahalanobis distance (Ren et al., 2021, https://arxiv.org/abs/2106.09022).

.. math:: s = -\min_c (f - \mu_c)^T \Sigma^{-1} (f - \mu_c)
    + (f - \mu_0)^T \Sigma_0^{-1} (f - \mu_0)

with mean mu_0 and covariance Sigma_0 of all features, which is Sigma plus the covariance of the
means of the classes. With Sigma = 1, mu_0 = 0 and axes along which the means have the deviations
d_j, both distances differ along these few axes only. With r = d^2/(1 + d^2),

.. math:: s = \max_c \sum_j \frac{1 - r_j}{r_j} \mu_{cj}^2
    - \Big(\sqrt{r_j} f_j - \frac{\mu_{cj}}{\sqrt{r_j}}\Big)^2

in which nothing cancels far from all classes.
"""

import torch
from torch import Tensor

from dubito.scores.base import SCORES, Head
from dubito.scores.mahalanobis import ClassNormals, Mahalanobis

__all__: list[str] = []

#: deviation of the whitened means along an axis that is left out
LEAST = 1e-6


@SCORES.register("rmds")
class RMDS(Mahalanobis):
    """Squared distance of the features from all classes together, less that from the nearest one.

    Features of an ensemble are those of its members side by side.
    """

    def fit(self, features: Tensor, outputs: Tensor, target: Tensor, head: Head) -> None:
        found = ClassNormals.fit(self.scaled(features), target)
        mean = found.shares @ found.means
        apart = found.means - mean
        weighted = apart * found.shares.sqrt()[:, None]
        _, deviations, axes = torch.linalg.svd(weighted, full_matrices=False)
        kept = deviations > LEAST
        axes, squares = axes[kept].mT, deviations[kept].square()
        root = (squares / (1 + squares)).sqrt()
        means = apart @ axes / root
        offsets = (means.square() / (1 + squares)).sum(-1)
        means += (mean @ axes) * root  # the center is the mean, but for its rounding
        self.keep(found.center, found.whitening @ axes * root, means, offsets)
