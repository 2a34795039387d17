"""The dissonance of evidence and its slopes, by distinct entries; O(distinct^2)."""

from typing import Any

import numpy as np

Array = Any  # numpy's, of mpmath numbers


def dissonance_parts(evidence: Array, count: Array) -> tuple[Any, Array | None, Array | None]:
    """phi = sum_k e_k N_k/D_k with N_k = sum_{j != k} s(e_j, e_k), D_k = sum_{j != k} e_j.

    s(a, b) = a Bal(a, b) = 2 a min(a, b)/(a + b), and 0 at a = b = 0.  The slope in e_i is

        N_i/D_i + sum_{k != i} [e_i s_2(e_k, e_i)/D_i + e_k s_1(e_i, e_k)/D_k - e_k N_k/D_k^2]

    with s_1, s_2 the slopes of s in its arguments; at a tie both are the mean of their one-sided
    values (1 and 0).  Returns phi, the slopes and the sums of the magnitudes of these terms.
    Where fewer than two classes have evidence phi has no gradient: None.
    """
    own, partner = evidence[:, None], evidence[None, :]
    others = np.where(np.eye(len(evidence), dtype=bool), count - 1, count)
    total = own + partner
    total = np.where(total == 0, total + 1, total)
    inner = (others * 2 * partner * np.minimum(own, partner) / total).sum(-1)
    rest = others @ evidence  # without a subtraction: one class can outweigh the others by 1e30
    safe = np.where(rest == 0, rest + 1, rest)
    ratio = np.where(rest == 0, 0 * rest, inner / safe)
    phi = (count * evidence * ratio).sum()
    if (count * (evidence > 0)).sum() < 2:
        return phi, None, None
    below, above, zero = own < partner, own > partner, 0 * total
    # s_2(e_k, e_i): the partner's share changes with mine
    felt = np.where(below, 2 * partner**2 / total**2, zero)
    felt = np.where(above, -2 * partner**2 / total**2, felt)
    # s_1(e_i, e_k): my share in the partner's sum
    slope = np.where(below, 2 * own * (own + 2 * partner) / total**2, 2 * partner**2 / total**2)
    slope = np.where((own == partner) & (own > 0), zero + 1, slope)
    first, size = ((others * part).sum(-1) * evidence / safe for part in (felt, abs(felt)))
    second = (others * slope * (evidence / safe)).sum(-1)
    third = (others * (evidence * ratio / safe)).sum(-1)
    return phi, ratio + first + second - third, ratio + size + second + third
