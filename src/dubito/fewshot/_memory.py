"""What steps taken tell of the curvature, for many problems: the direction of L-BFGS."""

from __future__ import annotations

import torch
from torch import Tensor

from dubito.fewshot._state import LEAST, State, column


def direction(z: State, mask: Tensor) -> Tensor:
    """Minus the gradient times the approximate inverse Hessian, in its compact form.

    With S, Y the remembered steps and differences of gradients, R the upper triangle (in order of
    age) of S Y' and D its diagonal: a = -R^-1 S g, r = -gamma (g + Y' a), b = R^-T (D a - Y r), and
    d = r + S' b. This is what the usual two loops compute.
    """
    _remember(z, mask)
    m, gamma = z.diagonal.shape[-1], column(z.gamma)
    onto = _times(z.pairs, z.g)
    a = -_times(z.inverse, onto[:, :m])
    along = -gamma * (onto[:, m:] + _times(z.changes, a))
    b = _times(z.inverse.mT, z.diagonal * a - along)
    weights = torch.cat([b, -gamma * a], -1).unsqueeze(1)
    return torch.baddbmm((-gamma * z.g).unsqueeze(1), weights, z.pairs).squeeze(1)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _remember(z: State, mask: Tensor) -> None:
    """Put the last step in the place of the oldest pair, unless it says nothing of the curvature.

    The inverse of R is that of the pairs that stay, bordered by a column. Rows and columns are in
    the order of the slots: a permutation of both, which changes no product.
    """
    step, change = column(z.last_t) * z.d, z.g - z.old_g
    along = (step * change).sum(-1)
    keep = mask & (along > LEAST)
    m = z.diagonal.shape[-1]
    slot, rows = z.stored.long() % m, torch.arange(len(keep), device=keep.device)
    for place, vector in ((slot, step), (slot + m, change)):
        z.pairs[rows, place] = torch.where(column(keep), vector, z.pairs[rows, place])
    slots = torch.arange(m, device=keep.device)
    here = (slots == slot.unsqueeze(-1)) & column(keep)  # (E, M): the slot that was written
    products = _times(z.pairs, change)  # of all steps and changes with the new change
    across, down = here.unsqueeze(-1), here.unsqueeze(-2)
    z.changes = torch.where(across, products[:, None, m:], z.changes)
    z.changes = torch.where(down, products[:, m:, None], z.changes)
    rest = z.inverse.masked_fill(across | down, 0)
    safe = along.masked_fill(~keep, 1).unsqueeze(-1)
    border = -_times(rest, products[:, :m].masked_fill(here, 0)) / safe
    border = torch.where(here, safe.reciprocal(), border)
    z.inverse = torch.where(down, border.unsqueeze(-1), torch.where(across, rest, z.inverse))
    z.diagonal = torch.where(here, column(along), z.diagonal)
    z.gamma = torch.where(keep, along / change.square().sum(-1), z.gamma)
    z.stored = z.stored + keep.int()
