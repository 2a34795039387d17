"""Limits that requests share, fair between clients."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Generic, TypeVar

from starlette.exceptions import HTTPException

__all__: list[str] = []

T = TypeVar("T")


class Turns(Generic[T]):
    """Queue in which clients take turns; the items of each stay in their order."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()  # the next client is the first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def clients(self) -> int:
        """Number of clients that have items."""
        return len(self._queues)

    def push(self, client: str, item: T) -> None:
        """Add an item of a client."""
        if client not in self._queues:
            self._queues[client] = deque()
        self._queues[client].append(item)
        self._count += 1

    def peek(self) -> T:
        """Return the next item."""
        return next(iter(self._queues.values()))[0]

    def pop(self) -> T:
        """Remove and return the next item; then it is the turn of the next client."""
        client, queue = next(iter(self._queues.items()))
        item = queue.popleft()
        self._count -= 1
        if queue:
            self._queues.move_to_end(client)
        else:
            del self._queues[client]
        return item


class Slots:
    """Limit of the requests that run at a time; clients take turns for a slot.

    Args:
        count: Number of slots.
        patience: Seconds after which a waiting request is refused; None for no limit.
    """

    def __init__(self, count: int, patience: float | None = None) -> None:
        self.free, self._patience = count, patience
        self._waiting: Turns[asyncio.Future[None]] = Turns()

    @asynccontextmanager
    async def take(self, client: str) -> AsyncIterator[None]:
        """Hold a slot in a `with` block."""
        if self.free:
            self.free -= 1
        else:
            await self._wait(client)
        try:
            yield
        finally:
            self._release()

    async def _wait(self, client: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.push(client, turn)
        try:
            async with asyncio.timeout(self._patience):
                await turn
        except (TimeoutError, asyncio.CancelledError) as error:
            if not turn.cancelled():  # it has the slot, but nobody uses it
                self._release()
            if isinstance(error, TimeoutError):
                raise busy("requests") from None
            raise

    def _release(self) -> None:
        while self._waiting:
            turn = self._waiting.pop()
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1


class Memory:
    """Bytes that requests may take together; each client may take half of them.

    Args:
        size: Number of bytes.
    """

    def __init__(self, size: int) -> None:
        self.free, self._most = size, size // 2
        self._taken: Counter[str] = Counter()

    @contextmanager
    def lease(self, client: str) -> Iterator[Callable[[int], None]]:
        """Return a function that takes bytes until the end of a `with` block."""
        own = 0

        def take(size: int) -> None:
            nonlocal own
            if own + size > self._most:
                raise HTTPException(413, f"a request may take at most {self._most} bytes of memory")
            if size > self.free or self._taken[client] + size > self._most:
                raise busy("bytes")
            self.free -= size
            self._taken[client] += size
            own += size

        try:
            yield take
        finally:
            self.free += own
            self._taken[client] -= own
            if not self._taken[client]:
                del self._taken[client]


async def in_thread(function: Callable[[], T]) -> T:
    """Return the result of a function that runs in a thread.

    A thread cannot be stopped: a cancelled call waits for its end, so that limits count it.

    Args:
        function: Function to run.
    """
    task = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def busy(unit: str) -> HTTPException:
    """Return the refusal of a request that may be repeated.

    Args:
        unit: What there is too much of.
    """
    return HTTPException(503, f"too many {unit} at once; try again later", {"retry-after": "1"})
