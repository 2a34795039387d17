"""From a few-shot recipe to its record: the figures of its episodes, and what was tuned.

| key | what |
| --- | --- |
| config | the recipe's sections with the head's defaults; what the features were |
| result | accuracy; `figures` by name: mean, half the 95 % interval, and how many episodes had it |
| tuning | every candidate with its figures on the validation classes, where some were tried |
| training | seconds |

The other keys are those of the record of a training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from dubito import fewshot, runs
from dubito.bundle import versions
from dubito.data import read_features
from dubito.experiments import _fewshot_recipe as recipes
from dubito.experiments._recipe import Cell, Recipe
from dubito.fewshot import Engine, Pool, Setting, head, scaling, tuning

__all__ = ["check", "record"]

Record = dict[str, Any]
FORMAT = 1
DIGITS = 6
Advance = Callable[[int, int], None]


def check(recipe: Recipe, folder: Path) -> None:
    """Find the features, so that missing ones are known before any episode."""
    for source in recipes.sources(recipe).values():
        recipes.located(source, folder)


def record(cell: Cell, place: Path, folder: Path, device: str, advance: Advance) -> Record:
    """Run what is left of the episodes in `place`, and write down what came of all of them."""
    start, recipe = time.perf_counter(), cell.recipe
    engine, tuned = _engine(cell, place, folder, runs.device_named(device))
    total, done = recipe.sections["setting"]["episodes"], 0

    def tell(count: int) -> None:
        nonlocal done
        done += count
        advance(done, total)

    result = fewshot.run(engine, total, place, tell=tell)
    assert result is not None  # all parts were asked for
    return {
        "format": FORMAT,
        "recipe": recipe.name,
        "id": cell.id,
        "seed": cell.seed,
        "quick": recipe.quick,
        "config": recipes.resolved(recipe.sections) | {"used": _used(result, engine)},
        "training": {"seconds": round(time.perf_counter() - start, 1)},
        "result": _result(result),
        **({} if tuned is None else {"tuning": _rounded(tuned.as_dict())}),
        "versions": versions(),
        "device": str(engine.device),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _engine(
    cell: Cell, place: Path, folder: Path, device: torch.device
) -> tuple[Engine, tuning.Tuned | None]:
    """The head on the recipe's features, and what validation classes chose of it, if asked."""
    sections = cell.recipe.sections
    pools = {
        what: Pool.of(read_features(recipes.located(source, folder)))
        for what, source in recipes.sources(cell.recipe).items()
    }
    given, scaled, tuned = dict(sections["head"]), sections[recipes.FEWSHOT]["scaling"], None
    name, setting = given.pop("name"), recipes.setting_of(cell.recipe, cell.seed)
    if "tune" in sections:
        tuned = _tuned(sections["tune"], pools["tune"], setting, name, device, place)
        given, scaled = {**given, **tuned.hyperparameters}, tuned.scaling
    prepared = scaling(scaled, pools.get("reference", pools.get("tune")))
    outside = prepared.of(pools["ood"]) if "ood" in pools else None
    inside, chosen = prepared.of(pools["features"]), head(name, **given)
    return Engine(inside, outside, setting, chosen, device=device), tuned


def _tuned(
    given: Mapping[str, Any],
    pool: Pool,
    setting: Setting,
    name: str,
    device: torch.device,
    place: Path,
) -> tuning.Tuned:
    grids = {key: given[key] for key in ("grid", "kl_grid") if given[key] is not None}
    if "kl_grid" in grids:
        grids["kl_grid"] = [tuple(kl) for kl in grids["kl_grid"]]
    return tuning.tune(
        pool, setting, name, objective=given["objective"], episodes=given["episodes"],
        scalings=given["scalings"], device=device, folder=place, **grids,
    )  # fmt: skip


def _used(result: Record, engine: Engine) -> Record:
    """What was run in the end: the head as it was, and which features."""
    kept = ("head", "features", "ood", "solver")
    return {**{key: result[key] for key in kept}, "scaling": engine.pool.scaling}


def _result(result: Record) -> Record:
    figures = _rounded(result["figures"])
    return {
        "accuracy": figures["accuracy"]["mean"],
        "episodes": result["episodes"],
        "figures": figures,
    }


def _rounded(value: Any) -> Any:
    """Numbers with six decimals, which is more than any interval resolves."""
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return round(value, DIGITS) if isinstance(value, float) else value
