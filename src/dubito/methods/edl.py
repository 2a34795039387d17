r"""EDL: evidential deep learning (Sensoy et al., NeurIPS 2018).

.. math::
    L = L_\mathrm{data}
        + \lambda_t \mathrm{KL}(\mathrm{Dir}(\tilde\alpha)\,\|\,\mathrm{Dir}(1))

with alpha = evidence + 1, y the one-hot target and alpha~ = alpha (1 - y) + y, that is alpha with
the evidence of the target removed. The data term is

- mse: the expected squared error, sum_j (y_j - p_j)^2 + Var[p_j]
- marginal: type II maximum likelihood, ln alpha0 - ln alpha_y
- cross_entropy: the expected cross entropy, psi(alpha0) - psi(alpha_y)

This is the loss with `scale="paper"`. The default, `scale="per_class"`, multiplies the KL term by
10/K.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from dubito import losses
from dubito.distributions import Dirichlet
from dubito.losses import ClosedForm, Term
from dubito.methods.base import METHODS, Method, NonNegative, TaskLike

__all__ = ["EDL"]


class EvidentialMethod(Method):
    """Base of methods that learn evidence under a KL term, whose weight ramps up."""

    kl_weight: NonNegative = 1.0
    """Weight of the KL term after the ramp."""
    kl_ramp: Annotated[int, Field(ge=0)] | Literal["all"] = 10
    """Epochs over which the KL weight rises linearly from 0; "all" is the number of epochs."""
    evidence: Literal["softplus", "relu", "exp"] = "softplus"
    """Evidence function of the logits."""
    scale: Literal["per_class", "paper"] = "per_class"
    """"per_class" multiplies the terms that grow with the number of classes K by 10/K, so that
    weights tuned for ten classes carry over; "paper" leaves them unscaled."""

    def distribution(self, outputs: Tensor) -> Dirichlet:
        """Dir(evidence(outputs) + 1)."""
        return Dirichlet.from_logits(outputs, self.evidence)

    @property
    def kl(self) -> ClosedForm:
        """The KL term."""
        return losses.label_removed_kl

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """Return the weight of each loss term in an epoch; the KL weight ramps up."""
        rise = epochs if self.kl_ramp == "all" else self.kl_ramp
        kl_weight = losses.ramp(self.kl_weight, rise, epoch)
        own = {self.kl.form: kl_weight, "fisher_penalty": getattr(self, "fisher_weight", 0.0)}
        return {name: own.get(name, 1.0) for name in self.terms}

    def warning(self, task: TaskLike) -> str | None:
        """Return a warning if `fisher_weight` would drive all evidence to zero, else None."""
        weight = self.weights(0, 1).get("fisher_penalty", 0.0)
        if not weight:
            return None
        limit = fisher_limit(self, task.size)
        if weight < limit:
            return None
        limit = round(limit, 9)  # where the terms cancel, a remainder of 1e-18 means zero
        return (
            f"fisher_weight={weight:g} removes all evidence of an untrained network, which may "
            f"then learn nothing; with {task.size} classes the limit is {limit:.3g}"
        )


@METHODS.register("edl")
class EDL(EvidentialMethod):
    """EDL with one of its three likelihoods.

    >>> EDL(likelihood="marginal").weights(epoch=5, epochs=200)
    {'marginal_nll': 1.0, 'label_removed_kl': 0.5}
    """

    ood_score: ClassVar[str] = "vacuity"

    likelihood: Literal["mse", "marginal", "cross_entropy"] = "mse"
    """Data term: expected squared error, type II maximum likelihood or expected cross entropy."""
    fisher_weight: NonNegative = 0.0
    """Weight of I-EDL's log-determinant, to study it apart from the rest of I-EDL."""

    @property
    def terms(self) -> Mapping[str, Term]:
        """A likelihood and the KL term; the log-determinant if it has a weight."""
        terms = losses.EDL_TERMS[self.likelihood]
        return {**terms, "fisher_penalty": losses.fisher_penalty} if self.fisher_weight else terms


def fisher_limit(method: Method, num_classes: int) -> float:
    """Return the smallest `fisher_weight` that drives all evidence to zero.

    At alpha = 1 (no evidence) and with balanced labels, the gradient averaged over labels is the
    same for every class: the sum over classes of the gradient for any one label, divided by K. If
    the log-determinant outweighs the other terms there, gradient descent from an untrained network
    ends without evidence. Terms have the weights of the first epoch.
    """
    alpha = torch.ones(1, num_classes, dtype=torch.float64, requires_grad=True)
    terms: dict[str, Term] = {**method.terms, "fisher_penalty": losses.fisher_penalty}
    weights = method.weights(0, 1)
    grads = {}
    for name, term in terms.items():
        value = term(Dirichlet(alpha), torch.tensor([0]))
        grads[name] = torch.autograd.grad(value.sum(), alpha)[0].sum().item()
    raised = -sum(weights[name] * grads[name] for name in weights if name != "fisher_penalty")
    class_scale = 10 / num_classes if method.per_class else 1.0
    return max(raised, 0.0) / (grads["fisher_penalty"] * class_scale)
