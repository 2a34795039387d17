"""Rows of classes in Triton: the configuration of a kernel, addresses, weights, and sums over rows.

Loads have strides that the compiler does not know to be 1: it then lays a tile out with the lanes
along the rows, so that a row of few classes stays in one thread and its sums need no exchange. For
many classes the class stride is known, and the lanes lie along the classes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

#: a logit without evidence, of any type
NO_EVIDENCE = tl.constexpr(-6e4)


class Terms(NamedTuple):
    """One entry per closed form, in the order of `spec.FORMS`: columns, weights or values."""

    mse_bias: Any
    mse_variance: Any
    fisher_bias: Any
    fisher_variance: Any
    fisher_penalty: Any
    label_removed_kl: Any
    marginal_nll: Any
    expected_cross_entropy: Any
    differential_entropy: Any
    kl_to_uniform: Any
    kl_from_uniform: Any
    reverse_kl: Any
    forward_kl: Any


class Groups(NamedTuple):
    """Which parts of the frame a loss needs."""

    mse: bool
    fisher: bool
    penalty: bool
    removed: bool  # label_removed_kl
    uniform: bool  # kl_to_uniform or differential_entropy
    reverse: bool
    bregman: bool  # any of the three before
    forward: bool  # kl_from_uniform or forward_kl
    marginal: bool
    expected: bool
    total_first: bool  # a sweep over the classes needs alpha0


class Constants(NamedTuple):
    """Numbers of a loss that follow from the number of classes, the prior and beta."""

    prior: float
    base: float  # concentration of the target Dirichlet but for the label
    beta: float
    base_total: float  # K base
    beta_total: float  # K - 1 + beta
    log_beta: float  # ln of that over beta
    growth: float  # factor of the terms that grow with the number of classes
    # Stirling's remainder of ln Gamma: of base, of K base, of beta and of K - 1 + beta
    mu_base: float
    mu_total: float
    mu_beta: float
    mu_beta_total: float
    log_gamma: float  # ln Gamma(K)
    forward_beta: float  # concentration of the label in forward_kl or kl_from_uniform
    forward_total: float  # K - 1 + forward_beta
    forward_step: float  # psi(forward_total) - psi(1), and - psi(forward_beta)
    forward_label_step: float


class Config(NamedTuple):
    """Everything about a kernel that is known when it is compiled."""

    K: int  # classes, in BLOCKS blocks of C and two rests
    C: int
    BLOCKS: int
    TAIL: int
    LAST: int
    R: int  # rows in a tile
    across: bool  # the lanes lie along the classes, whose stride is 1
    flat: bool  # rows are evenly spaced
    packed: bool  # rows are contiguous, one after the other
    dense: bool  # the same of the gradient
    whole: bool  # there are enough rows for a tile
    single: bool  # one program takes all rows
    # what the gradient contains of the mean's 1/(sum of weights): "total", "rows" (1/rows
    # instead) or "none"; the rest is in `scale`
    factor: str
    width: int  # columns of `partial`
    columns: Terms
    groups: Groups
    constants: Constants
    evidence: str | None
    below_one: bool  # alpha may be below 1
    soft: bool
    class_weighted: bool
    ignored: int
    reduction: str
    gradient: bool
    split: bool  # the gradient is left to `gradient_rows`, from sums that are kept


class Tensors(NamedTuple):
    """Pointers."""

    inputs: tl.tensor
    target: tl.tensor
    class_weight: tl.tensor
    weights: tl.tensor
    loss: tl.tensor
    sums: tl.tensor
    gradient: tl.tensor
    scale: tl.tensor  # what the gradient still is to be multiplied by
    partial: tl.tensor  # (programs, width): sums of the terms and of the weights of rows
    totals: tl.tensor  # (weighers,): sums of the weights of rows
    kept: tl.tensor  # (10, rows): sums over the classes that the gradient needs
    grad: tl.tensor  # of the loss


class Sizes(NamedTuple):
    """Numbers that differ from batch to batch."""

    count: tl.tensor  # rows
    programs: tl.tensor
    weighers: tl.tensor
    inner: tl.tensor  # rows evenly spaced before a jump
    class_stride: tl.tensor
    row_stride: tl.tensor
    outer_stride: tl.tensor
    target_inner: tl.tensor
    target_class_stride: tl.tensor
    target_row_stride: tl.tensor
    target_outer_stride: tl.tensor


class Tile(NamedTuple):
    """Rows: where they begin in values and gradient, their labels, and which of them exist."""

    inputs: tl.tensor
    at: tl.tensor
    gradient: tl.tensor
    gradient_at: tl.tensor
    class_stride: tl.tensor
    label: tl.tensor
    inside: tl.tensor
    target: tl.tensor  # rows of soft targets
    target_class_stride: tl.tensor


# --- addresses -----------------------------------------------------------------------------------


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
def tile_of(
    t: tl.tensor, n: tl.tensor, first: tl.tensor, label: tl.tensor, inside: tl.tensor,
    C: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The tile of C.R rows from `first` on."""
    lanes = tl.arange(0, C.R)
    rows = first + lanes
    begin = offsets(rows, n.row_stride, n.outer_stride, n.inner, C.flat)
    base, packed = first.to(tl.int64) * C.K, lanes.to(tl.int64) * C.K
    target = t.target
    if C.soft:
        target = t.target + offsets(
            rows, n.target_row_stride, n.target_outer_stride, n.target_inner, False
        )
    return Tile(
        t.inputs + base if C.packed else t.inputs, packed if C.packed else begin,
        t.gradient + base if C.dense else t.gradient, packed if C.dense else begin,
        n.class_stride, label, inside, target, n.target_class_stride,
    )  # fmt: skip


