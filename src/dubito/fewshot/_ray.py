"""Parts of a run as tasks of a Ray cluster (extra `ray`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dubito import _cluster
from dubito.fewshot.engine import Engine, Values

__all__ = ["computed"]

Range = tuple[int, int]
RETRIES = 5  # times that a part is computed again after its worker or node was lost
AHEAD = 2  # parts that wait for each worker: no more, so that results do not pile up


def computed(
    engine: Engine,
    ranges: Sequence[Range],
    address: str,
    gpus: float | None,
    tell: Callable[[int], None] | None,
) -> Iterator[tuple[Range, str, Values]]:
    """The parts as they are ready: their range, the device they were computed on, the figures."""
    with _cluster.connected(address) as ray:
        share = _cluster.share_of(ray, gpus)
        given = (engine.pool, engine.outside, engine.setting, engine.head, engine.solver)
        held = ray.put(given)  # features travel once to a node, not with each part
        task = ray.remote(num_cpus=1, num_gpus=share, max_retries=RETRIES)(_part)
        device = "cuda" if share else "cpu"
        waiting = list(reversed(ranges))
        running: dict[Any, Range] = {}
        while waiting or running:
            while waiting and len(running) < AHEAD * _workers(ray, share):
                place = waiting.pop()
                running[task.remote(held, place, device)] = place
            (ready, *_), _ = ray.wait(list(running))
            place = running.pop(ready)
            values = _result(ray, ready, place)
            if tell is not None:
                tell(place[1] - place[0])
            yield place, device, values


def _workers(ray: Any, share: float) -> int:
    """How many parts the cluster computes at once."""
    found = ray.cluster_resources()
    count = found.get("GPU", 0) / share if share else found.get("CPU", 0)
    return max(1, int(count))


def _result(ray: Any, task: Any, place: Range) -> Values:
    try:
        values: Values = ray.get(task)
    except ray.exceptions.RayTaskError as error:
        raise error.as_instanceof_cause() from None
    except ray.exceptions.RayError as error:
        raise OSError(
            f"episodes {place[0]} to {place[1]} were lost {RETRIES + 1} times: "
            f"{type(error).__name__}; start the same command again and it goes on"
        ) from error
    return values


def _part(given: tuple[Any, ...], place: Range, device: str) -> Values:
    """What a worker does; one thread, since the cluster gives it one core."""
    import torch

    torch.set_num_threads(1)
    pool, outside, setting, head, solver = given
    return Engine(pool, outside, setting, head, solver, torch.device(device)).values(*place)
