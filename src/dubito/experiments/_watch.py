"""Figures on the test and OOD sets at each check of a training, to learn what stopping decides.

They are looked at afterwards alone: nothing in the training depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dubito import data, metrics, runs
from dubito._legacy import Method, Prediction, ood_figures
from dubito.data import Arrays, as_floats
from dubito.runs import Plan
from dubito.training import Watch

__all__ = ["is_watched", "loaded", "trajectory", "watcher"]

AT_ONCE = 2048
MEASURES = ("max_prob", "alpha0")


def watcher(method: Method, test: Arrays, outside: Mapping[str, Tensor]) -> Watch:
    """What sees a network and tells its accuracy, and AUPR and AUROC against each OOD set."""

    def watch(model: nn.Module) -> dict[str, Any]:
        said = _said(method, model, test.inputs)
        told: dict[str, Any] = {"accuracy": metrics.accuracy(said.probs, test.labels).item()}
        shown = [name for name in MEASURES if name in said.available]
        for name, inputs in outside.items():
            found = ood_figures(said, _said(method, model, inputs), shown)
            for measure, figures in found.items():
                for metric in ("aupr", "auroc"):
                    told[f"{name}/{measure}/{metric}"] = figures[metric]
        return told

    return watch


def loaded(plan: Plan, ood: Iterable[str]) -> tuple[Arrays, dict[str, Tensor]]:
    """The test samples of a plan's data and the inputs of OOD sets, prepared, on the device.

    Data without a test part is judged by its validation samples.
    """
    source, prepared = plan.config.data["source"], plan.config.prepared()
    own = runs.part_of(source) == "test"
    test = data.load(source, "test") if own else plan.validation

    def ready(inputs: Tensor) -> Tensor:
        return prepared.held(inputs.to(plan.device))

    outside = {name: ready(runs.inputs_of(plan.config, name)) for name in ood}
    return replace(test.to(plan.device), inputs=ready(test.inputs)), outside


@torch.no_grad()
def _said(method: Method, model: nn.Module, inputs: Tensor) -> Prediction:
    parts = [method.outputs_for(model, as_floats(part)) for part in inputs.split(AT_ONCE)]
    return method.prediction(torch.cat(parts))


def is_watched(entries: Sequence[Mapping[str, Any]], ood: Iterable[str]) -> bool:
    """Whether there are figures of all these sets at all checks, which a training may lack that was
    done, or begun, for another recipe."""
    wanted = set(ood)
    return all(
        wanted <= {key.rsplit("/", 2)[0] for key in entry.get("watched", ())} and "watched" in entry
        for entry in entries
    )


def trajectory(entries: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """What was seen at the checks of a history, a list for each figure.

    >>> trajectory([{"epoch": 2, "watched": {"accuracy": 0.5}}, {"epoch": 3}])
    {'accuracy': [0.5]}
    """
    seen = [entry["watched"] for entry in entries if "watched" in entry]
    return {name: [one[name] for one in seen] for name in (seen[0] if seen else ())}
