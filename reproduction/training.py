"""From a recipe to the records of its trainings."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from scipy.stats import energy_distance
from torch import Tensor

from dubito import __version__, data, evaluation, metrics
from dubito.calibration import Calibration
from dubito.data import Source
from dubito.distributions import Categorical, Dirichlet, Distribution
from dubito.model import Model
from dubito.pipeline import Pipeline, Prepared
from dubito.tasks import Task
from dubito.training import Callback, History, Progress
from reproduction import quick
from reproduction.humans import human_counts
from reproduction.recipes import Cell, Recipe
from reproduction.results import SCORES
from reproduction.store import FORMAT, Record

__all__ = ["describe", "device_name", "plain", "train"]

#: seconds between two lines of progress
INTERVAL = 30.0
#: scores that are evaluated at each validation
WATCHED = ("max_prob", "alpha0")
BINS, EXTREMES = 101, 5
#: alpha0 of scaled evidence must stay finite in float32
MOST_LOG_EVIDENCE = 60.0


class _Data(NamedTuple):
    prepared: Prepared
    test: Source
    ood: dict[str, Source]


def train(recipe: Recipe, seeds: Sequence[int], folder: Path, device: str) -> list[Record]:
    """Train a recipe with several seeds, or continue, and return its records.

    Args:
        recipe: Recipe of a training.
        seeds: Seeds.
        folder: Folder of the checkpoints.
        device: "cpu" or "cuda".
    """
    pipeline, sets = Pipeline(recipe.config, device=device), _read(recipe)
    models = [pipeline.build(sets.prepared, seed) for seed in seeds]
    watch: list[Callback] = [_Watch(models[0], sets)] if recipe.evaluate["watch"] else []
    pipeline.callbacks = (*watch, _Lines(recipe.name))
    folders = [folder / f"seed-{seed}" for seed in seeds]
    for place in folders:
        place.mkdir(parents=True, exist_ok=True)
    histories = pipeline.train(models, sets.prepared, seeds=seeds, out=folders)
    return [
        {
            **describe(Cell(recipe, seed)),
            "training": _training(history, recipe),
            **_evaluate(model, sets, recipe),
            "device": device_name(device),
        }
        for seed, model, history in zip(seeds, models, histories, strict=True)
    ]


def describe(cell: Cell) -> Record:
    """Return the keys that all records have."""
    return {
        "format": FORMAT,
        "recipe": cell.recipe.name,
        "id": cell.id,
        "seed": cell.seed,
        "quick": cell.recipe.quick,
        "config": cell.recipe.sections,
        "versions": {"dubito": __version__, "torch": torch.__version__},
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def device_name(device: str) -> str:
    """Return the name of a GPU, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def _read(recipe: Recipe) -> _Data:
    """Read all data before the training, so that nothing is missing after it."""
    config = recipe.config.data
    source = config.open(config.source)
    test = config.open(config.source, "test", format=source.format)
    prefix = quick.PREFIX if recipe.quick else ""
    ood = {
        name: data.open(prefix + name, "test", format=source.format, labeled=False)
        for name in recipe.evaluate["ood"]
    }
    if recipe.evaluate["humans"]:
        _human_entropy(recipe)
    return _Data(Pipeline(recipe.config).prepare(source), test, ood)


class _Watch(Callback):
    """Evaluate on test and OOD sets at each validation; nothing is decided by it."""

    def __init__(self, model: Model, data: _Data) -> None:
        self.model, self.data = model, data

    def on_epoch_end(self, progress: Progress) -> None:
        """Add the figures to the record of an epoch."""
        if progress.record is not None and "validation" in progress.record:
            model = self.model
            snapshot = Model(progress.network, model.method, model.task, model.preprocessing).eval()
            progress.record["watched"] = _watch(snapshot, self.data)


def _watch(model: Model, sets: _Data) -> dict[str, float]:
    """Return accuracy, and AUPR and AUROC of each OOD set."""
    dist: Any = model.predict(sets.test.load()).distribution
    target = model.task.encode(sets.test.target)
    figures = {"accuracy": metrics.accuracy(dist.probs, target).item()}
    scores = [score for score in WATCHED if score in dist.scores]
    for name, source in sets.ood.items():
        ood = model.predict(source.load()).distribution
        for score, values in evaluation.ood_detection(dist, ood, scores).items():
            figures |= {f"{name}/{score}/{metric}": values[metric] for metric in ("aupr", "auroc")}
    return figures


