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
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dubito import data, evaluation, runs
from dubito._legacy import Prediction, calibration_metrics, ood_figures, reliability
from dubito.calibration import Calibration
from dubito.data.files import Blob
from dubito.data.humans import human_counts, read_counts
from dubito.distributions import Dirichlet
from dubito.experiments import _curves, _quick
from dubito.experiments._humans import against_people
from dubito.experiments._recipe import Cell, Recipe
from dubito.experiments._watch import is_watched, trajectory
from dubito.report.files import plain
from dubito.runs import HELD_OUT, Evaluation, Plan, Run
from dubito.training.loop import METRICS

__all__ = ["FORMAT", "Record", "check_shapes", "check_sources", "record"]

FORMAT = 1
MOST_LOG_EVIDENCE = 60.0
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
    fitted = Calibration.fit(held_out.distribution, plan.validation.labels.cpu())
    said = judged.said
    measures = {
        name: {measure: one.measure(measure) for measure in one.available}
        for name, one in said.items()
    }
    labels = torch.from_numpy(judged.arrays["labels"])
    test = said["test"]
    result = _result(judged, recipe)
    if result["test"]["part"] != HELD_OUT:  # or it would be judged by what it was fitted on
        result["calibrated"] = _calibrated(fitted, said, labels)
    if recipe.evaluate["humans"]:
        result["humans"] = against_people(measures["test"], _people(recipe, folder))
    curves = {
        **_curves.densities(measures),
        "reliability": {
            when: reliability(one, labels)
            for when, one in (("before", test), ("after", test.calibrated(fitted)))
            if when == "before" or "calibrated" in result
        },
        "risk_coverage": evaluation.risk_coverage(
            test.distribution, test.label != labels, test.available
        ),
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


def _calibrated(fitted: Calibration, said: Mapping[str, Prediction], labels: Tensor) -> Record:
    """What calibration makes of the probabilities, and of telling OOD sets from the test set."""
    after = {name: _rescaled(fitted, one) for name, one in said.items()}
    others = {name: one for name, one in after.items() if name != "test"}
    return {
        **_described_calibration(fitted, said["test"]),
        "calibration": calibration_metrics(said["test"].calibrated(fitted), labels),
        "ood": {
            name: {
                "samples": len(one),
                "detection": ood_figures(after["test"], one),
            }
            for name, one in others.items()
        },
    }


def _described_calibration(fitted: Calibration, said: Prediction) -> Record:
    """The calibration as records have it: factor and power of the evidence, or a temperature."""
    values = [math.exp(value) for value in fitted.theta]
    if len(values) == 1:
        return {"kind": "temperature", "parameters": {"temperature": 1 / values[0]}}
    parameters = {"factor": values[0], "power": values[1], "prior": said.prior}
    return {"kind": "evidence_scaling", "parameters": parameters}


def _rescaled(fitted: Calibration, said: Prediction) -> Prediction:
    """The Dirichlet with scaled evidence, whose measures records have; else the probabilities."""
    dist = said.distribution
    if not isinstance(dist, Dirichlet) or dist.prior == 0:
        return said.calibrated(fitted)
    factor, power = fitted.theta
    logs = factor + math.exp(power) * dist.evidence.double().clamp_min(0).log()
    # alpha0 must stay finite in float32: what is too much is taken from all classes of a sample
    excess = (logs.amax(-1, keepdim=True) - MOST_LOG_EVIDENCE).clamp_min(0)
    alpha = dist.prior + (logs - excess).exp()
    return Prediction(Dirichlet(alpha.to(dist.alpha.dtype), dist.prior))


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
