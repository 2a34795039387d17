r"""Mean and variance of a normal distribution (Nix and Weigend, ICNN 1994).

.. math:: L = \lfloor\sigma^{2b}\rfloor \left[\ln\sigma + \tfrac{(y - \mu)^2}{2\sigma^2}\right]

with a weight without gradient (b > 0: beta-NLL of Seitzer et al., ICLR 2022,
https://arxiv.org/abs/2203.09168). The plain likelihood, b = 0, attends little to the means of
samples whose variance is large at first; b = 1 fits them as a squared error does.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from dubito.distributions.normal import Normal
from dubito.losses import Term, Weighted
from dubito.methods.base import METHODS, Method, TaskLike

__all__: list[str] = []


@METHODS.register("gaussian")
class Gaussian(Method):
    """Network of a mean and a variance."""

    tasks: ClassVar[tuple[str, ...]] = ("regression",)
    error_score: ClassVar[str] = "total"
    ood_score: ClassVar[str] = "total"

    beta: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Exponent b of the variance in the weight of a sample; 0.5 where means fit badly."""

    def outputs(self, task: TaskLike) -> int:
        """Return 2 T: mean and variance of each target."""
        return 2 * task.size

    def distribution(self, outputs: Tensor) -> Normal:
        """Normal distribution of outputs (..., 2T)."""
        return Normal.from_outputs(outputs)

    @property
    def terms(self) -> Mapping[str, Term]:
        """The negative log-likelihood, weighted or not."""
        return {"nll": Weighted(Normal.nll, self.beta) if self.beta else Normal.nll}
