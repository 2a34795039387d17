"""Scores of a batch of logits in Triton, in one pass, for alpha = evidence + 1."""

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from dubito.kernels import triton_math as tm
from dubito.kernels.triton_backend import FLOATS, MOST_ROWS, Kernel, kernel
from dubito.kernels.triton_plan import blocks, configure, layout
from dubito.kernels.triton_rows import Sizes, Tensors, Tile, load_evidence, sweep, tile_of
from dubito.numerics.spec import LossSpec

__all__: list[str] = []

#: scores in the order of the kernel's output
NAMES = (
    "max_alpha",
    "alpha0",
    "differential_entropy",
    "mutual_information",
    "expected_entropy",
    "entropy_of_mean",
)


class Sums(NamedTuple):
    """Sums over the classes (R,)."""

    rest: tl.tensor  # alpha0 without a class above 5/8 of it
    bregman: tl.tensor
    small_e: tl.tensor
    gaps: tl.tensor
    surprise: tl.tensor  # -p log2 p without a class above 5/8 of alpha0


@triton.jit
def _first(
    given: tl.tensor, tile: Tile, j: tl.tensor, END: tl.constexpr, C: tl.constexpr
) -> tl.tuple:
    """A step of `sweep`: the largest evidence, and its sum."""
    e, here = load_evidence(tile, j, END, C)
    return (e, e), here


@triton.jit
def _second(
    evidence0: tl.tensor, tile: Tile, j: tl.tensor, END: tl.constexpr, C: tl.constexpr
) -> tl.tuple:
    """A step of `sweep`: `Sums`."""
    e, here = load_evidence(tile, j, END, C)
    alpha0 = evidence0 + C.K
    ordinary = e <= (0.625 * alpha0 - 1.0)[:, None]
    g = tm.gamma(1.0 + e, e)
    value, small = tm.bregman(e, g)
    p = (1.0 + e) * tm.inverse(alpha0)[:, None]
    s = Sums(
        tl.where(ordinary, 1.0 + e, 0.0),
        value,
        tl.where(small, e, 0.0),
        tm.gap_moment(g.z),
        tl.where(ordinary, -p * tm.log2(p), 0.0),
    )
    return s, here


@triton.jit
def score_rows(t: Tensors, n: Sizes, C: tl.constexpr) -> None:
    """Fill in `t.loss` (scores, rows) in the order of `NAMES`."""
    R: tl.constexpr = C.R
    first = tl.program_id(0) * R
    rows = first + tl.arange(0, R)
    inside = rows < n.count
    tile = tile_of(t, n, first, (), inside, C)
    most, evidence = sweep(_first, 2, (), tile, C, TOP=True)
    s = Sums(*sweep(_second, len(Sums._fields), evidence, tile, C))
    alpha0, top = evidence + C.K, 1.0 + most
    inverse = tm.inverse(alpha0)
    divergence = tm.divergence(
        s.bregman, s.small_e, alpha0, evidence, C.K, C.constants.mu_total, False
    )
    own = top * inverse * tm.log1p(s.rest * tm.inverse(top))
    entropy = tm.LN2 * s.surprise + tl.where(most > 0.625 * alpha0 - 1.0, own, 0.0)
    information = inverse * (s.gaps - tm.gap_moment(tm.inverse(alpha0 + 0.5)))
    scores: tl.tensor = (
        top, alpha0, -divergence - C.constants.log_gamma, information,
        entropy - information, entropy,
    )  # fmt: skip
    for i in tl.static_range(len(scores)):
        tl.store(t.loss + n.count.to(tl.int64) * i + rows, scores[i], inside)


# --- launching -----------------------------------------------------------------------------------


@lru_cache(4096)
def _plan(
    evidence: str, shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype,
    device: torch.device, aligned: bool,
) -> tuple[Kernel, Sizes, tuple[int, ...], bool]:  # fmt: skip
    """Return the kernel, its sizes, the shape of the output, and whether to copy the values."""
    classes = int(shape[-1])
    count = shape.numel() // classes
    where = layout(shape, strides)
    cut = blocks(classes, where.class_stride, False)
    config = configure(LossSpec(("differential_entropy",), evidence), classes, cut, where)
    types = (dtype, *(torch.float32,) * 10)
    first = (0,) if where.copied or aligned else ()
    launch = kernel(score_rows, config, types, first, cut.warps, device)
    sizes = Sizes(count, -(-count // cut.R), *where[:4], 0, 0, 0, 0)
    return launch, sizes, (len(NAMES), *shape[:-1]), where.copied


def _scores(values: Tensor, evidence: str) -> Tensor:
    """Scores (M, ...) in the order of `NAMES`."""
    launch, sizes, shape, copied = _plan(
        evidence, values.shape, values.stride(), values.dtype, values.device,
        values.data_ptr() % 16 == 0,
    )  # fmt: skip
    if copied:
        values = values.contiguous()
    out = values.new_empty(shape, dtype=torch.float32)
    tensors = (values, *(None,) * 3, out, *(None,) * 6)
    launch(sizes.programs, tensors, sizes)
    return out


operator = torch.library.custom_op("dubito::uncertainty", _scores, mutates_args=())


@operator.register_fake
def _(values: Tensor, evidence: str) -> Tensor:
    return values.new_empty((len(NAMES), *values.shape[:-1]), dtype=torch.float32)


def uncertainty(values: Tensor, evidence: str) -> dict[str, Tensor] | None:
    """Scores (...) of logits (..., K) by name, or None where the kernel does not apply."""
    classes = values.shape[-1] if values.ndim else 0
    if values.dtype not in FLOATS or classes < 2:
        return None
    if not 0 < values.numel() // classes < MOST_ROWS:
        return None
    if torch.compiler.is_compiling():
        scores = torch.ops.dubito.uncertainty(values.detach(), evidence)
    else:
        scores = _scores(values, evidence)
    return dict(zip(NAMES, scores.unbind(), strict=True))
