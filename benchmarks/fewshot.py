"""Few-shot episodes: ours against ten at a time under one `torch.optim.LBFGS`, in the same run.

The baseline is written straightforwardly: the textbook loss under autograd, all 641 weights of a
class, one optimiser for ten episodes, and scikit-learn's metrics episode by episode. It does a few
batches, and both times are scaled to 10,000 episodes. Sampling and all metrics are part of ours; to
compile and to warm up is not. `accuracy` are those of the same episodes. Features are those in
DUBITO_DATA/mini-imagenet-features, or else random.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from benchmarks import Row
from benchmarks.textbook import iedl
from dubito.data import Arrays, read_features
from dubito.distributions import Dirichlet
from dubito.fewshot import Engine, Pool, Setting, head
from dubito.fewshot.episodes import Episodes

T = TypeVar("T")

EPISODES, BATCH = 10_000, 10
#: (ways, shots, weight of -log det): the paper's
SETTINGS = ((5, 1, 0.01), (5, 5, 0.05), (5, 20, 0.005), (10, 5, 0.01))
#: episodes of ours, batches of the baseline
AMOUNTS = {"cpu": ((10_000, 3), (10_000, 3), (2_000, 2), (2_000, 2)), "cuda": ((10_000, 10),) * 4}
CONFIDENCE = ("max_prob", "max_alpha", "differential_entropy", "mutual_information")
DETECTION = ("max_prob", "alpha0", "differential_entropy", "mutual_information")


def pools() -> tuple[Pool, Pool, str]:
    """Novel classes, OOD classes, and what they are."""
    folder = Path(os.environ.get("DUBITO_DATA", "")) / "mini-imagenet-features"
    names = ("mini2mini_novel.npz", "mini2CUB_novel.npz")
    if all((folder / name).exists() for name in names):
        first, second = (Pool.of(read_features(folder / name)) for name in names)
        return first, second, "mini-ImageNet"
    return _random(20, 600, 1), _random(50, 60, 2), "random"


def _random(classes: int, each: int, seed: int) -> Pool:
    drawn = torch.Generator().manual_seed(seed)
    centres = 0.05 * torch.randn(classes, 640, generator=drawn) + 0.2
    labels = torch.arange(classes).repeat_interleave(each)
    noise = 0.2 * torch.randn(len(labels), 640, generator=drawn)
    names = tuple(str(i) for i in range(classes))
    return Pool.of(Arrays((centres[labels] + noise).relu(), labels, names, "random"))


def run() -> list[Row]:
    """One row a setting."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    inside, outside, kind = pools()
    rows = []
    for (ways, shots, weight), (count, batches) in zip(SETTINGS, AMOUNTS[device.type], strict=True):
        setting = Setting(ways, shots)
        engine = Engine(inside, outside, setting, head("iedl", fisher_weight=weight), device=device)
        engine.values(0, min(count, 2_000))  # compiles, and loads libraries
        found, ours = _timed(partial(engine.values, 0, count))
        _baseline(engine, weight, 1)
        correct, theirs = _timed(partial(_baseline, engine, weight, batches))
        ours, theirs = ours * EPISODES / count, theirs * EPISODES / (batches * BATCH)
        rows.append(
            {
                "setting": f"{setting} {kind} {device.type}",
                "baseline_s": theirs,
                "ours_s": ours,
                "ratio": theirs / ours,
                "baseline_accuracy": float(np.mean(correct)),
                "accuracy": float(found["accuracy"][: batches * BATCH].mean()),
            }
        )
        print(rows[-1], flush=True)
    return rows


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    """What a call gives, and its seconds, the device's work waited for."""
    start = time.perf_counter()
    result = call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result, time.perf_counter() - start


# --- the baseline --------------------------------------------------------------------------------


def _baseline(engine: Engine, weight: float, batches: int) -> list[float]:
    """Each episode's accuracy; the metrics are computed as well, and thrown away."""
    drawn = engine.sampler.draw(0, batches * BATCH)
    correct: list[float] = []
    for start in range(0, batches * BATCH, BATCH):
        part = slice(start, start + BATCH)
        correct += _ten(
            engine, Episodes(drawn.support[part], drawn.query[part], drawn.outside[part]), weight
        )
    return correct


def _ten(engine: Engine, drawn: Episodes, weight: float) -> list[float]:
    device = engine.device
    inside, outside = engine.pool.features, (engine.outside or engine.pool).features
    support, query, ood = (
        features[torch.from_numpy(index)].to(device)
        for features, index in (
            (inside, drawn.support), (inside, drawn.query), (outside, drawn.outside)
        )
    )  # fmt: skip
    target = engine.sampler.labels.to(device).expand(len(support), -1)
    model = _fitted(support, target, engine.setting.ways, weight)
    with torch.no_grad():
        alpha, ood_alpha = (softplus(x @ model[0] + model[1]) + 1 for x in (query, ood))
    correct = (alpha.argmax(-1) == engine.sampler.query_labels.to(device)).cpu().numpy()
    _judge(alpha, ood_alpha, correct)
    return [float(one) for one in correct.mean(-1)]


def _fitted(support: Tensor, target: Tensor, ways: int, weight: float) -> list[Tensor]:
    count, _, dimension = support.shape
    model = [
        torch.zeros(count, size, ways, device=support.device, requires_grad=True)
        for size in (dimension, 1)
    ]
    optimiser = torch.optim.LBFGS(
        model, lr=1, max_iter=10, tolerance_grad=1e-5, history_size=20,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    for epoch in range(10):

        def closure(kl: float = epoch / 10) -> Tensor:
            optimiser.zero_grad()
            loss = iedl(support @ model[0] + model[1], target, weight, kl).mean()
            loss.backward()
            return loss

        optimiser.step(closure)
    return [tensor.detach() for tensor in model]


def _judge(alpha: Tensor, ood_alpha: Tensor, correct: np.ndarray) -> list[float]:
    """Average precision and ROC area by scikit-learn, of each episode and measure."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    found: list[float] = []
    both = torch.cat([alpha, ood_alpha], 1)
    inside = np.arange(both.shape[1]) < alpha.shape[1]
    for names, values, flags in (
        (CONFIDENCE, alpha, correct),
        (DETECTION, both, np.broadcast_to(inside, both.shape[:2])),
    ):
        for name in names:
            scores = Dirichlet(values).confidence(name).cpu().numpy()
            for row, flag in zip(scores, flags, strict=True):
                if 0 < flag.mean() < 1:
                    found.append(float(average_precision_score(flag, row)))
                    found.append(float(roc_auc_score(flag, row)))
    return found
