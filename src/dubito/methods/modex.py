r"""MoDEX: evidential deep learning with a mixture of Dirichlets (ICML 2026).

.. math::
    L = \sum_j (y_j - \mu_j)^2 + \sum_j (y_j - p_j)^2
        + \lambda\,\mathrm{KL}(\tilde y\,\|\,\mathrm{softmax}(\tau)), \quad
    \pi \sim \sum_k p_k\,\mathrm{Dir}(\alpha + \tau_k e_k)

with alpha = exp(g1), p = softmax(g2) and tau = exp(g3), three heads of the same features, mu the
mean of the mixture, and y~ the target with a tenth of it spread evenly over the classes.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor, nn

from dubito.distributions.dirichlet_mixture import DirichletMixture
from dubito.losses import Term
from dubito.methods.base import METHODS, Method, NonNegative, TaskLike
from dubito.methods.fedl import FlexibleHead

__all__: list[str] = []

#: share of the target of tau that is spread over all classes
SMOOTHING = 0.1


@METHODS.register("modex")
class MoDEX(Method):
    """MoDEX."""

    ood_score: ClassVar[str] = "variance"

    tau_weight: NonNegative = 0.1
    """Weight lambda of the term that trains tau."""
    hidden: Annotated[int, Field(ge=0)] = 64
    """Units of the hidden layer of the heads for p and tau; 0 makes all heads linear."""
    spectral_norm: bool = True
    """Spectral normalization of backbones that are built for this method, if not pretrained."""

    def outputs(self, task: TaskLike) -> int:
        """Return 3K: alpha, p and tau."""
        return 3 * task.size

    def head(self, in_features: int, task: TaskLike) -> nn.Module:
        """Build three heads side by side."""
        return FlexibleHead(in_features, task.size, self.hidden, task.size)

    def distribution(self, outputs: Tensor) -> DirichletMixture:
        """Mixture of Dirichlets of outputs (..., 3K)."""
        return DirichletMixture.from_outputs(outputs)

    @property
    def terms(self) -> Mapping[str, Term]:
        """The squared errors of the mean and of p, and the divergence of tau."""
        return {
            "mean_error": DirichletMixture.mean_error,
            "allocation_error": DirichletMixture.allocation_error,
            "tau_divergence": tau_divergence,
        }

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """The weight of each term."""
        return {"mean_error": 1.0, "allocation_error": 1.0, "tau_divergence": self.tau_weight}


def tau_divergence(dist: DirichletMixture, target: Tensor) -> Tensor:
    """KL divergence of the smoothed target from softmax(tau): (...).

    Args:
        dist: Mixture, batch shape (...).
        target: Class indices (...) or probabilities (..., K).
    """
    y = dist.one_hot(target)
    smooth = (1 - SMOOTHING) * y + SMOOTHING / y.shape[-1]
    return (smooth * (smooth.log() - dist.tau.log_softmax(-1))).sum(-1)
