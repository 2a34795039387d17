"""Covariances of few samples."""

import torch
from torch import Tensor

__all__: list[str] = []

#: samples for each dimension from which a covariance is not shrunk
ENOUGH = 10


def shrunk(covariance: Tensor, fourth: Tensor, count: int) -> Tensor:
    """Shrink a covariance of few samples towards a multiple of 1.

    As much as Ledoit and Wolf (2004, https://doi.org/10.1016/S0047-259X(03)00096-4) estimate.

    Args:
        covariance: Covariance of centered samples, (D, D).
        fourth: Mean of the fourth power of their norms.
        count: Number of samples.
    """
    size = len(covariance)
    if count >= ENOUGH * size:
        return covariance
    scale = covariance.trace() / size
    target = scale * torch.eye(size, dtype=covariance.dtype, device=covariance.device)
    distance = (covariance - target).square().sum()
    error = (fourth - covariance.square().sum()) / count
    share = torch.where(distance > 0, error / distance, 1).clamp(0, 1)
    return (1 - share) * covariance + share * target
