r"""EDL: evidential deep learning (Sensoy et al., NeurIPS 2018).

.. math::
    L = L_\mathrm{likelihood}
        + \lambda_t \mathrm{KL}(\mathrm{Dir}(\tilde\alpha)\,\|\,\mathrm{Dir}(1))

with alpha = evidence + 1, the label's evidence removed in alpha~, and one of three likelihoods:

- mse, the default: E[|y - p|^2] = sum_j (y_j - p_j)^2 + p_j (1 - p_j)/(alpha0 + 1);
- marginal: -ln E[p_y] = ln alpha0 - ln alpha_y;
- cross_entropy: E[-ln p_y] = psi(alpha0) - psi(alpha_y).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dubito import _checks, kernels
from dubito.evidence import EVIDENCE, alpha_from_logits
from dubito.losses import EDL_LIKELIHOODS, terms
from dubito.losses.functions import edl_weights
from dubito.methods.base import Method, Ramp, check_kl, check_scale, fused_loss_of, ramped, scaled
from dubito.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class EDL(Method):
    """EDL; `kl_ramp` epochs raise the KL weight.

    >>> EDL(likelihood="marginal").weights(epoch=5, epochs=200)
    {'marginal_nll': 1.0, 'label_removed_kl': 0.5}
    """

    likelihood: str = "mse"
    kl_weight: float = 1.0
    kl_ramp: Ramp = 10
    evidence: str = "softplus"
    scale: str = "paper"

    def __post_init__(self) -> None:
        _checks.one_of(EDL_LIKELIHOODS, self.likelihood, "likelihood")
        check_kl(self.kl_weight, self.kl_ramp)
        _checks.one_of(EVIDENCE, self.evidence, "evidence function")
        check_scale(self.scale)

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """The weight of each term; the KL weight rises."""
        kl = ramped(self.kl_weight, self.kl_ramp, epoch, epochs)
        weights = edl_weights(self.likelihood, kl)
        return {name: float(weight) for name, weight in weights.items()}

    def terms_of(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The likelihood's terms and the KL: {name: (..., N)}."""
        alpha = alpha_from_logits(outputs, self.evidence)
        values = terms(tuple(self.weights(0, 1)), alpha, target)
        return scaled(values, alpha.shape[-1], self.scale)

    def loss_of(self, outputs: Tensor, target: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """By a kernel where there is one."""
        if not kernels.available(outputs):
            return super().loss_of(outputs, target, weights)
        named = dict(zip(self.weights(0, 1), weights.unbind(), strict=True))
        alpha = alpha_from_logits(outputs, self.evidence)
        return fused_loss_of(named, alpha, target, self.scale)

    def prediction(self, outputs: Tensor) -> Prediction:
        """Dir(evidence + 1)."""
        return Prediction.from_logits(outputs, self.evidence)
