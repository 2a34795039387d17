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

from dubito import _checks
from dubito.evidence import EVIDENCE
from dubito.losses import EDL_LIKELIHOODS
from dubito.losses.functions import edl_weights
from dubito.methods.base import EvidenceMethod, Ramp, check_kl, check_scale, ramped


@dataclass(frozen=True, kw_only=True)
class EDL(EvidenceMethod):
    """EDL; `kl_ramp` epochs raise the KL weight.

    `fisher_weight` adds I-EDL's reward of a large ln|I| to a likelihood that is otherwise EDL's
    own, to see what each half of I-EDL does.

    >>> EDL(likelihood="marginal").weights(epoch=5, epochs=200)
    {'marginal_nll': 1.0, 'label_removed_kl': 0.5}
    """

    likelihood: str = "mse"
    kl_weight: float = 1.0
    kl_ramp: Ramp = 10
    fisher_weight: float = 0.0
    evidence: str = "softplus"
    scale: str = "paper"

    def __post_init__(self) -> None:
        _checks.one_of(EDL_LIKELIHOODS, self.likelihood, "likelihood")
        check_kl(self.kl_weight, self.kl_ramp)
        _checks.non_negative(self.fisher_weight, "fisher_weight")
        _checks.one_of(EVIDENCE, self.evidence, "evidence function")
        check_scale(self.scale)

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """The weight of each term; the KL weight rises."""
        kl = ramped(self.kl_weight, self.kl_ramp, epoch, epochs)
        weights = edl_weights(self.likelihood, kl)
        if self.fisher_weight:
            weights = {**weights, "fisher_penalty": self.fisher_weight}
        return {name: float(weight) for name, weight in weights.items()}
