"""Rows of classes in Triton: configuration, addresses, and sums over classes and over rows.

Loads have strides that the compiler does not know to be 1: it then assigns the lanes of a tile to
rows, so that a row of few classes stays in one thread and its sums need no exchange. For many
classes the class stride is known, and the lanes run along the classes.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from dubito.kernels import triton_math as tm
from dubito.numerics.spec import LossSpec, PerForm

__all__: list[str] = []

#: programs that add up the weights of rows
WEIGHERS = tl.constexpr(1024)
#: entries of the gradient that a program rescales at once
RESCALED = tl.constexpr(2048)
_MANY = tl.constexpr(2048)  # rows or programs that are added up at once
_NO_EVIDENCE = tl.constexpr(-6e4)  # a logit without evidence, of any type


class Constants(NamedTuple):
    """Numbers of a loss that follow from the number of classes, the prior and beta."""

    base: float  # concentration of the target Dirichlet except for the label
    # Stirling's remainder of ln Gamma: of base, K base, beta and K - 1 + beta
    mu_base: float
    mu_total: float
    mu_beta: float
    mu_beta_total: float
    log_beta: float  # ln of (K - 1 + beta)/beta
    log_gamma: float  # ln Gamma(K)
    forward_beta: float  # concentration of the label in forward_kl or kl_from_uniform
    # psi(K - 1 + forward_beta) - psi(1), and - psi(forward_beta)
    forward_step: float
    forward_label_step: float


class Config(NamedTuple):
    """Everything about a kernel that is known when it is compiled."""

    K: int  # classes, in BLOCKS blocks of C, a block of TAIL and one of LAST
    C: int
    BLOCKS: int
    TAIL: int
    LAST: int
    R: int  # rows in a tile
    across: bool  # the lanes run along the classes, whose stride is 1
    flat: bool  # rows are evenly spaced
    packed: bool  # rows are contiguous, one after the other
    spec: LossSpec
    below_one: bool  # alpha may be below 1
    groups: Any  # `triton_plan.Groups`: which parts of the computation the loss needs
    constants: Constants
    forms: tuple[int, ...]  # each term's place in `LOSS_FORMS`
    columns: PerForm  # each form's place among the terms, or -1
    growth: tuple[float, ...]  # each term's factor
    dense: bool = True  # the rows of the gradient are contiguous, one after the other
    whole: bool = False  # there are enough rows for a tile
    single: bool = False  # one program computes all rows
    soft: bool = False
    class_weighted: bool = False
    gradient: bool = False
    # the factor of a mean's gradient in `loss_rows`: 1/weight of the rows, from the only
    # "tile" or from "totals", 1/number of "rows", or 1; with "rows" and "late", `scale` is the
    # rest, by which the backward pass multiplies the gradient
    factor: str = "none"


class Tensors(NamedTuple):
    """Pointers."""

    inputs: tl.tensor
    target: tl.tensor
    class_weight: tl.tensor
    weights: tl.tensor
    loss: tl.tensor
    sums: tl.tensor
    gradient: tl.tensor
    scale: tl.tensor  # the factor that the gradient of a mean still lacks
    partial: tl.tensor  # (programs, T + 1): sums of the terms and of the weights of rows
    totals: tl.tensor  # (WEIGHERS,): sums of the weights of rows
    grad: tl.tensor  # of the loss


class Sizes(NamedTuple):
    """Numbers that differ from batch to batch."""

    count: tl.tensor  # rows
    programs: tl.tensor
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

    t: Tensors
    n: Sizes
    inputs: tl.tensor
    at: tl.tensor
    gradient: tl.tensor
    gradient_at: tl.tensor
    target: tl.tensor  # rows of soft targets
    label: tl.tensor  # or `()`: no mask for the label
    inside: tl.tensor


# --- addresses -----------------------------------------------------------------------------------


@triton.jit
def _offsets(
    rows: tl.tensor, row_stride: tl.tensor, outer_stride: tl.tensor, inner: tl.tensor,
    FLAT: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Where rows begin; every `inner` of them there is a jump unless they are FLAT."""
    if FLAT:
        return rows.to(tl.int64) * row_stride
    else:
        outer = rows // inner
        return outer.to(tl.int64) * outer_stride + (rows - outer * inner).to(tl.int64) * row_stride


