"""Few-shot episodes: ours against ten at a time under one `torch.optim.LBFGS`, in the same run.

The baseline is the textbook loss under autograd, all 641 weights of a class, one optimizer for ten
episodes, and scikit-learn's metrics episode by episode. It computes a few batches, and both times
are scaled to 10,000 episodes. Ours include sampling and all metrics. The last row is a new process:
all of it, against one that imports torch and initializes its device. Features are those in
DUBITO_DATA/mini-imagenet-features, or random.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from benchmarks import Row, seconds
from benchmarks.textbook import _alpha, _removed_kl
from dubito.distributions import Dirichlet
from dubito.fewshot import Features, read_features
from dubito.fewshot._engine import Engine
from dubito.fewshot._episodes import Episodes, Setting
from dubito.methods import METHODS

T = TypeVar("T")

EPISODES, BATCH = 10_000, 10
#: (ways, shots, fisher_weight) of the paper
SETTINGS = ((5, 1, 0.01), (5, 5, 0.05), (5, 20, 0.005), (10, 5, 0.01))
#: episodes of ours, batches of the baseline
AMOUNTS = {"cpu": ((10_000, 3), (10_000, 3), (2_000, 2), (2_000, 2)), "cuda": ((10_000, 10),) * 4}
SCORES = ("max_prob", "max_alpha", "alpha0", "differential_entropy", "mutual_information")
START = "import torch; torch.zeros(1, device='cuda' if torch.cuda.is_available() else 'cpu')"
COMPLETE = "from benchmarks.fewshot import complete; complete()"


def pools() -> tuple[Features, Features]:
    """Return novel classes and OOD classes."""
    folder = Path(os.environ.get("DUBITO_DATA", "")) / "mini-imagenet-features"
    names = ("mini2mini_novel.npz", "mini2CUB_novel.npz")
    if all((folder / name).exists() for name in names):
        return read_features(folder / names[0]), read_features(folder / names[1])
    return _random(20, 600, 1), _random(50, 60, 2)


def _random(classes: int, each: int, seed: int) -> Features:
    drawn = torch.Generator().manual_seed(seed)
    centers = 0.05 * torch.randn(classes, 640, generator=drawn) + 0.2
    labels = torch.arange(classes).repeat_interleave(each)
    noise = 0.2 * torch.randn(len(labels), 640, generator=drawn)
    return Features(
        (centers[labels] + noise).relu(), labels, tuple(map(str, range(classes))), "random"
    )


def engine(ways: int, shots: int, weight: float) -> Engine:
    """Return the engine of a setting."""
    method = METHODS.build("iedl", fisher_weight=weight, scale="paper")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Engine(method, *pools(), setting=Setting(ways, shots), device=device)


def complete() -> None:
    """Evaluate 10,000 5-way 5-shot episodes."""
    engine(5, 5, 0.05).values(0, EPISODES)


def run() -> list[Row]:
    """Return a row per setting, and one of a new process."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    rows: list[Row] = []
    for (ways, shots, weight), (count, batches) in zip(SETTINGS, AMOUNTS[kind], strict=True):
        ours = engine(ways, shots, weight)
        ours.values(0, min(count, 500))  # load libraries
        values, own = _timed(partial(ours.values, 0, count))
        _baseline(ours, weight, 1)
        correct, theirs = _timed(partial(_baseline, ours, weight, batches))
        own, theirs = own * EPISODES / count, theirs * EPISODES / (batches * BATCH)
        rows.append(
            {
                "setting": f"{ours.setting} {ours.features.name} {kind}",
                "baseline_s": theirs,
                "ours_s": own,
                "ratio": theirs / own,
                "baseline_accuracy": float(np.mean(correct)),
                "accuracy": float(values["accuracy"][: batches * BATCH].mean()),
            }
        )
        print(rows[-1], flush=True)
    start, whole = (seconds(partial(_process, code), 2) for code in (START, COMPLETE))
    rows.append({"setting": f"new process {kind}", "baseline_s": start, "ours_s": whole})
    return rows


def _process(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    """Return the result of a call and its seconds, with the work of the device."""
    start = time.perf_counter()
    result = call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result, time.perf_counter() - start


# --- baseline ---


def _baseline(ours: Engine, weight: float, batches: int) -> list[float]:
    """Return the accuracy of each episode; the metrics are computed as well."""
    drawn = ours.sampler.draw(0, batches * BATCH)
    correct: list[float] = []
    for start in range(0, batches * BATCH, BATCH):
        part = Episodes(*(index[start : start + BATCH] for index in drawn))
        correct += _ten(ours, part, weight)
    return correct


def _ten(ours: Engine, drawn: Episodes, weight: float) -> list[float]:
    inside, outside = ours.features.values, ours.sampler.ood.values
    support, query, ood = (
        values[torch.from_numpy(index)].to(ours.device)
        for values, index in zip((inside, inside, outside), drawn, strict=True)
    )
    target = ours.sampler.labels.to(ours.device).expand(len(support), -1)
    weights, bias = _fit(support, target, ours.setting.ways, weight)
    with torch.no_grad():
        alpha, ood_alpha = (softplus(x @ weights + bias) + 1 for x in (query, ood))
    correct = (alpha.argmax(-1).cpu() == ours.sampler.query_labels).numpy()
    _evaluate(alpha, ood_alpha, correct)
    return correct.mean(-1).tolist()


def _fit(support: Tensor, target: Tensor, ways: int, weight: float) -> list[Tensor]:
    count, _, dimension = support.shape
    model = [
        torch.zeros(count, size, ways, device=support.device, requires_grad=True)
        for size in (dimension, 1)
    ]
    optimizer = torch.optim.LBFGS(
        model, lr=1, max_iter=10, tolerance_grad=1e-5, history_size=20,
        line_search_fn="strong_wolfe",
    )  # fmt: skip
    for epoch in range(10):

        def closure(kl: float = epoch / 10) -> Tensor:
            optimizer.zero_grad()
            loss = _loss(support @ model[0] + model[1], target, weight, kl)
            loss.backward()
            return loss

        optimizer.step(closure)
    return [tensor.detach() for tensor in model]


def _loss(logits: Tensor, target: Tensor, weight: float, kl: float) -> Tensor:
    alpha, total, y = _alpha(logits, target)
    psi1 = torch.polygamma(1, alpha)
    spread = alpha * (total - alpha) / (total * total * (total + 1))
    mse = (((y - alpha / total) ** 2 + spread) * psi1).sum(-1)
    logdet = psi1.log().sum(-1) + torch.log(1 - (torch.polygamma(1, total) / psi1).sum(-1))
    return (mse - weight * logdet + kl * _removed_kl(alpha, y)).mean()


def _evaluate(alpha: Tensor, ood_alpha: Tensor, correct: np.ndarray) -> list[float]:
    """Return average precision and ROC area by scikit-learn, of each episode and score."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    areas: list[float] = []
    both = torch.cat([alpha, ood_alpha], 1)
    inside = np.broadcast_to(np.arange(both.shape[1]) < alpha.shape[1], both.shape[:2])
    for values, flags in ((alpha, correct), (both, inside)):
        for name in SCORES:
            scores = Dirichlet(values).confidence(name).cpu().numpy()
            for row, flag in zip(scores, flags, strict=True):
                if 0 < flag.mean() < 1:
                    areas.append(float(average_precision_score(flag, row)))
                    areas.append(float(roc_auc_score(flag, row)))
    return areas
