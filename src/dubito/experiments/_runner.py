"""Run what is missing of the recipes' cells: here, in several processes, or on a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dubito import runs
from dubito.experiments import _jobs, _ray, _unit
from dubito.experiments._cell import Record
from dubito.experiments._recipe import Cell, Recipe
from dubito.experiments._store import CHANGED, DONE, Store
from dubito.experiments._unit import Failures, Tell
from dubito.report import files

__all__ = ["Outcome", "reproduce"]


@dataclass(frozen=True)
class Outcome:
    """What was done: the cells that ran, those that were done before, and those that failed.

    `outdated` are records of recipes that were not asked for and have changed since: they are left
    out of results.json until their cells run again.
    """

    ran: list[str]
    skipped: list[str]
    failed: Failures
    outdated: list[str]
    results: Path
    records: list[Record] = field(repr=False)


def reproduce(
    recipes: Sequence[Recipe],
    *,
    out: Path,
    work: Path,
    among: Iterable[Recipe] | None = None,
    seeds: Sequence[int] | None = None,
    device: str = "auto",
    jobs: int = 1,
    ray: str | None = None,
    gpus: float | None = None,
    tell: Tell | None = None,
) -> Outcome:
    """Bring the records of the recipes up to date, and results.json with them.

    A cell whose record is there and of the recipe as it stands is skipped; a training that was
    stopped goes on; the record of a recipe that has changed is put aside and its cell run again.
    On a GPU the seeds of a recipe train at once; elsewhere one by one. `jobs` processes work side
    by side; `ray` is the address of a cluster, and `gpus` the share of a GPU for a cell there.
    results.json has all current records in `out` of the recipes `among` which these are chosen.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, not {jobs!r}")
    if ray is not None and jobs > 1:
        raise ValueError("a cluster decides itself how many cells run at once: no jobs with ray")
    tell = tell or _silent
    store = Store(files.folder(out), quick=any(recipe.quick for recipe in recipes))
    every = [cell for recipe in recipes for cell in recipe.cells(seeds)]
    known = list(among) if among is not None else list(recipes)
    store.records(known)  # a damaged one is told before the training, not after it
    where = runs.device_named(device) if ray is None else None
    together = where is not None and where.type == "cuda"
    with _alone(files.folder(work)):
        left = _left(store, every, tell)
        units = _unit.units(left, together=together)
        if ray is not None:
            failed = _ray.on_cluster(units, ray, work.resolve(), device, gpus, tell, store.write)
        elif jobs > 1:
            failed = _jobs.side_by_side(units, jobs, store, work, device, tell)
        else:
            failed = {}
            for unit in units:
                failed |= _unit.run(unit, work, device, tell, store.write)
    # a process may be lost with some of its cells done
    failed = {
        cell.name: failed[cell.name]
        for cell in left
        if cell.name in failed and store.state(cell) != DONE
    }
    records = store.records(known)
    return Outcome(
        ran=[cell.name for cell in left if cell.name not in failed],
        skipped=[cell.name for cell in every if cell not in left],
        failed=failed,
        outdated=_outdated(store, known),
        results=store.write_results(records),
        records=records,
    )


def _silent(event: dict[str, Any]) -> None:
    """Nobody listens."""


def _left(store: Store, cells: Iterable[Cell], tell: Tell) -> list[Cell]:
    """The cells to run; records of earlier states of their recipes are put aside.

    One that was put aside is taken back where its recipe is again what it was.
    """
    left = []
    for cell in cells:
        state = store.state(cell)
        if state == CHANGED:
            aside = store.put_aside(cell)
            tell({"event": "aside", "cell": cell.name, "path": str(aside)})
        if state != DONE and not store.take_back(cell):
            left.append(cell)
    return left


def _outdated(store: Store, recipes: Iterable[Recipe]) -> list[str]:
    cells = (cell for recipe in recipes for cell in recipe.cells(store.seeds(recipe)))
    return [cell.name for cell in cells if store.state(cell) == CHANGED]


def _alone(work: Path) -> Any:
    """A lock on the folder of trainings, which the system drops if this process dies."""
    from filelock import FileLock, Timeout

    lock = FileLock(work / ".lock", timeout=0)
    try:
        return lock.acquire()
    except Timeout:
        raise OSError(
            f"another `dubito reproduce` is at work in {work}; wait for it, or choose another "
            "folder (--work)"
        ) from None
