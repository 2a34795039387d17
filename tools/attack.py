"""Attack the service, or stop it under load, and write a table.

    python tools/attack.py                  all attacks, behind nginx and without it
    python tools/attack.py --only slow_bodies --seconds 3
    python tools/attack.py --sigterm 20     stop an instance under load, 20 times
    python tools/attack.py --json a.json    the same rows as JSON

Two instances serve a model of images of 8 x 8: "fast", or "slow", which takes some milliseconds for
each. The attacker is at 127.0.0.1, the polite client at 127.0.0.2; it sends one request after the
other, each on a new connection.

Columns of an attack: peak memory of an instance and its growth since the start; requests, failures,
median and p99 of the polite client; requests of the attacker with the answer 200, per second;
seconds until the polite client gets fast answers again. "goodput" is the answers to
`impolite_clients` as a share of those to `allowed_load`.

Columns of a stop: requests accepted, and accepted requests without an answer of 200.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import Row
from benchmarks.serve import environment, nginx, print_table, process, resident, wait_for

ATTACKER, POLITE = "127.0.0.1", "127.0.0.2"
MODEL = """
import sys
import numpy as np
from sklearn.datasets import load_digits
from dubito import data
from dubito.model import Model
from dubito.formats import ImageFormat, Preprocessing
from dubito.tasks import Classification
digits = load_digits()
images = (digits.images * 15.9).astype(np.uint8)
format = ImageFormat(size=(8, 8), mode="L")
source = data.open((images, digits.target.astype(str)), format=format)
task = Classification.from_target(source.target)
model = Model.build("iedl", task, Preprocessing.fit(format, source.load()), sys.argv[2])
model.calibrate(source).fit_policy(source, coverage=0.9).save(sys.argv[1])
"""
SERVE = """
import sys
from dubito.serve import ServeConfig, serve
config = ServeConfig(engine=sys.argv[2], trusted_proxies=["127.0.0.1"])
serve(sys.argv[1], port=0, config=config, on_start=lambda url: print(url, flush=True))
"""
BACKBONES = {"fast": "convnet", "slow": "wide_resnet"}
#: attacks that make sense with a slow model: inputs that it has to predict
LOADS = ("allowed_load", "impolite_clients")
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
    # Only if needed: once many ports wait for their reuse, the kernel takes long to find one for
    # an address, and the attacker would be slower than the service.
    local = None if source == ATTACKER else (source, 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=local)
    try:
        yield reader, writer
    finally:
        writer.close()


async def status(reader: asyncio.StreamReader) -> int:
    """Read a response and return its status."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    await reader.readexactly(int(length[1]) if length else 0)
    return int(head.split()[1])


async def send(port: int, content: bytes) -> int:
    """Send a request on a new connection and return the status of its response."""
    async with connection(port) as (reader, writer):
        writer.write(content)
        STATUSES.append(await status(reader))
    return STATUSES[-1]


# --- attacks --------------------------------------------------------------------------------------

Attack = Callable[[int, float], Awaitable[None]]
ATTACKS: dict[str, Attack] = {}
#: statuses of responses to the attacker
STATUSES: list[int] = []


def attack(function: Attack) -> Attack:
    """Register an attack, a function of port and duration."""
    ATTACKS[function.__name__] = function
    return function


async def crowd(count: int, act: Callable[[], Awaitable[object]], seconds: float) -> None:
    """Repeat a client's action with several clients for some time, also if it fails."""
    end = time.monotonic() + seconds

    async def repeat() -> None:
        while time.monotonic() < end:
            try:
                await asyncio.wait_for(act(), max(end - time.monotonic(), 0.1))
            except (OSError, EOFError, ValueError, TimeoutError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.01)

    await asyncio.gather(*(repeat() for _ in range(count)))


async def drip(port: int, head: bytes, piece: bytes, pause: float) -> None:
    """Send the start of a request, and then a piece after each pause."""
    async with connection(port) as (_, writer):
        writer.write(head)
        while not writer.is_closing():
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)


@attack
async def slow_bodies(port: int, seconds: float) -> None:
    """Send bodies one byte at a time."""
    head = request("application/json", b"x" * 100_000)[:-100_000]
    await crowd(256, lambda: drip(port, head, b" ", 0.2), seconds)


