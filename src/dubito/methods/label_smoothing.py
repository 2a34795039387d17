r"""Label smoothing: cross entropy with labels a little uncertain (Szegedy et al., CVPR 2016).

.. math::
    L = -\sum_j \left[(1 - \epsilon) y_j + \tfrac{\epsilon}{K}\right] \ln p_j, \quad
    p = \mathrm{softmax}(\mathrm{logits})
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dubito import _checks
from dubito.losses import cross_entropy
from dubito.methods.base import Method
from dubito.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class LabelSmoothing(Method):
    """Cross entropy with `smoothing` of each label shared among all classes.

    >>> import torch
    >>> LabelSmoothing().terms_of(torch.tensor([[5.0, 0.0]]), torch.tensor([0]))
    {'cross_entropy': tensor([0.2567])}
    """

    smoothing: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing must be in [0, 1), not {self.smoothing!r}")

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """The weight of each term."""
        return {"cross_entropy": 1.0}

    def terms_of(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The smoothed cross entropy: {name: (..., N)}."""
        loss = cross_entropy(outputs, target, smoothing=self.smoothing, reduction="none")
        return {"cross_entropy": loss}

    def prediction(self, outputs: Tensor) -> Prediction:
        """softmax(logits)."""
        return Prediction.from_probs(_checks.logits(outputs).softmax(-1))
