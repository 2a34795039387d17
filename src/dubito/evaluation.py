"""Evaluate distributions: metrics of the task, detection of errors and of OOD inputs.

In-distribution and correct samples are the positives, and scores are signed so that higher means
more confident. Scores whose cost is quadratic in the number of classes are computed on request.
"""

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

from dubito import _checks, metrics
from dubito.calibration import Calibration
from dubito.distributions import ClassDistribution, Distribution
from dubito.errors import DubitoError
from dubito.targets import Target, exact_weight, known_rows, values_and_weight
from dubito.tasks import Curve, Task
from dubito.types import Json

__all__ = ["error_detection", "evaluate", "ood_detection"]

Detection = dict[str, dict[str, float]]
#: name -> metric of confidences and a mask of positives
DETECTION = {"aupr": metrics.aupr, "auroc": metrics.auroc, "fpr95": metrics.fpr95}
CURVE_POINTS = 101
#: what the declared scores of an evaluation are for
PURPOSES = {"errors": "right or wrong", "ood": "foreign"}


def ood_detection(
    dist: Distribution, ood: Distribution, scores: Iterable[str] | None = None
) -> Detection:
    """Measure how well each score separates in-distribution (positive) from OOD samples.

    Args:
        dist: Distribution of in-distribution samples.
        ood: Distribution of OOD samples, of the same model.
        scores: Names of scores; by default all but expensive ones.

    Returns:
        {score: {"aupr", "auroc", "fpr95"}}.

    >>> from dubito.distributions import Dirichlet
    >>> confident = Dirichlet(torch.tensor([[9.0, 1.0], [1.0, 7.0]]))
    >>> ood_detection(confident, Dirichlet(torch.tensor([[1.0, 1.5]])), ["vacuity"])
    {'vacuity': {'aupr': 1.0, 'auroc': 1.0, 'fpr95': 0.0}}
    """
    if _event_shapes(dist) != _event_shapes(ood):
        raise DubitoError(f"{dist!r} and {ood!r} must come from one model")
    result: Detection = {}
    for name in dist.default_scores if scores is None else scores:
        parts = [part.confidence(name).flatten() for part in (dist, ood)]
        values = torch.cat(parts)
        is_positive = torch.arange(len(values), device=values.device) < len(parts[0])
        result[name] = _detect(values, is_positive)
    return result


def error_detection(
    dist: Distribution, errors: Tensor, scores: Iterable[str] | None = None
) -> Detection:
    """Measure how well each score separates correct predictions (positive) from errors.

    Args:
        dist: Distribution, batch shape (...).
        errors: Which predictions are errors, bool (...), from `Task.errors`.
        scores: Names of scores; by default all but expensive ones.

    Returns:
        {score: {"aupr", "auroc", "fpr95"}}.
    """
    names = dist.default_scores if scores is None else tuple(scores)
    return {name: _detect(*_ranked(dist, errors, name)) for name in names}


def risk_coverage(dist: Distribution, errors: Tensor, scores: Iterable[str]) -> dict[str, Curve]:
    """Compute the error rate among the most confident samples, as more of them are accepted.

    The errors of tied samples are spread evenly over them.

    Args:
        dist: Distribution, batch shape (...).
        errors: Which predictions are errors, bool (...), from `Task.errors`.
        scores: Names of scores.

    Returns:
        {score: {"coverage", "risk"}}, lists of at most 101 points.

    >>> from dubito.distributions import Dirichlet
    >>> dist = Dirichlet(torch.tensor([[9.0, 1.0], [2.0, 1.0]]))
    >>> risk_coverage(dist, torch.tensor([False, True]), ["max_prob"])
    {'max_prob': {'coverage': [0.5, 1.0], 'risk': [0.0, 0.5]}}
    """
    curves: dict[str, Curve] = {}
    for name in scores:
        risk = metrics.risks(*_ranked(dist, errors, name)).cpu().numpy()
        ranks = np.unique(np.linspace(1, len(risk), min(CURVE_POINTS, len(risk))).round())
        points = risk[ranks.astype(int) - 1]
        curves[name] = {"coverage": (ranks / len(risk)).tolist(), "risk": points.tolist()}
    return curves


