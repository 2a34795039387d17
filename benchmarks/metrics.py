"""Metrics of ten thousand few-shot episodes at once, against a loop over scikit-learn or SciPy.

The loop runs on one thread. Ours is timed on all of torch's threads (`ratio`) and on one
(`ratio_1_thread`); the second is steadier on a machine that others are using too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from benchmarks import Row, seconds
from dubito import metrics

EPISODES = 10_000
SAMPLES = 150  # a 5-way episode: 75 queries in distribution and 75 out of it
REPEATS = 7

Reference = Callable[[np.ndarray, np.ndarray], float]


def run() -> list[Row]:
    """One row a metric: the times, their ratios, and the largest difference of the results."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(EPISODES, SAMPLES, generator=generator)
    positive = (torch.arange(SAMPLES) < SAMPLES // 2).expand(EPISODES, SAMPLES)
    scores += positive  # shifted by one: the classes overlap as in a real OOD task
    return [
        _row("aupr", metrics.aupr, lambda s, p: average_precision_score(p, s), scores, positive),
        _row("auroc", metrics.auroc, lambda s, p: roc_auc_score(p, s), scores, positive),
        _row("fpr95", metrics.fpr95, _fpr95, scores, positive),
    ]


def _fpr95(scores: np.ndarray, positive: np.ndarray) -> float:
    from sklearn.metrics import roc_curve

    fpr, tpr, _ = roc_curve(positive, scores, drop_intermediate=False)
    return float(fpr[tpr >= 0.95].min())


def _row(
    name: str,
    ours: Callable[[Tensor, Tensor], Tensor],
    reference: Reference,
    first: Tensor,
    second: Tensor,
) -> Row:
    pairs = list(zip(first.numpy(), second.numpy(), strict=True))
    result = ours(first, second)  # also warms up
    expected: list[float] = []
    loop_s = seconds(lambda: expected.extend(reference(a, b) for a, b in pairs))
    ours_s = seconds(lambda: ours(first, second), REPEATS)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        one_s = seconds(lambda: ours(first, second), REPEATS)
    finally:
        torch.set_num_threads(threads)
    difference = float((result.double() - torch.tensor(expected, dtype=torch.float64)).abs().max())
    return {
        "metric": name,
        "batch": f"{EPISODES} x {SAMPLES}",
        "loop_s": loop_s,
        "ours_s": ours_s,
        "ratio": loop_s / ours_s,
        "ratio_1_thread": loop_s / one_s,
        "max_difference": difference,
    }
