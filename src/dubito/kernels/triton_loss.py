"""The kernels of the losses: forward, one program for many rows; backward, one for a few.

The gradient is computed anew in the backward pass, and not kept from the forward pass: it costs one
more read of the logits, where to scale a gradient that was kept would cost a read and a write, and
nothing of the size of the logits is held in between.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dubito.kernels import triton_labels as labels
from dubito.kernels import triton_math as tm
from dubito.kernels import triton_soft as soft
from dubito.kernels.triton_rows import PLAIN, Numbers, gathered, load, offsets, weighted, weights


@triton.jit
def target_of(
    target: tl.tensor, class_weight: tl.tensor, rows: tl.tensor, inside: tl.tensor,
    ignored: tl.tensor, K: tl.constexpr, BY_CLASS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Labels, or -1, and the weights of rows: 0 where ignored, nan where the label is no class."""
    label = tl.load(target + rows, inside, 0)
    known = (label >= 0) & (label < K)
    safe = tl.where(known, label, 0).to(tl.int32)
    weight = tl.zeros(rows.shape, tl.float32) + 1.0
    if BY_CLASS:
        weight = tl.load(class_weight + safe).to(tl.float32)
    weight = tl.where(known, weight, float("nan"))
    weight = tl.where(inside & (label != ignored), weight, 0.0)
    return tl.where(known & (label != ignored), safe, -1), weight


