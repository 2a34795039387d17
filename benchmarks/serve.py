"""Throughput of the service: requests per second and latency at 1, 16, 64 and 256 clients.

A digits model, 64 numbers a request. All servers run at the same time and are measured in turns, so
that other work of the machine affects all of them alike. Rows are medians over the rounds; "ratio"
and "p99 ratio" are relative to the baseline (or to torch), "of direct" is the throughput behind
nginx relative to that without it.

    python -m benchmarks.serve --baseline 12fd718    compare with another commit
    python -m benchmarks.serve --soak 600            steady load, and the memory of the service
    python -m benchmarks.serve --json a.json         the same rows as JSON

| server | description |
| --- | --- |
| baseline | `dubito serve` of another commit |
| torch, onnx | `dubito serve` with that engine |
| torch+nginx, onnx+nginx | the same behind deploy/nginx.conf |
| route | a FastAPI route that runs the exported model, without batching, checks or limits |
| litserve | LitServe with the exported model, if it is installed |

A run takes about (seconds + 0.5) x rounds x client counts x servers: 5 minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks import Row

ROOT = Path(__file__).resolve().parents[1]
CLIENTS = (1, 16, 64, 256)
WARM_UP = 0.5
Server = AbstractContextManager[int]
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)

TRAIN = """
import sys
from sklearn.datasets import load_digits
from dubito import api
digits = load_digits()
inputs, target = (digits.data / 16).astype("float32"), digits.target.astype(str)
api.train((inputs, target), out=sys.argv[1], epochs=30, report=False)
"""
SERVE = """
import sys
from dubito.serve import ServeConfig, serve
config = ServeConfig(engine=sys.argv[2])
serve(sys.argv[1], port=0, config=config, on_start=lambda url: print(url, flush=True))
"""
EXPORT = """
import sys
import dubito
dubito.export(sys.argv[1], sys.argv[2])
"""
ROUTE = """
import socket, sys
import numpy as np, onnxruntime, uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
class Request(BaseModel):
    inputs: list[list[float]]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options)
app = FastAPI()
@app.post("/v1/predict")
def predict(request: Request):
    values = session.run(None, {"inputs": np.array(request.inputs, np.float32)})
    columns = {o.name: v.tolist() for o, v in zip(session.get_outputs(), values)}
    return {"predictions": [dict(zip(columns, row)) for row in zip(*columns.values())]}
listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run([listener])
"""
LITSERVE = """
import socket, sys
import litserve, numpy as np, onnxruntime
class API(litserve.LitAPI):
    def setup(self, device):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(sys.argv[1], options)
    def decode_request(self, request):
        return np.array(request["inputs"], np.float32)
    def batch(self, inputs):
        return np.concatenate(inputs)
    def predict(self, x):
        return self.session.run(["prediction", "probs"], {"inputs": x})
    def unbatch(self, output):
        return list(zip(*output))
    def encode_response(self, output):
        return {"predictions": [{"prediction": int(output[0]), "probs": output[1].tolist()}]}
if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    print(f"http://127.0.0.1:{port}/", flush=True)
    api = API(max_batch_size=64, batch_timeout=0.002, api_path="/v1/predict")
    server = litserve.LitServer(api, accelerator="cpu")
    server.run(port=port, log_level="error", generate_client_file=False)
"""


def run(
    baseline: str | None = None,
    seconds: float = 3.0,
    rounds: int = 3,
    clients: Sequence[int] = CLIENTS,
) -> list[Row]:
    """Measure all servers in turns."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        ports = {
            name: stack.enter_context(server) for name, server in servers(Path(folder), baseline)
        }
        loads: Loads = {(name, count): [] for count in clients for name in ports}
        for _ in range(rounds):
            for (name, count), results in loads.items():
                try:
                    results.append(asyncio.run(measure(ports[name], count, seconds)))
                except Exception as error:
                    raise RuntimeError(f"{name} failed with {count} clients") from error
    return [row(name, count, loads) for name, count in loads]


def servers(folder: Path, baseline: str | None) -> Iterator[tuple[str, Server]]:
    """Yield the name of each server, and a context manager that runs it and returns its port."""
    model, exported = folder / "model", folder / "model.onnx"
    python(TRAIN, model)
    python(EXPORT, model, exported)
    if baseline is not None:
        yield "baseline", old_server(folder, baseline)
    for engine in ("torch", "onnx"):
        yield engine, server(SERVE, model, engine)
        if shutil.which("nginx"):
            yield f"{engine}+nginx", behind_nginx(folder, server(SERVE, model, engine))
    yield "route", server(ROUTE, exported)
    if find_spec("litserve"):
        yield "litserve", server(LITSERVE, exported)


