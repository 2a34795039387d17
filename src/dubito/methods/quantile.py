r"""Quantile regression (Koenker and Bassett, Econometrica 1978, https://doi.org/10.2307/1913643).

.. math:: L = \frac{1}{K} \sum_k \max\bigl(p_k (y - q_k),\ (p_k - 1)(y - q_k)\bigr)

the pinball loss of quantiles q at K probabilities p, twice which is about the continuous ranked
probability score. Calibration makes conformal intervals of the quantiles (Romano et al., NeurIPS
2019, https://arxiv.org/abs/1905.03222).

A censored target costs nothing where a quantile is within its bounds (Powell, Journal of
Econometrics 1986, https://doi.org/10.1016/0304-4076(86)90016-3). Where all bounds of like inputs
are the same, quantiles short of these are unbiased and others stop at them; where bounds differ,
quantiles beyond some of them are drawn toward these. A likelihood, as of `gaussian`, needs no such
conditions, but a shape.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field
from torch import Tensor

from dubito.distributions.quantiles import Quantiles
from dubito.losses import Term
from dubito.methods.base import METHODS, Method, TaskLike

__all__: list[str] = []


def _ascending(values: tuple[float, ...]) -> tuple[float, ...]:
    if any(low >= high for low, high in pairwise(values)):
        raise ValueError(f"probabilities must be ascending, not {', '.join(map(str, values))}")
    return values


@METHODS.register("quantile")
class Quantile(Method):
    """Network of quantiles that do not cross."""

    tasks: ClassVar[tuple[str, ...]] = ("regression",)
    error_score: ClassVar[str] = "total"
    ood_score: ClassVar[str] = "total"

    probabilities: Annotated[
        tuple[Annotated[float, Field(gt=0, lt=1)], ...],
        Field(min_length=2),
        AfterValidator(_ascending),
    ] = (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975)
    """Ascending probabilities of the quantiles; these have the ends of 50, 80, 90 and 95%."""

    def outputs(self, task: TaskLike) -> int:
        """Return K T: a middle quantile and the gaps between quantiles of each target."""
        return len(self.probabilities) * task.size

    def distribution(self, outputs: Tensor) -> Quantiles:
        """Quantiles of outputs (..., K * T)."""
        return Quantiles.from_outputs(outputs, self.probabilities)

    @property
    def terms(self) -> Mapping[str, Term]:
        """The pinball loss."""
        return {"pinball": Quantiles.pinball}
