"""Threads that decode inputs, shared by a process."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from torch.utils.data import get_worker_info

__all__: list[str] = []

T = TypeVar("T")
R = TypeVar("R")

THREADS = min(8, os.cpu_count() or 1)
#: items that wait for a thread
QUEUED = 4096


def each(function: Callable[[T], R], items: Sequence[T]) -> list[R | Exception]:
    """Return function(item) or the error it raised; decoding releases the interpreter's lock.

    Workers of a `DataLoader` use no further threads.

    Args:
        function: Function of one item.
        items: Items.
    """

    def attempt(item: T) -> R | Exception:
        try:
            return function(item)
        except Exception as error:  # decoders raise errors of many kinds for a damaged file
            return error

    if len(items) == 1 or get_worker_info() is not None:
        return [attempt(item) for item in items]
    results: list[R | Exception] = []
    for start in range(0, len(items), QUEUED):
        results += _pool(os.getpid()).map(attempt, items[start : start + QUEUED])
    return results


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Return the threads of a process; those of its parent do not exist in it after a fork."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="dubito-decode")
