r"""I-EDL (Deng et al., ICML 2023, https://arxiv.org/abs/2303.02045) carried over to regression.

.. math::
    L = \lfloor s^{2b} \rfloor \left[E \ln\sigma + E\,\tfrac{(y - \mu)^2}{2\sigma^2}
        - \lambda \ln |I|\right], \quad
    E\,\tfrac{(y - \mu)^2}{\sigma^2} = \tfrac\alpha\beta (y - \gamma)^2 + \tfrac1\nu

with expectations over the normal-inverse-gamma, s the scale of the Student-t, and a weight without
gradient. As in I-EDL, the variance of a target is the inverse Fisher information of an observation.
I, the Fisher information of the evidence nu and alpha, limits the evidence to that of about
n = 1/(4 lambda) observations: nu = n and alpha = n/2. See docs/theory-regression.md.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from dubito.distributions import NormalInverseGamma
from dubito.losses import Term, bounded_distribution, ider_terms
from dubito.methods.base import METHODS, Method, TaskLike

__all__ = ["IDER"]


@METHODS.register("ider")
class IDER(Method):
    """Fisher information-based evidential regression."""

    tasks: ClassVar[tuple[str, ...]] = ("regression",)
    error_score: ClassVar[str] = "total"

    fisher_weight: Annotated[float, Field(ge=0, lt=0.125)] = 0.02
    """Weight lambda of the log-determinant; from 1/8 on the variance would be infinite."""
    beta: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Exponent b of the noise in the weight of a sample; 0 for the plain likelihood."""

    def outputs(self, task: TaskLike) -> int:
        """Return 4 T: gamma, nu, alpha and beta of each target."""
        return 4 * task.size

    def distribution(self, outputs: Tensor) -> NormalInverseGamma:
        """Normal-inverse-gamma of outputs (..., 4T)."""
        return bounded_distribution(outputs)

    @property
    def terms(self) -> Mapping[str, Term]:
        """The expected negative log-likelihood and the negative log-determinant."""
        return ider_terms(self.beta)

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """The weight of each term."""
        return {"expected_nll": 1.0, "fisher_penalty": self.fisher_weight}
