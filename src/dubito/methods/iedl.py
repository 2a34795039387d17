r"""I-EDL: Fisher information-based evidential deep learning (Deng et al., ICML 2023).

.. math::
    L = \sum_j \left[(y_j - p_j)^2 + \tfrac{p_j(1 - p_j)}{\alpha_0 + 1}\right]\psi_1(\alpha_j)
        - \lambda \ln|I(\alpha)|
        + \lambda_t \mathrm{KL}(\mathrm{Dir}(\tilde\alpha)\,\|\,\mathrm{Dir}(1))

with alpha = evidence + 1 and the label's evidence removed in alpha~ (obj_final).
"""

from __future__ import annotations

from dataclasses import dataclass

from dubito import _checks
from dubito.evidence import EVIDENCE
from dubito.losses.functions import iedl_weights
from dubito.methods.base import EvidenceMethod, Ramp, check_kl, check_scale, ramped


@dataclass(frozen=True, kw_only=True)
class IEDL(EvidenceMethod):
    """I-EDL. The paper's `fisher_weight`: 0.005 for MNIST, 0.01 for FMNIST, 0.05 for CIFAR-10.

    `kl_ramp` epochs raise the KL weight, as published; the paper's algorithm states "all" of them.

    >>> IEDL().weights(epoch=5, epochs=200)
    {'fisher_bias': 1.0, 'fisher_variance': 1.0, 'fisher_penalty': 0.05, 'label_removed_kl': 0.5}
    """

    fisher_weight: float = 0.05
    kl_weight: float = 1.0
    kl_ramp: Ramp = 10
    evidence: str = "softplus"
    scale: str = "paper"

    def __post_init__(self) -> None:
        _checks.non_negative(self.fisher_weight, "fisher_weight")
        check_kl(self.kl_weight, self.kl_ramp)
        _checks.one_of(EVIDENCE, self.evidence, "evidence function")
        check_scale(self.scale)

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """The weight of each term; the KL weight rises."""
        kl = ramped(self.kl_weight, self.kl_ramp, epoch, epochs)
        weights = iedl_weights(self.fisher_weight, kl)
        return {name: float(weight) for name, weight in weights.items()}
