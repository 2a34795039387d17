r"""Normal-inverse-Wishart network for several correlated targets (Meinert and Lavin, 2021,
https://arxiv.org/abs/2104.06135).

.. math::
    L = -\ln \mathrm{St}\left(y;\ \gamma,\ \tfrac{1 + \nu}{\nu(m + 2)} \Psi,\ m + 2\right),
    \quad \nu = m

As in the paper nu is tied to the degrees of freedom, because the likelihood leaves it free.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from dubito.distributions import NormalInverseWishart
from dubito.distributions.normal_inverse_wishart import count
from dubito.losses import Term
from dubito.methods.base import METHODS, Method, TaskLike

__all__: list[str] = []


@METHODS.register("niw")
class NIW(Method):
    """Multivariate deep evidential regression."""

    tasks: ClassVar[tuple[str, ...]] = ("regression",)
    error_score: ClassVar[str] = "total"

    def outputs(self, task: TaskLike) -> int:
        """Return (T + 1)(T + 2)/2: 2 T + 1 of the marginals, and the coupling of each pair."""
        return count(task.size)

    def distribution(self, outputs: Tensor) -> NormalInverseWishart:
        """Normal-inverse-Wishart of outputs (..., M)."""
        return NormalInverseWishart.from_outputs(outputs)

    @property
    def terms(self) -> Mapping[str, Term]:
        """The joint negative log-likelihood."""
        return {"nll": NormalInverseWishart.nll}
