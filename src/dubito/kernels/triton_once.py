"""The loss of labels and its gradient in one pass, for rows that stay in registers.

What the loss and the gradient have in common is then computed once. The gradient is that of a loss
whose own gradient is 1; another one is multiplied in later, by `rescale`, which costs nothing where
it is 1.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dubito.kernels import triton_labels as labels
from dubito.kernels import triton_math as tm
from dubito.kernels.triton_loss import add, evidence_of, store, sums_of, target_of
from dubito.kernels.triton_rows import PLAIN, Numbers, gathered, load, offsets, weights


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


@triton.jit
def _gradient(
    out: tl.tensor, start: tl.tensor, s: tl.tensor, e: tl.tensor, w: tl.tensor,
    label: tl.tensor, most: tl.tensor, inside: tl.tensor, class_stride: tl.tensor,
    AT: tl.constexpr, WHICH: tl.constexpr, FUNCTION: tl.constexpr,
    KNOWN: tl.constexpr, DENSE: tl.constexpr,
    K: tl.constexpr, C: tl.constexpr, TAIL: tl.constexpr,
) -> None:  # fmt: skip
    """Store the gradient of rows; the stores come last, so that nothing is loaded again."""
    g = labels.slopes(s, e, w, most, K, WHICH, AT)
    j = tl.arange(0, C)
    x = load(start, j, inside, class_stride, K, KNOWN)
    slope = labels.gradient(g, w, x, j, label, most, FUNCTION, WHICH)
    if TAIL > 0:
        rest = C + tl.arange(0, TAIL)
        x = load(start, rest, inside, class_stride, K, KNOWN)
        more = labels.gradient(g, w, x, rest, label, most, FUNCTION, WHICH)
        store(out, more, rest, inside, class_stride, K, DENSE)
    store(out, slope, j, inside, class_stride, K, DENSE)


@triton.jit(do_not_specialize=PLAIN)
def once(
    logits: tl.tensor, target: tl.tensor, class_weight: tl.tensor, moving: tl.tensor,
    out: tl.tensor, weighed: tl.tensor, partial: tl.tensor,
    sums: tl.tensor, value: tl.tensor, scale: tl.tensor,
    numbers: tl.tensor, growth: tl.tensor, mu: tl.tensor, ignored: tl.tensor,
    count: tl.tensor, programs: tl.tensor, weighers: tl.tensor,
    inner: tl.tensor, class_stride: tl.tensor, row_stride: tl.tensor, outer_stride: tl.tensor,
    AT: tl.constexpr, COL: tl.constexpr, WHICH: tl.constexpr, FUNCTION: tl.constexpr,
    BY_CLASS: tl.constexpr, MEAN: tl.constexpr, SINGLE: tl.constexpr,
    FLAT: tl.constexpr, KNOWN: tl.constexpr, DENSE: tl.constexpr, WIDTH: tl.constexpr,
    WEIGHERS: tl.constexpr,
    K: tl.constexpr, C: tl.constexpr, TAIL: tl.constexpr, R: tl.constexpr,
) -> None:  # fmt: skip
    """Sums of the terms over rows, and the gradient of their weighted sum or mean."""
    w = weights(moving, numbers, AT)
    zero = tl.zeros([R], tl.float32)
    acc, weight_acc = Numbers(zero, zero, zero, zero, zero, zero, zero, zero), zero
    factor = 1.0
    if MEAN and not SINGLE:
        lanes = tl.arange(0, WEIGHERS)
        whole = tl.sum(tl.load(weighed + lanes, lanes < weighers, 0.0), 0)
        factor = 1.0 / tl.where(whole == 0.0, 1.0, whole)
    tile = tl.program_id(0)
    while tile * R < count:
        rows = tile * R + tl.arange(0, R)
        inside = rows < count
        begin = offsets(rows, row_stride, outer_stride, inner, FLAT)
        start = logits + begin
        label, weight = target_of(target, class_weight, rows, inside, ignored, K, BY_CLASS)
        own = start + tl.maximum(label, 0) * class_stride
        e = tm.evidence(tl.load(own, inside, 0.0).to(tl.float32), FUNCTION)
        total = evidence_of(start, label, inside, class_stride, K, C, 1, TAIL, KNOWN, FUNCTION, R)
        most = labels.limit(e, total, K)
        s = sums_of(
            start, label, most, inside, class_stride, K, C, 1, TAIL, KNOWN, FUNCTION, WHICH, True, R
        )
        weight_acc += weight
        acc = add(acc, labels.terms(s, e, most, mu, growth, K, WHICH, AT), weight)
        if MEAN and SINGLE:
            whole = tl.sum(weight, 0)
            factor = 1.0 / tl.where(whole == 0.0, 1.0, whole)
        share = weight * factor
        by_row = Numbers(
            share * w[0], share * w[1], share * w[2], share * w[3],
            share * (growth * w[4]), share * (growth * w[5]), share * w[6], share * w[7],
        )  # fmt: skip
        _gradient(
            out + (rows.to(tl.int64) * K if DENSE else begin), start, s, e, by_row, label, most,
            inside, class_stride, AT, WHICH, FUNCTION, KNOWN, DENSE, K, C, TAIL,
        )  # fmt: skip
        tile += programs
    if SINGLE:
        totals = Numbers(
            tl.sum(acc[0], 0), tl.sum(acc[1], 0), tl.sum(acc[2], 0), tl.sum(acc[3], 0),
            tl.sum(acc[4], 0), tl.sum(acc[5], 0), tl.sum(acc[6], 0), tl.sum(acc[7], 0),
        )  # fmt: skip
        every = tl.sum(weight_acc, 0)
        gathered(totals, moving, numbers, sums, value, scale, every, AT, COL, MEAN)
    else:
        line = partial + tl.program_id(0) * WIDTH
        for i in tl.static_range(8):
            if COL[i] >= 0:
                tl.store(line + COL[i], tl.sum(acc[i], 0))
        tl.store(line + WIDTH - 1, tl.sum(weight_acc, 0))


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
