"""The dissonance of evidence and its slopes, by distinct entries; O(distinct^2)."""

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = Any  # numpy's, of mpmath numbers or of long doubles

EXACT_UP_TO = 48  # distinct entries; beyond, long doubles: nothing cancels, so 64 bits are plenty
ROWS = 4_000_000  # entries of a block of rows held at once


def dissonance_parts(evidence: Array, count: Array) -> tuple[Any, Array | None, Array | None]:
    """phi = sum_k e_k N_k/D_k with N_k = sum_{j != k} s(e_j, e_k), D_k = sum_{j != k} e_j.

    s(a, b) = a Bal(a, b) = 2 a min(a, b)/(a + b), and 0 at a = b = 0.  The slope in e_i is

        N_i/D_i + sum_{k != i} [e_i s_2(e_k, e_i)/D_i + e_k s_1(e_i, e_k)/D_k - e_k N_k/D_k^2]

    with s_1, s_2 the slopes of s in its arguments; at a tie both are the mean of their one-sided
    values (1 and 0).  Returns phi, the slopes and the sums of the magnitudes of these terms.
    Where fewer than two classes have evidence phi has no gradient: None.
    """
    if len(evidence) > EXACT_UP_TO:
        long = (np.array([np.longdouble(str(v)) for v in vector]) for vector in (evidence, count))
        return _rounded(*_parts(*long))
    return _parts(evidence, count)


def _rounded(phi: Any, slope: Array | None, terms: Array | None) -> tuple[Any, Any, Any]:
    """Python floats, which mpmath takes."""
    if slope is None or terms is None:
        return float(phi), None, None
    return float(phi), *(v.astype(np.float64).astype(object) for v in (slope, terms))


def _parts(evidence: Array, count: Array) -> tuple[Any, Array | None, Array | None]:
    others = _others(evidence, count)
    inner = np.concatenate([_inner(block, evidence, count) for block in _blocks(evidence)])
    lone = others == 0
    safe = np.where(lone, others + 1, others)
    ratio = np.where(lone, 0 * others, inner / safe)
    phi = (count * evidence * ratio).sum()
    if (count * (evidence > 0)).sum() < 2:
        return phi, None, None
    parts = [_slope(block, evidence, count, safe, ratio) for block in _blocks(evidence)]
    return phi, np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def _others(evidence: Array, count: Array) -> Array:
    """sum_{j != k} e_j without a subtraction, as one class can outweigh the rest by 1e30."""
    rows = [
        np.where(_same(block, evidence), count - 1, count) @ evidence for block in _blocks(evidence)
    ]
    return np.concatenate(rows)


def _blocks(evidence: Array) -> Iterator[Array]:
    """The indices of the entries, some rows at a time."""
    step = max(1, ROWS // len(evidence))
    for start in range(0, len(evidence), step):
        yield np.arange(start, min(start + step, len(evidence)))


def _same(block: Array, evidence: Array) -> Array:
    return block[:, None] == np.arange(len(evidence))[None, :]


def _pair(block: Array, evidence: Array, count: Array) -> tuple[Array, Array, Array, Array]:
    """e_i (rows, 1), e_k (1, all), their sum (1 where both are 0), how many such partners."""
    own, partner = evidence[block][:, None], evidence[None, :]
    total = own + partner
    others = np.where(_same(block, evidence), count - 1, count)
    return own, partner, np.where(total == 0, total + 1, total), others


def _inner(block: Array, evidence: Array, count: Array) -> Array:
    """N_i = sum over partners k of s(e_k, e_i)."""
    own, partner, total, others = _pair(block, evidence, count)
    return (others * 2 * partner * np.minimum(own, partner) / total).sum(-1)


def _slope(
    block: Array, evidence: Array, count: Array, safe: Array, ratio: Array
) -> tuple[Array, Array]:
    own, partner, total, others = _pair(block, evidence, count)
    below, above = own < partner, own > partner
    zero = 0 * total
    # s_2(e_k, e_i): the partner's share changes with mine
    felt = np.where(below, 2 * partner**2 / total**2, zero)
    felt = np.where(above, -2 * partner**2 / total**2, felt)
    # s_1(e_i, e_k): my share in the partner's sum
    slope = np.where(below, 2 * own * (own + 2 * partner) / total**2, 2 * partner**2 / total**2)
    slope = np.where((own == partner) & (own > 0), zero + 1, slope)
    weight, loss = evidence / safe, evidence * ratio / safe
    here = (evidence / safe)[block]
    first = (others * felt).sum(-1) * here
    second = (others * slope * weight).sum(-1)
    third = (others * loss).sum(-1)
    size = (others * abs(felt)).sum(-1) * here
    return ratio[block] + first + second - third, ratio[block] + size + second + third
