"""A unit of work: one training with one or several seeds, and the records that come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dubito import runs
from dubito.experiments import _cell, _fewshot_cell, _quick, _watch
from dubito.experiments._cell import Record
from dubito.experiments._fewshot_recipe import FEWSHOT
from dubito.experiments._recipe import TRAINING, Cell, Recipe
from dubito.report import files
from dubito.training import NonFiniteLoss, Watch

__all__ = ["Emit", "Failures", "Tell", "Unit", "run", "units"]

QUICK_DATA = "quick-data"
#: told of what happens: {"event": "start" | "epoch" | "episodes" | "done" | "failed", "cell": ...}
Tell = Callable[[dict[str, Any]], None]
Emit = Callable[[Record], object]
#: cell's name -> what went wrong
Failures = dict[str, str]
#: what one seed may run into, or several that share a GPU, where another one alone does not
_ONE_SEED = (NonFiniteLoss, torch.OutOfMemoryError)
#: nobody is there to be told of anything
_UNHEARD = (BrokenPipeError, ConnectionResetError)


@dataclass(frozen=True)
class Unit:
    """Cells that share a training: their recipes differ in name and evaluation at most."""

    cells: tuple[Cell, ...]

    @property
    def seeds(self) -> list[int]:
        """The seeds to train, each once."""
        return list(dict.fromkeys(cell.seed for cell in self.cells))

    @property
    def folder(self) -> str:
        """Where it is trained, below the folder of all trainings: named by what is trained."""
        recipe = self.cells[0].recipe
        if recipe.kind == FEWSHOT:
            return f"{recipe.name}-{recipe.training_id}"
        source = Path(recipe.sections["data"]["source"].replace(_quick.PREFIX, "quick-")).name
        method = recipe.sections["method"].get("name", "iedl")
        # what was not watched can't be seen afterwards: it is no training for who asks for that
        watched = any(cell.recipe.evaluate["watch"] for cell in self.cells)
        return f"{source}-{method}-{recipe.training_id}" + ("-watched" if watched else "")

    def of(self, seed: int) -> Unit:
        """The part of one seed."""
        return Unit(tuple(cell for cell in self.cells if cell.seed == seed))


class _Unfit(Exception):
    """Some cells can't be judged by what they name; the others can."""

    def __init__(self, others: Unit, failures: Failures) -> None:
        self.others, self.failures = others, failures


def units(cells: Iterable[Cell], *, together: bool) -> list[Unit]:
    """Cells by what they train, all seeds `together` or each on its own.

    Two recipes with the same training share it.

    >>> from dataclasses import replace
    >>> from dubito.experiments import recipes
    >>> one = recipes()["mnist-iedl"]
    >>> cells = [*one.cells(), *replace(one, name="again").cells([322, 365, 382])]
    >>> [len(unit.cells) for unit in units(cells, together=True)]
    [8]
    >>> [len(unit.cells) for unit in units(cells, together=False)]
    [2, 2, 2, 1, 1]
    """
    found: dict[tuple[str, int | None], list[Cell]] = {}
    for cell in cells:
        key = (cell.recipe.training_id, None if together else cell.seed)
        found.setdefault(key, []).append(cell)
    return [Unit(tuple(held)) for held in found.values()]


def run(unit: Unit, work: Path, device: str, tell: Tell, emit: Emit) -> Failures:
    """Train what is left to train, judge it, and hand out each record; what went wrong is returned.

    Where several seeds fail together, each is tried alone, from where it was: one whose loss is not
    finite does not take the others with it.
    """
    ready, failures = _checked(unit, work, tell)
    if not ready.cells:
        return failures
    try:
        return failures | _run(ready, work, device, tell, emit)
    except _Unfit as found:  # the folder is named by who trains in it
        return failures | found.failures | run(found.others, work, device, tell, emit)
    except _ONE_SEED as error:
        if len(ready.seeds) == 1:
            return failures | _failed(ready, error, tell)
    except _UNHEARD:
        raise
    except Exception as error:
        return failures | _failed(ready, error, tell)
    for seed in ready.seeds:
        failures |= run(ready.of(seed), work, device, tell, emit)
    return failures


def _failed(unit: Unit, error: Exception, tell: Tell) -> Failures:
    reason = str(error) if isinstance(error, ValueError | OSError) else ""
    message = reason or f"{type(error).__name__}: {error}"
    for cell in unit.cells:
        tell({"event": "failed", "cell": cell.name, "reason": message})
    return {cell.name: message for cell in unit.cells}


def _checked(unit: Unit, work: Path, tell: Tell) -> tuple[Unit, Failures]:
    """The cells that have all they will be judged by, before hours of training; and the others."""
    from filelock import FileLock

    data = work / QUICK_DATA

    def check(recipe: Recipe) -> None:
        if recipe.quick:
            with FileLock(files.folder(data) / ".lock"):
                _quick.prepare(data)
        _CHECKS[recipe.kind](recipe, data)

    return _passing(unit, check, tell)


