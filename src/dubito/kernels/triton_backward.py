"""The backward kernels of the losses: a program takes one tile of rows.

The gradient is computed anew, and not kept from the forward pass: it costs one more read of the
logits, where to scale a gradient that was kept would cost a read and a write, and nothing of the
size of the logits is held in between. For few classes see `triton_once`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dubito.kernels import triton_label_rows as label_rows
from dubito.kernels import triton_labels as labels
from dubito.kernels import triton_math as tm
from dubito.kernels import triton_soft as soft
from dubito.kernels.triton_loss import by_row, sums_of, target_of
from dubito.kernels.triton_rows import NONE, PLAIN, load, offsets, weights


@triton.jit
def _store(
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
    return by_row(weight, weights(moving, numbers, AT), growth)


@triton.jit
def _slope(
    g: tl.tensor, start: tl.tensor, j: tl.tensor, label: tl.tensor, most: tl.tensor,
    inside: tl.tensor, class_stride: tl.tensor,
    K: tl.constexpr, KNOWN: tl.constexpr, FUNCTION: tl.constexpr, WHICH: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The gradient of classes j (C,) of the rows at `start`."""
    HALF: tl.constexpr = start.dtype.element_ty.primitive_bitwidth == 16
    x = load(start, j, inside, class_stride, K, KNOWN, NONE)
    c = labels.classes(x, j, label, FUNCTION)
    return labels.gradient(g, x, c, j, label, most, FUNCTION, WHICH, HALF)


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
    if WHICH[4]:
        s = labels.found(kept, rows, inside, count)
    else:
        s = sums_of(
            start, label, e, inside, class_stride,
            K, C, BLOCKS, TAIL, KNOWN, FUNCTION, WHICH, False, R,
        )  # fmt: skip
    most = labels.limit(e, s.evidence, K)
    g = label_rows.slopes(s, e, w, most, K, WHICH, AT)
    out += rows.to(tl.int64) * K if DENSE else begin
    j, rest = tl.arange(0, C), BLOCKS * C + tl.arange(0, TAIL if TAIL > 0 else 1)
    if BLOCKS == 1:  # the stores come last: after one, what was loaded may have changed
        slope = _slope(g, start, j, label, most, inside, class_stride, K, KNOWN, FUNCTION, WHICH)
        if TAIL > 0:
            more = _slope(
                g, start, rest, label, most, inside, class_stride, K, KNOWN, FUNCTION, WHICH
            )
            _store(out, more, rest, inside, class_stride, K, DENSE)
        _store(out, slope, j, inside, class_stride, K, DENSE)
    else:
        for block in range(BLOCKS):
            at = block * C + j
            slope = _slope(
                g, start, at, label, most, inside, class_stride, K, KNOWN, FUNCTION, WHICH
            )
            _store(out, slope, at, inside, class_stride, K, DENSE)
        if TAIL > 0:
            slope = _slope(
                g, start, rest, label, most, inside, class_stride, K, KNOWN, FUNCTION, WHICH
            )
            _store(out, slope, rest, inside, class_stride, K, DENSE)


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
        _store(out, slope, at, inside, class_stride, K, DENSE)
    if TAIL > 0:
        rest = BLOCKS * C + tl.arange(0, TAIL)
        x = load(start, rest, inside, class_stride, K, KNOWN)
        y = load(y_start, rest, inside, y_class, K, KNOWN)
        slope = soft.gradient(s, w, x, y, K, FUNCTION, WHICH, AT)
        _store(out, slope, rest, inside, class_stride, K, DENSE)
