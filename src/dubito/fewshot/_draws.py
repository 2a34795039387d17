"""Random draws that are functions of counters, so that any episode can be drawn by itself.

A draw is a hash of its key (the finalizer of SplitMix64), the same on every machine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["choices", "keys"]

Keys = NDArray[np.uint64]
Indices = NDArray[np.int64]

#: rows that stay in the cache of a processor
BLOCK = 16384
#: increment of SplitMix64
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def keys(parents: Keys, counters: Indices | Keys) -> Keys:
    """Hash pairs of a parent key and a counter >= 0, which broadcast.

    >>> keys(np.zeros(1, np.uint64), np.array([[0], [1]]))
    array([[16294208416658607535], [ 7960286522194355700]], dtype=uint64)
    """
    x: Keys = parents + GOLDEN * (counters.astype(np.uint64) + np.uint64(1))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def choices(parents: Keys, sizes: Indices, count: int) -> Indices:
    """Draw `count` different numbers below a size for each of R keys, in random order: (R, count).

    These are the first swaps of a Fisher-Yates shuffle; arrays of the given sizes are never built.
    A larger count leaves the first draws unchanged.

    >>> choices(keys(np.zeros(1, np.uint64), np.arange(2)), np.array([3, 600]), 3)
    array([[  1,   2,   0], [165, 130, 527]])
    """
    bits = keys(parents[:, None], np.arange(count)) >> np.uint64(32)
    left = (sizes[:, None] - np.arange(count)).astype(np.uint64)
    # Draw j swaps place j with a place from j on.
    places = ((bits * left) >> np.uint64(32)).astype(np.int32)
    places += np.arange(count, dtype=np.int32)
    blocks = [_swap(places[i : i + BLOCK].T.copy()) for i in range(0, len(places), BLOCK)]
    return np.concatenate([block.T for block in blocks]).astype(np.int64)


def _swap(places: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the numbers that the swaps move to the first places: (count, R) -> (count, R)."""
    drawn, moved = places.copy(), np.empty_like(places)
    for j in range(len(places)):
        moved[j] = j
        for column, at in ((moved, np.int32(j)), (drawn, places[j])):
            # Matches are few and in the order of k; the last one at a place counts.
            k, row = np.divmod(np.flatnonzero(places[:j] == at), places.shape[1])
            column[j, row] = moved[k, row]
    return drawn
