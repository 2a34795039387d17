r"""RED: evidence from all training samples (Pandey and Yu, ICML 2023).

.. math:: L = L_\mathrm{EDL} - \nu\,z_y, \quad \nu = \frac{K}{\alpha_0}

with z_y the logit of the target and the vacuity nu a constant of the gradient: samples without any
evidence, from which EDL does not learn, get some for their class.
https://proceedings.mlr.press/v202/pandey23a.html
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from torch import Tensor

from dubito import losses
from dubito.distributions import Dirichlet
from dubito.losses import Term
from dubito.methods.base import METHODS
from dubito.methods.edl import EvidentialMethod

__all__: list[str] = []


@METHODS.register("red")
class RED(EvidentialMethod):
    """RED: EDL that rewards evidence for the target where there is none."""

    ood_score: ClassVar[str] = "vacuity"

    evidence: Literal["softplus", "relu", "exp"] = "exp"
    likelihood: Literal["mse", "marginal", "cross_entropy"] = "marginal"
    """Data term: expected squared error, type II maximum likelihood or expected cross entropy."""

    @property
    def terms(self) -> Mapping[str, Term]:
        """Those of EDL, and the evidence for the target."""
        return {**losses.EDL_TERMS[self.likelihood], "correct_evidence": correct_evidence}


def correct_evidence(dist: Dirichlet, target: Tensor) -> Tensor:
    """Logit of the target times the vacuity, negative: (...).

    Args:
        dist: Dirichlet of logits, batch shape (...).
        target: Class indices (...) or probabilities (..., K).
    """
    logits, _, _ = dist.kernel_input()
    return -dist.vacuity.detach() * (dist.one_hot(target) * logits).sum(-1)
