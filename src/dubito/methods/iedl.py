r"""I-EDL: Fisher information-based evidential deep learning (Deng et al., ICML 2023).

.. math::
    L = \sum_j \left[(y_j - p_j)^2 + \tfrac{p_j(1 - p_j)}{\alpha_0 + 1}\right]\psi_1(\alpha_j)
        - \lambda_1 \ln|I(\alpha)|
        + \lambda_2 \mathrm{KL}(\mathrm{Dir}(\tilde\alpha)\,\|\,\mathrm{Dir}(1))

with alpha = evidence + 1, p = alpha/alpha0, psi_1 the trigamma function and y the one-hot target.
alpha~ is alpha with the evidence of the target removed, alpha (1 - y) + y.

This is the loss with `scale="paper"`. The default, `scale="per_class"`, multiplies the
log-determinant and the KL term by 10/K.
"""

from collections.abc import Mapping

from dubito import losses
from dubito.losses import ClosedForm, Term
from dubito.methods.base import METHODS, NonNegative, Positive
from dubito.methods.edl import EvidentialMethod

__all__ = ["IEDL"]


@METHODS.register("iedl")
class IEDL(EvidentialMethod):
    """I-EDL: squared error weighted by Fisher information.

    >>> IEDL().weights(epoch=5, epochs=200)
    {'fisher_bias': 1.0, 'fisher_variance': 1.0, 'fisher_penalty': 0.005, 'label_removed_kl': 0.5}
    """

    fisher_weight: NonNegative = 0.005
    """Weight of the log-determinant."""
    kl_beta: Positive | None = None
    """Prior concentration of the labeled class. If set, the KL term is KL(Dir(alpha) || Dir(1 +
    (kl_beta - 1) y)), the one of the paper's PAC-Bayesian bound."""

    @property
    def kl(self) -> ClosedForm:
        """The KL term, with or without the label's evidence."""
        return losses.label_removed_kl if self.kl_beta is None else losses.reverse_kl(self.kl_beta)

    @property
    def terms(self) -> Mapping[str, Term]:
        """Squared error weighted by the Fisher information, its log-determinant and a KL term."""
        return losses.named(
            losses.fisher_bias, losses.fisher_variance, losses.fisher_penalty, self.kl
        )
