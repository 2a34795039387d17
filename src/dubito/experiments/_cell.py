"""From a trained run to its record: everything that tables and figures are made of.

| key | what |
| --- | --- |
| format, recipe, id, seed, quick | which cell this is, and of which state of its recipe |
| config | the four sections with every default |
| training | epochs, the best one, seconds, and the figures of each check |
| result | what `dubito.runs.evaluate` gives, as fractions; `calibrated`; `humans` |
| curves | densities and energy distances, reliability, risk-coverage: six digits |
| extremes | test samples with the most and the least data uncertainty, by class |
| versions, device, created | what made it |

What a method does not have is absent. An infinity is the word "inf".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dubito import calibration, data, evaluation, runs
from dubito.calibration import Calibration
from dubito.data.files import Blob
from dubito.data.humans import human_counts, read_counts
from dubito.experiments import _curves, _quick
from dubito.experiments._humans import against_people
from dubito.experiments._recipe import Cell, Recipe
from dubito.experiments._watch import is_watched, trajectory
from dubito.prediction import Prediction
from dubito.report.files import plain
from dubito.runs import HELD_OUT, Evaluation, Plan, Run
from dubito.training.loop import METRICS

__all__ = ["FORMAT", "Record", "check_shapes", "check_sources", "record"]

FORMAT = 1
#: of what `runs.evaluate` gives, what stands elsewhere in a record or changes from run to run
ELSEWHERE = ("run", "limits", "seconds", "versions")
HISTORY = ("validation_accuracy", "validation_loss")
Record = dict[str, Any]


def check_sources(recipe: Recipe, folder: Path) -> None:
    """Find what the recipe is judged by; OOD sets are read by `check_shapes`."""
    for source in _quick.located(recipe, folder)[1]:
        if source not in data.DATASETS and not Path(source).expanduser().exists():
            raise FileNotFoundError(f"[evaluate] ood: {source!r} is no known set, file or folder")
    if recipe.evaluate["humans"]:
        _people(recipe, folder)


def check_shapes(plan: Plan, folder: Path, recipe: Recipe) -> None:
    """Read the OOD sets as the evaluation will: what the network can't take is told before it."""
    for source in _quick.located(recipe, folder)[1]:
        runs.inputs_of(plan.config, source)


def record(cell: Cell, plan: Plan, run: Run, summary: Mapping[str, Any], folder: Path) -> Record:
    """Judge a run and write down what came of it, as plain values."""
    recipe = cell.recipe
    ood = _quick.located(recipe, folder)[1]
    judged = runs.evaluate(run, ood=ood, noise=recipe.evaluate["noise"])
    held_out = run.predict(plan.validation.inputs)
    fitted = calibration.fit(held_out, plan.validation.labels)
    sets = ["test", *(f"ood/{key}" for key in judged.result["ood"])]
    said = {_key(name): _said(judged.arrays, name, held_out.prior) for name in sets}
    measures = {_key(name): _measures(judged.arrays, name, held_out.available) for name in sets}
    labels = torch.from_numpy(judged.arrays["labels"])
    after = {name: fitted.apply(one) for name, one in said.items()}
    result = _result(judged, recipe)
    if result["test"]["part"] != HELD_OUT:  # or it would be judged by what it was fitted on
        result["calibrated"] = _calibrated(fitted, after, labels)
    if recipe.evaluate["humans"]:
        result["humans"] = against_people(measures["test"], _people(recipe, folder))
    curves = {
        **_curves.densities(measures),
        "reliability": {
            when: evaluation.reliability(one["test"].probs, labels)
            for when, one in (("before", said), ("after", after))
            if when == "before" or "calibrated" in result
        },
        "risk_coverage": evaluation.risk_coverage(measures["test"], said["test"].label == labels),
    }
    return {
        **_described(cell),
        "config": _config(run, recipe),
        "training": _training(run, summary, recipe),
        "result": plain(result),
        "curves": plain(_curves.rounded(curves)),
        "extremes": _curves.extremes(measures["test"], labels, run.classes),
        "versions": judged.result["versions"],
        "device": run.config.facts.device,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _described(cell: Cell) -> Record:
    return {
        "format": FORMAT,
        "recipe": cell.recipe.name,
        "id": cell.id,
        "seed": cell.seed,
        "quick": cell.recipe.quick,
    }


def _key(name: str) -> str:
    return name.removeprefix("ood/")


def _said(arrays: Mapping[str, Any], name: str, prior: float) -> Prediction:
    """What was said of a set, as far as a calibration needs it: alpha, or probabilities."""
    if f"{name}/alpha" in arrays:
        return Prediction.from_alpha(torch.from_numpy(arrays[f"{name}/alpha"]), prior=prior)
    return Prediction.from_probs(torch.from_numpy(arrays[f"{name}/probs"]))


def _measures(arrays: Mapping[str, Any], name: str, names: Iterable[str]) -> dict[str, Tensor]:
    return {measure: torch.from_numpy(arrays[f"{name}/{measure}"]) for measure in names}


def _result(judged: Evaluation, recipe: Recipe) -> Record:
    """The figures, which name data by what the recipe calls it: a path is no part of a result."""
    result = {key: value for key, value in judged.result.items() if key not in ELSEWHERE}
    result["test"] = {**result["test"], "data": recipe.sections["data"]["source"]}
    sources = recipe.evaluate["ood"]
    result["ood"] = {
        key: {**entry, "source": source}
        for (key, entry), source in zip(result["ood"].items(), sources, strict=True)
    }
    return result


def _calibrated(fitted: Calibration, after: Mapping[str, Prediction], labels: Tensor) -> Record:
    """What calibration makes of the probabilities, and of telling OOD sets from the test set."""
    others = {name: said for name, said in after.items() if name != "test"}
    return {
        **fitted.as_dict(),
        "calibration": evaluation.calibration(after["test"], labels),
        "ood": {
            name: {
                "samples": len(said),
                "detection": evaluation.ood_detection(after["test"], said),
            }
            for name, said in others.items()
        },
    }


def _config(run: Run, recipe: Recipe) -> Record:
    sections = run.config.sections()
    # what its data decided is no part of what was asked for
    sections["data"] |= {k: recipe.sections["data"].get(k) for k in ("source", "size", "mode")}
    return sections


def _training(run: Run, summary: Mapping[str, Any], recipe: Recipe) -> Record:
    lines = (run.folder / METRICS).read_text("utf-8").splitlines()
    entries = [entry for entry in map(json.loads, lines) if HISTORY[0] in entry]
    history: dict[str, Any] = {"epoch": [entry["epoch"] for entry in entries]}
    for name in HISTORY:
        if entries and name in entries[0]:
            history[name] = [entry[name] for entry in entries]
    if recipe.evaluate["watch"]:
        if not is_watched(entries, recipe.evaluate["ood"]):
            raise ValueError(
                f"the recipe asks for figures at each check, but {run.folder} was trained, in part "
                "at least, without them or with other OOD sets; delete it, and it is trained anew"
            )
        history["watched"] = _curves.rounded(trajectory(entries))
    return {
        "epochs": summary["epochs"],
        "best_epoch": summary["epoch"],
        "seconds": summary["seconds"],
        "validation_accuracy": summary["validation_accuracy"],
        "history": history,
    }


def _people(recipe: Recipe, folder: Path) -> Tensor:
    if not recipe.quick:
        return human_counts()
    path = folder / _quick.HUMANS
    return read_counts(Blob(path, path.read_bytes()))
