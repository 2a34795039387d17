"""From a few-shot recipe to its record."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dubito import fewshot
from dubito.data.downloads import data_folder
from dubito.errors import DubitoError
from dubito.fewshot import Features
from dubito.fewshot._episodes import Setting
from dubito.fewshot._tuning import Choice
from dubito.methods import METHODS
from reproduction import quick
from reproduction.recipes import Cell
from reproduction.store import Record
from reproduction.training import describe, device_name

__all__ = ["evaluate"]

DIGITS = 6


def evaluate(cell: Cell, folder: Path, device: str) -> Record:
    """Evaluate the episodes of a recipe, or continue, and return its record.

    Args:
        cell: Recipe and seed.
        folder: Folder of finished parts.
        device: "cpu" or "cuda".
    """
    start, sections = time.perf_counter(), cell.recipe.sections
    (ways, shots), method = cell.recipe.setting, METHODS.build(sections["method"])
    inside, outside = _features(sections["features"]), _features(sections["ood"])
    tune, reference, tuning = sections.get("tune"), None, {}
    scaling: Any = "none"
    if tune is not None:
        reference = _features(tune["features"])
        choice = fewshot.tune(
            reference, Setting(ways=ways, shots=shots, seed=cell.seed), method,
            space={k: v for k, v in tune.items() if k not in ("features", "objective")},
            objective=tune["objective"], ood_score="alpha0",
            episodes=sections["setting"]["tune_episodes"],
            storage=folder / "tuning.log", device=device,
        )  # fmt: skip
        method, scaling = choice.method, choice.scaling
        tuning = {"tuning": _tuning(choice)}
    result = fewshot.fewshot(
        inside, ood=outside, method=METHODS.to_dict(method), ways=ways, shots=shots,
        episodes=sections["setting"]["episodes"], seed=cell.seed, scaling=scaling,
        reference=reference, device=device, out=folder / "episodes",
    )  # fmt: skip
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


def _tuning(choice: Choice) -> dict[str, Any]:
    """Return the trials, in an order that a resumed search repeats, and the choice among them."""
    trials = []
    for trial in choice.trials:
        fields = dict(trial)
        values = {
            name: {"mean": fields.pop(name), "interval": fields.pop(f"{name}_interval")}
            for name in ("accuracy", "ood_aupr")
        }
        scaling = fields.pop("scaling")
        trials.append({"hyperparameters": fields, "scaling": scaling, **values})
    trials.sort(key=lambda trial: (sorted(trial["hyperparameters"].items()), trial["scaling"]))
    choices = {name: getattr(choice.method, name) for name in trials[0]["hyperparameters"]}
    return dict(_rounded({"choice": choices, "scaling": choice.scaling, "trials": trials}))


def _rounded(values: Any) -> Any:
    """Round to more decimals than any interval resolves."""
    if isinstance(values, Mapping):
        return {key: _rounded(value) for key, value in values.items()}
    if isinstance(values, list):
        return [_rounded(value) for value in values]
    if isinstance(values, float) and math.isnan(values):
        return None
    return round(values, DIGITS) if isinstance(values, float) else values
