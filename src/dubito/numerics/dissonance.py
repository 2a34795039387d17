"""Dissonance of belief masses, over pairs of classes in blocks that bound the memory."""

from collections.abc import Iterator

import torch
from torch import Tensor

__all__: list[str] = []

BLOCK = 1 << 22  # pairs in memory at once
LEAST, MOST = 64, 16  # classes in a block and number of blocks if the batch is unknown


def _blocks(belief: Tensor) -> Iterator[slice]:
    num_classes = belief.shape[-1]
    if isinstance(belief.shape[0], int):
        size = max(1, BLOCK // max(1, belief.numel()))
    else:  # torch.export has a symbol in place of the size
        size = max(LEAST, -(-num_classes // MOST))
    return (slice(start, min(start + size, num_classes)) for start in range(0, num_classes, size))


def _inverse_rest(belief: Tensor) -> Tensor:
    """1/(belief in all other classes), 0 if the others have none: (..., K)."""
    top, index = belief.max(-1, keepdim=True)
    others = belief.scatter(-1, index, 0.0).sum(-1, keepdim=True)
    rest = (others + top - belief).scatter(-1, index, others)
    normal = rest >= torch.finfo(rest.dtype).tiny  # below it the inverse overflows
    return torch.where(normal, 1 / torch.where(normal, rest, 1), 0)


def _itself(belief: Tensor, block: slice) -> Tensor:
    classes = torch.arange(belief.shape[-1], device=belief.device)
    return classes[block].unsqueeze(-1) == classes


def _ratios(belief: Tensor, block: slice) -> tuple[Tensor, Tensor]:
    """(smaller/larger, sign) of each pair (..., block, K); + if the column is larger."""
    rows, columns = belief[..., block].unsqueeze(-1), belief.unsqueeze(-2)
    larger = torch.maximum(rows, columns)
    ratio = torch.minimum(rows, columns) / torch.where(larger > 0, larger, 1)
    return ratio.masked_fill(_itself(belief, block), 0), torch.sign(columns - rows)


def _balance(belief: Tensor, inverse: Tensor) -> Tensor:
    """How evenly the belief in the others balances each class: in [0, 1], (..., K)."""
    parts = []
    for block in _blocks(belief):
        ratio, _ = _ratios(belief, block)
        shares = belief.unsqueeze(-2) * inverse[..., block].unsqueeze(-1)
        parts.append((shares * (2 * ratio / (1 + ratio))).sum(-1))
    return torch.cat(parts, -1)


def dissonance_value(belief: Tensor) -> Tensor:
    """sum_k b_k balance_k: (..., K) -> (...)."""
    return (belief * _balance(belief, _inverse_rest(belief))).sum(-1)


def dissonance_slope(belief: Tensor) -> Tensor:
    """Gradient of the dissonance: (..., K) -> (..., K)."""
    inverse = _inverse_rest(belief)
    balance = _balance(belief, inverse)
    weights = (belief * inverse).unsqueeze(-2)  # of the column
    parts = []
    for block in _blocks(belief):
        ratio, sign = _ratios(belief, block)
        even = 2 * ratio / (1 + ratio)
        slope = sign * even / (1 + ratio)
        own = belief.unsqueeze(-2) * inverse[..., block].unsqueeze(-1) * slope
        excess = (even - balance.unsqueeze(-2) + slope).masked_fill(_itself(belief, block), 0)
        parts.append((weights * excess + own).sum(-1))
    return balance + torch.cat(parts, -1)