@attack
async def slow_headers(port: int, seconds: float) -> None:
    """Send headers one at a time."""
    await crowd(
        256, lambda: drip(port, b"POST /v1/predict HTTP/1.1\r\n", b"a: b\r\n", 0.2), seconds
    )


@attack
async def huge_headers(port: int, seconds: float) -> None:
    """Send headers without end."""
    piece = b"a: " + b"x" * 60_000 + b"\r\n"
    await crowd(8, lambda: drip(port, b"POST /v1/predict HTTP/1.1\r\n", piece, 0), seconds)


@attack
async def chunked_trailers(port: int, seconds: float) -> None:
    """Send 48 MB of trailers after a body."""
    head = HEAD.format("application/json") + "transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
    trailers = b"".join(b"a%d: %s\r\n" % (k, b"x" * 900) for k in range(1000))

    async def act() -> None:
        async with connection(port) as (_, writer):
            writer.write(head.encode())
            for _ in range(48):
                writer.write(trailers)
                await writer.drain()

    await crowd(4, act, seconds)


@attack
async def large_json(port: int, seconds: float) -> None:
    """Send 1 or 8 MB of JSON: deep, wide, with many keys, numbers or a long text."""
    bodies = []
    for size in (1_000_000, 8_000_000):
        bodies += [
            b"[" * size,
            b'{"inputs": [' + b"[]," * (size // 3) + b"[]]}",
            b"{" + b",".join(b'"%d":1' % k for k in range(size // 14)) + b"}",
            b'{"inputs": [' + b'{"a":1},' * (size // 8) + b"1]}",
            b'{"inputs": [[[' + b"1," * (size // 2 - 10) + b"1]]]}",
            b'"' + b"x" * size + b'"',
        ]
    requests = [request("application/json", body) for body in bodies]
    await crowd(8, lambda: send(port, random.choice(requests)), seconds)


@attack
async def tall_images(port: int, seconds: float) -> None:
    """Send a PNG of 77 kB with 15.9 million rows."""
    content = request("image/png", tall_png(15_900_000))
    await crowd(8, lambda: send(port, content), seconds)


@attack
async def large_images(port: int, seconds: float) -> None:
    """Send images of 15.8 megapixels, which are allowed."""
    content = request("image/png", image((3970, 3970), "RGBA"))
    await crowd(8, lambda: send(port, content), seconds)


@attack
async def decompression_bombs(port: int, seconds: float) -> None:
    """Send small files that become large."""
    bodies = [image((16_000, 4_000), kind="WEBP"), image((16_000, 4_000), "1"),
              image((16_000, 8_000), "L", "JPEG")]  # fmt: skip
    kinds = ("image/webp", "image/png", "image/jpeg")
    requests = [request(kind, body) for kind, body in zip(kinds, bodies, strict=True)]
    bomb = zlib.compress(bytes(10**7))
    requests.append(request("application/json", bomb, "content-encoding: gzip"))
    await crowd(8, lambda: send(port, random.choice(requests)), seconds)


@attack
async def broken_images(port: int, seconds: float) -> None:
    """Send damaged images."""
    original = image((200, 200), "RGB")

    def broken() -> bytes:
        content = bytearray(original)
        for _ in range(10):
            content[random.randrange(len(content))] = random.randrange(256)
        return request("image/png", bytes(content))

    await crowd(16, lambda: send(port, broken()), seconds)


@attack
async def aborted_requests(port: int, seconds: float) -> None:
    """Close the connection before the response."""

    async def act() -> None:
        async with connection(port) as (_, writer):
            writer.write(POLITE_REQUEST)
            await writer.drain()
            await asyncio.sleep(random.random() * 0.01)

    await crowd(64, act, seconds)


@attack
async def allowed_load(port: int, seconds: float) -> None:
    """Send 16 inputs from 32 clients: the goodput without overload."""
    content = json_request({"inputs": [[[[7] * 8] * 8]] * 16})
    await crowd(32, lambda: send(port, content), seconds)


@attack
async def impolite_clients(port: int, seconds: float) -> None:
    """Send 16 inputs from 256 clients, again and again."""
    content = json_request({"inputs": [[[[7] * 8] * 8]] * 16})
    await crowd(256, lambda: send(port, content), seconds)


# --- measurement ----------------------------------------------------------------------------------


@dataclass
class Outcome:
    """Responses to the polite client, and memory of the instances."""

    statuses: Counter[int | str] = field(default_factory=Counter)
    """Responses by status, or by the name of the error."""
    latencies: list[float] = field(default_factory=list)
    peak: float = 0.0
    """Largest memory of an instance in MB."""
    goodput: float = 0.0
    """Requests of the attacker with status 200, per second."""

    @property
    def failures(self) -> int:
        """Number of requests without a prediction."""
        return self.statuses.total() - self.statuses[200]


async def ask_politely(
    port: int, stop: asyncio.Event | None = None, *, requests: int = 0, timeout: float = 120
) -> Outcome:
    """Send one request after the other.

    Args:
        port: Port of the service.
        stop: Event that ends it.
        requests: Number of requests, if there is no event.
        timeout: Seconds after which a request is lost.
    """
    outcome = Outcome()
    while len(outcome.latencies) < requests if stop is None else not stop.is_set():
        start = time.perf_counter()
        try:
            async with asyncio.timeout(timeout), connection(port, POLITE) as (reader, writer):
                writer.write(POLITE_REQUEST)
                outcome.statuses[await status(reader)] += 1
        except (OSError, EOFError) as error:  # TimeoutError is an OSError
            outcome.statuses[type(error).__name__] += 1
        outcome.latencies.append(time.perf_counter() - start)
        await asyncio.sleep(0.02)
    return outcome


async def largest_memory(pids: list[int], stop: asyncio.Event) -> float:
    """Return the largest memory of a process until an event."""
    peak = 0.0
    while not stop.is_set():
        peak = max(peak, *map(resident, pids))
        await asyncio.sleep(0.05)
    return peak


async def measure(name: str | None, port: int, pids: list[int], seconds: float) -> Outcome:
    """Run an attack, or none, in another process, and ask politely meanwhile."""
    stop, attacker, answered = asyncio.Event(), None, 0
    if name is not None:
        arguments = [__file__, "--attacker", name, str(port), "--seconds", str(seconds)]
        attacker = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdout=asyncio.subprocess.PIPE
        )
        assert attacker.stdout is not None
        await attacker.stdout.readline()  # it starts
    polite = asyncio.create_task(ask_politely(port, stop))
    memory = asyncio.create_task(largest_memory(pids, stop))
    if attacker is None:
        await asyncio.sleep(seconds)
    else:
        answered = int((await attacker.communicate())[0])
    stop.set()
    outcome = await polite
    outcome.peak, outcome.goodput = await memory, answered / seconds
    return outcome


async def recovery(port: int) -> float:
    """Return the seconds until three requests in a row are answered within 0.15 s, 60 at most."""
    start = time.perf_counter()
    while time.perf_counter() - start < 60:
        outcome = await ask_politely(port, requests=3, timeout=5)
        if not outcome.failures and max(outcome.latencies) < 0.15:
            break
    return time.perf_counter() - start


def run_attacks(names: list[str], seconds: float, engine: str) -> Iterator[Row]:
    """Run attacks behind nginx and without it; yield a row for each."""
    for model, backbone in BACKBONES.items():
        chosen = [name for name in names if model == "fast" or name in LOADS]
        with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
            folder = Path(place)
            build_model(folder / "model", backbone)
            instances = [stack.enter_context(instance(folder / "model", engine)) for _ in range(2)]
            ports, pids = map(list, zip(*instances, strict=True))
            proxy = stack.enter_context(nginx(folder, *ports, limits=True))
            for front, port, watched in (("nginx", proxy, pids), ("none", ports[0], pids[:1])):
                for row in attack_all(chosen, port, watched, seconds):
                    yield {"model": model, "proxy": front, **row}


def attack_all(names: list[str], port: int, pids: list[int], seconds: float) -> Iterator[Row]:
    """Run no attack, then each one; yield a row for each."""
    asyncio.run(recovery(port))
    before, allowed = max(map(resident, pids)), None
    for name in (None, *names):
        outcome = asyncio.run(measure(name, port, pids, seconds))
        allowed = outcome.goodput if name == "allowed_load" else allowed
        overloaded = allowed is not None and name == "impolite_clients"
        median, p99 = np.quantile(outcome.latencies, [0.5, 0.99])
        yield {
            "attack": name or "none",
            "peak MB": round(outcome.peak),
            "growth MB": round(outcome.peak - before),
            "requests": len(outcome.latencies),
            "failures": outcome.failures,
            "median ms": round(1000 * float(median)),
            "p99 ms": round(1000 * float(p99)),
            "answers/s": round(outcome.goodput),
            "goodput": round(outcome.goodput / (allowed or 1), 2) if overloaded else "",
            "recovery s": round(asyncio.run(recovery(port)), 1),
        }


def build_model(folder: Path, backbone: str = BACKBONES["fast"]) -> None:
    """Save a model with random weights."""
    command = [sys.executable, "-c", MODEL, str(folder), backbone]
    subprocess.run(command, env=environment(), check=True)


def instance(model: Path, engine: str) -> AbstractContextManager[tuple[int, int]]:
    """Run an instance; the context is its port and its process id."""
    return process([sys.executable, "-c", SERVE, str(model), engine], environment())


# --- SIGTERM --------------------------------------------------------------------------------------


def run_stops(times: int, clients: int = 64) -> Iterator[Row]:
    """Stop an instance under load, alone and as one of two behind nginx; yield a row for each."""
    with tempfile.TemporaryDirectory() as place:
        model = Path(place) / "model"
        build_model(model)
        for number in range(1, times + 1):
            with instance(model, "torch") as (port, pid):
                wait_for(port)
                yield {"instances": 1, "stop": number, **asyncio.run(stop(port, pid, clients))}
        with instance(model, "torch") as (first, _):
            for number in range(1, times + 1):
                with instance(model, "torch") as (second, pid), ExitStack() as stack:
                    proxy = stack.enter_context(nginx(Path(place), first, second))
                    row = asyncio.run(stop(proxy, pid, clients, proxied=True))
                yield {"instances": 2, "stop": number, **row}


async def stop(port: int, pid: int, clients: int, *, proxied: bool = False) -> Row:
    """Send SIGTERM when each client has an answer on average, and count lost requests.

    A request is accepted when the service asks for its body, after it has read the headers; nginx
    accepts all. Alone, clients end when they are no longer accepted; behind nginx, each sends 20
    more requests.
    """
    statuses: Counter[int | str] = Counter()
    stopped = asyncio.Event()
    body = POLITE_REQUEST.partition(b"\r\n\r\n")[2]
    head = request("application/json", body, "expect: 100-continue").removesuffix(body)

    async def ask() -> None:
        left = 20
        while left:
            left -= stopped.is_set()
            accepted = proxied
            try:
                async with asyncio.timeout(120), connection(port) as (reader, writer):
                    writer.write(head)
                    await reader.readuntil(b" 100 Continue\r\n\r\n")
                    accepted = True
                    writer.write(body)
                    statuses[await status(reader)] += 1
            except (OSError, EOFError) as error:
                if not accepted:
                    return
                statuses[type(error).__name__] += 1

    async def send_signal() -> None:
        while statuses.total() < clients:
            await asyncio.sleep(0.001)
        os.kill(pid, signal.SIGTERM)
        stopped.set()

    await asyncio.gather(send_signal(), *(ask() for _ in range(clients)))
    lost = {key: count for key, count in statuses.items() if key != 200}
    return {"accepted": statuses.total(), "lost": sum(lost.values()), "how": str(lost or "")}


def main() -> None:
    """Run the attacks or stops of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--seconds", type=float, default=15.0, help="duration of an attack")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--sigterm", type=int, metavar="TIMES", help="stop instances under load")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to a file")
    parser.add_argument("--attacker", nargs=2, metavar=("NAME", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attacker:
        name, port = options.attacker
        print(flush=True)
        asyncio.run(ATTACKS[name](int(port), options.seconds))
        print(STATUSES.count(200))
    elif options.sigterm:
        print_table(run_stops(options.sigterm), options.json)
    else:
        print_table(run_attacks(options.only, options.seconds, options.engine), options.json)


if __name__ == "__main__":
    main()