@triton.jit
def tile_of(
    t: Tensors, n: Sizes, first: tl.tensor, label: tl.tensor, inside: tl.tensor,
    C: tl.constexpr,
) -> Tile:  # fmt: skip
    """The tile of C.R rows from `first` on."""
    lanes = tl.arange(0, C.R)
    begin = _offsets(first + lanes, n.row_stride, n.outer_stride, n.inner, C.flat)
    base, packed = first.to(tl.int64) * C.K, lanes.to(tl.int64) * C.K
    target = t.target
    if C.soft:
        target = t.target + _offsets(
            first + lanes, n.target_row_stride, n.target_outer_stride, n.target_inner, False
        )
    return Tile(
        t, n,
        t.inputs + base if C.packed else t.inputs, packed if C.packed else begin,
        t.gradient + base if C.dense else t.gradient, packed if C.dense else begin,
        target, label, inside,
    )  # fmt: skip


@triton.jit
def without_label(tile: Tile) -> Tile:
    """The same rows, without a mask for the label."""
    return Tile(*tile[:7], (), tile.inside)


@triton.jit
def prefetch(at: tl.tensor, first: tl.tensor, COUNT: tl.constexpr, END: tl.constexpr) -> None:
    """Prefetch COUNT contiguous entries, which begin at `first` and end at END at the latest."""
    EACH: tl.constexpr = 1024 // at.dtype.element_ty.primitive_bitwidth  # entries of a line
    LINES: tl.constexpr = triton.next_power_of_2((COUNT + EACH - 1) // EACH)
    tm.prefetch(at + tl.minimum(first + tl.arange(0, LINES) * EACH, END - 1))


@triton.jit
def prefetch_tile(t: Tensors, n: Sizes, index: tl.tensor, C: tl.constexpr) -> None:
    """Prefetch the next tile of packed rows after `index`; of 16 bits the one after that."""
    AHEAD: tl.constexpr = 32 // t.inputs.dtype.element_ty.primitive_bitwidth
    first = tl.minimum((index + AHEAD * n.programs) * C.R, n.count - C.R)
    prefetch(t.inputs + first.to(tl.int64) * C.K, 0, C.R * C.K, C.R * C.K)
    prefetch(t.target + first, 0, C.R, C.R)


@triton.jit
def _exists(tile: Tile, j: tl.tensor, C: tl.constexpr) -> tl.tensor:
    return (j < C.K)[None, :] if C.whole else tile.inside[:, None] & (j < C.K)[None, :]


@triton.jit
def load(
    tile: Tile, j: tl.tensor, END: tl.constexpr, C: tl.constexpr, AGAIN: tl.constexpr = False
) -> tl.tensor:
    """Values of classes j (C,), which end at END, as (R, C) float32; no evidence beyond the last.

    Values that are loaded AGAIN need not stay in the caches. Of packed rows the compiler knows the
    strides: `max_contiguous` keeps it from assigning the lanes of few classes to classes.
    """
    KEEP: tl.constexpr = "evict_first" if AGAIN else ""
    if C.across:
        at = tile.inputs + (tile.at[:, None] + j[None, :])
    elif C.packed:
        at = tile.inputs + tl.max_contiguous(tile.at[:, None] + j[None, :], [1, 1])
    else:
        at = tile.inputs + (tile.at[:, None] + (j * tile.n.class_stride)[None, :])
    if C.whole and END <= C.K:
        return tl.load(at, eviction_policy=KEEP).to(tl.float32)
    else:
        return tl.load(at, _exists(tile, j, C), _NO_EVIDENCE, eviction_policy=KEEP).to(tl.float32)


@triton.jit
def load_evidence(tile: Tile, j: tl.tensor, END: tl.constexpr, C: tl.constexpr) -> tl.tuple:
    """Evidence of classes j (C,), which end at END, and a mask of those that exist, or `()`."""
    here = ()
    if END > C.K:
        here = (j < C.K)[None, :]
    return tm.evidence(load(tile, j, END, C), C), here


@triton.jit
def load_target(tile: Tile, j: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """Soft targets of classes j (C,) as (R, C) float32; 0 beyond the last."""
    steps = j if C.across else j * tile.n.target_class_stride
    at = tile.target[:, None] + steps[None, :]
    return tl.load(at, _exists(tile, j, C), 0.0).to(tl.float32)


@triton.jit
def store(tile: Tile, grad: tl.tensor, j: tl.tensor, END: tl.constexpr, C: tl.constexpr) -> None:
    """Store the gradient (R, C) of classes j (C,); the values are of more use in the caches."""
    steps = j if C.dense else j * tile.n.class_stride
    at = tile.gradient + (tile.gradient_at[:, None] + steps[None, :])
    if C.whole and END <= C.K:
        tl.store(at, grad, eviction_policy="evict_first")
    else:
        tl.store(at, grad, _exists(tile, j, C), eviction_policy="evict_first")


# --- sums over classes ---------------------------------------------------------------------------


@triton.jit
def _add4(
    a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor,
    e: tl.tensor, f: tl.tensor, g: tl.tensor, h: tl.tensor,
) -> tl.tuple:  # fmt: skip
    return a + e, b + f, c + g, d + h


@triton.jit
def _totals(x: tl.tuple) -> tl.tuple:
    """The sums of tensors (N,), four at once: that takes the barriers of one."""
    out: tl.tensor = ()
    FOURS: tl.constexpr = len(x) // 4 if tm.COMPILED else 0  # interpreted, they are slow
    for i in tl.static_range(FOURS):
        out += tl.reduce(x[4 * i : 4 * i + 4], 0, _add4)
    for i in tl.static_range(4 * FOURS, len(x)):
        out += (tl.sum(x[i], 0),)
    return out


@triton.jit
def _combine(
    s: tl.tuple,
    values: tl.tuple,
    here: tl.tensor,
    TILE: tl.constexpr,
    TOP: tl.constexpr,
) -> tl.tuple:
    out: tl.tensor = ()
    for i in tl.static_range(len(s)):
        if isinstance(values[i], tl.tensor):
            x = values[i]
            if isinstance(here, tl.tensor):
                x = tl.where(here, x, 0.0)
            if TOP and i == 0:
                out += (tl.maximum(s[i], x if TILE else tl.max(x, 1)),)
            else:
                out += (s[i] + (x if TILE else tl.sum(x, 1)),)
        else:
            out += (s[i],)
    return out


@triton.jit
def sweep(
    STEP: tl.constexpr, N: tl.constexpr, given: tl.tensor, tile: Tile, C: tl.constexpr,
    TOP: tl.constexpr = False,
) -> tl.tuple:  # fmt: skip
    """Sums (R,) over all classes of N values (R, C); with TOP the first is the maximum instead.

    STEP(given, tile, j, END, C) returns the values of classes j (C,), `()` for those that are not
    needed, and a mask or `()`. Where a row is spread over threads and has several blocks, each
    thread adds up its part of the blocks before the sum over threads. There the label's block comes
    last, so that the others need no mask for the label.
    """
    TILE: tl.constexpr = C.across and C.BLOCKS > 1
    APART: tl.constexpr = TILE and C.R == 1 and isinstance(tile.label, tl.tensor)
    FULL: tl.constexpr = TILE and C.TAIL == C.C
    R: tl.constexpr = C.R
    BLOCK: tl.constexpr = C.C
    LOOPED: tl.constexpr = C.BLOCKS * C.C
    MORE: tl.constexpr = LOOPED + C.TAIL
    s = (tl.zeros([R, BLOCK] if TILE else [R], tl.float32),) * N
    j = tl.arange(0, C.C)
    if C.BLOCKS == 1:  # not a loop: the compiler then shares subexpressions with other sweeps
        values, here = STEP(given, tile, j, LOOPED, C)
        s = _combine(s, values, here, TILE, TOP)
    elif APART:
        others = without_label(tile)
        own = tl.minimum(tl.maximum(tl.sum(tile.label, 0), 0) // C.C, C.BLOCKS - 1)
        for i in range(C.BLOCKS - 1):
            block = i + tl.where(i < own, 0, 1)
            if C.packed:
                prefetch(tile.inputs, (block + 2) * C.C, C.C, C.K)
            values, here = STEP(given, others, j + block * C.C, LOOPED, C)
            s = _combine(s, values, here, TILE, TOP)
        for i in range(2 if FULL else 1):  # a loop: the compiler would need more registers
            block = tl.where(i == 0, own, C.BLOCKS)
            values, here = STEP(given, tile, j + block * C.C, MORE if FULL else LOOPED, C)
            s = _combine(s, values, here, TILE, TOP)
    else:
        for block in range(C.BLOCKS):
            values, here = STEP(given, tile, j + block * C.C, LOOPED, C)
            s = _combine(s, values, here, TILE, TOP)
    if TILE:
        s = _combine((tl.zeros([R], tl.float32),) * N, s, (), False, TOP)
    if C.TAIL > 0 and not (APART and FULL):
        values, here = STEP(given, tile, LOOPED + tl.arange(0, C.TAIL), MORE, C)
        s = _combine(s, values, here, False, TOP)
    if C.LAST > 0:
        values, here = STEP(given, tile, MORE + tl.arange(0, C.LAST), MORE + C.LAST, C)
        s = _combine(s, values, here, False, TOP)
    return s


# --- weights -------------------------------------------------------------------------------------


@triton.jit
def labels_of(t: Tensors, rows: tl.tensor, inside: tl.tensor, C: tl.constexpr) -> tl.tuple:
    """Labels, or -1, and the weights of rows: 0 where ignored, NaN for other labels."""
    label = tl.load(t.target + rows, inside, 0)
    known = (label >= 0) & (label < C.K)
    safe = tl.where(known, label, 0).to(tl.int32)
    weight = tl.full(rows.shape, 1.0, tl.float32)
    if C.class_weighted:
        weight = tl.load(t.class_weight + safe).to(tl.float32)
    weight = tl.where(known, weight, float("nan"))
    weight = tl.where(inside & (label != C.spec.ignore_index), weight, 0.0)
    return tl.where(known & (label != C.spec.ignore_index), safe, -1), weight


@triton.jit
def weigh(t: Tensors, n: Sizes, C: tl.constexpr) -> None:
    """Add up the weights of all rows, each of WEIGHERS programs into its entry of `totals`."""
    total = tl.zeros([_MANY], tl.float32)
    first = tl.program_id(0) * _MANY
    while first < n.count:
        rows = first + tl.arange(0, _MANY)
        total += labels_of(t, rows, rows < n.count, C)[1]
        first += WEIGHERS * _MANY
    tl.store(t.totals + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def inverse_weight(total: tl.tensor) -> tl.tensor:
    """1/total, 1 where that is 0."""
    return 1.0 / tl.where(total == 0.0, 1.0, total)


@triton.jit
def factor_of(t: Tensors, n: Sizes, C: tl.constexpr) -> tl.tensor:
    """The factor of a row's weight in the gradient, as far as it is the same for all tiles."""
    if C.factor == "totals":
        return inverse_weight(tl.sum(tl.load(t.totals + tl.arange(0, WEIGHERS)), 0))
    elif C.factor == "rows":
        return 1.0 / n.count
    else:
        return 1.0


@triton.jit
def weights_of(t: Tensors, C: tl.constexpr) -> tl.tuple:
    """The weights of the terms."""
    out: tl.tensor = ()
    for i in tl.static_range(len(C.forms)):
        out += (tl.load(t.weights + i).to(tl.float32),)
    return out


@triton.jit
def by_form(w: tl.tuple, weight: tl.tensor, C: tl.constexpr) -> PerForm:
    """The weights of all forms in rows (R,): those of the terms times `weight`, or 0."""
    out: tl.tensor = ()
    for i in tl.static_range(len(C.columns)):
        if C.columns[i] < 0:
            out += (tl.zeros_like(weight),)
        else:
            out += (weight * (C.growth[C.columns[i]] * w[C.columns[i]]),)
    return PerForm(*out)


# --- sums over rows ------------------------------------------------------------------------------


@triton.jit
def select(forms: PerForm, C: tl.constexpr) -> tl.tuple:
    """The terms of the loss, in its order."""
    out: tl.tensor = ()
    for i in tl.static_range(len(C.forms)):
        out += (C.growth[i] * forms[C.forms[i]],)
    return out


@triton.jit
def weighted(w: tl.tuple, terms: tl.tuple) -> tl.tensor:
    """The weighted sum of the terms."""
    total = w[0] * terms[0]
    for i in tl.static_range(1, len(terms)):
        total += w[i] * terms[i]
    return total


@triton.jit
def add(acc: tl.tuple, terms: tl.tuple, weight: tl.tensor) -> tl.tuple:
    """Add terms times the weights of rows (R,), and last the weights; 0 hides even NaN."""
    out: tl.tensor = ()
    for i in tl.static_range(len(terms)):
        out += (acc[i] + tl.where(weight == 0.0, 0.0, weight * terms[i]),)
    out += (acc[len(terms)] + weight,)
    return out


@triton.jit
def _put_loss(t: Tensors, n: Sizes, w: tl.tuple, totals: tl.tuple, C: tl.constexpr) -> None:
    """Store the sums of the terms and the loss; `totals` are those sums and the weight of rows."""
    for i in tl.static_range(len(w)):
        tl.store(t.sums + i, totals[i])
    total = totals[len(w)]
    factor = inverse_weight(total) if C.spec.reduction == "mean" else 1.0
    if C.spec.reduction != "none":
        tl.store(t.loss, weighted(w, totals[: len(w)]) * factor)
    if C.factor == "rows":  # exactly 1 if all rows count
        tl.store(t.scale, n.count / tl.where(total == 0.0, 1.0, total))
    elif C.factor == "late":
        tl.store(t.scale, factor)


@triton.jit
def put(t: Tensors, n: Sizes, w: tl.tuple, acc: tl.tuple, C: tl.constexpr) -> None:
    """Store a program's sums in its line of `partial`, or the loss if it is the only program."""
    totals = _totals(acc)
    if C.single:
        _put_loss(t, n, w, totals, C)
    else:
        line = t.partial + tl.program_id(0) * len(acc)
        for i in tl.static_range(len(acc)):
            tl.store(line + i, totals[i])


@triton.jit
def finish(t: Tensors, n: Sizes, C: tl.constexpr) -> None:
    """Add up the sums in `partial`, always in the same order."""
    w = weights_of(t, C)
    columns = (tl.zeros([_MANY], tl.float32),) * (len(w) + 1)
    first = 0
    while first < n.programs:
        lines = first + tl.arange(0, _MANY)
        values: tl.tensor = ()
        for i in tl.static_range(len(w) + 1):
            values += (tl.load(t.partial + lines * (len(w) + 1) + i, lines < n.programs, 0.0),)
        columns = _combine(columns, values, (), True, False)
        first += _MANY
    _put_loss(t, n, w, _totals(columns), C)


@triton.jit
def rescale(t: Tensors, n: Sizes, SCALED: tl.constexpr) -> None:
    """Multiply the gradient, `n.row_stride` entries, by `grad` and `scale`, unless by 1."""
    by = tl.load(t.grad).to(tl.float32)
    if SCALED:
        by *= tl.load(t.scale)
    if by != 1.0:
        step = tl.num_programs(0).to(tl.int64) * RESCALED
        first = tl.program_id(0).to(tl.int64) * RESCALED
        while first < n.row_stride:
            at = first + tl.arange(0, RESCALED)
            values = tl.load(t.gradient + at, at < n.row_stride, 0.0).to(tl.float32)
            tl.store(t.gradient + at, values * by, at < n.row_stride)
            first += step
