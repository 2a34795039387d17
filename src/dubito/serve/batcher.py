"""Dynamic batching: one call of the model answers many requests."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

from dubito.serve.limits import Turns

__all__: list[str] = []

T = TypeVar("T")
R = TypeVar("R")
Question = Callable[[], Awaitable[bool]]
#: Seconds in the queue after which a request may have lost its client.
IMPATIENT = 0.5
#: Seconds without a second client after which batches are long again.
SHARED = 60.0


class _Part(NamedTuple, Generic[T, R]):
    """Items of one request that are computed together."""

    items: Sequence[T]
    results: asyncio.Future[Sequence[R]]
    is_gone: Question
    since: float

    def fail(self, error: Exception) -> None:
        if not self.results.done():
            self.results.set_exception(error)
            # Mark it as retrieved: asyncio would log it if `submit` fails on an earlier part.
            self.results.exception()


class Batcher(Generic[T, R]):
    """Computes results for the items of concurrent requests in batches.

    One batch runs at a time. Requests that have arrived by its end form the next one: an idle
    service answers at once, and batches grow with the load.

    Clients take turns. While there are several, batches are short, because a request has to wait
    for the end of the batch that runs.

    Args:
        compute: Function from a list of items to their results.
        batch_size: Maximum number of items in a batch.
        short: Maximum number while there are several clients.
        in_thread: Compute in a thread. A function that takes little time is faster without one;
            its results are the same.
    """

    def __init__(
        self,
        compute: Callable[[list[T]], Sequence[R]],
        batch_size: int,
        short: int,
        in_thread: bool = True,
    ) -> None:
        self._compute, self._in_thread = compute, in_thread
        self._batch_size, self._short, self._shared = batch_size, short, -SHARED
        self._queue: Turns[_Part[T, R]] = Turns()
        self._thread = ThreadPoolExecutor(1, "dubito-model")
        self._worker: asyncio.Task[None] | None = None  # while there is something to compute

    async def submit(self, items: Sequence[T], client: str, is_gone: Question) -> list[R]:
        """Return the results of some items; cancel the call to withdraw them.

        Args:
            items: Items of one request.
            client: Address of its client.
            is_gone: Returns whether the client has left; then the items are not computed.

        Raises:
            ConnectionError: If the client has left.
        """
        loop, size = asyncio.get_running_loop(), self._short
        parts: list[_Part[T, R]] = [
            _Part(items[start : start + size], loop.create_future(), is_gone, loop.time())
            for start in range(0, len(items), size)
        ]
        for part in parts:
            self._queue.push(client, part)
        if self._worker is None:
            self._worker = loop.create_task(self._work())
        try:
            return [result for part in parts for result in await part.results]
        finally:
            for part in parts:
                part.results.cancel()

    async def _work(self) -> None:
        """Compute batches until the queue is empty."""
        try:
            while batch := await self._next_batch():
                try:
                    await self._run(batch)
                except Exception:  # an input that fails must not fail those of other requests
                    for part in batch:
                        try:
                            await self._run([part])
                        except Exception as error:
                            part.fail(error)
        finally:
            self._worker = None

    async def _next_batch(self) -> list[_Part[T, R]]:
        """Take parts from the queue, and drop those that nobody waits for."""
        batch: list[_Part[T, R]] = []
        count, waiting, loop = 0, -1, asyncio.get_running_loop()
        while waiting < len(self._queue) < self._batch_size:  # let more requests join the batch
            waiting = len(self._queue)
            await asyncio.sleep(0)  # send responses, receive requests
            await asyncio.sleep(0)  # read these
        if self._queue.clients > 1:
            self._shared = loop.time()
        most = self._short if loop.time() - self._shared < SHARED else self._batch_size
        while self._queue and count + len(self._queue.peek().items) <= most:
            part = self._queue.pop()
            if loop.time() - part.since > IMPATIENT and await part.is_gone():
                part.fail(ConnectionError("the client has left"))
            if not part.results.done():
                batch.append(part)
                count += len(part.items)
        return batch

    async def _run(self, batch: list[_Part[T, R]]) -> None:
        loop, items = asyncio.get_running_loop(), [item for part in batch for item in part.items]
        if self._in_thread:
            results = await loop.run_in_executor(self._thread, self._compute, items)
        else:
            results = self._compute(items)
        start = 0
        for part in batch:
            if not part.results.done():
                part.results.set_result(results[start : start + len(part.items)])
            start += len(part.items)
