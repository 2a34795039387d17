"""Scores of a batch of logits in Triton, in one pass, for alpha = evidence + 1.

Dissonance compares all pairs of classes, and is computed for few classes only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from dubito.kernels import triton_math as tm
from dubito.kernels.spec import LossSpec
from dubito.kernels.triton_backend import FLOATS, Kernel, type_name
from dubito.kernels.triton_plan import (
    FEW,
    Layout,
    blocks,
    columns,
    constants,
    groups,
    layout,
)
from dubito.kernels.triton_rows import Config, Sizes, load, sweep, tile_of

#: scores in the order of the kernel's output; the last for few classes only
NAMES = (
    "max_prob",
    "max_alpha",
    "alpha0",
    "differential_entropy",
    "mutual_information",
    "expected_entropy",
    "entropy_of_mean",
    "vacuity",
    "dissonance",
)
_LN2 = tl.constexpr(0.6931471805599453)
# evidence whose inverse is in range; below it dissonance is 0
_LEAST = tl.constexpr(1e-30)


class Totals(NamedTuple):
    """Sums over the classes (R,)."""

    evidence: tl.tensor
    top: tl.tensor  # the largest evidence


class Sums(NamedTuple):
    """Sums over the classes that need the total (R,)."""

    rest: tl.tensor  # alpha0 less the class beyond the limit, if there is one
    rest_evidence: tl.tensor  # the same of the evidence
    bregman: tl.tensor
    near: tl.tensor
    gaps: tl.tensor
    surprise: tl.tensor  # -p log2 p without the class beyond the limit


@triton.jit
def _evidence(tile: tl.tensor, j: tl.tensor, END: tl.constexpr, C: tl.constexpr) -> tl.tensor:
    """The evidence of classes j (C,), and which of them exist."""
    return tm.evidence(load(tile, j, END, C), C), (j < C.K)[None, :] & tile.inside[:, None]


@triton.jit
def _add(total: tl.tensor, values: tl.tensor, here: tl.tensor) -> tl.tensor:
    return total + tl.sum(tl.where(here, values, 0.0), 1)


@triton.jit
def _first(
    s: tl.tensor, given: tl.tensor, t: tl.tensor, tile: tl.tensor, j: tl.tensor,
    END: tl.constexpr, C: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    e, here = _evidence(tile, j, END, C)
    return Totals(_add(s.evidence, e, here), tl.maximum(s.top, tl.max(tl.where(here, e, 0.0), 1)))


@triton.jit
def _second(
    s: tl.tensor, total: tl.tensor, t: tl.tensor, tile: tl.tensor, j: tl.tensor,
    END: tl.constexpr, C: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    e, here = _evidence(tile, j, END, C)
    alpha0 = total.evidence + C.K
    ordinary = here & (e <= (0.625 * alpha0 - 1.0)[:, None])
    z, _, below = tm.family(e)
    value, small = tm.bregman(e, z, tm.log2(below))
    p = (1.0 + e) * tm.inverse(alpha0)[:, None]
    return Sums(
        _add(s.rest, 1.0 + e, ordinary),
        _add(s.rest_evidence, e, here & (e <= 0.625 * total.evidence[:, None])),
        _add(s.bregman, value, here),
        _add(s.near, e, here & small),
        _add(s.gaps, tm.gap_moment(z), here),
        _add(s.surprise, -p * tm.log2(p), ordinary),
    )


@triton.jit
def _balance(
    s: tl.tensor, given: tl.tensor, t: tl.tensor, tile: tl.tensor, j: tl.tensor,
    END: tl.constexpr, C: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Each of these classes against all: sum_k e_k balance_k."""
    e, here = _evidence(tile, j, END, C)
    balance = tl.zeros_like(e)
    for i in range(C.K):
        x = tl.load(tile.inputs + (tile.at + i * tile.class_stride), tile.inside, 0.0)
        other = tm.evidence(x.to(tl.float32), C)[:, None]
        both = e + other
        share = tl.minimum(e, other) * tm.inverse(tl.where(both > _LEAST, both, 1.0))
        balance += tl.where(j[None, :] != i, 2.0 * other * share, 0.0)
    total, rest = given
    others = tl.where(e > 0.625 * total[:, None], rest[:, None], total[:, None] - e)
    ratio = balance * tm.inverse(tl.where(others > _LEAST, others, 1.0))
    return _add(s, e * ratio, here)


