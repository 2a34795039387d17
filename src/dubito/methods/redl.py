r"""R-EDL: evidential deep learning with nonessential settings relaxed (Chen et al., ICLR 2024).

.. math::
    L = \sum_j (y_j - p_j)^2
        + \lambda_t \mathrm{KL}(\mathrm{Dir}(e (1 - y) + \lambda)\,\|\,\mathrm{Dir}(\lambda))

with alpha = e + lambda: the prior weight is free instead of 1, and EDL's variance term is dropped.
The uncertainty mass is lambda K/alpha0. The KL's target Dir(lambda) is the published code's: the KL
is zero where no wrong class has evidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dubito import _checks
from dubito.evidence import EVIDENCE, evidence
from dubito.losses import reverse_kl, terms
from dubito.methods.base import Method, Ramp, check_kl, check_scale, ramped, scaled
from dubito.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class REDL(Method):
    """R-EDL; `prior` is lambda, and `kl_ramp` epochs raise the KL weight.

    >>> REDL().prediction(torch.tensor([9.0, -9.0])).vacuity  # 0.1 x 2 / (9 + 0 + 0.2)
    tensor(0.0217)
    """

    prior: float = 0.1
    kl_weight: float = 1.0
    kl_ramp: Ramp = 10
    evidence: str = "softplus"
    scale: str = "paper"

    def __post_init__(self) -> None:
        if not 0 < self.prior < float("inf"):
            raise ValueError(f"prior must be a finite number > 0, not {self.prior!r}")
        check_kl(self.kl_weight, self.kl_ramp)
        _checks.one_of(EVIDENCE, self.evidence, "evidence function")
        check_scale(self.scale)

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """The weight of each term; the KL weight rises."""
        kl = ramped(self.kl_weight, self.kl_ramp, epoch, epochs)
        return {"mse_bias": 1.0, "label_removed_kl": kl}

    def terms_of(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The squared error of the expected probabilities and the KL: {name: (..., N)}."""
        e = evidence(outputs, self.evidence)
        values = terms(("mse_bias",), e + self.prior, target)
        removed = e * (1 - _checks.distribution(target, e)) + self.prior
        values["label_removed_kl"] = reverse_kl(removed, torch.full_like(removed, self.prior))
        return scaled(values, e.shape[-1], self.scale)

    def prediction(self, outputs: Tensor) -> Prediction:
        """Dir(evidence + prior)."""
        return Prediction.from_logits(outputs, self.evidence, prior=self.prior)
