"""Runs recipes whose records are missing: in this process, in several, or on a Ray cluster.

Seeds of a recipe train together on a GPU. Trainings and episodes continue from their checkpoints,
and a finished record is stored at once, so that a killed run ends with the same records.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from filelock import FileLock, Timeout

from dubito._extras import need
from dubito.errors import DubitoError
from reproduction.recipes import COMPARISON, Cell, Recipe
from reproduction.store import Record, Store

__all__ = ["Unit", "run", "run_unit"]

#: times that a Ray task is repeated after its node was lost
RETRIES = 5
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Unit:
    """Seeds of a recipe that run together."""

    recipe: Recipe
    seeds: tuple[int, ...]

    @property
    def folder(self) -> str:
        """Name of the folder of its checkpoints, which follows from the recipe."""
        return f"{self.recipe.name.replace('/', '-')}-{Cell(self.recipe, 0).id}"

    def __str__(self) -> str:
        return f"{self.recipe.name} seed {', '.join(map(str, self.seeds))}"


#: a unit, its records, and the error message
Outcome = tuple[Unit, list[Record], str]


def run_unit(unit: Unit, work: Path, device: str) -> Outcome:
    """Run a unit; if seeds fail together, each is tried alone.

    Args:
        unit: Unit.
        work: Folder of all checkpoints.
        device: "cpu" or "cuda".
    """
    import torch

    from dubito.training import NonFiniteLoss

    try:
        return unit, _records(unit, work / unit.folder, device), ""
    except (NonFiniteLoss, torch.OutOfMemoryError) as error:
        if len(unit.seeds) == 1:
            return unit, [], f"{error}"
    except DubitoError as error:
        return unit, [], f"{error}"
    alone = [run_unit(Unit(unit.recipe, (seed,)), work, device) for seed in unit.seeds]
    problems = [f"seed {part.seeds[0]}: {problem}" for part, _, problem in alone if problem]
    return unit, [record for _, records, _ in alone for record in records], "; ".join(problems)


def _records(unit: Unit, folder: Path, device: str) -> list[Record]:
    if unit.recipe.is_fewshot:
        from reproduction.episodes import evaluate

        return [evaluate(cell, device) for cell in unit.recipe.cells(unit.seeds)]
    if unit.recipe.dataset == COMPARISON:
        from reproduction.comparison import train as compare

        return compare(unit.recipe, unit.seeds, folder, device)
    from reproduction.training import train

    return train(unit.recipe, unit.seeds, folder, device)


def run(
    recipes: Sequence[Recipe],
    store: Store,
    work: Path,
    *,
    seeds: Sequence[int] | None = None,
    device: str = "auto",
    jobs: int = 1,
    ray: str | None = None,
    report: Callable[[str], None] = print,
) -> dict[str, str]:
    """Run the units whose records are missing.

    Args:
        recipes: Recipes.
        store: Records.
        work: Folder of checkpoints.
        seeds: Seeds in place of those of the recipes.
        device: "auto", "cpu" or "cuda".
        jobs: Number of processes.
        ray: Address of a Ray cluster; "local" starts one.
        report: Function that shows a line of text.

    Returns:
        Error messages by unit.
    """
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() and ray is None else "cpu"
    cells = [cell for recipe in recipes for cell in recipe.cells(seeds)]
    missing = [cell for cell in cells if store.get(cell) is None]
    units = _units(missing, together=device == "cuda" and ray is None)
    report(f"{len(cells) - len(missing)} of {len(cells)} records are there, {len(units)} runs left")
    work.mkdir(parents=True, exist_ok=True)
    problems: dict[str, str] = {}
    with _locked(work):
        task = partial(run_unit, work=work.resolve(), device=device)
        if ray is not None:
            outcomes = _on_cluster(task, units, ray)
        elif jobs > 1:
            outcomes = _in_processes(task, units, jobs)
        else:
            outcomes = map(task, units)
        for number, (unit, records, problem) in enumerate(outcomes, 1):
            for record in records:
                store.add(record)
            if problem:
                problems[str(unit)] = problem
            else:
                for seed in unit.seeds:  # other seeds may be running
                    shutil.rmtree(work / unit.folder / f"seed-{seed}", ignore_errors=True)
            accuracy = ", ".join(f"{100 * each['result']['accuracy']:.2f}" for each in records)
            result = f"failed: {problem}" if problem else f"accuracy {accuracy} %"
            report(f"[{number}/{len(units)}] {unit}: {result}")
        store.compact()
    return problems


def _units(cells: Iterable[Cell], together: bool) -> list[Unit]:
    grouped: dict[tuple[str, int | None], list[Cell]] = {}
    for cell in cells:
        key = cell.recipe.name, None if together else cell.seed
        grouped.setdefault(key, []).append(cell)
    return [Unit(group[0].recipe, tuple(cell.seed for cell in group)) for group in grouped.values()]


def _locked(work: Path) -> FileLock:
    """Lock the folder of checkpoints; the system drops the lock of a killed process."""
    lock = FileLock(work / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise DubitoError(f"another run uses {work}: wait for it, or pass --work") from None
    return lock


def _in_processes(
    task: Callable[[Unit], Outcome], units: Sequence[Unit], jobs: int
) -> Iterator[Outcome]:
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ProcessPoolExecutor(jobs, get_context("spawn"), _start_process, (threads,)) as pool:
        for future in as_completed([pool.submit(task, unit) for unit in units]):
            yield future.result()


def _start_process(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _on_cluster(
    task: Callable[..., Outcome], units: Sequence[Unit], address: str
) -> Iterator[Outcome]:
    """Run units as tasks of a Ray cluster; those of a lost node are repeated on another one."""
    ray = need("ray", "ray")
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    passed = {k: v for k, v in os.environ.items() if k in ("DUBITO_DATA", "OMP_NUM_THREADS")}
    env = {**passed, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    ray.init(address=address, log_to_driver=False, runtime_env={"env_vars": env})
    try:
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        options = {"device": "cuda"} if gpus else {}
        remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(
            lambda unit: task(unit, **options)
        )
        pending = {remote.remote(unit): unit for unit in units}
        while pending:
            for reference in ray.wait(list(pending))[0]:
                unit = pending.pop(reference)
                try:
                    outcome = ray.get(reference)
                except ray.exceptions.RayTaskError:
                    raise  # a bug, as it would be in this process
                except ray.exceptions.RayError as error:
                    outcome = unit, [], f"{type(error).__name__}: {error}"
                yield outcome
    finally:
        ray.shutdown()
