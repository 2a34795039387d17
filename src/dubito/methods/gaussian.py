r"""Mean and variance of a normal distribution (Nix and Weigend, ICNN 1994).

.. math:: L = \lfloor\sigma^{2b}\rfloor \left[\ln\sigma + \tfrac{(y - \mu)^2}{2\sigma^2}\right]

with a weight without gradient (b > 0: beta-NLL of Seitzer et al., ICLR 2022,
https://arxiv.org/abs/2203.09168). The plain likelihood, b = 0, attends little to the means of
samples whose variance is large at first; b = 1 fits them as a squared error does.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from dubito.distributions.normal import Normal
from dubito.distributions.regression import takes_bounds
from dubito.losses import Term
from dubito.methods.base import METHODS, Method, TaskLike
from dubito.targets import Target

__all__: list[str] = []


@takes_bounds
def weighted_nll(dist: Normal, target: Tensor | Target, *, exponent: float) -> Tensor:
    """Negative log-likelihood times sigma^(2 exponent), of which there is no gradient: (..., T)."""
    return dist.sigma.detach() ** (2 * exponent) * dist.nll(target)


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
        if self.beta == 0:
            return {"nll": Normal.nll}
        return {"nll": takes_bounds(partial(weighted_nll, exponent=self.beta))}
