"""All measures of a batch of logits in Triton, in one pass: the order is that of `NAMES`.

Conflict between classes (dissonance) looks at all pairs of them, and is there for few classes only.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from dubito.kernels import triton_math as tm
from dubito.kernels.triton_rows import PLAIN, load, offsets

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
# evidence whose inverse is in range; conflict below it is none
_LEAST = tl.constexpr(1e-30)


class Sums(NamedTuple):
    """Sums over the classes (R,)."""

    evidence: tl.tensor
    top: tl.tensor
    """the largest evidence"""
    rest: tl.tensor
    """alpha0 less the class beyond the limit, if there is one"""
    rest_evidence: tl.tensor
    """the same of the evidence"""
    bregman: tl.tensor
    near: tl.tensor
    gaps: tl.tensor
    surprise: tl.tensor
    """-p log2 p without the class beyond the limit"""
    conflict: tl.tensor


@triton.jit
def _first(s: tl.tensor, e: tl.tensor, here: tl.tensor) -> tl.tensor:
    return Sums(
        s.evidence + tl.sum(tl.where(here, e, 0.0), 1),
        tl.maximum(s.top, tl.max(tl.where(here, e, 0.0), 1)),
        s.rest, s.rest_evidence, s.bregman, s.near, s.gaps, s.surprise, s.conflict,
    )  # fmt: skip


@triton.jit
def _second(s: tl.tensor, e: tl.tensor, here: tl.tensor, K: tl.constexpr) -> tl.tensor:
    alpha0 = s.evidence + K
    ordinary = here & (e <= (0.625 * alpha0 - 1.0)[:, None])
    modest = here & (e <= 0.625 * s.evidence[:, None])
    z, _, below = tm.family(e)
    value, small = tm.bregman(e, z, tm.log2(below))
    p = (1.0 + e) * tm.inverse(alpha0)[:, None]
    return Sums(
        s.evidence, s.top,
        s.rest + tl.sum(tl.where(ordinary, 1.0 + e, 0.0), 1),
        s.rest_evidence + tl.sum(tl.where(modest, e, 0.0), 1),
        s.bregman + tl.sum(tl.where(here, value, 0.0), 1),
        s.near + tl.sum(tl.where(here & small, e, 0.0), 1),
        s.gaps + tl.sum(tl.where(here, tm.gap_moment(z), 0.0), 1),
        s.surprise - tl.sum(tl.where(ordinary, p * tm.log2(p), 0.0), 1),
        s.conflict,
    )  # fmt: skip


@triton.jit
def _third(
    s: tl.tensor, e: tl.tensor, j: tl.tensor, here: tl.tensor, start: tl.tensor, inside: tl.tensor,
    class_stride: tl.tensor, K: tl.constexpr, FUNCTION: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Each of these classes against all: sum_k e_k balance_k."""
    balance = tl.zeros_like(e)
    for i in range(K):
        x = tl.load(start + i * class_stride, inside, 0.0).to(tl.float32)
        other = tm.evidence(x, FUNCTION)[:, None]
        both = e + other
        share = tl.minimum(e, other) * tm.inverse(tl.where(both > _LEAST, both, 1.0))
        balance += tl.where(j[None, :] != i, 2.0 * other * share, 0.0)
    total = s.evidence[:, None]
    others = tl.where(e > 0.625 * total, s.rest_evidence[:, None], total - e)
    ratio = balance * tm.inverse(tl.where(others > _LEAST, others, 1.0))
    return Sums(
        s.evidence, s.top, s.rest, s.rest_evidence, s.bregman, s.near, s.gaps, s.surprise,
        s.conflict + tl.sum(tl.where(here, e * ratio, 0.0), 1),
    )  # fmt: skip


