"""Limits that clients share."""

import asyncio
import threading

import pytest
from starlette.exceptions import HTTPException

from dubito.serve.limits import Memory, Slots, in_thread


def test_clients_take_turns_for_slots():
    slots, order = Slots(1), []

    async def use(client: str) -> None:
        async with slots.take(client):
            order.append(client)
            await asyncio.sleep(0)

    async def run() -> None:
        await asyncio.gather(*map(use, "aaaabbc"))

    asyncio.run(run())
    assert "".join(order) == "aabcaba"
    assert slots.free == 1


def test_a_request_that_gives_up_leaves_its_slot_to_others():
    slots = Slots(1, patience=0.01)

    async def use(client: str) -> None:
        async with slots.take(client):
            pass

    async def run() -> None:
        async with slots.take("a"):
            with pytest.raises(HTTPException, match="too many requests") as refused:
                await use("b")
            assert refused.value.headers == {"retry-after": "1"}
            late = asyncio.create_task(use("c"))
            await asyncio.sleep(0)
        late.cancel()  # it has the slot already
        with pytest.raises(asyncio.CancelledError):
            await late
        await use("d")

    asyncio.run(run())
    assert slots.free == 1


def test_a_client_takes_at_most_half_of_the_memory():
    memory = Memory(100)
    with memory.lease("a") as first, memory.lease("a") as second, memory.lease("b") as other:
        first(30)
        with pytest.raises(HTTPException) as busy:
            second(21)
        with pytest.raises(HTTPException) as large:
            first(21)
        other(50)
        second(20)
        assert (busy.value.status_code, large.value.status_code, memory.free) == (503, 413, 0)
    assert memory.free == 100


def test_a_cancelled_call_holds_its_slot_until_its_thread_ends() -> None:
    slots, started, end = Slots(1), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        end.wait()

    async def call() -> None:
        async with slots.take("a"):
            await in_thread(work)

    async def main() -> None:
        task = asyncio.create_task(call())
        await asyncio.to_thread(started.wait)
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert slots.free == 0
        end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert slots.free == 1

    asyncio.run(asyncio.wait_for(main(), 10))
