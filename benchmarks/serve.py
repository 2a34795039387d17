"""The service under load: single predictions, gathered into batches and one by one.

A digits model (64 numbers an input) served by `dubito serve` in a process of its own, and a client
on the same machine: 32 connections that are kept open, each asking again once it has its answer,
64 numbers as JSON a request, and every answer looked at. Both ways run in turns, several times; the
row of each is its median turn. "CPU ms" is what the service computed for a request, which hardly
depends on what else the machine does. `python -m benchmarks.serve --soak 600` asks for ten minutes
at a steady rate instead, and tells how the memory of the service grew.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import Row

CONNECTIONS = 32
SECONDS = 6.0  # a turn
WARM_S = 1.0  # not counted, at the beginning of each
TURNS = 3
WAYS: dict[str, list[str]] = {
    "one by one": ["--batch-size", "1", "--gather-ms", "0"],
    "in batches": [],
}


def run() -> list[Row]:
    """Both ways in turns."""
    with tempfile.TemporaryDirectory() as place:
        folder = trained(Path(place) / "digits")
        found: dict[str, list[Load]] = {way: [] for way in WAYS}
        for _ in range(TURNS):
            for way, options in WAYS.items():
                with served(folder, options) as (port, process):
                    before = busy(process)
                    load = asyncio.run(loaded(port, SECONDS))
                    load.busy = busy(process) - before
                    found[way].append(load)
    rows = [row(way, loads) for way, loads in found.items()]
    slow, fast = (float(str(one["requests/s"])) for one in rows)
    rows[1]["ratio"] = fast / slow
    return rows


def row(way: str, loads: list[Load]) -> Row:
    loads = sorted(loads, key=lambda load: load.rate)
    middle = loads[len(loads) // 2]
    return {
        "way": way,
        "requests/s": middle.rate,
        "p50 ms": middle.quantile(0.5),
        "p99 ms": middle.quantile(0.99),
        "worst ms": middle.quantile(1.0),
        "CPU ms": 1000 * middle.busy / middle.asked,
        "least": loads[0].rate,
        "most": loads[-1].rate,
    }


# --- the service ---------------------------------------------------------------------------------


def trained(folder: Path) -> Path:
    """A bundle of scikit-learn's digits, as `dubito train digits` makes it."""
    words = ["train", "digits", "--out", str(folder), "--epochs", "30"]
    subprocess.run([sys.executable, "-m", "dubito", *words], env=env(), check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    return folder


def env() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@contextmanager
def served(folder: Path, options: list[str]) -> Iterator[tuple[int, int]]:
    """The port and the process number of a service; it is stopped as it should be."""
    words = ["serve", str(folder), "--port", "0", "--no-open", *options]
    with (
        tempfile.TemporaryFile("w") as log,
        subprocess.Popen([sys.executable, "-m", "dubito", *words], env=env(), stdout=log,
                         stderr=subprocess.PIPE, text=True) as process,
    ):  # fmt: skip
        try:
            assert process.stderr is not None
            told = process.stderr.readline()
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", told)
            if found is None:
                raise RuntimeError(f"the service did not start: {told}{process.stderr.read()}")
            yield int(found[1]), process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            if process.wait(60) != 0:
                raise RuntimeError(f"the service ended with {process.returncode}")


def busy(process: int) -> float:
    """Seconds that a process has computed, whatever else the machine did meanwhile."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- the client ----------------------------------------------------------------------------------


@dataclass
class Load:
    """What became of the requests of some seconds."""

    seconds: float
    latencies: list[float] = field(default_factory=list)
    asked: int = 0  # in all, those of the warm-up included
    busy: float = 0.0  # seconds that the service's process computed, for all of them

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def quantile(self, share: float) -> float:
        """In milliseconds."""
        return 1000 * float(np.quantile(self.latencies, share))


def bodies(count: int = 100) -> list[bytes]:
    """Requests for digits, each one input."""
    from sklearn.datasets import load_digits

    pixels = load_digits().data[:count] / 16
    return [request({"inputs": [[round(v, 4) for v in row]]}) for row in pixels.tolist()]


def request(value: Any) -> bytes:
    body = json.dumps(value).encode()
    head = (
        "POST /v1/predict HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def loaded(port: int, seconds: float, connections: int = CONNECTIONS) -> Load:
    """Ask as often as answers come."""
    load, asked = Load(seconds), bodies()
    begin = time.perf_counter() + WARM_S
    end = begin + seconds
    await asyncio.gather(
        *(_asking(port, asked[place:] + asked[:place], begin, end, load)
          for place in range(connections))
    )  # fmt: skip
    return load


async def _asking(port: int, asked: list[bytes], begin: float, end: float, load: Load) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    count = 0
    while (sent := time.perf_counter()) < end:
        writer.write(asked[count % len(asked)])
        await answer(reader)
        done = time.perf_counter()
        if sent >= begin and done <= end:
            load.latencies.append(done - sent)
        count += 1
    load.asked += count
    writer.close()


async def answer(reader: asyncio.StreamReader) -> bytes:
    """The body of an answer, which must be a prediction."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(LENGTH.search(head)[1])  # type: ignore[index]
    body = await reader.readexactly(length)
    if not head.startswith(b"HTTP/1.1 200 ") or b'"label"' not in body:
        raise RuntimeError(f"refused: {head[:60]!r} {body[:200]!r}")
    return body


LENGTH = re.compile(rb"content-length: (\d+)")


# --- the soak ------------------------------------------------------------------------------------


def soak(seconds: float, rate: float) -> list[Row]:
    """A steady load for long, and the memory of the service at its beginning and end."""
    with tempfile.TemporaryDirectory() as place:
        folder = trained(Path(place) / "digits")
        with served(folder, []) as (port, process):
            return asyncio.run(_soaked(port, process, seconds, rate))


async def _soaked(port: int, process: int, seconds: float, rate: float) -> list[Row]:
    asked, load = bodies(), Load(seconds)
    end = time.perf_counter() + seconds
    memory: list[float] = []
    workers = [_steadily(port, asked, end, 8 / rate, load) for _ in range(8)]
    await asyncio.gather(*workers, _watched(process, end, memory))
    settled = memory[len(memory) // 10 :]  # what the first requests load is no leak
    fifth = max(len(settled) // 5, 1)
    first, last = statistics.median(settled[:fifth]), statistics.median(settled[-fifth:])
    return [
        {
            "seconds": seconds,
            "requests": len(load.latencies),
            "p99 ms": load.quantile(0.99),
            "MiB at first": first,
            "MiB at last": last,
            "growth %": 100 * (last / first - 1),
            "peak MiB": max(memory),
        }
    ]


async def _steadily(port: int, asked: list[bytes], end: float, every: float, load: Load) -> None:
    """A request every so often, each tenth on a new connection."""
    count = 0
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (sent := time.perf_counter()) < end:
        writer.write(asked[count % len(asked)])
        await answer(reader)
        load.latencies.append(time.perf_counter() - sent)
        count += 1
        if count % 10 == 0:
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(max(every - (time.perf_counter() - sent), 0))
    writer.close()


async def _watched(process: int, end: float, memory: list[float]) -> None:
    pages = Path(f"/proc/{process}/statm")
    while time.perf_counter() < end:
        resident = int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        memory.append(resident / 2**20)
        await asyncio.sleep(1)


def main() -> None:
    from benchmarks.__main__ import table

    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve")
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="a steady load for so long")
    parser.add_argument("--rate", type=float, default=300.0, help="requests a second of the soak")
    options = parser.parse_args()
    print(table(run() if options.soak is None else soak(options.soak, options.rate)))


if __name__ == "__main__":
    main()
