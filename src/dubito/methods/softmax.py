r"""Softmax cross entropy: the ordinary classifier.

.. math::
    L = -\ln p_y, \quad p = \mathrm{softmax}(\mathrm{logits})
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dubito import _checks
from dubito.losses import cross_entropy
from dubito.methods.base import Method
from dubito.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class Softmax(Method):
    """The ordinary classifier, without hyperparameters and without evidence.

    >>> import torch
    >>> Softmax().prediction(torch.zeros(1, 4)).probs
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """The weight of each term."""
        return {"cross_entropy": 1.0}

    def terms_of(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The cross entropy: {name: (..., N)}."""
        return {"cross_entropy": cross_entropy(outputs, target, reduction="none")}

    def prediction(self, outputs: Tensor) -> Prediction:
        """softmax(logits)."""
        return Prediction.from_probs(_checks.logits(outputs).softmax(-1))
