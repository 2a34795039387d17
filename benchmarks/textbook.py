"""Losses as papers state them, with torch's special functions: the baseline of ours."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot, softplus

BETA = 101.0
Loss = Callable[[Tensor, Tensor], Tensor]


def _alpha(logits: Tensor, target: Tensor, prior: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    alpha = softplus(logits) + prior
    return alpha, alpha.sum(-1, keepdim=True), one_hot(target, logits.shape[-1]).to(alpha.dtype)


def _divergence(alpha: Tensor, beta: Tensor) -> Tensor:
    """KL(Dir(alpha) || Dir(beta))."""
    total, other = alpha.sum(-1, keepdim=True), beta.sum(-1, keepdim=True)
    slopes = (alpha - beta) * (torch.digamma(alpha) - torch.digamma(total))
    parts = slopes - torch.lgamma(alpha) + torch.lgamma(beta)
    return parts.sum(-1) + (torch.lgamma(total) - torch.lgamma(other)).squeeze(-1)


def _removed_kl(alpha: Tensor, y: Tensor, prior: float = 1.0) -> Tensor:
    """KL to the uniform Dirichlet without the evidence of the label."""
    removed = alpha * (1 - y) + prior * y
    total, base = removed.sum(-1, keepdim=True), removed.new_tensor(prior)
    constant = torch.lgamma(base * removed.shape[-1]) - removed.shape[-1] * torch.lgamma(base)
    slopes = (removed - prior) * (torch.digamma(removed) - torch.digamma(total))
    return torch.lgamma(total).squeeze(-1) + (slopes - torch.lgamma(removed)).sum(-1) - constant


def iedl(logits: Tensor, target: Tensor) -> Tensor:
    """I-EDL with the weights 0.05 and 1."""
    alpha, total, y = _alpha(logits, target)
    psi1 = torch.polygamma(1, alpha)
    spread = alpha * (total - alpha) / (total * total * (total + 1))
    mse = (((y - alpha / total) ** 2 + spread) * psi1).sum(-1)
    logdet = psi1.log().sum(-1) + torch.log(1 - (torch.polygamma(1, total) / psi1).sum(-1))
    return (mse - 0.05 * logdet + _removed_kl(alpha, y)).mean()


def edl_mse(logits: Tensor, target: Tensor) -> Tensor:
    """EDL, expected squared error."""
    alpha, total, y = _alpha(logits, target)
    p = alpha / total
    error = ((y - p) ** 2 + p * (1 - p) / (total + 1)).sum(-1)
    return (error + _removed_kl(alpha, y)).mean()


def edl_marginal(logits: Tensor, target: Tensor) -> Tensor:
    """EDL, type II maximum likelihood."""
    alpha, total, y = _alpha(logits, target)
    return ((y * (total.log() - alpha.log())).sum(-1) + _removed_kl(alpha, y)).mean()


def edl_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """EDL, expected cross entropy."""
    alpha, total, y = _alpha(logits, target)
    error = (y * (torch.digamma(total) - torch.digamma(alpha))).sum(-1)
    return (error + _removed_kl(alpha, y)).mean()


def redl(logits: Tensor, target: Tensor) -> Tensor:
    """R-EDL with the prior 0.1."""
    alpha, total, y = _alpha(logits, target, 0.1)
    return (((y - alpha / total) ** 2).sum(-1) + _removed_kl(alpha, y, 0.1)).mean()


def uce(logits: Tensor, target: Tensor) -> Tensor:
    """Loss of Posterior Networks."""
    alpha, total, y = _alpha(logits, target)
    error = (y * (torch.digamma(total) - torch.digamma(alpha))).sum(-1)
    slopes = (alpha - 1) * (torch.digamma(alpha) - torch.digamma(total))
    entropy = (torch.lgamma(alpha) - slopes).sum(-1) - torch.lgamma(total).squeeze(-1)
    return (error - 1e-5 * entropy).mean()


def reverse_kl(logits: Tensor, target: Tensor) -> Tensor:
    """Loss of Prior Networks, the network first."""
    alpha, _, y = _alpha(logits, target)
    return _divergence(alpha, 1 + (BETA - 1) * y).mean()


def forward_kl(logits: Tensor, target: Tensor) -> Tensor:
    """Loss of Prior Networks, the target first."""
    alpha, _, y = _alpha(logits, target)
    return _divergence(1 + (BETA - 1) * y, alpha).mean()
