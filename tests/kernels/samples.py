"""Inputs for the kernels, and how to tell that one was used."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot


def alphas(*shape: int, seed: int = 0) -> Tensor:
    """Evidence from 1e-4 to 1e6, log-uniform."""
    share = torch.rand(*shape, generator=torch.Generator().manual_seed(seed))
    return 1 + 10 ** (10 * share - 4)


def labels(*shape: int, classes: int) -> Tensor:
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(1))


def soft(*shape: int) -> Tensor:
    """Some classes have no share, as in a label spread over a few."""
    draws = torch.rand(*shape, generator=torch.Generator().manual_seed(2))
    draws = torch.where(draws < 0.3, 0, draws) + 1e-3 * one_hot(torch.tensor(0), shape[-1])
    return draws / draws.sum(-1, keepdim=True)


def is_fused(loss: Tensor) -> bool:
    return type(loss.grad_fn).__name__ == "_FusedBackward"
