"""Throughput of the service: requests per second and latency at 1, 16, 64 and 256 clients.

A digits model, 64 numbers a request. All servers run at the same time and are measured in turns, so
that what else the machine does affects all of them alike; rows are medians over the rounds.

    python -m benchmarks.serve --baseline 12fd718    compare with another commit
    python -m benchmarks.serve --soak 600            steady load, and the memory of the service

| server | what |
| --- | --- |
| baseline | `dubito serve` of another commit |
| torch, onnx | `dubito serve` with that engine |
| nginx | the same as onnx, behind deploy/nginx.conf |
| bare | a FastAPI route that runs the exported model, without batching, checks or limits |
| litserve | LitServe with the exported model, if it is installed |
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks import Row

ROOT = Path(__file__).resolve().parents[1]
CLIENTS = (1, 16, 64, 256)
SECONDS, WARM_UP, ROUNDS = 3.0, 0.5, 3
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
from dubito.model import Model
Model.load(sys.argv[1]).export(sys.argv[2])
"""
BARE = """
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
with socket.create_server(("127.0.0.1", 0)) as listener:
    port = listener.getsockname()[1]
print(f"http://127.0.0.1:{port}/", flush=True)
api = API(max_batch_size=64, batch_timeout=0.002, api_path="/v1/predict")
server = litserve.LitServer(api, accelerator="cpu")
server.run(port=port, log_level="error", generate_client_file=False)
"""


def run(baseline: str | None = None) -> list[Row]:
    """Measure all servers in turns."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        ports = {
            name: stack.enter_context(server) for name, server in servers(Path(folder), baseline)
        }
        loads: Loads = {(name, clients): [] for clients in CLIENTS for name in ports}
        for _ in range(ROUNDS):
            for (name, clients), found in loads.items():
                found.append(asyncio.run(measure(ports[name], clients)))
    return [row(name, clients, found, loads) for (name, clients), found in loads.items()]


def servers(folder: Path, baseline: str | None) -> Iterator[tuple[str, object]]:
    """Yield the name of each server and a context manager that runs it and gives its port."""
    model, exported = folder / "model", folder / "model.onnx"
    python(TRAIN, model)
    python(EXPORT, model, exported)
    if baseline is not None:
        yield "baseline", old_server(folder, baseline)
    for engine in ("torch", "onnx"):
        yield engine, server(SERVE, model, engine)
    if shutil.which("nginx"):
        yield "nginx", behind_nginx(folder, server(SERVE, model, "onnx"))
    yield "bare", server(BARE, exported)
    if find_spec("litserve"):
        yield "litserve", server(LITSERVE, exported)


def row(name: str, clients: int, found: list[Load], loads: Loads) -> Row:
    rate = statistics.median(load.rate for load in found)
    reference = loads.get(("baseline", clients), loads["torch", clients])
    ratios = [load.rate / other.rate for load, other in zip(found, reference, strict=True)]
    p99 = [load.quantile(0.99) for load in found]
    ratios99 = [p / other.quantile(0.99) for p, other in zip(p99, reference, strict=True)]
    return {
        "clients": clients,
        "server": name,
        "requests/s": rate,
        "ratio": statistics.median(ratios),
        "p50 ms": statistics.median(load.quantile(0.5) for load in found),
        "p99 ms": statistics.median(p99),
        "p99 ratio": statistics.median(ratios99),
    }


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
    """Run a server; give its port, from the address that it prints first, and its process id."""
    with subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        try:
            found = re.search(r":(\d+)/", running.stdout.readline())
            if found is None:
                raise RuntimeError(f"{command} did not start")
            yield int(found[1]), running.pid
        finally:
            running.send_signal(signal.SIGTERM)
            running.wait(60)


@contextmanager
def server(code: str, *arguments: object) -> Iterator[int]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
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
def behind_nginx(folder: Path, instance: object) -> Iterator[int]:
    """Run nginx with deploy/nginx.conf in front of one instance."""
    with ExitStack() as stack:
        upstream = stack.enter_context(instance)  # type: ignore[arg-type]
        port = stack.enter_context(nginx(folder, upstream, upstream))
        yield port


@contextmanager
def nginx(folder: Path, *upstream: int, limits: bool = False) -> Iterator[int]:
    """Run nginx with deploy/nginx.conf on a free port.

    Args:
        folder: Folder for its files.
        upstream: Ports of the two instances.
        limits: Keep the limit of requests per address, which one client on one machine exceeds.
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
    """Latencies of the requests of some seconds."""

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


