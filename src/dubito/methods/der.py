r"""Deep evidential regression (Amini et al., NeurIPS 2020).

.. math::
    L = -\ln \mathrm{St}\left(y;\ \gamma,\ \tfrac{\beta(1 + \nu)}{\nu\alpha},\ 2\alpha\right)
        + \lambda\,|y - \gamma|\,(2\nu + \alpha)

The likelihood leaves nu free along a ridge (Meinert et al., AAAI 2023): the epistemic part of a
single network reflects the regularizer. Use an ensemble where it matters.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from dubito.distributions import NormalInverseGamma
from dubito.losses import DER_TERMS, Term, Weighted
from dubito.methods.base import METHODS, Method, NonNegative, TaskLike

__all__ = ["DER"]


@METHODS.register("der")
class DER(Method):
    """Deep evidential regression."""

    tasks: ClassVar[tuple[str, ...]] = ("regression",)
    error_score: ClassVar[str] = "total"

    evidence_weight: NonNegative = 0.01
    """Weight lambda of the penalty on evidence for wrong predictions."""
    beta: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Exponent b of the squared scale in the weight of a sample, as of `gaussian`."""

    def outputs(self, task: TaskLike) -> int:
        """Return 4 T: gamma, nu, alpha and beta of each target."""
        return 4 * task.size

    def distribution(self, outputs: Tensor) -> NormalInverseGamma:
        """Normal-inverse-gamma of outputs (..., 4T)."""
        return NormalInverseGamma.from_outputs(outputs)

    @property
    def terms(self) -> Mapping[str, Term]:
        """The negative log-likelihood and the evidence penalty, weighted or not."""
        if self.beta == 0:
            return DER_TERMS
        return {name: Weighted(term, self.beta) for name, term in DER_TERMS.items()}

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """The weight of each term."""
        return {"nll": 1.0, "evidence_penalty": self.evidence_weight}
