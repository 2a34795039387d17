"""The loss and its gradient in one pass: a program loops over tiles of rows.

Values that the loss and the gradient share are computed once. A row of few classes stays in one
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
    add,
    by_form,
    factor_of,
    inverse_weight,
    labels_of,
    load,
    put,
    select,
    store,
    tile_of,
    weighted,
    weights_of,
)


@triton.jit
def _label(tile: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """alpha and alpha - base of the label, and the gamma family there."""
    at = tile.inputs + (tile.at + tl.maximum(tile.label, 0) * tile.n.class_stride)
    alpha, e = labels.alpha_of(tl.load(at, tile.inside, 0.0).to(tl.float32), C)
    return alpha, e, tm.gamma(alpha, e, C.below_one)


@triton.jit
def _slope(
    g: tl.tensor, tile: tl.tensor, j: tl.tensor, END: tl.constexpr, C: tl.constexpr
) -> tl.tensor:
    """The gradient of classes j (C,)."""
    x = load(tile, j, END, C)
    return soft.gradient(g, x, tile, j, C) if C.soft else labels.gradient(g, x, tile, j, C)


@triton.jit
def _gradient(g: tl.tensor, tile: tl.tensor, C: tl.constexpr) -> None:
    """Store the gradient; the stores come last, since after one the values are loaded again."""
    LOOPED: tl.constexpr = C.BLOCKS * C.C
    MORE: tl.constexpr = LOOPED + C.TAIL
    END: tl.constexpr = MORE + C.LAST
    j, tail = tl.arange(0, C.C), LOOPED + tl.arange(0, C.TAIL if C.TAIL > 0 else 1)
    last = MORE + tl.arange(0, C.LAST if C.LAST > 0 else 1)
    slope = _slope(g, tile, j, LOOPED, C)
    tail_slope = _slope(g, tile, tail, MORE, C) if C.TAIL > 0 else slope
    last_slope = _slope(g, tile, last, END, C) if C.LAST > 0 else slope
    if C.TAIL > 0:
        store(tile, tail_slope, tail, MORE, C)
    if C.LAST > 0:
        store(tile, last_slope, last, END, C)
    store(tile, slope, j, LOOPED, C)
    if C.BLOCKS > 1:
        for block in range(1, C.BLOCKS):
            at = j + block * C.C
            store(tile, _slope(g, tile, at, LOOPED, C), at, LOOPED, C)


@triton.jit
def loss_rows(  # noqa: PLR0915 - one screen, in the order of the computation
    t: tl.tensor, n: tl.tensor, C: tl.constexpr
) -> None:
    """Sums of the terms over rows or the loss of each row, and the gradient.

    If there are enough rows for a whole tile, the last one begins where it ends with the last row,
    and no row needs a mask: some are computed twice, to the same result, and counted once.
    """
    w = weights_of(t, C)
    R: tl.constexpr = C.R
    acc = (tl.zeros([R], tl.float32),) * (len(w) + 1)
    lanes = tl.arange(0, C.R)
    factor = factor_of(t, n, C)
    index = tl.program_id(0)
    while index * C.R < n.count:  # not a range: the interpreter cannot count to a tensor
        first = tl.minimum(index * C.R, n.count - C.R) if C.whole else index * C.R
        rows = first + lanes
        inside = lanes >= 0 if C.whole else rows < n.count
        if C.soft:
            tile = tile_of(t, n, first, lanes, inside, C)
            m = soft.totals(tile, C)
            weight = tl.where(inside, m.weight if C.class_weighted else 1.0, 0.0)
        else:
            label, weight = labels_of(t, rows, inside, C)
            tile = tile_of(t, n, first, label, inside, C)
        if C.factor == "tile":
            factor = inverse_weight(tl.sum(weight, 0))
        row_weights = by_form(w, weight * factor, C)
        if C.soft:
            r = soft.row_of(m, tile, row_weights, C)
            terms = select(soft.terms(r, C), C)
        else:
            alpha, e, own = _label(tile, C)
            s = labels.sums_of(tile, alpha, own, C)
            r = label_rows.row_of(alpha, e, own, s.rest, C)
            terms = select(label_rows.terms(s, r, C), C)
            if C.split:
                labels.keep(t, n, s, rows, inside)
        acc = add(acc, terms, tl.where(rows >= index * C.R, weight, 0.0))
        if C.spec.reduction == "none":
            each = tl.where(weight == 0.0, 0.0, weight * weighted(w, terms))
            tl.store(t.loss + rows, each, inside)
        if C.gradient and not C.split:
            if C.soft:
                _gradient(r, tile, C)
            else:
                _gradient(label_rows.slopes(s, r, row_weights, C), tile, C)
        index += n.programs
    put(t, n, w, acc, C)


@triton.jit
def gradient_rows(t: tl.tensor, n: tl.tensor, C: tl.constexpr) -> None:
    """The gradient of one tile of rows, from sums that `loss_rows` kept, once the mean is known.

    Rows of several blocks are read twice in any case, and two small kernels run faster than a large
    one.
    """
    first = tl.program_id(0) * C.R
    rows = first + tl.arange(0, C.R)
    inside = rows < n.count
    label, weight = labels_of(t, rows, inside, C)
    tile = tile_of(t, n, first, label, inside, C)
    factor = tl.load(t.scale) if C.factor == "late" and not C.scaled else 1.0
    row_weights = by_form(weights_of(t, C), weight * factor, C)
    alpha, e, own = _label(tile, C)
    s = labels.kept(t, n, rows, inside)
    r = label_rows.row_of(alpha, e, own, s.rest, C)
    _gradient(label_rows.slopes(s, r, row_weights, C), tile, C)
