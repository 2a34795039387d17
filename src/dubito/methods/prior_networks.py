r"""Prior Networks: a sharp Dirichlet for data, a flat one for out-of-distribution inputs.

KL-PN (Malinin and Gales, NeurIPS 2018) and RKL-PN (Malinin and Gales, NeurIPS 2019) minimize

.. math::
    L_\mathrm{KL} &= \mathrm{KL}(\mathrm{Dir}(\beta^y)\,\|\,\mathrm{Dir}(\alpha))
                   + \gamma\,\mathrm{KL}(\mathrm{Dir}(1)\,\|\,\mathrm{Dir}(\alpha^\mathrm{ood})) \\
    L_\mathrm{RKL} &= \mathrm{KL}(\mathrm{Dir}(\alpha)\,\|\,\mathrm{Dir}(\beta^y))
                    + \gamma\,\mathrm{KL}(\mathrm{Dir}(\alpha^\mathrm{ood})\,\|\,\mathrm{Dir}(1))

where beta^y is beta for the target's class and 1 for the others. alpha = exp(outputs) may fall
below 1 and has no prior: there is no vacuity, and alpha0 measures the evidence.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from dubito import losses
from dubito.distributions import Dirichlet
from dubito.losses import ClosedForm, Term
from dubito.methods.base import METHODS, Method, NonNegative

__all__: list[str] = []


class PriorNetwork(Method):
    """Base of the two Prior Networks."""

    ood_score: ClassVar[str] = "alpha0"

    beta: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 100.0
    """Concentration of the target's class."""
    ood_weight: NonNegative = 1.0
    """Weight gamma of the loss of out-of-distribution inputs."""

    @staticmethod
    @abstractmethod
    def divergence(beta: float) -> ClosedForm:
        """Return the divergence between Dir(alpha) and Dir(beta^y)."""

    def distribution(self, outputs: Tensor) -> Dirichlet:
        """Dir(exp(outputs))."""
        return Dirichlet.from_logits(outputs, "exp", prior=0.0)

    @property
    def terms(self) -> Mapping[str, Term]:
        """The divergence between Dir(alpha) and Dir(beta^y)."""
        return {"id_kl": self.divergence(self.beta)}

    @property
    def ood_terms(self) -> Mapping[str, Term]:
        """The divergence between Dir(alpha) and Dir(1)."""
        return {"ood_kl": self.divergence(1.0)}

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """The weight of each term."""
        return {"id_kl": 1.0, "ood_kl": self.ood_weight}


@METHODS.register("kl_pn")
class KLPriorNetwork(PriorNetwork):
    """KL-PN: forward KL, mass covering."""

    @staticmethod
    def divergence(beta: float) -> ClosedForm:
        """KL(Dir(beta^y) || Dir(alpha))."""
        return losses.forward_kl(beta)


@METHODS.register("rkl_pn")
class ReverseKLPriorNetwork(PriorNetwork):
    """RKL-PN: reverse KL, mode seeking.

    In long trainings alpha0 may reverse: more evidence where the network is wrong.
    """

    @staticmethod
    def divergence(beta: float) -> ClosedForm:
        """KL(Dir(alpha) || Dir(beta^y))."""
        return losses.reverse_kl(beta)
