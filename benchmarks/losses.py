"""What the loss benchmarks compare: each loss of the library with its textbook form."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from benchmarks import textbook
from benchmarks.textbook import BETA, Loss
from dubito import Dirichlet, losses
from dubito.losses import Term, weighted_sums


def _loss(terms: Mapping[str, Term], weights: tuple[float, ...], prior: float = 1.0) -> Loss:
    """Mean weighted sum of terms, as the trainer computes it."""
    numbers: dict[torch.device, Tensor] = {}

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        if logits.device not in numbers:
            numbers[logits.device] = torch.tensor(weights, device=logits.device)
        dist = Dirichlet.from_logits(logits, prior=prior)
        return weighted_sums(terms, dist, target, numbers[logits.device], reduction="mean")[0]

    return loss


#: name -> (textbook form, ours)
LOSSES: dict[str, tuple[Loss, Loss]] = {
    "iedl": (textbook.iedl, losses.IEDLLoss(0.05, scale="paper")),
    "edl mse": (textbook.edl_mse, losses.EDLLoss(scale="paper")),
    "edl marginal": (textbook.edl_marginal, losses.EDLLoss("marginal", scale="paper")),
    "edl cross entropy": (
        textbook.edl_cross_entropy,
        losses.EDLLoss("cross_entropy", scale="paper"),
    ),
    "redl": (
        textbook.redl,
        _loss({"a": losses.mse_bias, "b": losses.label_removed_kl}, (1.0, 1.0), 0.1),
    ),
    "uce": (
        textbook.uce,
        _loss({"a": losses.expected_cross_entropy, "b": losses.differential_entropy}, (1.0, -1e-5)),
    ),
    "reverse kl": (textbook.reverse_kl, _loss({"a": losses.reverse_kl(BETA)}, (1.0,))),
    "forward kl": (textbook.forward_kl, _loss({"a": losses.forward_kl(BETA)}, (1.0,))),
}


def iedl_function(logits: Tensor, target: Tensor) -> Tensor:
    """I-EDL through the function instead of the module."""
    dist = Dirichlet.from_logits(logits)
    return losses.iedl(dist, target, fisher_weight=0.05, scale="paper")
