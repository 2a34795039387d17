"""The I-EDL loss as the paper states it, with torch's special functions, to be timed against."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot, softplus


def iedl(logits: Tensor, target: Tensor, fisher_weight: float, kl_weight: float) -> Tensor:
    """Per-sample loss (N,) of logits (N, K)."""
    alpha = softplus(logits) + 1
    y = one_hot(target, logits.shape[-1]).to(alpha.dtype)
    total = alpha.sum(-1, keepdim=True)
    psi1 = torch.polygamma(1, alpha)
    spread = alpha * (total - alpha) / (total * total * (total + 1))
    mse = (((y - alpha / total) ** 2 + spread) * psi1).sum(-1)
    logdet = psi1.log().sum(-1) + torch.log(1 - (torch.polygamma(1, total) / psi1).sum(-1))
    removed = alpha * (1 - y) + y
    removed_total = removed.sum(-1, keepdim=True)
    digammas = torch.digamma(removed) - torch.digamma(removed_total)
    classes = torch.tensor(float(logits.shape[-1]), device=logits.device)
    kl = (
        torch.lgamma(removed_total).squeeze(-1)
        - torch.lgamma(classes)
        - torch.lgamma(removed).sum(-1)
        + ((removed - 1) * digammas).sum(-1)
    )
    return mse - fisher_weight * logdet + kl_weight * kl
