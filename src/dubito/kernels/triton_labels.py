"""The losses of labels in Triton, class by class: sums over them, and the gradient.

The sums leave out the label, which may hold nearly all of alpha0, where 1 - p cancels; it is
computed apart, once a row, from the sums over the rest. In its place there is a class without
evidence, as there is in places beyond the last class: what these add is known, and is taken away
once a row. Another class that holds nearly all of alpha0 is set apart too, but only in the squared
errors without the trigamma: with it the class's share of the sums is no larger than another's.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import triton
import triton.language as tl

from dubito.kernels import triton_math as tm

# alpha times this can be squared: its squares stay in range for evidence up to 1e30
SMALLER = tl.constexpr(2.0**-40)
# of a class without evidence
_TRIGAMMA = tl.constexpr(math.pi**2 / 6)
_LACK = tl.constexpr(6 / math.pi**2 - 1.5)
_LOG = tl.constexpr(math.log2(6 / math.pi**2))

# places in WHICH: the groups of terms in use, and whether the sums are kept for the gradient
FISHER = tl.constexpr(0)
MSE = tl.constexpr(1)
PENALTY = tl.constexpr(2)
KL = tl.constexpr(3)


class Classes(NamedTuple):
    """A block of classes (R, C), the label's without evidence."""

    e: tl.tensor
    z: tl.tensor
    lack: tl.tensor
    """r(alpha) - 1"""
    below: tl.tensor
    """1/psi_1(alpha)"""


class Sums(NamedTuple):
    """Sums over the classes (R,)."""

    evidence: tl.tensor
    """without the label"""
    near: tl.tensor
    """the part of it below `triton_math`'s threshold"""
    bregman: tl.tensor
    excess: tl.tensor
    """r(alpha), with the label"""
    logs: tl.tensor
    """-log2 psi_1(alpha), with the label"""
    first: tl.tensor
    """alpha psi_1, without the label"""
    second: tl.tensor
    """alpha^2 psi_1, without the label"""
    alpha: tl.tensor
    """from here on for MSE alone: without the label and without what is beyond the limit"""
    squares: tl.tensor
    """of alpha, made smaller"""
    top: tl.tensor
    """the largest evidence but for the label's"""


@triton.jit
def nothing(like: tl.tensor) -> tl.tensor:
    """The sums over no classes: for rows (R,), or for a tile (R, C) that is added up later."""
    o = tl.zeros_like(like)
    return Sums(o, o, o, o, o, o, o, o, o, o)


@triton.jit
def add_up(s: tl.tensor) -> tl.tensor:
    """The sums of rows, from those of a tile."""
    return Sums(
        tl.sum(s.evidence, 1), tl.sum(s.near, 1), tl.sum(s.bregman, 1), tl.sum(s.excess, 1),
        tl.sum(s.logs, 1), tl.sum(s.first, 1), tl.sum(s.second, 1), tl.sum(s.alpha, 1),
        tl.sum(s.squares, 1), tl.max(s.top, 1),
    )  # fmt: skip


@triton.jit
def _sum(values: tl.tensor, TILE: tl.constexpr) -> tl.tensor:
    if TILE:
        return values
    else:
        return tl.sum(values, 1)


@triton.jit
def limit(e: tl.tensor, evidence: tl.tensor, K: tl.constexpr) -> tl.tensor:
    """The evidence from which a class is set apart, of the label's and the others' evidence."""
    return 0.625 * (e + evidence + K) - 1.0


@triton.jit
def others(x: tl.tensor, j: tl.tensor, label: tl.tensor, FUNCTION: tl.constexpr) -> tl.tensor:
    """The evidence of classes j (C,) with logits x (R, C), 0 for the label."""
    return tl.where(j[None, :] == label[:, None], 0.0, tm.evidence(x, FUNCTION))


@triton.jit
def classes(x: tl.tensor, j: tl.tensor, label: tl.tensor, FUNCTION: tl.constexpr) -> tl.tensor:
    """What sums and gradient take of classes j (C,) with logits x (R, C)."""
    e = others(x, j, label, FUNCTION)
    z, lack, below = tm.family(e)
    return Classes(e, z, lack, below)


