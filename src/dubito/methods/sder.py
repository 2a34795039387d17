r"""Simplified deep evidential regression (Meinert et al., AAAI 2023,
https://arxiv.org/abs/2205.10060).

.. math::
    L = \tfrac12 \ln\tfrac\beta\nu + (1 + \lambda\nu)\,\tfrac{(y - \gamma)^2}{2\beta/\nu},
    \quad \alpha = \nu + 1

half of the paper's loss. Their measures are those of the distribution: the width of the Student-t,
beta (1 + nu)/(nu alpha) = beta/nu, which is the aleatoric variance, and 1/nu for foreign inputs.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from dubito.distributions import NormalInverseGamma
from dubito.distributions.normal import LEAST_OUTPUT, Normal
from dubito.distributions.normal_inverse_gamma import blocks, positive
from dubito.distributions.regression import takes_bounds
from dubito.losses import Term
from dubito.methods.base import METHODS, Method, NonNegative, TaskLike
from dubito.targets import Target

__all__: list[str] = []


@takes_bounds
def normal_nll(dist: NormalInverseGamma, target: Tensor | Target) -> Tensor:
    """Negative log-likelihood of a normal distribution in place of the Student-t: (..., T)."""
    return Normal(dist.gamma, dist.predictive.scale).nll(target)


@takes_bounds
def evidence_penalty(dist: NormalInverseGamma, target: Tensor | Target) -> Tensor:
    """Squared error in scales of the Student-t, times nu/2: (..., T)."""
    return 0.5 * dist.nu * (dist.distance(target) / dist.predictive.scale).square()


@METHODS.register("sder")
class SDER(Method):
    """Simplified deep evidential regression."""

    tasks: ClassVar[tuple[str, ...]] = ("regression",)
    error_score: ClassVar[str] = "total"
    ood_score: ClassVar[str] = "inverse_nu"

    evidence_weight: NonNegative = 0.01
    """Weight lambda of the penalty on evidence for wrong predictions."""

    def outputs(self, task: TaskLike) -> int:
        """Return 3 T: gamma, nu and beta of each target."""
        return 3 * task.size

    def distribution(self, outputs: Tensor) -> NormalInverseGamma:
        """Normal-inverse-gamma of outputs (..., 3T), with alpha = nu + 1."""
        gamma, *raw = blocks(outputs, 3)
        nu, beta = (positive(block, LEAST_OUTPUT) for block in raw)
        return NormalInverseGamma(gamma, nu, nu, beta)

    @property
    def terms(self) -> Mapping[str, Term]:
        """The negative log-likelihood and the evidence penalty."""
        return {"nll": normal_nll, "evidence_penalty": evidence_penalty}

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """The weight of each term."""
        return {"nll": 1.0, "evidence_penalty": self.evidence_weight}
