r"""R-EDL: evidential deep learning with nonessential settings relaxed (Chen et al., ICLR 2024).

.. math::
    L = \sum_j (y_j - p_j)^2
        + \lambda_t \mathrm{KL}(\mathrm{Dir}(e (1 - y) + \lambda)\,\|\,\mathrm{Dir}(\lambda))

with alpha = e + lambda: the prior weight is free instead of 1, and EDL's variance term is dropped.
The target Dir(lambda) of the KL is that of the published code.
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
    ramp,
    register,
)


@register("redl")
@dataclass(frozen=True, kw_only=True, config=CONFIG)
class REDL(Method):
    """R-EDL.

    >>> import torch
    >>> REDL().distribution(torch.tensor([9.0, -9.0])).vacuity  # 0.1 x 2 / (9 + 0 + 0.2)
    tensor(0.0217)
    """

    prior: Positive = 0.1
    """Prior weight lambda of each class."""
    kl_weight: NonNegative = 1.0
    """Final weight of the KL term."""
    kl_ramp: Ramp = 10
    """Epochs over which the KL weight rises from 0; "all" for all of them."""
    evidence: Evidence = "softplus"
    """Evidence function of the logits."""
    scale: Scale = "per_class"
    """Scale of the terms that grow with the number of classes; see `dubito.losses`."""

    def distribution(self, outputs: Tensor) -> Dirichlet:
        """Dir(evidence(outputs) + prior)."""
        return Dirichlet.from_logits(outputs, self.evidence, self.prior)

    @property
    def terms(self) -> Mapping[str, Term]:
        """The squared error of the expected probabilities and the KL term."""
        return {"mse_bias": losses.mse_bias, "label_removed_kl": losses.label_removed_kl}

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """The KL weight rises."""
        kl = ramp(self.kl_weight, self.kl_ramp, epoch, epochs)
        return {"mse_bias": 1.0, "label_removed_kl": kl}
