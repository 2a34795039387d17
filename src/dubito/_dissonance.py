"""Dissonance, whose pairs of classes are visited in blocks so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK = 1 << 22  # pairs held at once


def _blocks(belief: Tensor) -> Iterator[slice]:
    size = max(1, BLOCK // max(1, belief.numel()))
    classes = belief.shape[-1]
    return (slice(start, min(start + size, classes)) for start in range(0, classes, size))


def _inverse_rest(belief: Tensor) -> Tensor:
    """1 / (the belief in all other classes), 0 where the others have none. (..., K)."""
    classes = torch.arange(belief.shape[-1], device=belief.device)
    top = classes == belief.argmax(-1, keepdim=True)
    others = belief.masked_fill(top, 0).sum(-1, keepdim=True)
    total = others + belief.amax(-1, keepdim=True)
    rest = torch.where(top, others, total - belief)
    return torch.where(rest > 0, 1 / torch.where(rest > 0, rest, 1), 0)


def _ratios(belief: Tensor, block: slice) -> tuple[Tensor, Tensor]:
    """(smaller/larger, sign) of each pair (..., block, K); + where the column is larger."""
    rows, columns = belief[..., block].unsqueeze(-1), belief.unsqueeze(-2)
    larger = torch.maximum(rows, columns)
    ratio = torch.minimum(rows, columns) / torch.where(larger > 0, larger, 1)
    classes = torch.arange(belief.shape[-1], device=belief.device)
    itself = classes[block].unsqueeze(-1) == classes
    return ratio.masked_fill(itself, 0), torch.sign(columns - rows)


def _balance(belief: Tensor, inverse: Tensor) -> Tensor:
    """How evenly the others' belief balances each class: in [0, 1], (..., K)."""
    parts = []
    for block in _blocks(belief):
        ratio, _ = _ratios(belief, block)
        shares = belief.unsqueeze(-2) * inverse[..., block].unsqueeze(-1)
        parts.append((shares * (2 * ratio / (1 + ratio))).sum(-1))
    return torch.cat(parts, -1)


def _slope(belief: Tensor) -> Tensor:
    """The gradient of the dissonance: (..., K) -> (..., K)."""
    inverse = _inverse_rest(belief)
    balance = _balance(belief, inverse)
    weights = (belief * inverse).unsqueeze(-2)  # of the column
    parts = []
    for block in _blocks(belief):
        ratio, sign = _ratios(belief, block)
        even = 2 * ratio / (1 + ratio)
        slope = sign * even / (1 + ratio)
        own = belief.unsqueeze(-2) * inverse[..., block].unsqueeze(-1) * slope
        classes = torch.arange(belief.shape[-1], device=belief.device)
        itself = classes[block].unsqueeze(-1) == classes
        excess = (even - balance.unsqueeze(-2) + slope).masked_fill(itself, 0)
        parts.append((weights * excess + own).sum(-1))
    return balance + torch.cat(parts, -1)


class _Dissonance(torch.autograd.Function):
    """sum_k b_k balance_k as a function of the belief b (..., K), with its gradient by formula."""

    generate_vmap_rule = True

    @staticmethod
    def forward(belief: Tensor) -> Tensor:
        return (belief * _balance(belief, _inverse_rest(belief))).sum(-1)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        return grad.unsqueeze(-1) * _slope(*ctx.saved_tensors)


class _DissonanceForwards(_Dissonance):
    """The same for forward differentiation too, with which torch.compile takes no function."""

    @staticmethod
    def jvp(ctx, tangent: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        return (_slope(*ctx.saved_tensors) * tangent).sum(-1)


def dissonance_of(belief: Tensor) -> Tensor:
    """(..., K) -> (...)."""
    kind = _Dissonance if torch.compiler.is_compiling() else _DissonanceForwards
    return kind.apply(belief)  # type: ignore[no-any-return, no-untyped-call]
