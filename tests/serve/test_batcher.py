"""Batching of concurrent requests."""

import asyncio
import threading

from dubito.serve.batcher import Batcher


class Doubler:
    """Doubles numbers once its gate is open; fails on negative ones."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = threading.Event()

    def __call__(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        assert self.gate.wait(600)
        if min(items) < 0:
            raise ValueError("negative")
        return [2 * item for item in items]


async def stays() -> bool:
    return False


async def submit_while_busy(
    double: Doubler, *requests: list[int], clients: str = "aaaa", short: int = 4
) -> list[object]:
    """Submit requests, each of one of the clients, while a first batch runs."""
    batcher = Batcher(double, 4, short)
    first = asyncio.create_task(batcher.submit([0], "a", stays))
    while not double.batches:
        await asyncio.sleep(0)
    tasks = [
        asyncio.create_task(batcher.submit(items, client, stays))
        for items, client in zip(requests, clients, strict=False)
    ]
    await asyncio.sleep(0)
    double.gate.set()
    await first
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_requests_share_batches_of_limited_size():
    double = Doubler()
    results = asyncio.run(submit_while_busy(double, [1], [2, 3], [4, 5], [6, 7, 8, 9, 10]))
    assert results == [[2], [4, 6], [8, 10], [12, 14, 16, 18, 20]]
    assert double.batches == [[0], [1, 2, 3], [4, 5], [6, 7, 8, 9], [10]]


def test_clients_take_turns():
    double = Doubler()
    requests = ([1, 1, 1, 1], [2, 2, 2, 2], [3, 3], [4], [5, 5])
    asyncio.run(submit_while_busy(double, *requests, clients="aaabc"))
    assert double.batches[1:] == [[1, 1, 1, 1], [4, 5, 5], [2, 2, 2, 2], [3, 3]]


def test_batches_are_short_while_there_are_several_clients():
    double = Doubler()
    results = asyncio.run(submit_while_busy(double, [1, 2, 3, 4], [5], clients="ab", short=2))
    assert results == [[2, 4, 6, 8], [10]]
    assert double.batches[1:] == [[1, 2], [5], [3, 4]]
    alone = Doubler()
    asyncio.run(submit_while_busy(alone, [1, 2, 3, 4], [5], clients="aa", short=2))
    assert alone.batches[1:] == [[1, 2, 3, 4], [5]]


def test_a_failing_request_does_not_fail_its_batch():
    double = Doubler()
    good, bad = asyncio.run(submit_while_busy(double, [1], [-1]))
    assert good == [2]
    assert isinstance(bad, ValueError)


def test_a_cancelled_request_is_withdrawn():
    double = Doubler()

    async def run() -> None:
        batcher = Batcher(double, 4, 4)
        first = asyncio.create_task(batcher.submit([0], "a", stays))
        while not double.batches:
            await asyncio.sleep(0)
        second = asyncio.create_task(batcher.submit([1], "a", stays))
        await asyncio.sleep(0)
        second.cancel()
        double.gate.set()
        await first
        assert await batcher.submit([2], "a", stays) == [4]

    asyncio.run(run())
    assert double.batches == [[0], [2]]


def test_a_brief_function_runs_in_the_loop():
    threads = []

    def double(items: list[int]) -> list[int]:
        threads.append(threading.current_thread())
        return [2 * item for item in items]

    async def run() -> list[list[int]]:
        batcher = Batcher(double, 2, 2, in_thread=False)
        return await asyncio.gather(
            batcher.submit([1, 2, 3], "a", stays), batcher.submit([5], "b", stays)
        )

    assert asyncio.run(run()) == [[2, 4, 6], [10]]
    assert threads == [threading.current_thread()] * 2
