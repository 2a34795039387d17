"""Small models, and applications that run in a thread."""

import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import uvicorn
from PIL import Image

from dubito import data
from dubito.formats import ArrayFormat, ImageFormat, Preprocessing
from dubito.methods import EDL
from dubito.model import Model
from dubito.serve import ServeConfig, create_app
from dubito.tasks import Classification, Regression

ROOT = Path(__file__).resolve().parents[2]
#: Options of all services: no test may fail because the machine is busy.
PATIENT: dict[str, Any] = {"engine": "torch", "timeout": 600, "body_timeout": 600}


def build(method: str, source: data.Source, task: Any, **options: Any) -> Model:
    """Build a model with random weights, calibration and a policy."""
    preprocessing = Preprocessing.fit(source.format, source.load())
    model = Model.build(method, task, preprocessing, **options)
    model.calibrate(source, levels=(0.9, 0.5))
    return model.fit_policy(source, coverage=0.8)


@pytest.fixture(scope="session")
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)


@pytest.fixture(scope="session")
def image_model(pixels: np.ndarray) -> Model:
    source = data.open((pixels, ["cat", "dog", "owl"] * 20), format=IMAGES)
    return build("edl", source, Classification.from_target(source.target))


@pytest.fixture(scope="session")
def array_model() -> Model:
    inputs = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    source = data.open((inputs, ["a", "b", "c"] * 20))
    return build("iedl", source, Classification.from_target(source.target))


@pytest.fixture(scope="session")
def table_model() -> Model:
    pandas = pytest.importorskip("pandas")
    rows = {"height": [1.5, 2.5, 3.5] * 20, "bark": ["grey", "brown"] * 30}
    frame = pandas.DataFrame({**rows, "age": np.linspace(5, 50, 60)})
    source = data.open(frame, target="age")
    return build("der", source, Regression.from_target(source.target, names=["age"]))


IMAGES = ImageFormat(size=(8, 8), mode="L")


def png(array: np.ndarray) -> bytes:
    return encoded(Image.fromarray(array))


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@contextmanager
def served(model: Any, **options: Any) -> Iterator[httpx.Client]:
    """Run an application in a thread, and give a client."""
    app = create_app(model, ServeConfig(**{**PATIENT, **options}))
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=600, trust_env=False) as client:
            client.service = app.state.service
            client.connections = server.server_state.connections
            yield client
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def arrays(array_model: Model) -> Iterator[httpx.Client]:
    """Return a client of a service for arrays, which all tests share."""
    with served(array_model) as client:
        yield client


@pytest.fixture(scope="session")
def images(image_model: Model) -> Iterator[httpx.Client]:
    """Return a client of a service for images."""
    with served(image_model) as client:
        yield client


@pytest.fixture(scope="session")
def table(table_model: Model) -> Iterator[httpx.Client]:
    """Return a client of a service for rows of a table."""
    with served(table_model) as client:
        yield client


class Gate(torch.nn.Module):
    """Network that blocks until its event is set, and fails on negative inputs.

    It does not block the zeros of the measurement at the start.
    """

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.open = threading.Semaphore(0), threading.Event()
        self.sizes: list[int] = []
        self.linear = torch.nn.Linear(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not x.any():
            return self.linear(x)
        self.sizes.append(len(x))
        self.entered.release()
        assert self.open.wait(600)
        if bool((x < 0).any()):
            raise RuntimeError("a negative input")
        return self.linear(x)


@pytest.fixture
def gate() -> Iterator[Gate]:
    network = Gate()
    yield network
    network.open.set()


@pytest.fixture
def gated_model(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Model:
    monkeypatch.setattr("dubito.serve.service.BRIEF", 0)  # it would block the loop
    inputs = Preprocessing(inputs=ArrayFormat(shape=(2,)))
    return Model(gate, EDL(), Classification(classes=("a", "b", "c")), inputs)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that other threads bring about."""
    end = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


PROCESS = """
import json, sys
from dubito.serve import ServeConfig, serve
config = ServeConfig(**json.loads(sys.argv[2]))
serve(sys.argv[1], port=0, config=config, on_start=lambda url: print(url, flush=True))
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return the log of the processes: a file, because a pipe that nobody reads blocks them."""
    return tmp_path / "log.txt"


@pytest.fixture
def process(log: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], int]]]:
    """Return a function that runs `serve` in a process and returns it and its port."""
    started: list[subprocess.Popen[str]] = []

    def start(folder: Path, **options: Any) -> tuple[Any, int]:
        with log.open("a") as file:
            running = subprocess.Popen(
                [sys.executable, "-c", PROCESS, str(folder), json.dumps({**PATIENT, **options})],
                stdout=subprocess.PIPE, stderr=file, text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")},
            )  # fmt: skip
        started.append(running)
        assert running.stdout is not None
        address = re.search(r":(\d+)/", running.stdout.readline())
        assert address is not None
        return running, int(address[1])

    yield start
    for running in started:
        running.kill()
        running.communicate()