def row(name: str, clients: int, loads: Loads) -> Row:
    results = loads[name, clients]
    reference = loads.get(("baseline", clients), loads["torch", clients])
    direct = loads[name.removesuffix("+nginx"), clients]
    p99 = [load.quantile(0.99) for load in results]
    return {
        "clients": clients,
        "server": name,
        "requests/s": statistics.median(load.rate for load in results),
        "ratio": median_ratio(results, reference),
        "p50 ms": statistics.median(load.quantile(0.5) for load in results),
        "p99 ms": statistics.median(p99),
        "p99 ratio": statistics.median(
            value / load.quantile(0.99) for value, load in zip(p99, reference, strict=True)
        ),
        "of direct": median_ratio(results, direct) if name.endswith("+nginx") else "",
    }


def median_ratio(loads: list[Load], reference: list[Load]) -> float:
    """Return the median over the rounds of the ratio of two rates."""
    pairs = zip(loads, reference, strict=True)
    return statistics.median(load.rate / other.rate for load, other in pairs)


# --- servers --------------------------------------------------------------------------------------


def environment(source: Path = ROOT) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(source / "src")}


def python(code: str, *arguments: object) -> None:
    subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment(), check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip


@contextmanager
def process(command: list[str], env: dict[str, str]) -> Iterator[tuple[int, int]]:
    """Run a server; return its port, from the address that it prints first, and its process id."""
    with subprocess.Popen(
        command, env=env, text=True, stdout=subprocess.PIPE, start_new_session=True
    ) as running:
        assert running.stdout is not None
        try:
            address = re.search(r":(\d+)/", running.stdout.readline())
            if address is None:
                raise RuntimeError(f"{command} did not start")
            yield int(address[1]), running.pid
        finally:
            running.send_signal(signal.SIGTERM)
            running.wait(60)
            with suppress(ProcessLookupError):  # LitServe leaves processes behind
                os.killpg(running.pid, signal.SIGKILL)


@contextmanager
def server(code: str, *arguments: object) -> Iterator[int]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "server.py"  # LitServe imports it in other processes
        file.write_text(code)
        command = [sys.executable, str(file), *map(str, arguments)]
        with process(command, environment()) as (port, _):
            wait_for(port)
            yield port


@contextmanager
def old_server(folder: Path, commit: str) -> Iterator[int]:
    """Run the service of an old commit, with a model that it trained."""
    source = folder / "baseline"
    source.mkdir()
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "-x"], cwd=source, input=archive.stdout, check=True)
    command = [sys.executable, "-m", "dubito"]
    model = str(folder / "baseline-model")
    train = [*command, "train", "digits", "--out", model, "--epochs", "30"]
    subprocess.run(train, env=environment(source), check=True, stdout=subprocess.DEVNULL)
    # It prints its address to the standard error, and logs requests to the standard output.
    quoted = " ".join([*command, "serve", model, "--port", "0", "--no-open"])
    shell = ["sh", "-c", f"exec {quoted} 2>&1 >/dev/null"]
    with process(shell, environment(source)) as (port, _):
        wait_for(port)
        yield port


@contextmanager
def behind_nginx(folder: Path, instance: Server) -> Iterator[int]:
    """Run nginx with deploy/nginx.conf in front of one instance."""
    with ExitStack() as stack:
        upstream = stack.enter_context(instance)
        port = stack.enter_context(nginx(folder, upstream, upstream))
        yield port


