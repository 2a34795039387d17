r"""EDL: evidential deep learning (Sensoy et al., NeurIPS 2018).

.. math::
    L = L_\mathrm{likelihood}
        + \lambda_t \mathrm{KL}(\mathrm{Dir}(\tilde\alpha)\,\|\,\mathrm{Dir}(1))

with alpha = evidence + 1, y the one-hot target and alpha~ = alpha (1 - y) + y, that is alpha with
the evidence of the target removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from dubito import losses
from dubito.distributions import Dirichlet
from dubito.losses import Term
from dubito.methods.base import (
    CONFIG,
    Evidence,
    Method,
    NonNegative,
    Ramp,
    Scale,
    TaskLike,
    register,
)

__all__ = ["EDL"]


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class EvidentialMethod(Method):
    """Base of methods that learn evidence under a KL term, whose weight ramps up."""

    kl_weight: NonNegative = 1.0
    """Final weight of the KL term."""
    kl_ramp: Ramp = 10
    """Epochs over which the KL weight rises from 0; "all" uses the whole training."""
    evidence: Evidence = "softplus"
    """Evidence function of the logits."""
    scale: Scale = "per_class"
    """Scale of the terms that grow with the number of classes; see `dubito.losses`."""

    def distribution(self, outputs: Tensor) -> Dirichlet:
        """Dir(evidence(outputs) + 1)."""
        return Dirichlet.from_logits(outputs, self.evidence)

    def kl_weight_at(self, epoch: int, epochs: int) -> float:
        """Return the KL weight of an epoch."""
        rise = epochs if self.kl_ramp == "all" else self.kl_ramp
        return losses.ramp(self.kl_weight, rise, epoch)

    def warning(self, task: TaskLike) -> str | None:
        """Warn if `fisher_weight` is so large that an untrained network loses all evidence."""
        weight = self.weights(0, 1).get("fisher_penalty", 0.0)
        if weight == 0 or weight < (limit := fisher_limit(self, task.size)):
            return None
        return (
            f"fisher_weight={weight:g} removes all evidence of an untrained network, which may "
            f"then learn nothing; with {task.size} classes the limit is {round(limit, 9):.2g}"
        )


@register("edl")
class EDL(EvidentialMethod):
    """EDL with one of its three likelihoods.

    >>> EDL(likelihood="marginal").weights(epoch=5, epochs=200)
    {'marginal_nll': 1.0, 'label_removed_kl': 0.5}
    """

    likelihood: Literal["mse", "marginal", "cross_entropy"] = "mse"
    """Expected squared error, type II maximum likelihood, or expected cross entropy."""
    fisher_weight: NonNegative = 0.0
    """Weight of I-EDL's log-determinant, to study it apart from the rest of I-EDL."""

    @property
    def terms(self) -> Mapping[str, Term]:
        """A likelihood and the KL term; the log-determinant if it has a weight."""
        terms = losses.EDL_TERMS[self.likelihood]
        return {**terms, "fisher_penalty": losses.fisher_penalty} if self.fisher_weight else terms

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """Return the weights of an epoch; the KL weight ramps up."""
        weights = dict.fromkeys(self.terms, 1.0)
        weights["label_removed_kl"] = self.kl_weight_at(epoch, epochs)
        if self.fisher_weight:
            weights["fisher_penalty"] = self.fisher_weight
        return weights


def fisher_limit(method: Method, num_classes: int) -> float:
    """Return the `fisher_weight` from which an untrained network loses all its evidence.

    An untrained network gives all samples the same output. The mean gradient over the labels at
    alpha = 1, where the KL term has none, either raises the evidence of all classes or lowers it.
    """
    alpha = torch.ones(1, num_classes, dtype=torch.float64, requires_grad=True)
    terms: dict[str, Term] = {**method.terms, "fisher_penalty": losses.fisher_penalty}
    weights = method.weights(0, 1)
    slopes = {}
    for name, term in terms.items():
        value = term(Dirichlet(alpha), torch.tensor([0]))
        slopes[name] = torch.autograd.grad(value.sum(), alpha)[0].sum().item()
    gain = -sum(weights[name] * slopes[name] for name in weights if name != "fisher_penalty")
    growth = 10 / num_classes if method.per_class else 1.0
    return max(gain, 0.0) / (slopes["fisher_penalty"] * growth)
