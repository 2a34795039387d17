"""Benchmarks: how many times faster than the usual way, both timed in the same run.

Each module in the table has `run() -> list[dict]`, one row a comparison. Compare the ratios:
times depend on the machine and on its other load.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Row = dict[str, object]

# A new benchmark is one module and one line here.
BENCHMARKS: dict[str, str] = {
    "fewshot": "benchmarks.fewshot",
    "estimator": "benchmarks.estimator",
    "flows": "benchmarks.flows",
    "loss_cpu": "benchmarks.loss_cpu",
    "loss_gpu": "benchmarks.loss_gpu",
    "memory": "benchmarks.memory",
    "metrics": "benchmarks.metrics",
    "photos": "benchmarks.photos",
    "scores": "benchmarks.scores",
    "serve": "benchmarks.serve",
    "training": "benchmarks.training",
}


def seconds(call: Callable[[], object], repeats: int = 1) -> float:
    """Shortest wall-clock time of `repeats` calls: the one least disturbed by other work."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best