@contextmanager
def nginx(folder: Path, *upstream: int, limits: bool = False) -> Iterator[int]:
    """Run nginx with deploy/nginx.conf on a free port.

    Args:
        folder: Folder for its files.
        upstream: Ports of the two instances.
        limits: Keep the limits of requests, which a load from one address exceeds.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = (ROOT / "deploy" / "nginx.conf").read_text()
    for old, new in zip((8001, 8002), upstream, strict=True):
        text = text.replace(f"127.0.0.1:{old} ", f"127.0.0.1:{new} ")
    text = text.replace("listen 8000 ", f"listen 127.0.0.1:{port} ")
    if not limits:
        text = re.sub(r"limit_conn (address|total) \d+;", r"limit_conn \1 4096;", text)
    config = folder / f"nginx-{port}.conf"
    head = f"daemon off;\npid {folder}/nginx-{port}.pid;\nerror_log stderr error;\n"
    config.write_text(head + text)
    with subprocess.Popen(["nginx", "-c", str(config), "-e", "stderr"]) as running:
        try:
            wait_for(port)
            yield port
        finally:
            running.send_signal(signal.SIGTERM)
            running.wait(60)


def wait_for(port: int) -> None:
    """Wait until a server answers."""

    async def ask() -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
                writer.close()
                if not head.startswith(b"HTTP/1.1 50"):
                    return
            except (OSError, asyncio.IncompleteReadError):
                pass
            await asyncio.sleep(0.1)

    asyncio.run(asyncio.wait_for(ask(), 120))


# --- clients --------------------------------------------------------------------------------------


@dataclass
class Load:
    """Latencies of the requests that were answered in some seconds."""

    seconds: float
    latencies: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def quantile(self, share: float) -> float:
        """Return a quantile in milliseconds."""
        return 1000 * float(np.quantile(self.latencies, share))


Loads = dict[tuple[str, int], list[Load]]


def requests(count: int = 100) -> list[bytes]:
    from sklearn.datasets import load_digits

    return [request(row) for row in (load_digits().data[:count] / 16).round(4).tolist()]


def request(numbers: list[float]) -> bytes:
    body = json.dumps({"inputs": [numbers]})
    return (
        "POST /v1/predict HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n{body}"
    ).encode()


async def measure(port: int, clients: int, seconds: float) -> Load:
    """Let clients send the next request as soon as they have a response."""
    load, contents = Load(seconds), requests()
    begin = time.perf_counter() + WARM_UP
    await asyncio.gather(*(ask(port, contents, first, begin, load) for first in range(clients)))
    if not load.latencies:
        raise RuntimeError(f"no response in {seconds:g} s to {clients} clients: use more --seconds")
    return load


async def ask(port: int, contents: list[bytes], first: int, begin: float, load: Load) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    end, number = begin + load.seconds, first
    while (sent := time.perf_counter()) < end:
        writer.write(contents[number % len(contents)])
        stays_open = await read_response(reader)
        done = time.perf_counter()
        if begin <= done <= end:
            load.latencies.append(done - sent)
        if not stays_open:  # nginx closes a connection after 1000 requests
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        number += 1
    writer.close()


async def read_response(reader: asyncio.StreamReader) -> bool:
    """Read a response, which must have a prediction; return whether the connection stays open."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = LENGTH.search(head)
    body = await reader.readexactly(int(length[1]) if length else 0)
    if not head.startswith(b"HTTP/1.1 200 ") or b'"predictions"' not in body:
        raise RuntimeError(f"refused: {head[:60]!r} {body[:200]!r}")
    return b"connection: close" not in head.lower()


# --- soak -----------------------------------------------------------------------------------------


def soak(seconds: float, rate: float) -> list[Row]:
    """Send requests at a steady rate; return the memory of the service over time."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        python(TRAIN, model)
        command = [sys.executable, "-c", SERVE, str(model), "auto"]
        with process(command, environment()) as (port, pid):
            wait_for(port)
            return asyncio.run(_soak(port, pid, seconds, rate))


async def _soak(port: int, pid: int, seconds: float, rate: float, workers: int = 8) -> list[Row]:
    begin = time.perf_counter()
    contents = requests()
    responses: list[tuple[float, float]] = []  # time and latency
    memory: list[tuple[float, float]] = []  # time and MB

    async def send_steadily() -> None:
        while time.perf_counter() < begin + seconds:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for content in random.choices(contents, k=10):  # each tenth on a new connection
                sent = time.perf_counter()
                writer.write(content)
                await read_response(reader)
                latency = time.perf_counter() - sent
                responses.append((sent - begin, latency))
                await asyncio.sleep(max(workers / rate - latency, 0))
            writer.close()

    async def sample_memory() -> None:
        while time.perf_counter() < begin + seconds:
            memory.append((time.perf_counter() - begin, resident(pid)))
            await asyncio.sleep(0.5)

    await asyncio.gather(sample_memory(), *(send_steadily() for _ in range(workers)))
    rows: list[Row] = []
    for part in range(10):
        start, end = part * seconds / 10, (part + 1) * seconds / 10
        latencies = [latency for sent, latency in responses if start <= sent < end]
        rows.append(
            {
                "until s": end,
                "requests": len(latencies),
                "p99 ms": 1000 * float(np.quantile(latencies, 0.99)),
                "median MB": statistics.median(mb for at, mb in memory if start <= at < end),
            }
        )
    return rows


def resident(pid: int) -> float:
    """Return the memory of a process in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def print_table(rows: Iterable[Row], path: Path | None = None) -> None:
    """Print rows as a Markdown table as they come, and write them to a JSON file."""
    done: list[Row] = []
    for row in rows:
        if not done:
            print(f"| {' | '.join(row)} |\n|{' --- |' * len(row)}")
        cells = (
            f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()
        )
        print(f"| {' | '.join(cells)} |", flush=True)
        done.append(row)
        if path is not None:
            path.write_text(json.dumps(done, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--baseline", metavar="COMMIT", help="commit to compare with")
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of a measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each server")
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="steady load")
    parser.add_argument("--rate", type=float, default=300, help="requests per second of the soak")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to a file")
    options = parser.parse_args()
    if options.soak:
        rows = soak(options.soak, options.rate)
    else:
        rows = run(options.baseline, options.seconds, options.rounds, options.clients)
    print_table(rows, options.json)


if __name__ == "__main__":
    main()
