"""The forward kernel of the losses: a program takes many rows, one tile after the other."""

from __future__ import annotations

import triton
import triton.language as tl

from dubito.kernels import triton_label_rows as label_rows
from dubito.kernels import triton_labels as labels
from dubito.kernels import triton_math as tm
from dubito.kernels import triton_soft as soft
from dubito.kernels.triton_rows import (
    NONE,
    PLAIN,
    Numbers,
    gathered,
    load,
    offsets,
    weighted,
    weights,
)


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
    if BLOCKS == 1:
        x = load(start, j, inside, class_stride, K, KNOWN, NONE)
        total += tl.sum(labels.others(x, j, label, FUNCTION), 1)
    else:
        for block in range(BLOCKS):
            at = j + block * C
            x = load(start, at, inside, class_stride, K, KNOWN, NONE)
            total += tl.sum(labels.others(x, at, label, FUNCTION), 1)
    if TAIL > 0:
        at = BLOCKS * C + tl.arange(0, TAIL)
        x = load(start, at, inside, class_stride, K, KNOWN, NONE)
        total += tl.sum(labels.others(x, at, label, FUNCTION), 1)
    return total


@triton.jit
def sums_of(
    start: tl.tensor, label: tl.tensor, e: tl.tensor, inside: tl.tensor, class_stride: tl.tensor,
    K: tl.constexpr, C: tl.constexpr, BLOCKS: tl.constexpr, TAIL: tl.constexpr,
    KNOWN: tl.constexpr, FUNCTION: tl.constexpr, WHICH: tl.constexpr, VALUE: tl.constexpr,
    R: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The sums over all classes, BLOCKS of C and a TAIL; e is the label's evidence.

    Where a row is spread over threads and takes several blocks, each thread adds up what it has of
    them before all of them add up theirs.
    """
    TILE: tl.constexpr = KNOWN and BLOCKS > 1
    total, most = e, e
    if WHICH[1]:
        total = evidence_of(
            start, label, inside, class_stride, K, C, BLOCKS, TAIL, KNOWN, FUNCTION, R
        )
        most = labels.limit(e, total, K)
    s = labels.nothing(tl.zeros([R, C] if TILE else [R], tl.float32))
    j = tl.arange(0, C)
    if BLOCKS == 1:  # not a loop: the compiler sees what it computes twice, and does it once
        x = load(start, j, inside, class_stride, K, KNOWN, NONE)
        s = labels.take(s, labels.classes(x, j, label, FUNCTION), most, WHICH, VALUE, TILE)
    else:
        for block in range(BLOCKS):
            at = j + block * C
            x = load(start, at, inside, class_stride, K, KNOWN, NONE)
            s = labels.take(s, labels.classes(x, at, label, FUNCTION), most, WHICH, VALUE, TILE)
    if TILE:
        s = labels.add_up(s)
    if TAIL > 0:
        rest = BLOCKS * C + tl.arange(0, TAIL)
        x = load(start, rest, inside, class_stride, K, KNOWN, NONE)
        s = labels.take(s, labels.classes(x, rest, label, FUNCTION), most, WHICH, VALUE, False)
    evidence = total if WHICH[1] else s.evidence
    return labels.settle(s, evidence, e, K, BLOCKS * C + TAIL - K + 1)


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
    s = sums_of(
        start, label, e, inside, class_stride,
        K, C, BLOCKS, TAIL, KNOWN, FUNCTION, WHICH, True, R,
    )  # fmt: skip
    if WHICH[4]:
        labels.keep(kept, s, rows, inside, count)
    most = labels.limit(e, s.evidence, K)
    return label_rows.terms(s, e, most, mu, growth, K, WHICH, AT), weight


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


@triton.jit
def put(
    acc: tl.tensor, weight: tl.tensor, partial: tl.tensor, moving: tl.tensor, numbers: tl.tensor,
    sums: tl.tensor, value: tl.tensor, scale: tl.tensor,
    AT: tl.constexpr, COL: tl.constexpr, MEAN: tl.constexpr, SINGLE: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Leave a program's sums in its line of `partial`, or finish where it is alone."""
    if SINGLE:
        total = Numbers(
            tl.sum(acc[0], 0), tl.sum(acc[1], 0), tl.sum(acc[2], 0), tl.sum(acc[3], 0),
            tl.sum(acc[4], 0), tl.sum(acc[5], 0), tl.sum(acc[6], 0), tl.sum(acc[7], 0),
        )  # fmt: skip
        every = tl.sum(weight, 0)
        gathered(total, moving, numbers, sums, value, scale, every, AT, COL, MEAN)
    else:
        line = partial + tl.program_id(0) * WIDTH
        for i in tl.static_range(8):
            if COL[i] >= 0:
                tl.store(line + COL[i], tl.sum(acc[i], 0))
        tl.store(line + WIDTH - 1, tl.sum(weight, 0))


@triton.jit
def by_row(weight: tl.tensor, w: tl.tensor, growth: tl.tensor) -> tl.tensor:
    """The weights of the terms in each row: all that the gradient is linear in."""
    return Numbers(
        weight * w[0], weight * w[1], weight * w[2], weight * w[3],
        weight * (growth * w[4]), weight * (growth * w[5]), weight * w[6], weight * w[7],
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
    put(acc, weight_acc, partial, moving, numbers, sums, value, scale, AT, COL, MEAN, SINGLE, WIDTH)
