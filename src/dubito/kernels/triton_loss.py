"""The loss and its gradient in one pass: a program loops over tiles of rows.

Values that the loss and the gradient share are computed once. A row of few classes stays in one
thread, a row of up to `ONE_BLOCK` classes in one warp or a few, and a longer one is read twice: for
the sums over its classes, and then, backwards, for the gradient, while its end is in a cache.
"""

import triton
import triton.language as tl

from dubito.kernels import triton_label_rows as label_rows
from dubito.kernels import triton_labels as labels
from dubito.kernels import triton_math as tm
from dubito.kernels import triton_rows as tr
from dubito.kernels import triton_soft as soft
from dubito.numerics.spec import PerForm

__all__: list[str] = []


@triton.jit
def _value(tile: tr.Tile) -> tl.tensor:
    """The value of the label, or of class 0 if there is none."""
    at = tile.inputs + (tile.at + tl.maximum(tile.label, 0) * tile.n.class_stride)
    return tl.load(at, tile.inside, 0.0).to(tl.float32)


@triton.jit
def _label(tile: tr.Tile, C: tl.constexpr) -> tuple[tl.tensor, tl.tensor, tm.Gamma]:
    """alpha and alpha - base of the label, and the gamma family there."""
    alpha, e = labels.alpha_of(_value(tile), C)
    return alpha, e, tm.gamma(alpha, e, C.below_one)


@triton.jit
def _slope(
    g: tl.tensor, tile: tr.Tile, j: tl.tensor, END: tl.constexpr, C: tl.constexpr
) -> tl.tensor:
    """The gradient of classes j (C,)."""
    x = tr.load(tile, j, END, C, C.BLOCKS > 1)
    return soft.gradient(g, x, tile, j, C) if C.soft else labels.gradient(g, x, tile, j, END, C)


@triton.jit
def _gradient(g: tl.tensor, tile: tr.Tile, C: tl.constexpr) -> None:
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
        tr.store(tile, tail_slope, tail, MORE, C)
    if C.LAST > 0:
        tr.store(tile, last_slope, last, END, C)
    tr.store(tile, slope, j, LOOPED, C)


@triton.jit
def _long_gradient(g: tl.tensor, tile: tr.Tile, C: tl.constexpr) -> None:
    """The same for rows of several blocks, from the last block to the first.

    Instead of a mask for the label in every block, its slope comes last, in place of another.
    """
    LOOPED: tl.constexpr = C.BLOCKS * C.C
    others = tr.without_label(tile)
    if C.TAIL > 0:
        at = LOOPED + tl.arange(0, C.TAIL)
        tr.store(others, _slope(g, others, at, LOOPED + C.TAIL, C), at, LOOPED + C.TAIL, C)
    for i in range(C.BLOCKS):
        at = tl.arange(0, C.C) + (C.BLOCKS - 1 - i) * C.C
        tr.store(others, _slope(g, others, at, LOOPED, C), at, LOOPED, C)
    if not C.soft:
        tl.debug_barrier()  # the other slope is another thread's
        x, step = _value(tile), 1 if C.dense else tile.n.class_stride
        slope = g.label * tm.evidence_slope(x, tm.evidence(x, C), C)
        at = tile.gradient + (tile.gradient_at + tile.label * step)
        tl.store(at, slope, tile.inside & (tile.label >= 0))


@triton.jit
def _row_weights(w: tl.tuple, weight: tl.tensor, factor: tl.tensor, C: tl.constexpr) -> PerForm:
    """The weights of all forms in the gradient of rows."""
    if C.factor == "tile":
        factor = tr.inverse_weight(tl.sum(weight, 0))
    return tr.by_form(w, weight * factor, C)


@triton.jit
def loss_rows(t: tr.Tensors, n: tr.Sizes, C: tl.constexpr) -> None:
    """Sums of the terms over rows or the loss of each row, and the gradient.

    If there are enough rows for a whole tile, the last one begins where it ends with the last row,
    and no row needs a mask: some are computed twice, to the same result, and counted once.
    """
    w = tr.weights_of(t, C)
    R: tl.constexpr = C.R
    acc = (tl.zeros([R], tl.float32),) * (len(w) + 1)
    lanes = tl.arange(0, C.R)
    factor = tr.factor_of(t, n, C)
    index = tl.program_id(0)
    while index * C.R < n.count:  # not a range: the interpreter cannot count to a tensor
        first = tl.minimum(index * C.R, n.count - C.R) if C.whole else index * C.R
        rows = first + lanes
        inside = lanes >= 0 if C.whole else rows < n.count
        if C.soft:
            tile = tr.tile_of(t, n, first, (), inside, C)
            m = soft.totals(tile, C)
            weight = tl.where(inside, m.weight if C.class_weighted else 1.0, 0.0)
            r = soft.row_of(m, tile, _row_weights(w, weight, factor, C), C)
            terms = tr.select(soft.terms(r, C), C)
        else:
            if C.packed and C.whole and not (C.across or C.single):
                tr.prefetch_tile(t, n, index, C)
            label, weight = tr.labels_of(t, rows, inside, C)
            tile = tr.tile_of(t, n, first, label, inside, C)
            alpha, e, own = _label(tile, C)
            s = labels.sums_of(tile, alpha, own, C)
            r = label_rows.row_of(alpha, e, own, s.rest, C)
            terms = tr.select(label_rows.terms(s, r, C), C)
        acc = tr.add(acc, terms, tl.where(rows >= index * C.R, weight, 0.0))
        if C.spec.reduction == "none":
            each = tl.where(weight == 0.0, 0.0, weight * tr.weighted(w, terms))
            tl.store(t.loss + rows, each, inside)
        if C.gradient:
            # not before the values are loaded: the sum of the weights waits for the labels
            g = r if C.soft else label_rows.slopes(s, r, _row_weights(w, weight, factor, C), C)
            if C.BLOCKS > 1:
                _long_gradient(g, tile, C)
            else:
                _gradient(g, tile, C)
        index += n.programs
    tr.put(t, n, w, acc, C)
