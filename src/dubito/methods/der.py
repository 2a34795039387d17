r"""Deep evidential regression (Amini et al., NeurIPS 2020).

.. math::
    L = \lfloor s^{2b} \rfloor \left[-\ln \mathrm{St}\left(y;\ \gamma,\ s^2,\ 2\alpha\right)
        + \lambda\,|y - \gamma|\,(2\nu + \alpha)\right], \quad
    s^2 = \tfrac{\beta(1 + \nu)}{\nu\alpha}

with a weight without gradient, that of beta-NLL (Seitzer et al., ICLR 2022,
https://arxiv.org/abs/2203.09168).

The likelihood leaves nu free along a ridge (Meinert et al., AAAI 2023): the epistemic part of a
single network reflects the regularizer. Use an ensemble where it matters.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from dubito.distributions import NormalInverseGamma
from dubito.losses import Term, bounded_distribution, der_terms
from dubito.methods.base import METHODS, Method, NonNegative, TaskLike

__all__ = ["DER"]


@METHODS.register("der")
class DER(Method):
    """Deep evidential regression."""

    tasks: ClassVar[tuple[str, ...]] = ("regression",)
    error_score: ClassVar[str] = "total"

    evidence_weight: NonNegative = 0.01
    """Weight lambda of the penalty on evidence for wrong predictions."""
    beta: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Exponent b of the squared scale in the weight of a sample, as of `gaussian`; 0 as published,
    where means fit worse."""

    def outputs(self, task: TaskLike) -> int:
        """Return 4 T: gamma, nu, alpha and beta of each target."""
        return 4 * task.size

    def distribution(self, outputs: Tensor) -> NormalInverseGamma:
        """Normal-inverse-gamma of outputs (..., 4T)."""
        return bounded_distribution(outputs)

    @property
    def terms(self) -> Mapping[str, Term]:
        """The negative log-likelihood and the evidence penalty, weighted or not."""
        return der_terms(self.beta)

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """The weight of each term."""
        return {"nll": 1.0, "evidence_penalty": self.evidence_weight}