@triton.jit
def evidence_of(
    start: tl.tensor, label: tl.tensor, inside: tl.tensor, class_stride: tl.tensor,
    K: tl.constexpr, C: tl.constexpr, BLOCKS: tl.constexpr, TAIL: tl.constexpr,
    KNOWN: tl.constexpr, FUNCTION: tl.constexpr, R: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The evidence of all classes but the label."""
    total = tl.zeros([R], tl.float32)
    j = tl.arange(0, C)
    PADDED: tl.constexpr = BLOCKS * C > K
    if BLOCKS == 1:
        e = tm.evidence(load(start, j, inside, class_stride, K, KNOWN), FUNCTION)
        total += tl.sum(labels.others(e, j, label, K, PADDED), 1)
    else:
        for block in range(BLOCKS):
            at = j + block * C
            e = tm.evidence(load(start, at, inside, class_stride, K, KNOWN), FUNCTION)
            total += tl.sum(labels.others(e, at, label, K, PADDED), 1)
    if TAIL > 0:
        LONG: tl.constexpr = BLOCKS * C + TAIL > K
        at = BLOCKS * C + tl.arange(0, TAIL)
        e = tm.evidence(load(start, at, inside, class_stride, K, KNOWN), FUNCTION)
        total += tl.sum(labels.others(e, at, label, K, LONG), 1)
    return total


@triton.jit
def sums_of(
    start: tl.tensor, label: tl.tensor, most: tl.tensor, inside: tl.tensor, class_stride: tl.tensor,
    K: tl.constexpr, C: tl.constexpr, BLOCKS: tl.constexpr, TAIL: tl.constexpr,
    KNOWN: tl.constexpr, FUNCTION: tl.constexpr, WHICH: tl.constexpr, VALUE: tl.constexpr,
    R: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The sums over all classes: BLOCKS of C, and a TAIL; the last may be longer than what is left.

    Where a row is spread over threads and takes several blocks, each thread adds up what it has of
    them before all of them add up theirs.
    """
    TILE: tl.constexpr = KNOWN and BLOCKS > 1
    PADDED: tl.constexpr = BLOCKS * C > K
    s = labels.nothing(tl.zeros([R, C] if TILE else [R], tl.float32))
    j = tl.arange(0, C)
    if BLOCKS == 1:  # not a loop: the compiler sees what it computes twice, and does it once
        x = load(start, j, inside, class_stride, K, KNOWN)
        s = labels.take(s, x, j, label, most, K, FUNCTION, WHICH, VALUE, PADDED, TILE)
    else:
        for block in range(BLOCKS):
            at = j + block * C
            x = load(start, at, inside, class_stride, K, KNOWN)
            s = labels.take(s, x, at, label, most, K, FUNCTION, WHICH, VALUE, PADDED, TILE)
    if TILE:
        s = labels.add_up(s)
    if TAIL > 0:
        LONG: tl.constexpr = BLOCKS * C + TAIL > K
        rest = BLOCKS * C + tl.arange(0, TAIL)
        x = load(start, rest, inside, class_stride, K, KNOWN)
        s = labels.take(s, x, rest, label, most, K, FUNCTION, WHICH, VALUE, LONG, False)
    return s


@triton.jit
def _of_labels(
    start: tl.tensor, target: tl.tensor, class_weight: tl.tensor, kept: tl.tensor,
    rows: tl.tensor, inside: tl.tensor, count: tl.tensor,
    mu: tl.tensor, growth: tl.tensor, ignored: tl.tensor,
    class_stride: tl.tensor, AT: tl.constexpr, WHICH: tl.constexpr, FUNCTION: tl.constexpr,
    BY_CLASS: tl.constexpr, KNOWN: tl.constexpr,
    K: tl.constexpr, C: tl.constexpr, BLOCKS: tl.constexpr, TAIL: tl.constexpr, R: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The terms of rows, and their weights."""
    label, weight = target_of(target, class_weight, rows, inside, ignored, K, BY_CLASS)
    own = start + tl.maximum(label, 0) * class_stride
    e = tm.evidence(tl.load(own, inside, 0.0).to(tl.float32), FUNCTION)
    most = e
    if WHICH[4]:
        total = evidence_of(
            start, label, inside, class_stride, K, C, BLOCKS, TAIL, KNOWN, FUNCTION, R
        )
        most = labels.limit(e, total, K)
    s = sums_of(
        start, label, most, inside, class_stride,
        K, C, BLOCKS, TAIL, KNOWN, FUNCTION, WHICH, True, R,
    )  # fmt: skip
    if WHICH[5]:
        labels.keep(kept, s, rows, inside, count, K, WHICH)
    return labels.terms(s, e, most, mu, growth, K, WHICH, AT), weight


@triton.jit
def _of_soft(
    w: tl.tensor, place: tl.tensor, mu: tl.tensor, growth: tl.tensor,
    AT: tl.constexpr, WHICH: tl.constexpr, FUNCTION: tl.constexpr,
    BY_CLASS: tl.constexpr, KNOWN: tl.constexpr,
    K: tl.constexpr, C: tl.constexpr, BLOCKS: tl.constexpr, TAIL: tl.constexpr, R: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The same of soft targets."""
    s = soft.sums(w, place, K, C, BLOCKS, TAIL, KNOWN, FUNCTION, WHICH, AT, True, BY_CLASS, R)
    weight = tl.where(place.inside, s.weight if BY_CLASS else 1.0, 0.0)
    return soft.terms(s, mu, growth, K, WHICH), weight


@triton.jit
def add(acc: tl.tensor, t: tl.tensor, weight: tl.tensor) -> tl.tensor:
    """Add terms times weights to what there is; a weight of 0 hides all."""
    off = weight == 0.0
    return Numbers(
        acc[0] + tl.where(off, 0.0, weight * t[0]), acc[1] + tl.where(off, 0.0, weight * t[1]),
        acc[2] + tl.where(off, 0.0, weight * t[2]), acc[3] + tl.where(off, 0.0, weight * t[3]),
        acc[4] + tl.where(off, 0.0, weight * t[4]), acc[5] + tl.where(off, 0.0, weight * t[5]),
        acc[6] + tl.where(off, 0.0, weight * t[6]), acc[7] + tl.where(off, 0.0, weight * t[7]),
    )  # fmt: skip


@triton.jit(do_not_specialize=PLAIN)
def forward(
    logits: tl.tensor, target: tl.tensor, class_weight: tl.tensor, moving: tl.tensor,
    losses: tl.tensor, kept: tl.tensor, partial: tl.tensor,
    sums: tl.tensor, value: tl.tensor, scale: tl.tensor,
    numbers: tl.tensor, growth: tl.tensor, mu: tl.tensor, ignored: tl.tensor,
    count: tl.tensor, programs: tl.tensor,
    inner: tl.tensor, class_stride: tl.tensor, row_stride: tl.tensor, outer_stride: tl.tensor,
    y_inner: tl.tensor, y_class: tl.tensor, y_row: tl.tensor, y_outer: tl.tensor,
    AT: tl.constexpr, COL: tl.constexpr, WHICH: tl.constexpr, FUNCTION: tl.constexpr,
    SOFT: tl.constexpr, BY_CLASS: tl.constexpr, EACH: tl.constexpr, MEAN: tl.constexpr,
    SINGLE: tl.constexpr, FLAT: tl.constexpr, KNOWN: tl.constexpr,
    WIDTH: tl.constexpr,
    K: tl.constexpr, C: tl.constexpr, BLOCKS: tl.constexpr, TAIL: tl.constexpr, R: tl.constexpr,
) -> None:  # fmt: skip
    """The loss of each row, or sums over rows; a program that is alone finishes them."""
    w = weights(moving, numbers, AT)
    zero = tl.zeros([R], tl.float32)
    acc, weight_acc = Numbers(zero, zero, zero, zero, zero, zero, zero, zero), zero
    tile = tl.program_id(0)
    while tile * R < count:  # not a range: the interpreter can't count to a tensor
        rows = tile * R + tl.arange(0, R)
        inside = rows < count
        start = logits + offsets(rows, row_stride, outer_stride, inner, FLAT)
        if SOFT:
            begin = target + offsets(rows, y_row, y_outer, y_inner, False)
            place = soft.Place(start, begin, class_weight, class_stride, y_class, inside)
            t, weight = _of_soft(
                w, place, mu, growth, AT, WHICH, FUNCTION, BY_CLASS, KNOWN, K, C, BLOCKS, TAIL, R
            )
        else:
            t, weight = _of_labels(
                start, target, class_weight, kept, rows, inside, count,
                mu, growth, ignored, class_stride,
                AT, WHICH, FUNCTION, BY_CLASS, KNOWN, K, C, BLOCKS, TAIL, R,
            )  # fmt: skip
        if EACH:
            each = tl.where(weight == 0.0, 0.0, weight * weighted(w, t, AT))
            tl.store(losses + rows, each, inside)
        weight_acc += weight
        acc = add(acc, t, weight)
        tile += programs
    if SINGLE:
        total = Numbers(
            tl.sum(acc[0], 0), tl.sum(acc[1], 0), tl.sum(acc[2], 0), tl.sum(acc[3], 0),
            tl.sum(acc[4], 0), tl.sum(acc[5], 0), tl.sum(acc[6], 0), tl.sum(acc[7], 0),
        )  # fmt: skip
        every = tl.sum(weight_acc, 0)
        gathered(total, moving, numbers, sums, value, scale, every, AT, COL, MEAN)
    else:
        line = partial + tl.program_id(0) * WIDTH
        for i in tl.static_range(8):
            if COL[i] >= 0:
                tl.store(line + COL[i], tl.sum(acc[i], 0))
        tl.store(line + WIDTH - 1, tl.sum(weight_acc, 0))


@triton.jit
def store(
    out: tl.tensor, slope: tl.tensor, j: tl.tensor, inside: tl.tensor, class_stride: tl.tensor,
    K: tl.constexpr, DENSE: tl.constexpr,
) -> None:  # fmt: skip
    """Store slopes (R, C) of classes j (C,)."""
    steps = j if DENSE else j * class_stride
    tl.store(out[:, None] + steps[None, :], slope, inside[:, None] & (j < K)[None, :])


@triton.jit
def _row_weights(
    weight: tl.tensor, grad: tl.tensor, scale: tl.tensor, rows: tl.tensor, inside: tl.tensor,
    moving: tl.tensor, numbers: tl.tensor, growth: tl.tensor,
    AT: tl.constexpr, EACH: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The weights of the terms in each row: all that the gradient is linear in."""
    if EACH:
        weight = weight * tl.load(grad + rows, inside, 0.0)
    else:
        weight = weight * (tl.load(grad) * tl.load(scale))
    w = weights(moving, numbers, AT)
    return Numbers(
        weight * w[0], weight * w[1], weight * w[2], weight * w[3],
        weight * (growth * w[4]), weight * (growth * w[5]), weight * w[6], weight * w[7],
    )  # fmt: skip


@triton.jit(do_not_specialize=PLAIN)
def backward(
    logits: tl.tensor, target: tl.tensor, class_weight: tl.tensor, moving: tl.tensor,
    grad: tl.tensor, scale: tl.tensor, kept: tl.tensor, out: tl.tensor,
    numbers: tl.tensor, growth: tl.tensor, ignored: tl.tensor, count: tl.tensor,
    inner: tl.tensor, class_stride: tl.tensor, row_stride: tl.tensor, outer_stride: tl.tensor,
    AT: tl.constexpr, WHICH: tl.constexpr, FUNCTION: tl.constexpr,
    BY_CLASS: tl.constexpr, EACH: tl.constexpr, FLAT: tl.constexpr,
    KNOWN: tl.constexpr, DENSE: tl.constexpr,
    K: tl.constexpr, C: tl.constexpr, BLOCKS: tl.constexpr, TAIL: tl.constexpr, R: tl.constexpr,
) -> None:  # fmt: skip
    """The gradient of the logits, for labels."""
    rows = tl.program_id(0) * R + tl.arange(0, R)
    inside = rows < count
    begin = offsets(rows, row_stride, outer_stride, inner, FLAT)
    start = logits + begin
    label, weight = target_of(target, class_weight, rows, inside, ignored, K, BY_CLASS)
    w = _row_weights(weight, grad, scale, rows, inside, moving, numbers, growth, AT, EACH)
    own = start + tl.maximum(label, 0) * class_stride
    e = tm.evidence(tl.load(own, inside, 0.0).to(tl.float32), FUNCTION)
    if WHICH[5]:
        s = labels.found(kept, rows, inside, count)
        most = labels.limit(e, s.evidence, K)
        if not WHICH[1]:  # what was kept has everything in it: seldom is it a class too much
            apart = tl.sum(tl.where(inside & (s.top > most), 1, 0), 0)
            if apart > 0:
                s = sums_of(
                    start, label, most, inside, class_stride,
                    K, C, BLOCKS, TAIL, KNOWN, FUNCTION, WHICH, False, R,
                )  # fmt: skip
    else:
        total = evidence_of(
            start, label, inside, class_stride, K, C, BLOCKS, TAIL, KNOWN, FUNCTION, R
        )
        most = labels.limit(e, total, K)
        s = sums_of(
            start, label, most, inside, class_stride,
            K, C, BLOCKS, TAIL, KNOWN, FUNCTION, WHICH, False, R,
        )  # fmt: skip
    g = labels.slopes(s, e, w, most, K, WHICH, AT)
    out += rows.to(tl.int64) * K if DENSE else begin
    j, rest = tl.arange(0, C), BLOCKS * C + tl.arange(0, TAIL if TAIL > 0 else 1)
    if BLOCKS == 1:  # the stores come last: after one, what was loaded may have changed
        x = load(start, j, inside, class_stride, K, KNOWN)
        slope = labels.gradient(g, w, x, j, label, most, FUNCTION, WHICH)
        if TAIL > 0:
            x = load(start, rest, inside, class_stride, K, KNOWN)
            more = labels.gradient(g, w, x, rest, label, most, FUNCTION, WHICH)
            store(out, more, rest, inside, class_stride, K, DENSE)
        store(out, slope, j, inside, class_stride, K, DENSE)
    else:
        for block in range(BLOCKS):
            at = block * C + j
            x = load(start, at, inside, class_stride, K, KNOWN)
            slope = labels.gradient(g, w, x, at, label, most, FUNCTION, WHICH)
            store(out, slope, at, inside, class_stride, K, DENSE)
        if TAIL > 0:
            x = load(start, rest, inside, class_stride, K, KNOWN)
            slope = labels.gradient(g, w, x, rest, label, most, FUNCTION, WHICH)
            store(out, slope, rest, inside, class_stride, K, DENSE)


@triton.jit(do_not_specialize=PLAIN)
def backward_soft(
    logits: tl.tensor, target: tl.tensor, class_weight: tl.tensor, moving: tl.tensor,
    grad: tl.tensor, scale: tl.tensor, out: tl.tensor,
    numbers: tl.tensor, growth: tl.tensor, count: tl.tensor,
    inner: tl.tensor, class_stride: tl.tensor, row_stride: tl.tensor, outer_stride: tl.tensor,
    y_inner: tl.tensor, y_class: tl.tensor, y_row: tl.tensor, y_outer: tl.tensor,
    AT: tl.constexpr, WHICH: tl.constexpr, FUNCTION: tl.constexpr,
    BY_CLASS: tl.constexpr, EACH: tl.constexpr, FLAT: tl.constexpr,
    KNOWN: tl.constexpr, DENSE: tl.constexpr,
    K: tl.constexpr, C: tl.constexpr, BLOCKS: tl.constexpr, TAIL: tl.constexpr, R: tl.constexpr,
) -> None:  # fmt: skip
    """The gradient of the logits, for soft targets."""
    rows = tl.program_id(0) * R + tl.arange(0, R)
    inside = rows < count
    begin = offsets(rows, row_stride, outer_stride, inner, FLAT)
    start = logits + begin
    y_start = target + offsets(rows, y_row, y_outer, y_inner, False)
    place = soft.Place(start, y_start, class_weight, class_stride, y_class, inside)
    one = tl.zeros([R], tl.float32) + 1.0
    weight = one
    if BY_CLASS:
        weight = soft.row_weight(place, K, C, BLOCKS, TAIL, KNOWN, R)
    w = _row_weights(weight, grad, scale, rows, inside, moving, numbers, growth, AT, EACH)
    s = soft.sums(w, place, K, C, BLOCKS, TAIL, KNOWN, FUNCTION, WHICH, AT, False, False, R)
    out += rows.to(tl.int64) * K if DENSE else begin
    for block in range(BLOCKS):
        at = block * C + tl.arange(0, C)
        x = load(start, at, inside, class_stride, K, KNOWN)
        y = load(y_start, at, inside, y_class, K, KNOWN)
        slope = soft.gradient(s, w, x, y, K, FUNCTION, WHICH, AT)
        store(out, slope, at, inside, class_stride, K, DENSE)
    if TAIL > 0:
        rest = BLOCKS * C + tl.arange(0, TAIL)
        x = load(start, rest, inside, class_stride, K, KNOWN)
        y = load(y_start, rest, inside, y_class, K, KNOWN)
        slope = soft.gradient(s, w, x, y, K, FUNCTION, WHICH, AT)
        store(out, slope, rest, inside, class_stride, K, DENSE)
