"""The loss of labels and its gradient in one pass, for rows that stay in registers.

What the loss and the gradient have in common is then computed once. The gradient is that of a loss
whose own gradient is 1; another one is multiplied in later, by `rescale`, which costs nothing where
it is 1.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from dubito.kernels import triton_label_rows as label_rows
from dubito.kernels import triton_labels as labels
from dubito.kernels import triton_math as tm
from dubito.kernels.triton_loss import add, by_row, put, target_of
from dubito.kernels.triton_rows import NONE, PLAIN, Numbers, offsets, weights


@triton.jit(do_not_specialize=PLAIN)
def weigh(
    target: tl.tensor, class_weight: tl.tensor, partial: tl.tensor,
    ignored: tl.tensor, count: tl.tensor, programs: tl.tensor,
    K: tl.constexpr, BY_CLASS: tl.constexpr, R: tl.constexpr,
) -> None:  # fmt: skip
    """The weights of all rows, added up by each program for its own."""
    total = tl.zeros([R], tl.float32)
    tile = tl.program_id(0)
    while tile * R < count:
        rows = tile * R + tl.arange(0, R)
        _, weight = target_of(target, class_weight, rows, rows < count, ignored, K, BY_CLASS)
        total += weight
        tile += programs
    tl.store(partial + tl.program_id(0), tl.sum(total, 0))


class Tile(NamedTuple):
    """Rows: where they begin in logits and gradient, their labels, and which of them are there."""

    logits: tl.tensor
    at: tl.tensor
    out: tl.tensor
    out_at: tl.tensor
    class_stride: tl.tensor
    label: tl.tensor
    inside: tl.tensor


@triton.jit
def _load(
    t: tl.tensor, j: tl.tensor, END: tl.constexpr, K: tl.constexpr,
    PACKED: tl.constexpr, WHOLE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Logits of classes j (C,) up to END as (R, C) float32, a row to a thread.

    Of packed rows the compiler knows the strides, and would lay the lanes along the classes.
    """
    if PACKED:
        at = t.logits + tl.max_contiguous(t.at[:, None] + j[None, :], [1, 1])
    else:
        at = t.logits + (t.at[:, None] + (j * t.class_stride)[None, :])
    if not WHOLE:
        x = tl.load(at, t.inside[:, None] & (j < K)[None, :], NONE)
    elif END > K:
        x = tl.load(at, (j < K)[None, :], NONE)
    else:
        x = tl.load(at)
    return x.to(tl.float32)


@triton.jit
def _store(
    t: tl.tensor, slope: tl.tensor, j: tl.tensor, END: tl.constexpr, K: tl.constexpr,
    DENSE: tl.constexpr, WHOLE: tl.constexpr,
) -> None:  # fmt: skip
    steps = j if DENSE else j * t.class_stride
    at = t.out + (t.out_at[:, None] + steps[None, :])
    if not WHOLE:
        tl.store(at, slope, t.inside[:, None] & (j < K)[None, :])
    elif END > K:
        tl.store(at, slope, (j < K)[None, :])
    else:
        tl.store(at, slope)


