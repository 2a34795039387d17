"""Products of chosen rows with weights on the CPU, without a copy of the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from numba import njit

__all__ = ["compiled"]

_SIGNATURE = "void(f4[:, ::1], i8[:, ::1], f4[:, :, ::1], i8, i8, f4[:, :, ::1])"


def compiled(cache: bool) -> Callable[..., None]:
    """The function, compiled now or taken from numba's cache."""

    def products(
        features: Any,  # (N, D)
        index: Any,  # (E, M)
        weights: Any,  # (E, K, D + 1), the bias last
        start: Any,  # the first episode
        stop: Any,  # the last one, which is not included
        out: Any,  # (E, M, K)
    ) -> None:
        """Logits of some episodes."""
        size = features.shape[1]
        for e in range(start, stop):
            for i in range(index.shape[1]):
                row = index[e, i]
                for j in range(weights.shape[1]):
                    total = weights[e, j, size]
                    for k in range(size):
                        total += features[row, k] * weights[e, j, k]
                    out[e, i, j] = total

    options: dict[str, Any] = {"nogil": True, "cache": cache, "boundscheck": False}
    reordered = njit(_SIGNATURE, fastmath={"contract", "reassoc", "nsz"}, **options)
    return cast(Callable[..., None], reordered(products))