@triton.jit
def score_rows(t: tl.tensor, n: tl.tensor, C: tl.constexpr, DISSONANCE: tl.constexpr) -> None:
    """Fill in `t.loss` (scores, rows) in the order of `NAMES`."""
    R: tl.constexpr = C.R
    first = tl.program_id(0) * R
    rows = first + tl.arange(0, R)
    inside = rows < n.count
    tile = tile_of(t, n, first, rows, inside, C)
    o = tl.zeros([R], tl.float32)
    m = sweep(Totals(o, o), o, t, tile, _first, C)
    s = sweep(Sums(o, o, o, o, o, o), m, t, tile, _second, C)
    alpha0, top = m.evidence + C.K, 1.0 + m.top
    inverse = tm.inverse(alpha0)
    total, less, small = tm.row_divergence(m.evidence, C.K, C.constants.mu_total)
    near = s.bregman + (m.evidence - s.near) - total
    divergence = tl.where(small, near, (s.bregman - s.near) - less)
    apart = m.top > 0.625 * alpha0 - 1.0
    own = top * inverse * tm.row_log1p(s.rest * tm.inverse(top))
    entropy = _LN2 * s.surprise + tl.where(apart, own, 0.0)
    information = inverse * (s.gaps - tm.gap_moment(tm.variable(alpha0 - 1.0)))
    at, step = t.loss + rows, n.count.to(tl.int64)
    tl.store(at, top * inverse, inside)
    tl.store(at + step, top, inside)
    tl.store(at + 2 * step, alpha0, inside)
    tl.store(at + 3 * step, -divergence - C.constants.log_gamma, inside)
    tl.store(at + 4 * step, information, inside)
    tl.store(at + 5 * step, entropy - information, inside)
    tl.store(at + 6 * step, entropy, inside)
    tl.store(at + 7 * step, C.K * inverse, inside)
    if DISSONANCE:
        balance = sweep(o, (m.evidence, s.rest_evidence), t, tile, _balance, C)
        tl.store(at + 8 * step, balance * inverse, inside)


# --- launching -----------------------------------------------------------------------------------


class _Plan(NamedTuple):
    kernel: Kernel
    sizes: Sizes
    shape: tuple[int, ...]
    names: tuple[str, ...]
    copied: bool


_plans: dict[Any, _Plan | None] = {}


def _plan(values: Tensor, evidence: str) -> _Plan | None:
    classes = int(values.shape[-1]) if values.ndim else 0
    if values.dtype not in FLOATS or classes < 2 or not 0 < values.numel() // classes < 1 << 30:
        return None
    count = values.numel() // classes
    where = layout(values)
    place = where or Layout(1, 1, classes, 0, True)
    cut = blocks(classes, place.class_stride, False)
    spec = LossSpec(("differential_entropy",), evidence)
    contiguous = place.flat and place.class_stride == 1 and place.row_stride == classes
    config = Config(
        K=classes, C=cut.C, BLOCKS=cut.BLOCKS, TAIL=cut.TAIL, LAST=cut.LAST, R=cut.R,
        across=cut.across, flat=place.flat, packed=contiguous, dense=True, whole=False,
        single=False, factor="total", width=0, columns=columns(spec), groups=groups(spec),
        constants=constants(spec, classes), evidence=evidence, below_one=False, soft=False,
        class_weighted=False, ignored=0, reduction="none", gradient=False, split=False,
    )  # fmt: skip
    few = classes <= FEW
    types = (type_name(values.dtype), *("fp32",) * 11)
    aligned = (0,) if where is None or values.data_ptr() % 16 == 0 else ()
    kernel = Kernel(score_rows, (config, few), types, aligned, cut.warps, values.device)
    names = NAMES if few else NAMES[:-1]
    programs = -(-count // cut.R)
    sizes = Sizes(count, programs, 0, *place[:4], 0, 0, 0, 0)
    return _Plan(kernel, sizes, (len(names), *values.shape[:-1]), names, where is None)


def _scores(values: Tensor, evidence: str) -> tuple[Tensor, tuple[str, ...]] | None:
    key = (
        evidence, values.shape, values.stride(), values.dtype, values.device,
        values.data_ptr() % 16,
    )  # fmt: skip
    try:
        plan = _plans[key]
    except KeyError:
        if len(_plans) > 4096:  # batch sizes that come once
            _plans.clear()
        plan = _plans[key] = _plan(values, evidence)
    if plan is None:
        return None
    out = values.new_empty(plan.shape, dtype=torch.float32)
    held = values.contiguous() if plan.copied else values
    plan.kernel.on_device(plan.sizes.programs, (held, *(None,) * 3, out, *(None,) * 7), plan.sizes)
    return out, plan.names


@torch.library.custom_op(
    "dubito::uncertainty", mutates_args=(), schema="(Tensor values, str evidence) -> Tensor"
)
def operator(values: Tensor, evidence: str) -> Tensor:
    """Scores (M, ...) in the order of `NAMES`."""
    found = _scores(values, evidence)
    assert found is not None
    return found[0]


@operator.register_fake
def _(values: Any, evidence: Any) -> Any:
    names = len(NAMES) - (int(values.shape[-1]) > FEW)
    return values.new_empty((names, *values.shape[:-1]), dtype=torch.float32)


def uncertainty(values: Tensor, evidence: str) -> dict[str, Tensor] | None:
    """Scores (...) of logits (..., K) by name, or None where the kernel does not apply."""
    if torch.compiler.is_compiling():
        if values.dtype not in FLOATS or values.ndim == 0 or values.shape[-1] < 2:
            return None
        out = torch.ops.dubito.uncertainty(values.detach(), evidence)
        return dict(zip(NAMES, out.unbind(), strict=False))
    found = _scores(values, evidence)
    return None if found is None else dict(zip(found[1], found[0].unbind(), strict=True))