@triton.jit
def _evidence(
    t: tl.tensor, j: tl.tensor, END: tl.constexpr, K: tl.constexpr,
    PACKED: tl.constexpr, WHOLE: tl.constexpr, FUNCTION: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    x = _load(t, j, END, K, PACKED, WHOLE)
    return tl.sum(labels.others(x, j, t.label, FUNCTION), 1)


@triton.jit
def _take(
    s: tl.tensor, t: tl.tensor, most: tl.tensor, j: tl.tensor, END: tl.constexpr, K: tl.constexpr,
    PACKED: tl.constexpr, WHOLE: tl.constexpr, FUNCTION: tl.constexpr, WHICH: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    x = _load(t, j, END, K, PACKED, WHOLE)
    return labels.take(s, labels.classes(x, j, t.label, FUNCTION), most, WHICH, True, False)


@triton.jit
def _slope(
    g: tl.tensor, t: tl.tensor, most: tl.tensor, j: tl.tensor, END: tl.constexpr, K: tl.constexpr,
    PACKED: tl.constexpr, WHOLE: tl.constexpr, FUNCTION: tl.constexpr, WHICH: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    HALF: tl.constexpr = t.logits.dtype.element_ty.primitive_bitwidth == 16
    x = _load(t, j, END, K, PACKED, WHOLE)
    c = labels.classes(x, j, t.label, FUNCTION)
    return labels.gradient(g, x, c, j, t.label, most, FUNCTION, WHICH, HALF)


@triton.jit
def _sums(
    t: tl.tensor, e: tl.tensor, K: tl.constexpr, C: tl.constexpr, TAIL: tl.constexpr,
    LAST: tl.constexpr, PACKED: tl.constexpr, WHOLE: tl.constexpr,
    FUNCTION: tl.constexpr, WHICH: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The sums over C, TAIL and LAST classes, and the limit that was used."""
    MORE: tl.constexpr = C + TAIL
    END: tl.constexpr = MORE + LAST
    j, tail = tl.arange(0, C), C + tl.arange(0, TAIL if TAIL > 0 else 1)
    last = MORE + tl.arange(0, LAST if LAST > 0 else 1)
    evidence = _evidence(t, j, C, K, PACKED, WHOLE, FUNCTION)
    if TAIL > 0:
        evidence += _evidence(t, tail, MORE, K, PACKED, WHOLE, FUNCTION)
    if LAST > 0:
        evidence += _evidence(t, last, END, K, PACKED, WHOLE, FUNCTION)
    most = labels.limit(e, evidence, K)
    s = _take(labels.nothing(e), t, most, j, C, K, PACKED, WHOLE, FUNCTION, WHICH)
    if TAIL > 0:
        s = _take(s, t, most, tail, MORE, K, PACKED, WHOLE, FUNCTION, WHICH)
    if LAST > 0:
        s = _take(s, t, most, last, END, K, PACKED, WHOLE, FUNCTION, WHICH)
    return labels.settle(s, evidence, e, K, END - K + 1), most


@triton.jit
def _gradient(
    g: tl.tensor, t: tl.tensor, most: tl.tensor, K: tl.constexpr, C: tl.constexpr,
    TAIL: tl.constexpr, LAST: tl.constexpr, PACKED: tl.constexpr, DENSE: tl.constexpr,
    WHOLE: tl.constexpr, FUNCTION: tl.constexpr, WHICH: tl.constexpr,
) -> None:  # fmt: skip
    """Store the gradient; the stores come last, so that nothing is loaded again."""
    MORE: tl.constexpr = C + TAIL
    END: tl.constexpr = MORE + LAST
    j = tl.arange(0, C)
    slope = _slope(g, t, most, j, C, K, PACKED, WHOLE, FUNCTION, WHICH)
    if TAIL > 0:
        tail = C + tl.arange(0, TAIL)
        more = _slope(g, t, most, tail, MORE, K, PACKED, WHOLE, FUNCTION, WHICH)
        if LAST > 0:
            last = MORE + tl.arange(0, LAST)
            rest = _slope(g, t, most, last, END, K, PACKED, WHOLE, FUNCTION, WHICH)
            _store(t, rest, last, END, K, DENSE, WHOLE)
        _store(t, more, tail, MORE, K, DENSE, WHOLE)
    _store(t, slope, j, C, K, DENSE, WHOLE)


@triton.jit
def _factor(
    weighed: tl.tensor, weighers: tl.tensor, MEAN: tl.constexpr, WEIGHERS: tl.constexpr
) -> tl.tensor:
    """What a row's weight is to be multiplied by."""
    factor = 1.0
    if MEAN:
        lanes = tl.arange(0, WEIGHERS)
        whole = tl.sum(tl.load(weighed + lanes, lanes < weighers, 0.0), 0)
        factor = 1.0 / tl.where(whole == 0.0, 1.0, whole)
    return factor


@triton.jit(do_not_specialize=[*PLAIN, "weighers"])
def once(
    logits: tl.tensor, target: tl.tensor, class_weight: tl.tensor, moving: tl.tensor,
    out: tl.tensor, weighed: tl.tensor, partial: tl.tensor,
    sums: tl.tensor, value: tl.tensor, scale: tl.tensor,
    numbers: tl.tensor, growth: tl.tensor, mu: tl.tensor, ignored: tl.tensor,
    count: tl.tensor, programs: tl.tensor, weighers: tl.tensor,
    inner: tl.tensor, class_stride: tl.tensor, row_stride: tl.tensor, outer_stride: tl.tensor,
    AT: tl.constexpr, COL: tl.constexpr, WHICH: tl.constexpr, FUNCTION: tl.constexpr,
    BY_CLASS: tl.constexpr, MEAN: tl.constexpr, SINGLE: tl.constexpr,
    FLAT: tl.constexpr, PACKED: tl.constexpr, DENSE: tl.constexpr, WHOLE: tl.constexpr,
    WIDTH: tl.constexpr, WEIGHERS: tl.constexpr,
    K: tl.constexpr, C: tl.constexpr, TAIL: tl.constexpr, LAST: tl.constexpr, R: tl.constexpr,
) -> None:  # fmt: skip
    """Sums of the terms over rows, and the gradient of their weighted sum or mean.

    A row is C, TAIL and LAST classes long. If there are enough rows for a WHOLE tile, the last one
    begins where it ends with the last row, and no row needs a mask: some are computed twice, to the
    same result, and counted once.
    """
    w = weights(moving, numbers, AT)
    zero = tl.zeros([R], tl.float32)
    acc, weight_acc = Numbers(zero, zero, zero, zero, zero, zero, zero, zero), zero
    lanes = tl.arange(0, R)
    factor = _factor(weighed, weighers, MEAN and not SINGLE, WEIGHERS)
    tile = tl.program_id(0)
    while tile * R < count:
        first = tl.minimum(tile * R, count - R) if WHOLE else tile * R
        rows = first + lanes
        inside = lanes >= 0 if WHOLE else rows < count
        begin = offsets(rows, row_stride, outer_stride, inner, FLAT)
        base, packed = first.to(tl.int64) * K, lanes.to(tl.int64) * K
        label, weight = target_of(target, class_weight, rows, inside, ignored, K, BY_CLASS)
        t = Tile(
            logits + base if PACKED else logits, packed if PACKED else begin,
            out + base if DENSE else out, packed if DENSE else begin, class_stride, label, inside,
        )  # fmt: skip
        own = t.logits + (t.at + tl.maximum(label, 0) * class_stride)
        e = tm.evidence(tl.load(own, inside, 0.0).to(tl.float32), FUNCTION)
        s, most = _sums(t, e, K, C, TAIL, LAST, PACKED, WHOLE, FUNCTION, WHICH)
        counted = tl.where(rows >= tile * R, weight, 0.0)
        weight_acc += counted
        acc = add(acc, label_rows.terms(s, e, most, mu, growth, K, WHICH, AT), counted)
        if MEAN and SINGLE:
            whole = tl.sum(weight, 0)
            factor = 1.0 / tl.where(whole == 0.0, 1.0, whole)
        g = label_rows.slopes(s, e, by_row(weight * factor, w, growth), most, K, WHICH, AT)
        _gradient(g, t, most, K, C, TAIL, LAST, PACKED, DENSE, WHOLE, FUNCTION, WHICH)
        tile += programs
    put(acc, weight_acc, partial, moving, numbers, sums, value, scale, AT, COL, MEAN, SINGLE, WIDTH)


@triton.jit(do_not_specialize=["count"])
def rescale(values: tl.tensor, factor: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr) -> None:
    """Multiply values in place, unless by 1."""
    by = tl.load(factor)
    if by != 1.0:
        step = tl.num_programs(0).to(tl.int64) * BLOCK
        first = tl.program_id(0).to(tl.int64) * BLOCK
        while first < count:
            at = first + tl.arange(0, BLOCK)
            held = tl.load(values + at, at < count, 0.0).to(tl.float32)
            tl.store(values + at, held * by, at < count)
            first += step