@triton.jit
def load(tile: tl.tensor, j: tl.tensor, END: tl.constexpr, C: tl.constexpr) -> tl.tensor:
    """Values of classes j (C,), which end at END, as (R, C) float32; no evidence beyond the last.

    Of packed rows the compiler knows the strides: it is kept from laying the lanes of few classes
    along the classes.
    """
    if C.across:
        at = tile.inputs + (tile.at[:, None] + j[None, :])
    elif C.packed:
        at = tile.inputs + tl.max_contiguous(tile.at[:, None] + j[None, :], [1, 1])
    else:
        at = tile.inputs + (tile.at[:, None] + (j * tile.class_stride)[None, :])
    if not C.whole:
        x = tl.load(at, tile.inside[:, None] & (j < C.K)[None, :], NO_EVIDENCE)
    elif END > C.K:
        x = tl.load(at, (j < C.K)[None, :], NO_EVIDENCE)
    else:
        x = tl.load(at)
    return x.to(tl.float32)


@triton.jit
def load_target(tile: tl.tensor, j: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """Soft targets of classes j (C,) as (R, C) float32; 0 beyond the last."""
    steps = j if C.across else j * tile.target_class_stride
    mask = tile.inside[:, None] & (j < C.K)[None, :]
    return tl.load(tile.target[:, None] + steps[None, :], mask, 0.0).to(tl.float32)


@triton.jit
def store(
    tile: tl.tensor, grad: tl.tensor, j: tl.tensor, END: tl.constexpr, C: tl.constexpr
) -> None:
    """Store the gradient (R, C) of classes j (C,)."""
    steps = j if C.dense else j * tile.class_stride
    at = tile.gradient + (tile.gradient_at[:, None] + steps[None, :])
    if not C.whole:
        tl.store(at, grad, tile.inside[:, None] & (j < C.K)[None, :])
    elif END > C.K:
        tl.store(at, grad, (j < C.K)[None, :])
    else:
        tl.store(at, grad)


@triton.jit
def sweep(
    s: tl.tensor, given: tl.tensor, t: tl.tensor, tile: tl.tensor,
    STEP: tl.constexpr, C: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Add all blocks of classes to sums over them: s = STEP(s, given, t, tile, j, END, C)."""
    LOOPED: tl.constexpr = C.BLOCKS * C.C
    MORE: tl.constexpr = LOOPED + C.TAIL
    j = tl.arange(0, C.C)
    if C.BLOCKS == 1:  # not a loop: the compiler sees what it computes twice, and does it once
        s = STEP(s, given, t, tile, j, LOOPED, C)
    else:
        for block in range(C.BLOCKS):
            s = STEP(s, given, t, tile, j + block * C.C, LOOPED, C)
    if C.TAIL > 0:
        s = STEP(s, given, t, tile, LOOPED + tl.arange(0, C.TAIL), MORE, C)
    if C.LAST > 0:
        s = STEP(s, given, t, tile, MORE + tl.arange(0, C.LAST), MORE + C.LAST, C)
    return s


# --- weights -------------------------------------------------------------------------------------


@triton.jit
def labels_of(t: tl.tensor, rows: tl.tensor, inside: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """Labels, or -1, and the weights of rows: 0 where ignored, NaN where the label is no class."""
    label = tl.load(t.target + rows, inside, 0)
    known = (label >= 0) & (label < C.K)
    safe = tl.where(known, label, 0).to(tl.int32)
    weight = tl.full(rows.shape, 1.0, tl.float32)
    if C.class_weighted:
        weight = tl.load(t.class_weight + safe).to(tl.float32)
    weight = tl.where(known, weight, float("nan"))
    weight = tl.where(inside & (label != C.ignored), weight, 0.0)
    return tl.where(known & (label != C.ignored), safe, -1), weight


@triton.jit
def weigh(t: tl.tensor, n: tl.tensor, C: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """Add up the weights of all rows, each program into its entry of `totals`."""
    total = tl.zeros([BLOCK], tl.float32)
    first = tl.program_id(0) * BLOCK
    while first < n.count:
        rows = first + tl.arange(0, BLOCK)
        total += labels_of(t, rows, rows < n.count, C)[1]
        first += n.weighers * BLOCK
    tl.store(t.totals + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def factor_of(t: tl.tensor, n: tl.tensor, C: tl.constexpr, WEIGHERS: tl.constexpr) -> tl.tensor:
    """What a row's weight is multiplied by in the gradient."""
    if C.reduction != "mean" or C.factor == "none" or C.single:
        return 1.0
    elif C.factor == "rows":
        return 1.0 / n.count
    else:
        lanes = tl.arange(0, WEIGHERS)
        return _inverse(tl.sum(tl.load(t.totals + lanes, lanes < n.weighers, 0.0), 0))


@triton.jit
def _inverse(total: tl.tensor) -> tl.tensor:
    """1/total, 1 where that is 0."""
    return 1.0 / tl.where(total == 0.0, 1.0, total)


@triton.jit
def _weight(weights: tl.tensor, COLUMN: tl.constexpr) -> tl.tensor:
    if COLUMN < 0:
        return 0.0
    else:
        return tl.load(weights + COLUMN).to(tl.float32)


@triton.jit
def weights_of(weights: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """The weights of the terms."""
    return Terms(
        _weight(weights, C.columns[0]), _weight(weights, C.columns[1]),
        _weight(weights, C.columns[2]), _weight(weights, C.columns[3]),
        _weight(weights, C.columns[4]), _weight(weights, C.columns[5]),
        _weight(weights, C.columns[6]), _weight(weights, C.columns[7]),
        _weight(weights, C.columns[8]), _weight(weights, C.columns[9]),
        _weight(weights, C.columns[10]), _weight(weights, C.columns[11]),
        _weight(weights, C.columns[12]),
    )  # fmt: skip


@triton.jit
def by_row(weight: tl.tensor, w: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """The weights of the terms in each row: the gradient is linear in them."""
    G: tl.constexpr = C.constants.growth
    return Terms(
        weight * w[0], weight * w[1], weight * w[2], weight * w[3],
        weight * (G * w[4]), weight * (G * w[5]), weight * w[6], weight * w[7],
        weight * w[8], weight * w[9], weight * w[10], weight * w[11], weight * w[12],
    )  # fmt: skip


@triton.jit
def weighted(w: tl.tensor, terms: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """The weighted sum of the terms."""
    total = terms[0] * 0.0
    for i in tl.static_range(13):
        if C.columns[i] >= 0:
            total += w[i] * terms[i]
    return total


# --- sums over rows ------------------------------------------------------------------------------


@triton.jit
def _plus(acc: tl.tensor, term: tl.tensor, weight: tl.tensor, COLUMN: tl.constexpr) -> tl.tensor:
    """Add a term times the weights of rows; a weight of 0 hides even NaN."""
    if COLUMN < 0:
        return acc
    else:
        return acc + tl.where(weight == 0.0, 0.0, weight * term)


@triton.jit
def add(acc: tl.tensor, t: tl.tensor, weight: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """Add the terms of rows (R,) times their weights."""
    return Terms(
        _plus(acc[0], t[0], weight, C.columns[0]), _plus(acc[1], t[1], weight, C.columns[1]),
        _plus(acc[2], t[2], weight, C.columns[2]), _plus(acc[3], t[3], weight, C.columns[3]),
        _plus(acc[4], t[4], weight, C.columns[4]), _plus(acc[5], t[5], weight, C.columns[5]),
        _plus(acc[6], t[6], weight, C.columns[6]), _plus(acc[7], t[7], weight, C.columns[7]),
        _plus(acc[8], t[8], weight, C.columns[8]), _plus(acc[9], t[9], weight, C.columns[9]),
        _plus(acc[10], t[10], weight, C.columns[10]), _plus(acc[11], t[11], weight, C.columns[11]),
        _plus(acc[12], t[12], weight, C.columns[12]),
    )  # fmt: skip


@triton.jit
def _put_column(
    t: tl.tensor, total: tl.tensor, weight: tl.tensor, COLUMN: tl.constexpr
) -> tl.tensor:
    """Store the sum of a term, and return its part of the loss."""
    tl.store(t.sums + COLUMN, total)
    return weight * total


@triton.jit
def _put_loss(
    t: tl.tensor, n: tl.tensor, loss: tl.tensor, total: tl.tensor, C: tl.constexpr
) -> None:
    factor = _inverse(total) if C.reduction == "mean" else 1.0
    if C.reduction != "none":
        tl.store(t.loss, loss * factor)
    if C.factor == "rows":  # exactly 1 if all rows count
        tl.store(t.scale, n.count / tl.where(total == 0.0, 1.0, total))
    elif C.factor == "none" or C.split:
        tl.store(t.scale, factor)


@triton.jit
def put(
    t: tl.tensor, n: tl.tensor, acc: tl.tensor, weight: tl.tensor, w: tl.tensor, C: tl.constexpr
) -> None:
    """Store a program's sums in its line of `partial`, or the loss if it is the only one."""
    if C.single:
        loss = 0.0
        for i in tl.static_range(13):
            if C.columns[i] >= 0:
                loss += _put_column(t, tl.sum(acc[i], 0), w[i], C.columns[i])
        _put_loss(t, n, loss, tl.sum(weight, 0), C)
    else:
        line = t.partial + tl.program_id(0) * C.width
        for i in tl.static_range(13):
            if C.columns[i] >= 0:
                tl.store(line + C.columns[i], tl.sum(acc[i], 0))
        tl.store(line + C.width - 1, tl.sum(weight, 0))


@triton.jit
def _column(
    t: tl.tensor, n: tl.tensor, COLUMN: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr
) -> tl.tensor:
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    first = 0
    while first < n.programs:
        lines = first + lanes
        total += tl.load(t.partial + lines * C.width + COLUMN, lines < n.programs, 0.0)
        first += BLOCK
    return tl.sum(total, 0)


@triton.jit
def finish(t: tl.tensor, n: tl.tensor, C: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """Add up what the programs left in `partial`, always in the same order."""
    loss = 0.0
    for i in tl.static_range(13):
        if C.columns[i] >= 0:
            weight = tl.load(t.weights + C.columns[i]).to(tl.float32)
            loss += _put_column(t, _column(t, n, C.columns[i], C, BLOCK), weight, C.columns[i])
    _put_loss(t, n, loss, _column(t, n, C.width - 1, C, BLOCK), C)


@triton.jit
def rescale(t: tl.tensor, n: tl.tensor, SCALED: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """Multiply the gradient, `n.row_stride` entries, by `grad` and `scale`, unless by 1."""
    by = tl.load(t.grad).to(tl.float32)
    if SCALED:
        by *= tl.load(t.scale)
    if by != 1.0:
        step = tl.num_programs(0).to(tl.int64) * BLOCK
        first = tl.program_id(0).to(tl.int64) * BLOCK
        while first < n.row_stride:
            at = first + tl.arange(0, BLOCK)
            values = tl.load(t.gradient + at, at < n.row_stride, 0.0).to(tl.float32)
            tl.store(t.gradient + at, values * by, at < n.row_stride)
            first += step
