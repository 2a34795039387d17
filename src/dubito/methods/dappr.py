r"""DAPPr: a Dirichlet possibility function (Ni et al., ICML 2026).

.. math::
    L = \alpha_0 \ln\alpha_0 + \sum_j \alpha_j \ln\frac{p^*_j}{\alpha_j}
        + \lambda_t \sum_j (1 - y_j)\,\alpha_j^2, \quad
    p^*_j \propto \alpha_j - y_j

with alpha = softplus(z) + 1, and p* a constant of the gradient.
https://arxiv.org/abs/2605.00600
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from dubito import losses
from dubito.distributions import Dirichlet
from dubito.losses import Term
from dubito.methods.base import METHODS, Method, NonNegative

__all__: list[str] = []

#: as published: keeps p* positive where the target has no evidence
LEAST = 1e-8


@METHODS.register("dappr")
class DAPPr(Method):
    """DAPPr."""

    ood_score: ClassVar[str] = "vacuity"

    evidence_weight: NonNegative = 2e-4
    """Weight lambda of the penalty on evidence for other classes; the paper has 1e-5 to 1e-2."""
    ramp: Annotated[int, Field(ge=0)] = 10
    """Epochs over which this weight rises linearly from 0."""

    def distribution(self, outputs: Tensor) -> Dirichlet:
        """Dir(softplus(outputs) + 1)."""
        return Dirichlet.from_logits(outputs)

    @property
    def terms(self) -> Mapping[str, Term]:
        """The log possibility of p* and the penalty on evidence for other classes."""
        return {"possibility": possibility, "other_evidence": other_evidence}

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """Return the weight of each term; that of the penalty ramps up."""
        weight = losses.ramp(self.evidence_weight, self.ramp, epoch)
        return {"possibility": 1.0, "other_evidence": weight}


def possibility(dist: Dirichlet, target: Tensor) -> Tensor:
    """Log of the possibility of p*, which the loss lowers: (...).

    Args:
        dist: Dirichlet with prior 1, batch shape (...).
        target: Class indices (...) or probabilities (..., K).
    """
    # sum alpha ln(p*/p): the derivatives of p, weighted by alpha, sum to 0. So the logarithm is a
    # constant of the gradient, and may be computed where nothing cancels.
    alpha = dist.alpha.detach()
    y = dist.one_hot(target)
    rest = dist.evidence.detach() + (1 - y) + LEAST
    near = torch.log1p((LEAST - y) / torch.where(rest > alpha / 2, alpha, 2))
    log_ratio = torch.where(rest > alpha / 2, near, (rest / alpha).log())
    total, classes = alpha.sum(-1, keepdim=True), alpha.shape[-1]
    log_ratio = log_ratio - torch.log1p((classes * LEAST - y.sum(-1, keepdim=True)) / total)
    return (dist.alpha * log_ratio).sum(-1)


def other_evidence(dist: Dirichlet, target: Tensor) -> Tensor:
    """Sum of the squared concentrations of the other classes: (...).

    Args:
        dist: Dirichlet, batch shape (...).
        target: Class indices (...) or probabilities y (..., K), whose share 1 - y counts.
    """
    return ((1 - dist.one_hot(target)) * dist.alpha).square().sum(-1)