@triton.jit
def _step(
    s: tl.tensor, start: tl.tensor, j: tl.tensor, inside: tl.tensor, class_stride: tl.tensor,
    STAGE: tl.constexpr, K: tl.constexpr, KNOWN: tl.constexpr, FUNCTION: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    here = (j < K)[None, :] & inside[:, None]
    e = tm.evidence(load(start, j, inside, class_stride, K, KNOWN), FUNCTION)
    if STAGE == 1:
        return _first(s, e, here)
    elif STAGE == 2:
        return _second(s, e, here, K)
    else:
        return _third(s, e, j, here, start, inside, class_stride, K, FUNCTION)


@triton.jit
def _sweep(
    s: tl.tensor, start: tl.tensor, inside: tl.tensor, class_stride: tl.tensor,
    STAGE: tl.constexpr, K: tl.constexpr, C: tl.constexpr, BLOCKS: tl.constexpr,
    TAIL: tl.constexpr, KNOWN: tl.constexpr, FUNCTION: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    j = tl.arange(0, C)
    if BLOCKS == 1:
        s = _step(s, start, j, inside, class_stride, STAGE, K, KNOWN, FUNCTION)
    else:
        for block in range(BLOCKS):
            s = _step(s, start, j + block * C, inside, class_stride, STAGE, K, KNOWN, FUNCTION)
    if TAIL > 0:
        rest = BLOCKS * C + tl.arange(0, TAIL)
        s = _step(s, start, rest, inside, class_stride, STAGE, K, KNOWN, FUNCTION)
    return s


@triton.jit(do_not_specialize=PLAIN)
def measures(
    logits: tl.tensor, out: tl.tensor, mu: tl.tensor, constant: tl.tensor, count: tl.tensor,
    inner: tl.tensor, class_stride: tl.tensor, row_stride: tl.tensor, outer_stride: tl.tensor,
    CONFLICT: tl.constexpr, FUNCTION: tl.constexpr, FLAT: tl.constexpr, KNOWN: tl.constexpr,
    K: tl.constexpr, C: tl.constexpr, BLOCKS: tl.constexpr, TAIL: tl.constexpr, R: tl.constexpr,
) -> None:  # fmt: skip
    """Fill in `out` (measures, count); `constant` is ln Gamma(K)."""
    rows = tl.program_id(0) * R + tl.arange(0, R)
    inside = rows < count
    start = logits + offsets(rows, row_stride, outer_stride, inner, FLAT)
    o = tl.zeros([R], tl.float32)
    s = Sums(o, o, o, o, o, o, o, o, o)
    for stage in tl.static_range(1, 3):
        s = _sweep(s, start, inside, class_stride, stage, K, C, BLOCKS, TAIL, KNOWN, FUNCTION)
    if CONFLICT:
        s = _sweep(s, start, inside, class_stride, 3, K, C, BLOCKS, TAIL, KNOWN, FUNCTION)
    alpha0, top = s.evidence + K, 1.0 + s.top
    inverse = tm.inverse(alpha0)
    total, less, small = tm.row_divergence(s.evidence, K, mu)
    near = s.bregman + (s.evidence - s.near) - total
    divergence = tl.where(small, near, (s.bregman - s.near) - less)
    apart = s.top > 0.625 * alpha0 - 1.0
    own = top * inverse * tm.row_log1p(s.rest * tm.inverse(top))
    entropy = _LN2 * s.surprise + tl.where(apart, own, 0.0)
    gap0 = tm.gap_moment(tm.variable(alpha0 - 1.0))
    information = inverse * (s.gaps - gap0)
    at = out + rows
    step = count.to(tl.int64)
    tl.store(at, top * inverse, inside)
    tl.store(at + step, top, inside)
    tl.store(at + 2 * step, alpha0, inside)
    tl.store(at + 3 * step, -divergence - constant, inside)
    tl.store(at + 4 * step, information, inside)
    tl.store(at + 5 * step, entropy - information, inside)
    tl.store(at + 6 * step, entropy, inside)
    tl.store(at + 7 * step, K * inverse, inside)
    if CONFLICT:
        tl.store(at + 8 * step, s.conflict * inverse, inside)