async def measure(port: int, clients: int) -> Load:
    """Let clients ask again as soon as they have an answer."""
    load, asked = Load(SECONDS), requests()
    begin = time.perf_counter() + WARM_UP
    await asyncio.gather(*(ask(port, asked, place, begin, load) for place in range(clients)))
    return load


async def ask(port: int, asked: list[bytes], place: int, begin: float, load: Load) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    end = begin + load.seconds
    while (sent := time.perf_counter()) < end:
        writer.write(asked[place % len(asked)])
        await answer(reader)
        done = time.perf_counter()
        if sent >= begin and done <= end:
            load.latencies.append(done - sent)
        place += 1
    writer.close()


async def answer(reader: asyncio.StreamReader) -> bytes:
    """Read an answer, which must have a prediction."""
    head = await reader.readuntil(b"\r\n\r\n")
    found = LENGTH.search(head)
    body = await reader.readexactly(int(found[1]) if found else 0)
    if not head.startswith(b"HTTP/1.1 200 ") or b'"predictions"' not in body:
        raise RuntimeError(f"refused: {head[:60]!r} {body[:200]!r}")
    return body


# --- soak -----------------------------------------------------------------------------------------


def soak(seconds: float, rate: float) -> list[Row]:
    """Ask at a steady rate for long; return the memory of the service at its start and end."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        python(TRAIN, model)
        command = [sys.executable, "-c", SERVE, str(model), "auto"]
        with process(command, environment()) as (port, pid):
            wait_for(port)
            return asyncio.run(_soak(port, pid, seconds, rate))


async def _soak(port: int, pid: int, seconds: float, rate: float) -> list[Row]:
    load, memory = Load(seconds), []
    end = time.perf_counter() + seconds

    async def steadily(workers: int = 8) -> None:
        asked, count = requests(), 0
        while (sent := time.perf_counter()) < end:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(10):
                writer.write(asked[count % len(asked)])
                await answer(reader)
                load.latencies.append(time.perf_counter() - sent)
                await asyncio.sleep(max(workers / rate - (time.perf_counter() - sent), 0))
                count, sent = count + 1, time.perf_counter()
            writer.close()

    async def watch() -> None:
        while time.perf_counter() < end:
            memory.append(resident(pid))
            await asyncio.sleep(0.5)

    await asyncio.gather(watch(), *(steadily() for _ in range(8)))
    fifth = max(len(memory) // 5, 1)
    first, last = statistics.median(memory[fifth : 2 * fifth]), statistics.median(memory[-fifth:])
    return [
        {
            "seconds": seconds,
            "requests": len(load.latencies),
            "p99 ms": load.quantile(0.99),
            "MB at first": first,
            "MB at last": last,
            "peak MB": max(memory),
        }
    ]


def resident(pid: int) -> float:
    """Return the memory of a process in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--baseline", help="commit to compare with")
    parser.add_argument("--soak", type=float, help="seconds of steady load")
    parser.add_argument("--rate", type=float, default=300, help="requests per second of the soak")
    options = parser.parse_args()
    rows = soak(options.soak, options.rate) if options.soak else run(options.baseline)
    for found in rows:
        cells = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items())
        print("  ".join(cells))


if __name__ == "__main__":
    main()
