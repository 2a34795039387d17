"""Random choices that follow from counters: no state, so any episode can be drawn by itself.

A draw is a hash of its key (the finaliser of SplitMix64), the same on every machine. All episodes
are drawn side by side.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["choices", "keys"]

Keys = NDArray[np.uint64]
Indices = NDArray[np.int64]

_BLOCK = 16384  # rows whose places stay in the processor's cache
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # odd, with well mixed bits: steps never meet


def _mixed(x: Keys) -> Keys:
    """A bijection of 64 bits in which every bit depends on all others."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def keys(parents: Keys, counters: Indices) -> Keys:
    """A key for each pair of a parent and a counter >= 0; the two broadcast.

    >>> keys(np.zeros(1, np.uint64), np.array([[0], [1]]))
    array([[16294208416658607535], [ 7960286522194355700]], dtype=uint64)
    """
    return _mixed(parents + _GOLDEN * (counters.astype(np.uint64) + np.uint64(1)))


def choices(parents: Keys, sizes: Indices, count: int) -> Indices:
    """For each of R keys `count` different numbers below its size, in random order: (R, count).

    The first of Fisher and Yates' swaps, of which only those that matter are kept: nothing as long
    as the sizes is ever made. More draws leave the first ones as they are.

    >>> choices(keys(np.zeros(1, np.uint64), np.arange(2)), np.array([3, 600]), 3)
    array([[  1,   2,   0], [165, 130, 527]])
    """
    bits = keys(parents[:, None], np.arange(count)) >> np.uint64(32)
    left = (sizes[:, None] - np.arange(count)).astype(np.uint64)
    # draw j swaps place j with a place from j on
    places = ((bits * left) >> np.uint64(32)).astype(np.int32)
    places += np.arange(count, dtype=np.int32)
    blocks = [_chosen(places[i : i + _BLOCK].T.copy()) for i in range(0, len(places), _BLOCK)]
    return np.concatenate([block.T for block in blocks]).astype(np.int64)


def _chosen(places: NDArray[np.int32]) -> NDArray[np.int32]:
    """What the swaps bring to the first places: (count, R) -> (count, R)."""
    chosen, moved = places.copy(), np.empty_like(places)
    for j in range(len(places)):
        moved[j] = j
        for column, at in ((moved, np.int32(j)), (chosen, places[j])):
            # matches are few, and come in the order of k: of several at a place, the last counts
            k, row = np.divmod(np.flatnonzero(places[:j] == at), places.shape[1])
            column[j, row] = moved[k, row]
    return chosen
