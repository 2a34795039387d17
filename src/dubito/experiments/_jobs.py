"""Units side by side, in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from dubito.experiments import _unit
from dubito.experiments._store import Store
from dubito.experiments._unit import Failures, Tell, Unit

__all__ = ["side_by_side"]

GPUS = ("auto", "cuda")
_END, _WARNING = "end", "warning"


@dataclass
class _Worker:
    """A process that takes one unit after the other, and the pipe to it.

    Each has a pipe of its own, so that one that dies in the middle of a word confuses no other.
    """

    process: BaseProcess
    pipe: Connection
    slot: int
    unit: Unit


def side_by_side(
    units: Sequence[Unit], jobs: int, store: Store, work: Path, device: str, tell: Tell
) -> Failures:
    """Run the units in at most `jobs` processes; what went wrong, by cell.

    A process that dies takes its unit's cells with it and no others: another one is started.
    """
    left, failures = list(reversed(units)), Failures()

    def start(slot: int) -> _Worker:
        options = (store, work, _device(device, slot), _threads(jobs))
        return _started(slot, left.pop(), options)

    running: dict[Connection, _Worker] = {}
    try:
        for slot in range(min(jobs, len(units))):
            worker = start(slot)
            running[worker.pipe] = worker
        while running:
            for pipe in connection.wait(list(running)):
                assert isinstance(pipe, Connection)
                worker = running[pipe]
                ended = _heard(worker, tell)
                if ended is None:
                    continue
                failures |= ended
                if left and worker.process.is_alive():
                    worker.unit = left.pop()
                    pipe.send(worker.unit)
                    continue
                _stop(running.pop(pipe))
                if left:
                    worker = start(worker.slot)
                    running[worker.pipe] = worker
    finally:
        for worker in running.values():
            worker.process.terminate()
    return failures


def _started(slot: int, unit: Unit, options: tuple[Any, ...]) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, *options), daemon=True)
    process.start()
    theirs.close()  # so that the pipe ends when the process does
    ours.send(unit)
    return _Worker(process, ours, slot, unit)


def _stop(worker: _Worker) -> None:
    worker.pipe.close()  # it waits for a unit, and ends
    worker.process.join()


def _heard(worker: _Worker, tell: Tell) -> Failures | None:
    """Pass on one message; the failures once it was the unit's last."""
    try:
        message: dict[str, Any] = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join()
        reason = f"its process died with exit code {worker.process.exitcode}"
        for cell in worker.unit.cells:
            tell({"event": "failed", "cell": cell.name, "reason": reason})
        return {cell.name: reason for cell in worker.unit.cells}
    if message["event"] == _END:
        return dict(message["failures"])
    if message["event"] == _WARNING:  # here, where all of them are heard, one is told once
        warnings.warn(message["text"], stacklevel=2)
    else:
        tell(message)
    return None


def _work(pipe: Connection, store: Store, work: Path, device: str, threads: int) -> None:
    """What a process does: units until there are no more."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and ends its children
    torch.set_num_threads(threads)

    def pass_on(message: Warning | str, *_: object, **__: object) -> None:
        pipe.send({"event": _WARNING, "text": str(message)})

    warnings.showwarning = pass_on
    while True:
        try:
            unit: Unit = pipe.recv()
            failures = _unit.run(unit, work, device, pipe.send, store.write)
            pipe.send({"event": _END, "failures": failures})
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return  # no more units, or no parent: what is trained is on disk for the next one


def _threads(jobs: int) -> int:
    return max(1, (os.cpu_count() or 1) // jobs)


def _device(name: str, slot: int) -> str:
    """GPUs in turn, where there are several and none is named."""
    import torch

    several = torch.cuda.is_available() and torch.cuda.device_count() > 1
    return f"cuda:{slot % torch.cuda.device_count()}" if several and name in GPUS else name
