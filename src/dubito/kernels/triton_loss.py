"""The loss and its gradient in one pass: a program takes tiles of rows, one after the other.

What the loss and the gradient have in common is computed once. A row of few classes stays in one
thread, a row of up to `ONE_BLOCK` classes in one warp or a few, and a longer one is read twice: for
the sums over its classes, and for the gradient.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dubito.kernels import triton_label_rows as label_rows
from dubito.kernels import triton_labels as labels
from dubito.kernels import triton_math as tm
from dubito.kernels import triton_soft as soft
from dubito.kernels.triton_rows import (
    Terms,
    add,
    by_row,
    factor_of,
    labels_of,
    load,
    put,
    store,
    tile_of,
    weighted,
    weights_of,
)


@triton.jit
def _totals_of(
    rest: tl.tensor, evidence: tl.tensor, tile: tl.tensor, j: tl.tensor,
    END: tl.constexpr, C: tl.constexpr, TILE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Add alpha and alpha - base of classes j (C,)."""
    alpha, e, here = labels.others(load(tile, j, END, C), j, tile.label, C)
    evidence += labels.sum_over(e, here, C, TILE)
    if C.below_one:
        rest += labels.sum_over(alpha, here, C, TILE)
    return rest, evidence


@triton.jit
def _totals(tile: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """alpha and alpha - base, summed over the classes but the label."""
    TILE: tl.constexpr = C.across and C.BLOCKS > 1
    R: tl.constexpr = C.R
    BLOCK: tl.constexpr = C.C
    LOOPED: tl.constexpr = C.BLOCKS * C.C
    MORE: tl.constexpr = LOOPED + C.TAIL
    END: tl.constexpr = MORE + C.LAST
    rest = tl.zeros([R, BLOCK] if TILE else [R], tl.float32)
    evidence = rest
    j = tl.arange(0, C.C)
    if C.BLOCKS == 1:
        rest, evidence = _totals_of(rest, evidence, tile, j, LOOPED, C, TILE)
    else:
        for block in range(C.BLOCKS):
            rest, evidence = _totals_of(rest, evidence, tile, j + block * C.C, LOOPED, C, TILE)
    if TILE:
        rest, evidence = tl.sum(rest, 1), tl.sum(evidence, 1)
    if C.TAIL > 0:
        tail = LOOPED + tl.arange(0, C.TAIL)
        rest, evidence = _totals_of(rest, evidence, tile, tail, MORE, C, False)
    if C.LAST > 0:
        last = MORE + tl.arange(0, C.LAST)
        rest, evidence = _totals_of(rest, evidence, tile, last, END, C, False)
    return rest, evidence


@triton.jit
def _label(tile: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """alpha and alpha - base of the label, and the gamma family there."""
    at = tile.inputs + (tile.at + tl.maximum(tile.label, 0) * tile.class_stride)
    alpha, e = labels.alpha_of(tl.load(at, tile.inside, 0.0).to(tl.float32), C)
    return alpha, e, tm.gamma(alpha, e, C.below_one, False)


@triton.jit
def _take(
    s: tl.tensor, tile: tl.tensor, total: tl.tensor, j: tl.tensor,
    END: tl.constexpr, C: tl.constexpr, TILE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    HALF: tl.constexpr = tile.inputs.dtype.element_ty.primitive_bitwidth == 16
    c = labels.classes(load(tile, j, END, C), j, tile.label, C, HALF)
    return labels.take(s, c, total, C, TILE)


@triton.jit
def _sums(tile: tl.tensor, alpha: tl.tensor, own: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """The sums over all classes; alpha is the label's and `own` its gamma family.

    Where a row is spread over threads and takes several blocks, each thread adds up its part of
    them before the threads add up theirs.
    """
    TILE: tl.constexpr = C.across and C.BLOCKS > 1
    R: tl.constexpr = C.R
    BLOCK: tl.constexpr = C.C
    LOOPED: tl.constexpr = C.BLOCKS * C.C
    MORE: tl.constexpr = LOOPED + C.TAIL
    END: tl.constexpr = MORE + C.LAST
    rest, evidence = alpha, alpha
    total = labels.Total(alpha, alpha, alpha)
    if C.groups.total_first:
        rest, evidence = _totals(tile, C)
        if not C.below_one:
            rest = evidence + (C.K - 1.0)
        total = label_rows.total_of(alpha, rest, evidence, C)
    s = labels.nothing(tl.zeros([R, BLOCK] if TILE else [R], tl.float32))
    j = tl.arange(0, C.C)
    if C.BLOCKS == 1:  # not a loop: the compiler sees what it computes twice, and does it once
        s = _take(s, tile, total, j, LOOPED, C, TILE)
    else:
        for block in range(C.BLOCKS):
            s = _take(s, tile, total, j + block * C.C, LOOPED, C, TILE)
    if TILE:
        s = labels.add_up(s)
    if C.TAIL > 0:
        s = _take(s, tile, total, LOOPED + tl.arange(0, C.TAIL), MORE, C, False)
    if C.LAST > 0:
        s = _take(s, tile, total, MORE + tl.arange(0, C.LAST), END, C, False)
    if not C.groups.total_first:
        rest, evidence = s.rest, s.evidence
        if not C.below_one:
            rest = evidence + (C.K - 1.0)
    return labels.settle(s, alpha, own, rest, evidence, total, C, END - C.K + 1)


@triton.jit
def _slope(
    g: tl.tensor, tile: tl.tensor, weight: tl.tensor, j: tl.tensor,
    END: tl.constexpr, C: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The gradient of classes j (C,); 0 in rows without a weight, even where it is NaN."""
    x = load(tile, j, END, C)
    if C.soft:
        slope = soft.gradient(g, x, tile, j, C)
    else:
        HALF: tl.constexpr = tile.inputs.dtype.element_ty.primitive_bitwidth == 16
        c = labels.classes(x, j, tile.label, C, HALF)
        slope = labels.gradient(g, x, c, j, tile.label, C)
    return tl.where(weight[:, None] == 0.0, 0.0, slope)


@triton.jit
def _gradient(g: tl.tensor, tile: tl.tensor, weight: tl.tensor, C: tl.constexpr) -> None:
    """Store the gradient; the stores come last, since after one the values are loaded again."""
    LOOPED: tl.constexpr = C.BLOCKS * C.C
    MORE: tl.constexpr = LOOPED + C.TAIL
    END: tl.constexpr = MORE + C.LAST
    j, tail = tl.arange(0, C.C), LOOPED + tl.arange(0, C.TAIL if C.TAIL > 0 else 1)
    last = MORE + tl.arange(0, C.LAST if C.LAST > 0 else 1)
    slope = _slope(g, tile, weight, j, LOOPED, C)
    tail_slope = _slope(g, tile, weight, tail, MORE, C) if C.TAIL > 0 else slope
    last_slope = _slope(g, tile, weight, last, END, C) if C.LAST > 0 else slope
    if C.TAIL > 0:
        store(tile, tail_slope, tail, MORE, C)
    if C.LAST > 0:
        store(tile, last_slope, last, END, C)
    store(tile, slope, j, LOOPED, C)
    if C.BLOCKS > 1:
        for block in range(1, C.BLOCKS):
            at = j + block * C.C
            store(tile, _slope(g, tile, weight, at, LOOPED, C), at, LOOPED, C)


@triton.jit
def loss_rows(  # noqa: PLR0915 - one screen, in the order of the computation
    t: tl.tensor, n: tl.tensor, C: tl.constexpr, WEIGHERS: tl.constexpr
) -> None:
    """Sums of the terms over rows or the loss of each row, and the gradient.

    If there are enough rows for a whole tile, the last one begins where it ends with the last row,
    and no row needs a mask: some are computed twice, to the same result, and counted once.
    """
    w = weights_of(t.weights, C)
    R: tl.constexpr = C.R
    o = tl.zeros([R], tl.float32)
    acc, weight_acc = Terms(o, o, o, o, o, o, o, o, o, o, o, o, o), o
    lanes = tl.arange(0, C.R)
    factor = factor_of(t, n, C, WEIGHERS)
    index = tl.program_id(0)
    while index * C.R < n.count:  # not a range: the interpreter cannot count to a tensor
        first = tl.minimum(index * C.R, n.count - C.R) if C.whole else index * C.R
        rows = first + lanes
        inside = lanes >= 0 if C.whole else rows < n.count
        if C.soft:
            tile = tile_of(t, n, first, lanes, inside, C)
            m = soft.totals(t, tile, C)
            weight = tl.where(inside, m.weight if C.class_weighted else 1.0, 0.0)
        else:
            label, weight = labels_of(t, rows, inside, C)
            tile = tile_of(t, n, first, label, inside, C)
        if C.reduction == "mean" and C.single and C.factor == "total":
            whole = tl.sum(weight, 0)
            factor = 1.0 / tl.where(whole == 0.0, 1.0, whole)
        row_weights = by_row(weight * factor, w, C)
        if C.soft:
            r = soft.row_of(m, t, tile, row_weights, C)
            terms = soft.terms(r, C)
        else:
            alpha, e, own = _label(tile, C)
            s = _sums(tile, alpha, own, C)
            r = label_rows.row_of(alpha, e, own, s.rest, C)
            terms = label_rows.terms(s, r, C)
            if C.split:
                labels.keep(t, s, rows, inside, n)
        counted = tl.where(rows >= index * C.R, weight, 0.0)
        weight_acc += counted
        acc = add(acc, terms, counted, C)
        if C.reduction == "none":
            each = tl.where(weight == 0.0, 0.0, weight * weighted(w, terms, C))
            tl.store(t.loss + rows, each, inside)
        if C.gradient and not C.split:
            if C.soft:
                _gradient(r, tile, weight, C)
            else:
                _gradient(label_rows.slopes(s, r, row_weights, C), tile, weight, C)
        index += n.programs
    put(t, n, acc, weight_acc, w, C)


@triton.jit
def gradient_rows(t: tl.tensor, n: tl.tensor, C: tl.constexpr, WEIGHERS: tl.constexpr) -> None:
    """The gradient of one tile of rows, from sums that `loss_rows` kept, once the mean is known.

    Rows of several blocks are read twice in any case, and two small kernels run faster than a large
    one.
    """
    lanes = tl.arange(0, C.R)
    first = tl.program_id(0) * C.R
    rows = first + lanes
    inside = rows < n.count
    label, weight = labels_of(t, rows, inside, C)
    tile = tile_of(t, n, first, label, inside, C)
    factor = tl.load(t.scale) if C.factor == "total" else 1.0
    row_weights = by_row(weight * factor, weights_of(t.weights, C), C)
    alpha, e, own = _label(tile, C)
    s = labels.kept(t, rows, inside, n)
    r = label_rows.row_of(alpha, e, own, s.rest, C)
    _gradient(label_rows.slopes(s, r, row_weights, C), tile, weight, C)
