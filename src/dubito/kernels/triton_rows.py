"""Rows of logits in Triton: where they lie, the weights of terms and rows, and sums over rows.

Loads have strides that the compiler does not know to be 1: it then lays a tile out with the lanes
along the rows, so that a row of few classes stays in one thread and its sums need no exchange. For
many classes the class stride is known, and the lanes lie along the classes.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

#: numbers that the compiler must not look into: strides, and what differs from batch to batch
PLAIN = [
    "class_stride", "row_stride", "outer_stride", "y_class", "y_row", "y_outer",
    "inner", "y_inner", "count", "programs", "ignored",
]  # fmt: skip


#: a logit without evidence, of any type
NONE = tl.constexpr(-6e4)


class Numbers(NamedTuple):
    """The weights of the terms, in the order of `dubito.kernels.Weights`."""

    fisher_bias: tl.tensor
    fisher_variance: tl.tensor
    mse_bias: tl.tensor
    mse_variance: tl.tensor
    fisher_penalty: tl.tensor
    label_removed_kl: tl.tensor
    marginal_nll: tl.tensor
    expected_cross_entropy: tl.tensor


@triton.jit
def _weight(moving: tl.tensor, number: tl.tensor, AT: tl.constexpr) -> tl.tensor:
    """number * moving[AT]; without a place of its own (-1) the number, without a use (-2) none."""
    if AT == -2:
        return 0.0
    elif AT == -1:
        return number
    else:
        return number * tl.load(moving + AT).to(tl.float32)


@triton.jit
def weights(moving: tl.tensor, numbers: tl.tensor, AT: tl.constexpr) -> tl.tensor:
    """What each term is multiplied by."""
    return Numbers(
        _weight(moving, numbers.fisher_bias, AT[0]),
        _weight(moving, numbers.fisher_variance, AT[1]),
        _weight(moving, numbers.mse_bias, AT[2]),
        _weight(moving, numbers.mse_variance, AT[3]),
        _weight(moving, numbers.fisher_penalty, AT[4]),
        _weight(moving, numbers.label_removed_kl, AT[5]),
        _weight(moving, numbers.marginal_nll, AT[6]),
        _weight(moving, numbers.expected_cross_entropy, AT[7]),
    )


@triton.jit
def weighted(w: tl.tensor, terms: tl.tensor, AT: tl.constexpr) -> tl.tensor:
    """The sum of the terms in use, times their weights."""
    total = terms[0] * 0.0
    for i in tl.static_range(8):
        if AT[i] > -2:
            total += w[i] * terms[i]
    return total


@triton.jit
def offsets(
    rows: tl.tensor,
    row_stride: tl.tensor,
    outer_stride: tl.tensor,
    inner: tl.tensor,
    FLAT: tl.constexpr,
) -> tl.tensor:
    """Where rows begin; every `inner` of them there is a jump unless they are FLAT."""
    if FLAT:
        return rows.to(tl.int64) * row_stride
    else:
        outer = rows // inner
        return outer.to(tl.int64) * outer_stride + (rows - outer * inner).to(tl.int64) * row_stride


@triton.jit
def load(
    start: tl.tensor,
    j: tl.tensor,
    inside: tl.tensor,
    class_stride: tl.tensor,
    K: tl.constexpr,
    KNOWN: tl.constexpr,
    OTHER: tl.constexpr = 0.0,
) -> tl.tensor:
    """Entries j (C,) of the rows at `start` (R,), as (R, C) float32; OTHER outside."""
    steps = j if KNOWN else j * class_stride
    mask = inside[:, None] & (j < K)[None, :]
    return tl.load(start[:, None] + steps[None, :], mask, OTHER).to(tl.float32)


@triton.jit
def gathered(
    acc: tl.tensor, moving: tl.tensor, numbers: tl.tensor,
    sums: tl.tensor, value: tl.tensor, scale: tl.tensor, count: tl.tensor,
    AT: tl.constexpr, COL: tl.constexpr, MEAN: tl.constexpr,
) -> None:  # fmt: skip
    """Store the sums of the terms, the loss, and what a row's gradient is to be multiplied by."""
    w = weights(moving, numbers, AT)
    total = 0.0
    for i in tl.static_range(8):
        if COL[i] >= 0:
            tl.store(sums + COL[i], acc[i])
            total += w[i] * acc[i]
    factor = 1.0
    if MEAN:
        factor = 1.0 / tl.where(count == 0.0, 1.0, count)
    tl.store(value, total * factor)
    tl.store(scale, factor)


@triton.jit
def _column_of(
    partial: tl.tensor,
    programs: tl.tensor,
    COLUMN: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    if COLUMN >= 0:
        first = 0
        while first < programs:
            lines = first + lanes
            total += tl.load(partial + lines * WIDTH + COLUMN, lines < programs, 0.0)
            first += BLOCK
    return tl.sum(total, 0)


@triton.jit(do_not_specialize=["programs"])
def finish(
    partial: tl.tensor, moving: tl.tensor, sums: tl.tensor, value: tl.tensor, scale: tl.tensor,
    numbers: tl.tensor, programs: tl.tensor,
    AT: tl.constexpr, COL: tl.constexpr, MEAN: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Add up what the programs left in `partial` (programs, WIDTH), always in the same order."""
    acc = Numbers(
        _column_of(partial, programs, COL[0], WIDTH, BLOCK),
        _column_of(partial, programs, COL[1], WIDTH, BLOCK),
        _column_of(partial, programs, COL[2], WIDTH, BLOCK),
        _column_of(partial, programs, COL[3], WIDTH, BLOCK),
        _column_of(partial, programs, COL[4], WIDTH, BLOCK),
        _column_of(partial, programs, COL[5], WIDTH, BLOCK),
        _column_of(partial, programs, COL[6], WIDTH, BLOCK),
        _column_of(partial, programs, COL[7], WIDTH, BLOCK),
    )
    count = _column_of(partial, programs, WIDTH - 1, WIDTH, BLOCK)
    gathered(acc, moving, numbers, sums, value, scale, count, AT, COL, MEAN)
