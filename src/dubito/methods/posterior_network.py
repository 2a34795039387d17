r"""Posterior Networks: evidence is the density of a class (Charpentier et al., NeurIPS 2020).

.. math::
    \alpha_c = 1 + N_c\,q(z|c), \quad L = E[-\ln p_y] - \lambda H[\mathrm{Dir}(\alpha)]

with z a batch-normed latent point, q(z|c) a radial flow per class and N_c the number of training
samples of the class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from dubito import losses
from dubito.distributions import Dirichlet
from dubito.errors import DubitoError
from dubito.losses import Term
from dubito.methods.base import METHODS, Count, Method, NonNegative, TaskLike

__all__ = ["PosteriorNetwork"]


@METHODS.register("posterior_network")
class PosteriorNetwork(Method):
    """Posterior Network.

    Outputs are the log evidence ln N_c + ln q(z|c), at most 60: a density has no bound, and float32
    ends at e^88. Latents must not move faster than the running averages of batch norm: keep to the
    paper's learning rate of 1e-4 unless the features vary from the start.
    """

    ood_score: ClassVar[str] = "alpha0"

    latent_dim: Count = 6
    """Dimensions of the latent space."""
    flow_length: Count = 6
    """Layers of each radial flow."""
    entropy_weight: NonNegative = 1e-5
    """Weight of the differential entropy; the paper has 1e-6 for MNIST."""

    def head(self, in_features: int, task: TaskLike) -> nn.Module:
        """Build the latent layer and the class densities; reads `task.counts`."""
        counts = getattr(task, "counts", None)
        if counts is None:
            raise DubitoError(
                "a Posterior Network needs the number of training samples of each class, "
                "Classification(counts=...)"
            )
        latent = nn.Linear(in_features, self.latent_dim)
        flows = RadialFlows(task.size, self.latent_dim, self.flow_length)
        return DensityHead(latent, flows, counts)

    def distribution(self, outputs: Tensor) -> Dirichlet:
        """Dir(exp(outputs) + 1)."""
        return Dirichlet.from_logits(outputs, "exp")

    @property
    def terms(self) -> Mapping[str, Term]:
        """The expected cross entropy and the entropy of the Dirichlet."""
        return losses.named(losses.expected_cross_entropy, losses.differential_entropy)

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """The entropy is rewarded."""
        return {"expected_cross_entropy": 1.0, "differential_entropy": -self.entropy_weight}


class DensityHead(nn.Module):
    """Log evidence ln N_c + ln q(z|c): (N, D) -> (N, K)."""

    log_counts: Tensor

    def __init__(self, latent: nn.Module, flows: RadialFlows, counts: Sequence[int]) -> None:
        super().__init__()
        if min(counts) < 1:
            empty = [i for i, count in enumerate(counts) if count < 1]
            raise DubitoError(f"each class needs a training sample, but classes {empty} have none")
        self.latent, self.flows = latent, flows
        self.norm = nn.BatchNorm1d(flows.center.shape[-1])
        self.register_buffer("log_counts", torch.tensor(counts, dtype=torch.float32).log())

    def forward(self, features: Tensor) -> Tensor:
        """Return the log evidence."""
        # Densities multiply many factors, which half precision cannot represent.
        latent = self.latent(features).to(self.log_counts.dtype)
        if self.training and len(latent) == 1:
            norm = self.norm  # as in evaluation: a single sample has no variance
            latent = functional.batch_norm(
                latent, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
            )
        else:
            latent = self.norm(latent)
        log_density: Tensor = self.flows(latent)
        return log_density + self.log_counts


class RadialFlows(nn.Module):
    r"""Log densities of a latent point under K radial flows: (..., D) -> (..., K).

    Each flow moves the point through its own `length` layers to a standard normal. A layer
    (Rezende and Mohamed 2015) moves a point x along the ray from its center c, by the distance
    r = |x - c| alone:

    .. math::
        T(x) = c + \frac{r + s}{r + a}(x - c), \quad
        \ln|\det T'(x)| = (D - 1)\ln\frac{r + s}{r + a}
                           + \ln\frac{r + a\frac{r + s}{r + a}}{r + a}

    In the usual form T(x) = x + b h(r)(x - c), h = 1/(a + r), this is b = s - a, and the condition
    for T to be invertible, b > -a, is s > 0. Written in s, every factor is a sum of positive terms:
    nothing cancels, and no value of the parameters leaves the invertible maps.

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
        """Return the end of x under each flow and ln|det|: (..., D) -> (..., K, D), (..., K)."""
        point = x.unsqueeze(-2)
        ratios, slopes = [], []
        radii = functional.softplus(self.raw_radius)
        stretches = functional.softplus(self.raw_stretch)
        for center, radius, stretch in zip(self.center, radii, stretches, strict=True):
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
        """Return ln q(x|c) of each class c: (..., D) -> (..., K)."""
        point, log_det = self.transform(x)
        normal = -0.5 * (point.square().sum(-1) + x.shape[-1] * math.log(2 * math.pi))
        return normal + log_det
