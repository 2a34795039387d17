"""Post-hoc scores on one core: fitting, and scoring 100 inputs, beside a plain KNN.

50,000 training samples with 512 features, as those of a ResNet-18, and ten classes. The plain way
is a matrix product with all normalized training features and top-k.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import normalize

from benchmarks import Row, seconds
from dubito.scores import SCORES

SAMPLES, SIZE, CLASSES, INPUTS, K = 50_000, 512, 10, 100, 50


def run() -> list[Row]:
    """One row a score."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_row(name) for name in SCORES]
    finally:
        torch.set_num_threads(threads)


@torch.no_grad()
def _row(name: str) -> Row:
    torch.manual_seed(0)
    target = torch.randint(CLASSES, (SAMPLES,))
    centers, head = torch.randn(CLASSES, SIZE), nn.Linear(SIZE, CLASSES)
    features = (centers[target] + torch.randn(SAMPLES, SIZE)).relu()
    score, inputs = SCORES.build(name), features[:INPUTS] + 0.1
    outputs, bank = head(features), normalize(features)
    fit = seconds(lambda: score.fit(features, outputs, target, head))
    plain = seconds(lambda: (normalize(inputs) @ bank.mT).topk(K), 10)
    ours = seconds(lambda: score(inputs, outputs[:INPUTS]), 10 if name == "knn" else 300)
    return {
        "score": name,
        "fit, s": fit,
        "100 inputs, ms": 1e3 * ours,
        "plain KNN, ms": 1e3 * plain,
        "times faster": plain / ours,
    }
