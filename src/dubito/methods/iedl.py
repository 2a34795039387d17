r"""I-EDL: Fisher information-based evidential deep learning (Deng et al., ICML 2023).

.. math::
    L = \sum_j \left[(y_j - p_j)^2 + \tfrac{p_j(1 - p_j)}{\alpha_0 + 1}\right]\psi_1(\alpha_j)
        - \lambda_1 \ln|I(\alpha)|
        + \lambda_2 \mathrm{KL}(\mathrm{Dir}(\tilde\alpha)\,\|\,\mathrm{Dir}(1))

with alpha = evidence + 1 and the evidence of the target removed in alpha~.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic.dataclasses import dataclass
from torch import Tensor

from dubito import losses
from dubito.distributions import Dirichlet
from dubito.losses import Term
from dubito.methods.base import (
    CONFIG,
    Evidence,
    Method,
    NonNegative,
    Positive,
    Ramp,
    Scale,
    TaskLike,
    ramp,
    register,
)
from dubito.methods.edl import fisher_warning


@register("iedl")
@dataclass(frozen=True, kw_only=True, config=CONFIG)
class IEDL(Method):
    """I-EDL.

    >>> IEDL().weights(epoch=5, epochs=200)
    {'fisher_bias': 1.0, 'fisher_variance': 1.0, 'fisher_penalty': 0.005, 'label_removed_kl': 0.5}
    """

    fisher_weight: NonNegative = 0.005
    """Weight of the log-determinant."""
    kl_weight: NonNegative = 1.0
    """Final weight of the KL term."""
    kl_ramp: Ramp = 10
    """Epochs over which the KL weight rises from 0; "all" for all of them."""
    kl_beta: Positive | None = None
    """Regularize toward Dir(1 + (kl_beta - 1) y), the paper's prior, in place of the label-removed
    KL."""
    evidence: Evidence = "softplus"
    """Evidence function of the logits."""
    scale: Scale = "per_class"
    """Scale of the terms that grow with the number of classes; see `dubito.losses`."""

    def distribution(self, outputs: Tensor) -> Dirichlet:
        """Dir(evidence(outputs) + 1)."""
        return Dirichlet.from_logits(outputs, self.evidence)

    @property
    def terms(self) -> Mapping[str, Term]:
        """The squared error weighted by the Fisher information, its log-determinant, and a KL."""
        kl = losses.label_removed_kl if self.kl_beta is None else losses.reverse_kl(self.kl_beta)
        return {
            "fisher_bias": losses.fisher_bias,
            "fisher_variance": losses.fisher_variance,
            "fisher_penalty": losses.fisher_penalty,
            kl.form: kl,
        }

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """The KL weight rises."""
        kl = ramp(self.kl_weight, self.kl_ramp, epoch, epochs)
        *_, kl_name = self.terms
        return {
            "fisher_bias": 1.0,
            "fisher_variance": 1.0,
            "fisher_penalty": self.fisher_weight,
            kl_name: kl,
        }

    def warning(self, task: TaskLike) -> str | None:
        """Warn of a `fisher_weight` under which an untrained network loses all evidence."""
        return fisher_warning(self, self.fisher_weight, task.size)
