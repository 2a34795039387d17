"""The one thread that has the model: requests of many clients become batches for it.

All waiting is done in the event loop: it hands the thread one batch at a time, and while the thread
works the next one gathers. So a batch costs two changes of thread, however many requests it has.
Should the thread die, the requests it was working on are told so, those that wait go on waiting,
and a new one takes over.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dubito.serve._log import Log
from dubito.serve._metrics import Metrics
from dubito.serve._model import Answers, Served
from dubito.serve._problem import Problem

__all__ = ["Batcher", "Job"]

Rows = list[dict[str, Any]]
Inputs = npt.NDArray[np.float32]
MOST_DEATHS, WITHIN_S = 5, 60.0  # a thread that dies more often will not get well
SWEEP_S = 0.1  # how often it is seen whether a request has waited too long


class Job:
    """The inputs (n, *shape) of one request, for the model that was served when it came."""

    __slots__ = ("deadline", "dropped", "future", "inputs", "served")

    def __init__(
        self, served: Served, inputs: Inputs, future: asyncio.Future[Rows], deadline: float
    ) -> None:
        self.served, self.inputs, self.future, self.deadline = served, inputs, future, deadline
        self.dropped = False

    def drop(self) -> None:
        """Nobody waits for it any more."""
        self.dropped = True
        self.future.cancel()

    def finish(self, outcome: Rows | Exception) -> None:
        """Tell who waits; in the event loop."""
        if self.future.done():
            return
        if isinstance(outcome, Exception):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class Batcher:
    """A bounded queue in the event loop, and the thread that works on batches of it.

    `failed` is called in the event loop once the thread has died too often.
    """

    def __init__(
        self,
        *,
        batch_size: int,
        gather_ms: float,
        most: int,
        timeout_s: float,
        metrics: Metrics,
        log: Log,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self.batch_size, self.gather_s, self.most = batch_size, gather_ms / 1000, most
        self.timeout_s = timeout_s
        self.metrics, self.log, self.failed = metrics, log, failed
        self.waiting = 0  # inputs that were submitted and not yet given to the thread
        self._pending: deque[Job] = deque()
        self._working: Sequence[Job] = ()
        self._since = 0.0  # when the batch at work was begun
        self._timer: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._deaths: list[float] = []
        self._stopping = False
        self._batches: queue.SimpleQueue[Sequence[Job] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    # --- in the event loop -----------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; called in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._begin()
        self._sweep()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._run, name="dubito-model", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread is there."""
        return self._thread is not None and self._thread.is_alive()

    def busy_for(self) -> float:
        """Seconds since the batch at work was begun; 0 between batches."""
        return time.monotonic() - self._since if self._working else 0.0

    def submit(self, served: Served, inputs: Inputs, deadline: float | None = None) -> Job:
        """Queue inputs (n, *shape); a Problem where the queue is full.

        The deadline is one of the event loop's clock, by default `timeout_s` from now.
        """
        if self.waiting + len(inputs) > self.most:
            self._forget()
        if self.waiting + len(inputs) > self.most:
            raise Problem("busy", f"{self.waiting} inputs wait already; try again soon")
        until = self._loop.time() + self.timeout_s if deadline is None else deadline
        job = Job(served, inputs, self._loop.create_future(), until)
        self._pending.append(job)
        self.waiting += len(inputs)
        if not self._working:
            if self.waiting >= self.batch_size or not self.gather_s:
                self._dispatch()
            elif self._timer is None:
                self._timer = self._loop.call_later(self.gather_s, self._dispatch)
        return job

    def _forget(self) -> None:
        """Give the room of those that nobody waits for to others."""
        self._pending = deque(job for job in self._pending if not job.dropped)
        self.waiting = sum(len(job.inputs) for job in self._pending)

    def _dispatch(self) -> None:
        """Give the thread a batch of what waits: jobs of one model, at least one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        jobs: list[Job] = []
        size = 0
        while self._pending and not self._working:
            job = self._pending[0]
            other = bool(jobs) and job.served is not jobs[0].served
            if other or (jobs and size + len(job.inputs) > self.batch_size):
                break
            self._pending.popleft()
            self.waiting -= len(job.inputs)
            if not job.dropped:
                jobs.append(job)
                size += len(job.inputs)
        if jobs:
            self._working, self._since = jobs, time.monotonic()
            self._batches.put(jobs)

    def _finished(self, outcomes: Sequence[Rows | Exception]) -> None:
        """The thread is done with its batch; what has gathered meanwhile is next."""
        done, self._working = self._working, ()
        self._dispatch()
        for job, outcome in zip(done, outcomes, strict=True):
            job.finish(outcome)

    def _sweep(self) -> None:
        """One timer for all requests: a timer for each would cost more than the rest of it."""
        now = self._loop.time()
        for job in (*self._pending, *self._working):
            if job.deadline < now:
                job.dropped = True
                message = f"there was no answer within {self.timeout_s:g} s"
                job.finish(Problem("timeout", message))
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    async def stop(self, timeout: float) -> None:
        """Finish what was submitted, then end the thread."""
        until = self._loop.time() + timeout
        while (self._pending or self._working) and self._loop.time() < until:
            await asyncio.sleep(0.01)
        self._stopping = True
        self._batches.put(None)
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, max(until - self._loop.time(), 0.1))

    def _died(self) -> None:
        """The thread has ended and should not have."""
        lost, self._working = self._working, ()
        message = "the model stopped while it worked on this; try again"
        for job in lost:
            job.finish(Problem("not_ready", message))
        self.metrics.restarts += 1
        now = time.monotonic()
        self._deaths = [then for then in self._deaths if now - then < WITHIN_S] + [now]
        self.log.error("worker_died", lost=len(lost), deaths=len(self._deaths))
        if len(self._deaths) > MOST_DEATHS:
            self.failed()
            return
        self._batches = queue.SimpleQueue()  # whatever the dead one left in it was told already
        self._begin()
        self._dispatch()

    # --- in the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            for jobs in iter(self._batches.get, None):
                self._loop.call_soon_threadsafe(self._finished, self._outcomes(jobs))
        finally:
            if not self._stopping and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._died)

    def _outcomes(self, jobs: Sequence[Job]) -> list[Rows | Exception]:
        started = time.perf_counter()
        outcomes = self._told(jobs)
        self.metrics.batch(sum(len(job.inputs) for job in jobs), time.perf_counter() - started)
        return outcomes

    def _told(self, jobs: Sequence[Job]) -> list[Rows | Exception]:
        """What becomes of each job; one that the model can't take does not spoil its neighbours."""
        try:
            return list(self._said(jobs))
        except ValueError as error:
            if len(jobs) > 1:
                return [outcome for job in jobs for outcome in self._told([job])]
            return [_at_fault(jobs[0], error)]
        except Exception as error:
            self.log.exception("prediction_failed", error)
            return [Problem("internal", "the model failed; the reason is in the log")] * len(jobs)

    def _said(self, jobs: Sequence[Job]) -> list[Rows]:
        served = jobs[0].served
        inputs = np.concatenate([job.inputs for job in jobs]) if len(jobs) > 1 else jobs[0].inputs
        answers = served.answer(inputs)
        self.metrics.answered(served, answers)
        return _divided(answers, jobs)


def _divided(answers: Answers, jobs: Sequence[Job]) -> list[Rows]:
    parts, at = [], 0
    for job in jobs:
        parts.append(answers.rows[at : at + len(job.inputs)])
        at += len(job.inputs)
    return parts


def _at_fault(job: Job, error: ValueError) -> Problem:
    """Which input of a job it was: the first of those that fail alone."""
    low, high = 0, len(job.inputs)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            job.served.answer(job.inputs[low:middle])
            low = middle
        except ValueError:
            high = middle
    reason = " ".join(str(error).split())
    return Problem("bad_input", f"the model can't take this input: {reason}", index=low)