def _passing(unit: Unit, check: Callable[[Recipe], None], tell: Tell) -> tuple[Unit, Failures]:
    """The cells of recipes that a check lets pass, and what it says of the others."""
    ready, failures = tuple[Cell, ...](), Failures()
    for name in dict.fromkeys(cell.recipe.name for cell in unit.cells):
        part = Unit(tuple(cell for cell in unit.cells if cell.recipe.name == name))
        try:
            check(part.cells[0].recipe)
            ready += part.cells
        except Exception as error:
            failures |= _failed(part, error, tell)
    return Unit(ready), failures


def _run(unit: Unit, work: Path, device: str, tell: Tell, emit: Emit) -> Failures:
    from filelock import FileLock

    place = files.folder(work / unit.folder)
    with ExitStack() as stack:
        # one process at a time, also where that of a stopped command still ends its last epoch
        for seed in sorted(unit.seeds):
            stack.enter_context(FileLock(place / f".seed-{seed}.lock"))
        run_it = _RUNS[unit.cells[0].recipe.kind]
        return run_it(unit, place, work / QUICK_DATA, device, tell, emit)


def _train_and_judge(
    unit: Unit, place: Path, data: Path, device: str, tell: Tell, emit: Emit
) -> Failures:
    config, _ = _quick.located(unit.cells[0].recipe, data)
    where = runs.device_named(device)
    if where.type == "cuda":  # of a function torch compiles eight kinds and no more
        torch.compiler.reset()
    plan = runs.plan(config, place, seeds=unit.seeds, device=where)
    others, unfit = _passing(unit, partial(_cell.check_shapes, plan, data), tell)
    if unfit:
        raise _Unfit(others, unfit)
    names = {seed: [cell.name for cell in unit.of(seed).cells] for seed in unit.seeds}
    for member in plan.members:
        for name in names[member.config.training["seed"]]:
            tell({"event": "start", "cell": name, "state": member.state})

    def epoch(entry: dict[str, Any]) -> None:
        for name in names[entry["seed"]]:
            tell({"event": "epoch", "cell": name, **_figures(entry)})

    summaries = runs.train(plan, epoch, _watch_of(unit, plan))
    failures = Failures()
    for seed, member, summary in zip(unit.seeds, plan.members, summaries, strict=True):
        trained = runs.load(member.folder, where)
        for cell in unit.of(seed).cells:
            made = partial(_cell.record, cell, plan, trained, summary, data)
            failures |= _recorded(cell, made, tell, emit)
    return failures


def _episodes(unit: Unit, place: Path, data: Path, device: str, tell: Tell, emit: Emit) -> Failures:
    """Few-shot episodes, cell by cell; parts that are finished are found again."""
    failures = Failures()
    for cell in unit.cells:
        home = place / f"seed-{cell.seed}"
        state = "stopped" if home.exists() else "new"
        tell({"event": "start", "cell": cell.name, "state": state})

        def advance(done: int, total: int, name: str = cell.name) -> None:
            tell({"event": "episodes", "cell": name, "done": done, "total": total})

        made = partial(_fewshot_cell.record, cell, home, data, device, advance)
        failures |= _recorded(cell, made, tell, emit)
    return failures


def _recorded(cell: Cell, made: Callable[[], Record], tell: Tell, emit: Emit) -> Failures:
    """Make a cell's record and hand it out; what went wrong with it is told and returned."""
    try:
        record = made()
    except _UNHEARD:
        raise
    except Exception as error:
        return _failed(Unit((cell,)), error, tell)
    emit(record)
    tell({"event": "done", "cell": cell.name, "accuracy": record["result"]["accuracy"]})
    return {}


#: kind of recipe -> how its sources are found, and how its cells are run
_CHECKS = {TRAINING: _cell.check_sources, FEWSHOT: _fewshot_cell.check}
_RUNS = {TRAINING: _train_and_judge, FEWSHOT: _episodes}


def _watch_of(unit: Unit, plan: runs.Plan) -> Watch | None:
    """What looks at the test and OOD sets at each check, where a recipe asks for it."""
    judged = [cell.recipe.evaluate for cell in unit.cells if cell.recipe.evaluate["watch"]]
    if not judged:
        return None
    ood = dict.fromkeys(name for one in judged for name in one["ood"])
    held = _watch.loaded(plan, ood)
    return _watch.watcher(plan.config.make_method(), *held)


def _figures(entry: dict[str, Any]) -> dict[str, Any]:
    kept = ("epoch", "epochs", "validation_accuracy", "loss", "seconds")
    return {name: entry[name] for name in kept if name in entry}
