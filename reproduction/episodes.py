"""From a few-shot recipe to its record."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from itertools import product
from typing import Any

from dubito import fewshot
from dubito.data.known import data_folder
from dubito.errors import DubitoError
from dubito.fewshot import Features
from reproduction import quick
from reproduction.recipes import Cell
from reproduction.store import Record
from reproduction.training import describe, device_name

__all__ = ["evaluate"]

DIGITS = 6
#: what a choice maximizes the sum of, and its metric
OBJECTIVES = {"accuracy": "accuracy", "ood_aupr": "ood/alpha0/aupr"}


def evaluate(cell: Cell, device: str) -> Record:
    """Evaluate the episodes of a recipe, and return its record.

    Args:
        cell: Recipe and seed.
        device: "cpu" or "cuda".
    """
    start, sections = time.perf_counter(), cell.recipe.sections
    (ways, shots), method = cell.recipe.setting, dict(sections["method"])
    options: dict[str, Any] = {"ways": ways, "shots": shots, "seed": cell.seed, "device": device}
    inside, outside = _features(sections["features"]), _features(sections["ood"])
    tuning = {}
    if (tune := sections.get("tune")) is not None:
        options["reference"] = reference = _features(tune["features"])
        trials = _trials(tune, method, reference, sections["setting"]["tune_episodes"], options)
        best = max(trials, key=lambda trial: sum(trial[name]["mean"] for name in OBJECTIVES))
        method |= best["hyperparameters"]
        options["scaling"] = best["scaling"]
        choice = {"choice": best["hyperparameters"], "scaling": best["scaling"]}
        tuning = {"tuning": _rounded({**choice, "trials": trials})}
    episodes = sections["setting"]["episodes"]
    result = fewshot.fewshot(inside, ood=outside, method=method, episodes=episodes, **options)
    figures = _rounded(result["metrics"])
    return {
        **describe(cell),
        "training": {"seconds": round(time.perf_counter() - start, 1)},
        "result": {
            "accuracy": figures["accuracy"]["mean"],
            "episodes": result["episodes"],
            "figures": figures,
        },
        **tuning,
        "used": {key: result[key] for key in ("method", "features", "ood", "solver")},
        "device": device_name(device),
    }


def _features(source: str) -> Features:
    if source.startswith(quick.PREFIX):
        return quick.features(source)
    path = data_folder() / source
    if not path.exists():
        raise DubitoError(
            f"there are no features {path}: make them with `dubito features`; DUBITO_DATA names "
            "the data folder"
        )
    return fewshot.read_features(path)


def _trials(
    tune: Mapping[str, Any],
    method: Mapping[str, Any],
    validation: Features,
    episodes: int,
    options: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Try all hyperparameters and scalings on validation classes.

    Out-of-distribution queries come from the classes that an episode leaves out, so that neither
    the novel classes nor the out-of-distribution set influence the choice.
    """
    names = [name for name in tune if name not in ("features", "objective", "scaling")]
    trials = []
    for *values, scaling in product(*(tune[name] for name in (*names, "scaling"))):
        own = dict(zip(names, values, strict=True))
        metrics = fewshot.fewshot(
            validation, method={**method, **own}, episodes=episodes, scaling=scaling, **options
        )["metrics"]
        figures = {
            name: {key: metrics[metric][key] for key in ("mean", "interval")}
            for name, metric in OBJECTIVES.items()
        }
        trials.append({"hyperparameters": own, "scaling": scaling, **figures})
    trials.sort(key=lambda trial: (sorted(trial["hyperparameters"].items()), trial["scaling"]))
    return trials


def _rounded(values: Any) -> Any:
    """Round to more decimals than any interval resolves."""
    if isinstance(values, Mapping):
        return {key: _rounded(value) for key, value in values.items()}
    if isinstance(values, list):
        return [_rounded(value) for value in values]
    if isinstance(values, float) and math.isnan(values):
        return None
    return round(values, DIGITS) if isinstance(values, float) else values
