"""Units as tasks of a Ray cluster (extra `ray`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dubito import _cluster
from dubito._cluster import AUTO
from dubito.experiments import _unit
from dubito.experiments._cell import Record
from dubito.experiments._unit import Emit, Failures, Tell, Unit

__all__ = ["AUTO", "on_cluster"]

RETRIES = 5  # times that a task is run again after its worker or node was lost
WAIT = 0.25  # seconds


def on_cluster(
    units: Sequence[Unit],
    address: str,
    work: Path,
    device: str,
    gpus: float | None,
    tell: Tell,
    emit: Emit,
) -> Failures:
    """Run the units as tasks; a unit whose worker or node is lost is run again, by another one.

    `address` is the cluster's, or "auto": the one on this machine, else a new one here. A task
    takes the share `gpus` of a GPU; by default a whole one where the cluster has any. Trainings
    stand in `work` on the node that runs them, or for all if that is shared; records come back and
    are handed out here.
    """
    with _cluster.connected(address) as ray:
        share = _cluster.share_of(ray, gpus)
        board = _board(ray)
        task = ray.remote(num_cpus=1, num_gpus=share, max_retries=RETRIES)(_task)
        place = ("cuda" if share else "cpu") if device == "auto" else device
        return _collect(ray, board, [(u, task.remote(u, work, place, board)) for u in units],
                        tell, emit)  # fmt: skip


class _Board:
    """What tasks have told since it was last asked."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def tell(self, event: dict[str, Any]) -> None:
        self.told.append(event)

    def take(self) -> list[dict[str, Any]]:
        taken, self.told = self.told, []
        return taken


def _board(ray: Any) -> Any:
    """An actor on this node, which is lost only with the command itself."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(_Board).remote()


def _task(unit: Unit, work: Path, device: str, board: Any) -> tuple[list[Record], Failures]:
    records: list[Record] = []
    failures = _unit.run(unit, work, device, board.tell.remote, records.append)
    return records, failures


def _collect(
    ray: Any, board: Any, started: Sequence[tuple[Unit, Any]], tell: Tell, emit: Emit
) -> Failures:
    left = {task: unit for unit, task in started}
    failures: Failures = {}
    while left:
        ready, _ = ray.wait(list(left), timeout=WAIT)
        for event in ray.get(board.take.remote()):
            tell(event)
        for task in ready:
            unit = left.pop(task)
            try:
                records, failed = ray.get(task)
            except ray.exceptions.RayError as error:
                reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                records, failed = [], {cell.name: reason for cell in unit.cells}
            for record in records:
                emit(record)
            failures |= failed
    for event in ray.get(board.take.remote()):
        tell(event)
    return failures
