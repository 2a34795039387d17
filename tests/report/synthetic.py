"""Records as the runner writes them, of made-up numbers: plausible, and from a seed.

The figures follow from draws that stand for a method's confidence on each set, so that metrics,
curves and distances of one record belong together.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dubito._legacy import MEASURES

SEEDS = (322, 365, 382, 510, 988)
OOD = {"mnist": ("kmnist", "fashion-mnist"), "cifar10": ("svhn", "cifar-100")}
SOURCE = {"mnist": "mnist", "cifar10": "cifar-10"}
#: method -> accuracy on MNIST and CIFAR-10, and how far apart it keeps ID and OOD
SKILL = {
    "softmax": (0.992, 0.90, 1.5),
    "label-smoothing": (0.992, 0.90, 1.6),
    "mc-dropout": (0.991, 0.83, 1.5),
    "kl-pn": (0.990, 0.28, 1.2),
    "rkl-pn": (0.988, 0.65, 0.8),
    "posterior-network": (0.992, 0.85, 1.9),
    "redl": (0.993, 0.88, 2.2),
    "edl": (0.992, 0.84, 2.1),
    "iedl": (0.993, 0.89, 2.5),
}
OF_PROBS = ("max_prob", "entropy_of_mean")
OF_SAMPLES = (*OF_PROBS, "expected_entropy", "mutual_information")
N = 300
#: what explains cells in a written report
NOTE = "The <network> is smaller & the data are fewer."


def method_of(variant: str) -> str:
    return max((m for m in SKILL if variant.startswith(m)), key=len)


def measures_of(method: str) -> tuple[str, ...]:
    if method in ("softmax", "label-smoothing"):
        return OF_PROBS
    return OF_SAMPLES if method == "mc-dropout" else tuple(MEASURES)


def _detection(inside: np.ndarray, outside: np.ndarray) -> dict[str, float]:
    positive = np.r_[np.ones(len(inside)), np.zeros(len(outside))]
    hit = positive[np.argsort(-np.r_[inside, outside], kind="stable")]
    above = np.cumsum(hit)
    bar = np.quantile(inside, 0.05)
    return {
        "aupr": float((above * hit / np.arange(1, len(hit) + 1)).sum() / len(inside)),
        "auroc": float((above * (1 - hit)).sum() / (len(inside) * len(outside))),
        "fpr95": float((outside >= bar).mean()),
    }


def _histogram(values: np.ndarray) -> list[float]:
    return [float(f"{v:.6g}") for v in np.histogram(values, 101, (0, 1), density=True)[0]]


def _reliability(sure: np.ndarray, right: np.ndarray) -> dict[str, list[float]]:
    place = np.minimum((15 * sure).astype(int), 14)
    count = np.bincount(place, minlength=15)
    some = np.maximum(count, 1)
    return {
        "confidence": (np.bincount(place, sure, 15) / some).round(6).tolist(),
        "accuracy": (np.bincount(place, right, 15) / some).round(6).tolist(),
        "count": count.tolist(),
    }


def record(recipe: str, seed: int, *, quick: bool = False, **method: Any) -> dict[str, Any]:
    """The record of one cell; `method` adds to its section of the configuration."""
    data, _, variant = recipe.partition("-")
    name = method_of(variant)
    random = np.random.default_rng([zlib.crc32(recipe.encode()), seed])
    accuracy = SKILL[name][data == "cifar10"] + random.normal(0, 0.003)
    apart = SKILL[name][2] * (1.25 if data == "mnist" else 0.66) + random.normal(0, 0.06)
    right = random.random(N) < accuracy
    inside = random.normal(0, 1, N) + 1.8 * right - 1.8
    sets = {ood: random.normal(-apart - 0.25 * i, 1, N) for i, ood in enumerate(OOD[data])}
    noisy = random.normal(-apart / 2, 1, N)
    measures = measures_of(name)
    low, high = min(s.min() for s in (inside, *sets.values())), inside.max()

    def scaled(values: np.ndarray, measure: str) -> np.ndarray:
        sure: np.ndarray = np.clip((values - low) / (high - low), 0, 1) ** 0.7
        if MEASURES[measure].rises_with == "confidence":
            return sure
        unsure: np.ndarray = (1 - sure) ** 1.5
        return unsure

    def told(other: np.ndarray) -> dict[str, Any]:
        found = {m: _detection(inside + random.normal(0, 0.1, N), other) for m in measures}
        return {"samples": N, "detection": found}

    sure = np.clip(scaled(inside, "max_prob") ** 0.5, 0.1, 1)
    order = np.argsort(-inside)
    risk = np.cumsum(~right[order]) / np.arange(1, N + 1)
    step = np.linspace(5, N - 1, 101).astype(int)
    dirichlet = "alpha0" in measures
    errors = {"ece": float(abs(sure.mean() - accuracy)), "brier": 0.2, "nll": 0.6}
    result: dict[str, Any] = {
        "accuracy": float(right.mean()),
        "calibration": errors,
        "aurc": {m: float(risk.mean()) for m in measures},
        "misclassification": {m: _detection(inside[right], inside[~right]) for m in measures}
        if 0 < right.sum() < N
        else {},
        "ood": {ood: told(values) for ood, values in sets.items()},
        "noise": {"0.1": told(noisy)},
    }
    curves: dict[str, Any] = {
        "densities": {
            part: {m: _histogram(scaled(values, m)) for m in measures}
            for part, values in {"test": inside, **sets}.items()
        },
        "energy_distance": {
            ood: {
                m: float(abs(scaled(inside, m).mean() - scaled(values, m).mean())) for m in measures
            }
            for ood, values in sets.items()
        },
        "reliability": {"before": _reliability(sure, right)},
        "risk_coverage": {
            m: {"coverage": ((step + 1) / N).round(6).tolist(), "risk": risk[step].tolist()}
            for m in measures
        },
    }
    if name != "mc-dropout":
        result["calibrated"] = {
            "kind": "evidence_scaling" if dirichlet else "temperature",
            "parameters": {"factor": 3.1},
            "calibration": {"ece": errors["ece"] / 5, "brier": 0.17, "nll": 0.41},
            "ood": {ood: told(values) for ood, values in sets.items()},
        }
        curves["reliability"]["after"] = _reliability(np.clip(sure**0.6, 0, 1), right)
    if data == "cifar10":
        rises = {"confidence": -1, "uncertainty": 1}
        result["humans"] = {
            m: {"spearman": rises[MEASURES[m].rises_with] * random.uniform(0.2, 0.4)}
            for m in measures
        } | {"samples": 10000}
    picked = random.permutation(300)[:100].reshape(10, 2, 5)
    made: dict[str, Any] = {
        "format": 1,
        "recipe": recipe,
        "id": f"{zlib.crc32(recipe.encode()) + seed:016x}",
        "seed": seed,
        "quick": quick,
        "config": {
            "data": {"source": SOURCE[data], "validation": 0.05},
            "backbone": {"name": "vgg16" if data == "cifar10" else "convnet"},
            "method": {"name": name.replace("-", "_"), **method},
            "training": {"epochs": 200, "learning_rate": 5e-4, "seed": seed},
        },
        "training": {
            "epochs": int(random.integers(40, 90)),
            "best_epoch": int(random.integers(20, 40)),
            "seconds": float(random.uniform(200, 900)),
            "validation_accuracy": accuracy,
        },
        "result": result,
        "curves": curves,
        "versions": {"dubito": "0.1.0", "torch": "2.13.0", "python": "3.12.3"},
        "device": "NVIDIA H200",
        "created": f"2026-11-{10 + SEEDS.index(seed) if seed in SEEDS else 10}T10:00:00+00:00",
    }
    if dirichlet:
        made["extremes"] = {
            "data_uncertainty": {
                str(c): {"hard": picked[c, 0].tolist(), "easy": picked[c, 1].tolist()}
                for c in range(10)
            }
        }
    return made


def records(
    data: Iterable[str] = ("mnist", "cifar10"), seeds: Sequence[int] = SEEDS, *, quick: bool = False
) -> list[dict[str, Any]]:
    """Every recipe: five seeds of EDL and I-EDL, three of the others, the ablation, the sweep."""
    made = []
    for name in data:
        for method in SKILL:
            of = seeds if method in ("edl", "iedl") else seeds[:3]
            weight = {"fisher_weight": 0.05} if method == "iedl" else {}
            made += [record(f"{name}-{method}", seed, quick=quick, **weight) for seed in of]
        for seed in seeds[:3]:
            made.append(record(f"{name}-iedl-no-logdet", seed, quick=quick, fisher_weight=0.0))
            made += [
                record(f"{name}-iedl-lambda-{weight}", seed, quick=quick, fisher_weight=weight)
                for weight in (0.1, 0.05, 0.01, 0.005, 0.001)
            ]
    return made
