"""Attack the service and measure what becomes of it and of a polite client.

    python tools/attack.py                  all attacks, behind nginx and without it
    python tools/attack.py --only slow_bodies --seconds 3
    python tools/attack.py --sigterm 20     stop instances under load

Two instances serve a digits model (images of 8 x 8). The attacker is at 127.0.0.1, the polite
client at 127.0.0.2: one request after the other, each on a new connection. For each attack: peak
memory of an instance and its growth since the start, failures and p99 of the polite client, and the
seconds until it is answered again afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import random
import re
import signal
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.serve import environment, nginx, process, resident

ATTACKER, POLITE = "127.0.0.1", "127.0.0.2"
MODEL = """
import sys
import numpy as np
from sklearn.datasets import load_digits
from dubito import data
from dubito.model import Model, Preprocessing
from dubito.tasks import Classification
digits = load_digits()
images = (digits.images * 15.9).astype(np.uint8)
format = data.ImageFormat(size=(8, 8), mode="L")
source = data.open((images, digits.target.astype(str)), format=format)
task = Classification.from_target(source.target)
model = Model.build("iedl", task, Preprocessing.fit(format, source.load()))
model.calibrate(source).fit_policy(source, coverage=0.9).save(sys.argv[1])
"""
SERVE = """
import sys
from dubito.serve import ServeConfig, serve
config = ServeConfig(engine=sys.argv[2])
serve(sys.argv[1], port=0, config=config, on_start=lambda url: print(url, flush=True))
"""
HEAD = "POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: {}\r\n"


# --- requests -------------------------------------------------------------------------------------


def request(kind: str, body: bytes, *headers: str) -> bytes:
    """Return a request with a body."""
    lines = [f"content-length: {len(body)}", *headers]
    return (HEAD.format(kind) + "\r\n".join(lines) + "\r\n\r\n").encode() + body


def json_request(value: object) -> bytes:
    """Return a request with a JSON body."""
    return request("application/json", json.dumps(value).encode())


def image(size: tuple[int, int], mode: str = "L", kind: str = "PNG") -> bytes:
    """Return an image of one color."""
    from PIL import Image

    file = io.BytesIO()
    Image.new(mode, size, {"L": 128, "1": 1}.get(mode, "gray")).save(file, kind)
    return file.getvalue()


def tall_png(rows: int) -> bytes:
    """Return a PNG of one column, which is small but has many rows."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", 1, rows, 8, 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(2 * rows), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


POLITE_REQUEST = json_request({"inputs": [[[[7] * 8] * 8]]})