def evaluate(
    task: Task,
    dist: Distribution,
    target: Tensor | Target,
    scores: Iterable[str] | None = None,
    calibration: Calibration | None = None,
) -> Json:
    """Evaluate predictions of samples with known targets.

    Missing targets are left out, and weights count in metrics and coverage. All about errors is
    about the samples of which no target is missing, each of which counts alike.

    Args:
        task: What the target is.
        dist: Distribution before calibration, batch shape (N,), in user units.
        target: Targets, from `Task.encode` or `Task.target`.
        scores: Names of scores; by default all but expensive ones.
        calibration: Calibration to evaluate beside the raw predictive.

    Returns:
        "samples" and "metrics" of the raw predictive. With a calibration "calibrated", its metrics,
        and by level "interval_coverage", the share of targets in the intervals, and their mean
        "interval_width"; or "set_coverage" and the mean "set_size", a number of classes. If
        the task defines errors, "error_rate", "aurc", the area under the risk-coverage curve by
        score, "recall" by class, and "error_detection" if there are both errors and correct
        predictions.
    """
    names = dist.default_scores if scores is None else tuple(scores)
    target = target.to(dist.device)
    result: Json = {"samples": len(dist)}
    result["metrics"] = task.metrics(dist.predictive, target)
    if calibration is not None:
        result["calibrated"] = task.metrics(calibration(dist), target)
        result |= _coverage(calibration, dist, target)
    rows = known_rows(target)
    if task.defines_errors and len(rows):
        dist = dist if len(rows) == len(dist) else dist[rows]
        point, known = task.point(dist), values_and_weight(target)[0][rows]
        errors = task.errors(point, known)
        if recall := task.recall(point, known):
            result["recall"] = recall
        result["error_rate"] = errors.double().mean().item()
        result["aurc"] = {name: metrics.aurc(*_ranked(dist, errors, name)).item() for name in names}
        if bool(errors.any()) and not bool(errors.all()):
            result["error_detection"] = error_detection(dist, errors, names)
    return result


def neglected(recall: Mapping[str, float]) -> dict[str, float]:
    """Return the classes whose recall is below half of the mean, the worst first.

    Args:
        recall: Share of right predictions by class.

    >>> neglected({"cat": 0.9, "dog": 0.8, "ship": 0.1})
    {'ship': 0.1}
    """
    least = fmean(recall.values()) / 2 if recall else 0
    worst = sorted(recall.items(), key=lambda pair: pair[1])
    return {name: share for name, share in worst if share < least}


def chosen_scores(
    detection: Mapping[str, Mapping[str, Any]], declared: Mapping[str, str]
) -> dict[str, str]:
    """Choose scores to show: the declared ones, and the best and the worst of the rest by AUROC.

    Args:
        detection: Metrics by score; those of several seeds have a mean.
        declared: Score that is declared for each purpose, as in the result of `Model.evaluate`.

    Returns:
        What each score is, by its name.

    >>> detection = {name: {"auroc": value} for name, value in zip("abcd", (0.5, 0.9, 0.2, 0.7))}
    >>> chosen_scores(detection, {"errors": "a", "ood": "d"})
    {'a': 'right or wrong', 'd': 'foreign', 'b': 'best of the rest', 'c': 'worst of the rest'}
    """

    def auroc(name: str) -> float:
        value = detection[name]["auroc"]
        return float(value["mean"] if isinstance(value, Mapping) else value)

    chosen = {declared[key]: what for key, what in PURPOSES.items() if declared[key] in detection}
    rest = sorted((name for name in detection if name not in chosen), key=auroc)
    if rest:
        chosen |= {rest[-1]: "best of the rest"}
    if len(rest) > 1:
        chosen |= {rest[0]: "worst of the rest"}
    return chosen


def _coverage(
    calibration: Calibration, dist: Distribution, target: Tensor | Target
) -> dict[str, dict[str, float]]:
    """Return the coverage and size of intervals or prediction sets by level."""
    found: dict[str, dict[str, float]] = {}
    for level in calibration.levels:
        if isinstance(dist, ClassDistribution):
            values, weight = values_and_weight(target)
            labels = values.argmax(-1) if values.is_floating_point() else values
            classes = calibration.prediction_set(dist, level)
            inside = classes.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
            share, size = metrics.mean(inside, weight), metrics.mean(classes.sum(-1), weight)
            part = {"set_coverage": share.item(), "set_size": size.item()}
        else:
            lower, upper = calibration.interval(dist, level)
            part = {"interval_coverage": _covered(lower, upper, target)}
            part["interval_width"] = (upper - lower).double().mean().item()
        for name, value in part.items():
            found.setdefault(name, {})[str(level)] = value
    return found


def _covered(lower: Tensor, upper: Tensor, target: Tensor | Target) -> float:
    """Return the share of targets in their intervals; columns without a known one do not count."""
    values, cells = values_and_weight(target)[0], exact_weight(target)
    if cells is None:
        return metrics.coverage(lower.mT, upper.mT, values.mT).mean().item()
    columns = (part.mT[cells.any(0)] for part in (lower, upper, values, cells))
    return metrics.coverage(*columns).mean().item()


def _detect(confidence: Tensor, positive: Tensor) -> dict[str, float]:
    return {name: metric(confidence, positive).item() for name, metric in DETECTION.items()}


def _ranked(dist: Distribution, errors: Tensor, score: str) -> tuple[Tensor, Tensor]:
    """Return confidences and correctness, (N,) each."""
    correct = ~_checks.errors(errors, dist.batch_shape)
    confidence = dist.confidence(score).detach().flatten()
    return confidence, correct.to(confidence.device).flatten()


def _event_shapes(dist: Distribution) -> list[torch.Size]:
    axes = len(dist.batch_shape)
    return [leaf.shape[axes:] for leaf in _pytree.tree_leaves(dist)]
