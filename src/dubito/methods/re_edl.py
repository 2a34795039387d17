r"""Re-EDL: evidential deep learning revisited (Chen et al., TPAMI 2025).

.. math:: L = \sum_j (y_j - p_j)^2, \quad \alpha = \mathrm{softplus}(z) + \lambda

R-EDL without its KL term: the prior weight lambda alone keeps evidence for wrong classes small.
https://arxiv.org/abs/2410.00393
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from torch import Tensor

from dubito import losses
from dubito.distributions import Dirichlet
from dubito.losses import Term
from dubito.methods.base import METHODS, Method, Positive

__all__: list[str] = []


@METHODS.register("re_edl")
class ReEDL(Method):
    """Re-EDL: the squared error of the expected probabilities, and nothing else."""

    ood_score: ClassVar[str] = "vacuity"

    prior: Positive = 0.8
    """Prior weight lambda of each class; the paper has 0.8 for CIFAR-10 and 0.1 for MNIST."""
    evidence: Literal["softplus", "relu", "exp"] = "softplus"
    """Evidence function of the logits."""

    def distribution(self, outputs: Tensor) -> Dirichlet:
        """Dir(evidence(outputs) + prior)."""
        return Dirichlet.from_logits(outputs, self.evidence, self.prior)

    @property
    def terms(self) -> Mapping[str, Term]:
        """The squared error of the expected probabilities."""
        return losses.named(losses.mse_bias)