@asynccontextmanager
async def connection(
    port: int, source: str = ATTACKER
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect from an address."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    try:
        yield reader, writer
    finally:
        writer.close()


async def status(reader: asyncio.StreamReader) -> int:
    """Read an answer and return its status."""
    head = await reader.readuntil(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    await reader.readexactly(int(found[1]) if found else 0)
    return int(head.split()[1])


async def send(port: int, content: bytes) -> int:
    """Send a request on a new connection and return the status of the answer."""
    async with connection(port) as (reader, writer):
        writer.write(content)
        found = await status(reader)
    ANSWERS.append(found)
    return found


# --- attacks --------------------------------------------------------------------------------------

Attack = Callable[[int, float], Awaitable[None]]
ATTACKS: dict[str, Attack] = {}
#: statuses of answers to the attacker
ANSWERS: list[int] = []


def attack(function: Attack) -> Attack:
    """Register an attack, a function of port and end time."""
    ATTACKS[function.__name__] = function
    return function


async def crowd(count: int, one: Callable[[], Awaitable[object]], end: float) -> None:
    """Let clients attack again and again, whatever becomes of their connections."""

    async def again() -> None:
        while time.monotonic() < end:
            try:
                await asyncio.wait_for(one(), max(end - time.monotonic(), 0.1))
            except (OSError, EOFError, ValueError, TimeoutError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.01)

    await asyncio.gather(*(again() for _ in range(count)))


async def drip(port: int, head: bytes, piece: bytes, pause: float) -> None:
    """Send a beginning, and then a little at a time."""
    async with connection(port) as (_, writer):
        writer.write(head)
        while not writer.is_closing():
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)


@attack
async def slow_bodies(port: int, end: float) -> None:
    """Send bodies one byte at a time."""
    head = request("application/json", b"x" * 100_000)[:-100_000]
    await crowd(256, lambda: drip(port, head, b" ", 0.2), end)


@attack
async def slow_headers(port: int, end: float) -> None:
    """Send headers one at a time."""
    await crowd(256, lambda: drip(port, b"POST /v1/predict HTTP/1.1\r\n", b"a: b\r\n", 0.2), end)


@attack
async def huge_headers(port: int, end: float) -> None:
    """Send headers without end."""
    piece = b"a: " + b"x" * 60_000 + b"\r\n"
    await crowd(8, lambda: drip(port, b"POST /v1/predict HTTP/1.1\r\n", piece, 0), end)


@attack
async def chunked_trailers(port: int, end: float) -> None:
    """Send 48 MB of trailers after a body."""
    head = HEAD.format("application/json") + "transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
    trailers = b"".join(b"a%d: %s\r\n" % (k, b"x" * 900) for k in range(1000))

    async def one() -> None:
        async with connection(port) as (_, writer):
            writer.write(head.encode())
            for _ in range(48):
                writer.write(trailers)
                await writer.drain()

    await crowd(4, one, end)


@attack
async def large_json(port: int, end: float) -> None:
    """Send 8 MB of JSON: deep, wide, with many keys, numbers or a long text."""
    size = 8_000_000
    bodies = [
        b"[" * size,
        b'{"inputs": [' + b"[]," * (size // 3) + b"[]]}",
        b"{" + b",".join(b'"%d":1' % k for k in range(size // 12)) + b"}",
        b'{"inputs": [[[' + b"1," * (size // 2) + b"1]]]}",
        b'"' + b"x" * size + b'"',
    ]
    requests = [request("application/json", body) for body in bodies]
    await crowd(8, lambda: send(port, random.choice(requests)), end)


@attack
async def tall_images(port: int, end: float) -> None:
    """Send a PNG of 77 kB with 15.9 million rows."""
    content = request("image/png", tall_png(15_900_000))
    await crowd(8, lambda: send(port, content), end)


@attack
async def large_images(port: int, end: float) -> None:
    """Send images of 15.8 megapixels, which are allowed."""
    content = request("image/png", image((3970, 3970), "RGBA"))
    await crowd(8, lambda: send(port, content), end)


@attack
async def decompression_bombs(port: int, end: float) -> None:
    """Send small files that become large."""
    bodies = [image((16_000, 4_000), kind="WEBP"), image((16_000, 4_000), "1"),
              image((16_000, 8_000), "L", "JPEG")]  # fmt: skip
    kinds = ("image/webp", "image/png", "image/jpeg")
    requests = [request(kind, body) for kind, body in zip(kinds, bodies, strict=True)]
    bomb = zlib.compress(bytes(10**7))
    requests.append(request("application/json", bomb, "content-encoding: gzip"))
    await crowd(8, lambda: send(port, random.choice(requests)), end)


@attack
async def broken_images(port: int, end: float) -> None:
    """Send damaged images."""
    original = image((200, 200), "RGB")

    def broken() -> bytes:
        content = bytearray(original)
        for _ in range(10):
            content[random.randrange(len(content))] = random.randrange(256)
        return request("image/png", bytes(content))

    await crowd(16, lambda: send(port, broken()), end)


@attack
async def aborted_requests(port: int, end: float) -> None:
    """Leave before the answer."""

    async def one() -> None:
        async with connection(port) as (_, writer):
            writer.write(POLITE_REQUEST)
            await writer.drain()
            await asyncio.sleep(random.random() * 0.01)

    await crowd(64, one, end)


@attack
async def allowed_load(port: int, end: float) -> None:
    """Send 16 inputs from 32 clients: what the next attack's answers are compared with."""
    content = json_request({"inputs": [[[[7] * 8] * 8]] * 16})
    await crowd(32, lambda: send(port, content), end)


@attack
async def impolite_clients(port: int, end: float) -> None:
    """Send 16 inputs from 256 clients, again and again."""
    content = json_request({"inputs": [[[[7] * 8] * 8]] * 16})
    await crowd(256, lambda: send(port, content), end)


# --- measurement ----------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What became of the polite client and of the instances."""

    latencies: list[float] = field(default_factory=list)
    failures: int = 0
    peak: float = 0.0
    goodput: float = 0.0
    """Answers per second that the attacker gets."""


async def be_polite(port: int, stop: asyncio.Event, found: Outcome) -> None:
    """Send one request after the other and note what becomes of them."""
    while not stop.is_set():
        start = time.perf_counter()
        try:
            async with connection(port, POLITE) as (reader, writer):
                writer.write(POLITE_REQUEST)
                good = await asyncio.wait_for(status(reader), 10) == 200
        except (OSError, EOFError, TimeoutError, asyncio.IncompleteReadError):
            good = False
        found.failures += not good
        found.latencies.append(time.perf_counter() - start)
        await asyncio.sleep(0.02)


async def watch(pids: list[int], stop: asyncio.Event, found: Outcome) -> None:
    """Note the largest memory of a process."""
    while not stop.is_set():
        found.peak = max(found.peak, *map(resident, pids))
        await asyncio.sleep(0.05)


async def measure(name: str | None, port: int, pids: list[int], seconds: float) -> Outcome:
    """Run an attack, or none; the attacker has its own process."""
    found, stop = Outcome(), asyncio.Event()
    tasks = (be_polite(port, stop, found), watch(pids, stop, found))
    others = [asyncio.create_task(task) for task in tasks]
    if name is None:
        await asyncio.sleep(seconds)
    else:
        arguments = [__file__, "--attacker", name, str(port), "--seconds", str(seconds)]
        attacker = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdout=asyncio.subprocess.PIPE
        )
        found.goodput = int((await attacker.communicate())[0]) / seconds
    stop.set()
    await asyncio.gather(*others)
    return found


async def recovery(port: int) -> float:
    """Return the seconds until three requests in a row are answered within 0.15 s."""
    start, good = time.perf_counter(), 0
    while good < 3 and time.perf_counter() - start < 60:
        found, stop = Outcome(), asyncio.Event()
        task = asyncio.create_task(be_polite(port, stop, found))
        await asyncio.sleep(0)
        stop.set()
        await task
        good = good + 1 if not found.failures and found.latencies[0] < 0.15 else 0
    return time.perf_counter() - start


def run(names: list[str], seconds: float, engine: str) -> list[dict[str, object]]:
    """Run attacks behind nginx and without it; return a row for each."""
    rows = []
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        instances = start(folder, stack, engine)
        ports, pids = zip(*instances, strict=True)
        proxy = stack.enter_context(nginx(folder, *ports, limits=True))
        for where, port, watched in (("nginx", proxy, list(pids)), ("bare", ports[0], [pids[0]])):
            asyncio.run(recovery(port))
            before = max(map(resident, watched))
            for name in (None, *names):
                found = asyncio.run(measure(name, port, watched, seconds))
                p99 = 1000 * float(np.quantile(found.latencies, 0.99))
                rows.append(
                    {
                        "where": where,
                        "attack": name or "none",
                        "peak MB": round(found.peak),
                        "growth MB": round(found.peak - before),
                        "requests": len(found.latencies),
                        "failures": found.failures,
                        "p99 ms": round(p99),
                        "attacker's answers/s": round(found.goodput),
                        "recovery s": round(asyncio.run(recovery(port)), 1),
                    }
                )
                print(rows[-1], flush=True)
    return rows


def start(folder: Path, stack: ExitStack, engine: str) -> list[tuple[int, int]]:
    """Start two instances; return their ports and process ids."""
    import subprocess

    model = folder / "model"
    subprocess.run([sys.executable, "-c", MODEL, str(model)], env=environment(), check=True)
    command = [sys.executable, "-c", SERVE, str(model), engine]
    return [stack.enter_context(process(command, environment())) for _ in range(2)]


# --- SIGTERM --------------------------------------------------------------------------------------


def stop_under_load(times: int, clients: int = 64) -> None:
    """Stop one of two instances behind nginx under load, again and again; count lost requests."""
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        first, _ = start(folder, stack, "torch")
        for number in range(times):
            with ExitStack() as inner:
                command = [sys.executable, "-c", SERVE, str(folder / "model"), "torch"]
                other = inner.enter_context(process(command, environment()))
                proxy = inner.enter_context(nginx(folder, first[0], other[0]))
                asyncio.run(recovery(proxy))
                answers = asyncio.run(_stop(proxy, other[1], clients))
                lost = [one for one in answers if one != 200]
                print(
                    f"{number + 1}: {len(answers)} requests, {len(lost)} lost {lost[:5]}",
                    flush=True,
                )


async def _stop(port: int, pid: int, clients: int) -> list[object]:
    import os

    answers: list[object] = []
    end = time.monotonic() + 2

    async def ask() -> None:
        while time.monotonic() < end:
            try:
                answers.append(await send(port, POLITE_REQUEST))
            except (OSError, EOFError) as error:
                answers.append(repr(error))

    async def stop() -> None:
        await asyncio.sleep(0.5)
        os.kill(pid, signal.SIGTERM)

    await asyncio.gather(stop(), *(ask() for _ in range(clients)))
    return answers


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--sigterm", type=int, metavar="TIMES")
    parser.add_argument("--attacker", nargs=2, metavar=("NAME", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attacker:
        name, port = options.attacker
        asyncio.run(ATTACKS[name](int(port), time.monotonic() + options.seconds))
        print(ANSWERS.count(200))
    elif options.sigterm:
        stop_under_load(options.sigterm)
    else:
        run(options.only, options.seconds, options.engine)


if __name__ == "__main__":
    main()