class _Lines(Callback):
    """Print a line of progress now and then."""

    def __init__(self, name: str) -> None:
        self.name, self.shown = name, time.monotonic()

    def on_epoch_end(self, progress: Progress) -> None:
        """Print a line if the last one is old."""
        now = time.monotonic()
        if progress.record is None or now - self.shown < INTERVAL:
            return
        self.shown = now
        minutes = progress.seconds_left / 60
        print(
            f"{self.name} seed {progress.seed}: epoch {progress.epoch} of {progress.epochs}, loss "
            f"{progress.record['loss']:.4f}, at most {minutes:.0f} min left",
            flush=True,
        )


def _training(history: History, recipe: Recipe) -> dict[str, Any]:
    validated = [record for record in history.records if "validation" in record]
    curves: dict[str, Any] = {"epoch": [record["epoch"] for record in validated]}
    for name in ("accuracy", "loss"):
        curves[f"validation_{name}"] = [record["validation"][name] for record in validated]
    if recipe.evaluate["watch"]:
        watched = [record["watched"] for record in validated]
        curves["watched"] = {name: [figures[name] for figures in watched] for name in watched[0]}
    return {
        "epochs": len(history.records),
        "best_epoch": history.best_epoch,
        "seconds": history.seconds,
        "validation_accuracy": history.best["validation"]["accuracy"],
        "history": plain(curves, 6),
    }


