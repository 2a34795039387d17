"""Processes that begin where the imports are done, for tests that start many and kill some.

They are forked from a process of their own, which has imported what a training needs and has no
threads: importing takes longer than the trainings of these tests.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from unittest.mock import patch

#: what takes long; a name that is missing here is imported by each process
IMPORTED = (
    "tests.training._job",
    "dubito.experiments",
    "torch._dynamo",
    "dubito.kernels.function",
    "numba.np.arraymath",
)


@cache
def context() -> ForkServerContext:
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(list(IMPORTED))
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        forkserver.ensure_running()
    return made


def _answer(sent: Connection, function: Callable[..., str], arguments: tuple[object, ...]) -> None:
    try:
        sent.send(function(*arguments))
    except Exception:
        sent.send(traceback.format_exc())
        sys.exit(1)


class Job:
    """A call in a process of its own, which has begun."""

    def __init__(self, function: Callable[..., str], *arguments: object) -> None:
        self._said, sent = context().Pipe(duplex=False)
        self.process = context().Process(target=_answer, args=(sent, function, arguments))
        self.process.start()
        sent.close()

    @property
    def running(self) -> bool:
        return self.process.is_alive()

    def wait(self) -> str:
        """What it returned, or the trace of what it raised; nothing if it was killed."""
        said = ""
        with self._said, suppress(EOFError):
            assert self._said.poll(300), "it takes too long"
            said = self._said.recv()
        self.process.join(60)
        assert not self.running, "it does not end"
        return said

    def result(self) -> str:
        """What it returned."""
        said = self.wait()
        assert self.process.exitcode == 0, said
        return said