@triton.jit
def take(
    s: tl.tensor, c: tl.tensor, most: tl.tensor,
    WHICH: tl.constexpr, VALUE: tl.constexpr, TILE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Add a block of classes; what only a VALUE takes may be left."""
    excess, logs, bregman, near = s.excess, s.logs, s.bregman, s.near
    first, second, total, squares, top = s.first, s.second, s.alpha, s.squares, s.top
    log = tm.log2(c.below)
    if WHICH[PENALTY]:
        excess += _sum(c.lack, TILE)
        if VALUE:
            logs += _sum(log, TILE)
    if VALUE and WHICH[KL]:
        value, small = tm.bregman(c.e, c.z, log)
        bregman += _sum(value, TILE)
        near += _sum(tl.where(small, c.e, 0.0), TILE)
    if WHICH[FISHER]:
        alpha = 1.0 + c.e
        each = alpha * tm.inverse(c.below)
        first += _sum(each, TILE)
        second += _sum(each * alpha, TILE)
    if WHICH[MSE]:
        alpha = tl.where(c.e <= most[:, None], 1.0 + c.e, 0.0)
        total += _sum(alpha, TILE)
        squares += _sum((alpha * SMALLER) * (alpha * SMALLER), TILE)
        top = tl.maximum(top, c.e if TILE else tl.max(c.e, 1))
    evidence = s.evidence + _sum(c.e, TILE)
    return Sums(evidence, near, bregman, excess, logs, first, second, total, squares, top)


@triton.jit
def settle(
    s: tl.tensor, evidence: tl.tensor, e: tl.tensor, K: tl.constexpr, EMPTY: tl.constexpr
) -> tl.tensor:
    """The sums without EMPTY classes that have no evidence, and with the label's part.

    `evidence` is that by which a class was set apart, to the bit.
    """
    _, lack, below = tm.family(e)
    return Sums(
        evidence, s.near, s.bregman,
        s.excess + (lack + (K - EMPTY * _LACK)), s.logs + (tm.log2(below) - EMPTY * _LOG),
        s.first - EMPTY * _TRIGAMMA, s.second - EMPTY * _TRIGAMMA,
        s.alpha - EMPTY, s.squares - EMPTY * (SMALLER * SMALLER), s.top,
    )  # fmt: skip


@triton.jit
def keep(
    kept: tl.tensor, s: tl.tensor, rows: tl.tensor, inside: tl.tensor, count: tl.tensor
) -> None:
    """Store what the gradient takes in kept (7, count)."""
    at = kept + rows
    step = count.to(tl.int64)
    tl.store(at, s.evidence, inside)
    tl.store(at + step, s.excess, inside)
    tl.store(at + 2 * step, s.first, inside)
    tl.store(at + 3 * step, s.second, inside)
    tl.store(at + 4 * step, s.alpha, inside)
    tl.store(at + 5 * step, s.squares, inside)
    tl.store(at + 6 * step, s.top, inside)


@triton.jit
def found(kept: tl.tensor, rows: tl.tensor, inside: tl.tensor, count: tl.tensor) -> tl.tensor:
    """What was kept."""
    at = kept + rows
    step = count.to(tl.int64)
    evidence = tl.load(at, inside, 0.0)
    o = tl.zeros_like(evidence)
    return Sums(
        evidence, o, o, tl.load(at + step, inside, 0.0), o, tl.load(at + 2 * step, inside, 0.0),
        tl.load(at + 3 * step, inside, 0.0), tl.load(at + 4 * step, inside, 0.0),
        tl.load(at + 5 * step, inside, 0.0), tl.load(at + 6 * step, inside, 0.0),
    )  # fmt: skip


@triton.jit
def gradient(
    g: tl.tensor, x: tl.tensor, c: tl.tensor, j: tl.tensor, label: tl.tensor, most: tl.tensor,
    FUNCTION: tl.constexpr, WHICH: tl.constexpr, HALF: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The gradient of the logits x (R, C) of classes j (C,)."""
    slope = tl.zeros_like(c.e) + g.even[:, None]
    if WHICH[FISHER] or WHICH[PENALTY] or WHICH[KL]:
        trigamma = tm.inverse(c.below)
        n = g.n[:, None] + g.n_e[:, None] * c.e
        if WHICH[KL]:
            n += g.n_lack[:, None] * c.lack
        if WHICH[FISHER] or WHICH[PENALTY]:
            m = tl.zeros_like(n) + g.m[:, None]
            if WHICH[FISHER]:
                each = (1.0 + c.e) * trigamma
                m += each * (g.m_0[:, None] + g.m_e[:, None] * c.e)
            fall = tm.excess_fall(c.z, HALF)
            slope += trigamma * (n + m) - fall * (trigamma * m + g.bracket[:, None])
        else:
            slope += trigamma * n
    if WHICH[MSE]:
        p = (1.0 + c.e) * g.inverse[:, None]
        mse = g.mse_even[:, None] + g.inverse[:, None] * (g.mse[:, None] + p * g.mse_p[:, None])
        slope += tl.where(c.e > most[:, None], g.top[:, None], mse)
    slope = tl.where(j[None, :] == label[:, None], g.label[:, None], slope)
    return slope * tm.evidence_slope(x, tm.evidence(x, FUNCTION), FUNCTION)