def plain(values: Any, digits: int | None = None) -> Any:
    """Round floats to significant digits; infinities become text, which JSON has.

    Args:
        values: Numbers, in lists and dicts.
        digits: Significant digits; None keeps all.

    >>> plain({"a": [0.123456789, 3, math.inf]}, 6)
    {'a': [0.123457, 3, 'inf']}
    """
    if isinstance(values, Mapping):
        return {key: plain(value, digits) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [plain(value, digits) for value in values]
    if not isinstance(values, float):
        return values
    if math.isnan(values):
        raise ValueError("a result is NaN")
    rounded = values if digits is None else float(f"{values:.{digits}g}")
    return rounded if math.isfinite(rounded) else str(rounded)


# --- evaluation ---


def _evaluate(model: Model, sets: _Data, recipe: Recipe) -> dict[str, Any]:
    """Evaluate a trained model: results, curves, and the most and least uncertain samples."""
    test = model.predict(sets.test)
    target, dist = model.task.encode(sets.test.target), test.distribution
    fitted = model.calibrate(sets.prepared.parts[0].selection).calibration
    assert fitted is not None
    ood = {name: model.predict(source).distribution for name, source in sets.ood.items()}
    noise = model.evaluate(sets.test, noise=recipe.evaluate["noise"]).get("noise", {})
    scores = [score for score in SCORES if score in dist.scores]
    values = {
        name: {score: value.score(score) for score in scores}
        for name, value in {"test": dist, **ood}.items()
    }
    wrong = test.point != target
    whole = evaluation.evaluate(model.task, dist, target, scores, fitted)
    result: dict[str, Any] = {
        "test": {"data": sets.test.name, "part": "test", "samples": len(dist)},
        "accuracy": whole["metrics"]["accuracy"],
        "calibration": _calibration(whole["metrics"]),
        "aurc": whole["aurc"],
        "misclassification": whole.get("error_detection", {}),
        "ood": _detection(dist, ood, scores),
        "noise": {
            sigma: {"seed": 0, "samples": len(dist), "detection": value["detection"]}
            for sigma, value in noise.items()
        },
        "calibrated": {
            "theta": list(fitted.theta),
            "calibration": _calibration(whole["calibrated"]),
            "ood": _detection(
                _scaled(fitted, dist), {name: _scaled(fitted, value) for name, value in ood.items()}
            ),
        },
    }
    if recipe.evaluate["humans"]:
        result["humans"] = _correlations(values["test"], _human_entropy(recipe))
    curves = {
        **_densities(values),
        "reliability": {
            "before": _reliability(model.task, dist.predictive, target),
            "after": _reliability(model.task, fitted(dist), target),
        },
        "risk_coverage": evaluation.risk_coverage(dist, wrong, scores),
    }
    classes = [str(name) for name in sets.prepared.task.names]
    return {
        "result": plain(result),
        "curves": plain(curves, 6),
        "extremes": _extremes(values["test"].get("expected_entropy"), target, classes),
    }


def _calibration(values: Mapping[str, float]) -> dict[str, float]:
    return {name: values[name] for name in ("ece", "brier", "nll")}


def _detection(
    dist: Distribution, ood_sets: Mapping[str, Distribution], scores: Sequence[str] | None = None
) -> dict[str, Any]:
    if scores is None:
        scores = [score for score in SCORES if score in dist.scores]
    return {
        name: {
            "source": name,
            "samples": len(ood),
            "detection": evaluation.ood_detection(dist, ood, scores),
        }
        for name, ood in ood_sets.items()
    }


def _scaled(fitted: Calibration, dist: Distribution) -> Distribution:
    """Return the Dirichlet with calibrated evidence; of other distributions the probabilities."""
    if not isinstance(dist, Dirichlet) or dist.prior == 0:
        predictive: Any = fitted(dist)
        return Categorical(predictive.logits.float())
    factor, power = fitted.theta
    logs = factor + math.exp(power) * dist.evidence.double().clamp_min(0).log()
    # What is too much is subtracted from all classes of a sample.
    excess = (logs.amax(-1, keepdim=True) - MOST_LOG_EVIDENCE).clamp_min(0)
    alpha = dist.prior + (logs - excess).exp()
    return Dirichlet(alpha.to(dist.alpha.dtype), dist.prior)


def _reliability(task: Task, predictive: Any, target: Tensor) -> dict[str, list[float]]:
    curve = task.reliability(predictive, target)
    names = {"confidence": "expected", "accuracy": "observed", "count": "count"}
    return {name: curve[key] for name, key in names.items()}


def _densities(sets: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Any]:
    """Return the histogram of each score on each set, and its energy distance from the test set.

    Scores are scaled to [0, 1] over all sets; histograms have the mean 1.
    """
    densities: dict[str, dict[str, list[float]]] = {name: {} for name in sets}
    distances: dict[str, dict[str, float]] = {name: {} for name in sets if name != "test"}
    for score in sets["test"]:
        every = torch.cat([values[score].double() for values in sets.values()])
        low, span = every.min(), every.max() - every.min()
        scaled = {
            name: (values[score].double() - low) / torch.where(span > 0, span, 1.0)
            for name, values in sets.items()
        }
        for name, values in scaled.items():
            counts = torch.histc(values, BINS, 0.0, 1.0)
            densities[name][score] = (counts * (BINS / len(values))).tolist()
        for name, scores in distances.items():
            scores[score] = float(energy_distance(scaled["test"], scaled[name]))
    return {"densities": densities, "energy_distance": distances}


def _extremes(entropy: Tensor | None, target: Tensor, classes: Iterable[str]) -> dict[str, Any]:
    """Return the test samples of each class with the highest and the lowest data uncertainty."""
    if entropy is None:
        return {}
    extremes: dict[str, dict[str, list[int]]] = {}
    for number, name in enumerate(classes):
        members = (target == number).nonzero().flatten()
        order = members[entropy[members].sort(stable=True).indices].tolist()
        if order:
            extremes[name] = {"hard": order[::-1][:EXTREMES], "easy": order[:EXTREMES]}
    return {"data_uncertainty": extremes}


def _human_entropy(recipe: Recipe) -> Tensor:
    """Return the entropy of the labels that people gave to each test image: (N,)."""
    counts = quick.human_counts() if recipe.quick else human_counts()
    # Sorted, so that equal counts for other classes are ties and not a rounding apart.
    shares = counts.sort(-1).values.double() / counts.sum(-1, keepdim=True)
    entropy: Tensor = torch.special.entr(shares).sum(-1)
    return entropy


def _correlations(scores: Mapping[str, Tensor], people: Tensor) -> dict[str, Any]:
    """Return Spearman's rank correlation of each score with the entropy of people's labels."""
    ranks = pd.Series(people.numpy()).rank()
    correlations: dict[str, Any] = {}
    for name, values in scores.items():
        correlation = pd.Series(values.double().numpy()).rank().corr(ranks)
        if not math.isnan(correlation):  # a constant score has no ranks
            correlations[name] = {"spearman": float(correlation)}
    return {**correlations, "samples": len(people)}
