r"""R-EDL: evidential deep learning with nonessential settings relaxed (Chen et al., ICLR 2024).

.. math::
    L = \sum_j (y_j - p_j)^2
        + \lambda_t \mathrm{KL}(\mathrm{Dir}(e (1 - y) + \lambda)\,\|\,\mathrm{Dir}(\lambda))

with alpha = e + lambda: the prior weight is free instead of 1, and EDL's variance term is dropped.
The target Dir(lambda) of the KL is that of the published code.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from dubito import losses
from dubito.distributions import Dirichlet
from dubito.losses import Term
from dubito.methods.base import METHODS, Positive
from dubito.methods.edl import EvidentialMethod

__all__: list[str] = []


@METHODS.register("redl")
class REDL(EvidentialMethod):
    """R-EDL.

    >>> import torch
    >>> REDL().distribution(torch.tensor([9.0, -9.0])).vacuity  # 0.1 x 2 / (9 + 0 + 0.2)
    tensor(0.0217)
    """

    ood_score: ClassVar[str] = "vacuity"

    prior: Positive = 0.1
    """Prior weight lambda of each class."""

    def distribution(self, outputs: Tensor) -> Dirichlet:
        """Dir(evidence(outputs) + prior)."""
        return Dirichlet.from_logits(outputs, self.evidence, self.prior)

    @property
    def terms(self) -> Mapping[str, Term]:
        """The squared error of the expected probabilities and the KL term."""
        return losses.named(losses.mse_bias, losses.label_removed_kl)
