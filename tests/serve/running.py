"""Services that run while a test asks them, in this process or in one of their own."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from dubito import serve
from dubito.serve._log import Log
from dubito.serve._server import Server

PATIENCE = 20.0  # seconds for anything; far more than it takes


@dataclass
class Running:
    """A service in a thread of this process."""

    service: serve.Service
    server: Server
    port: int
    loop: asyncio.AbstractEventLoop
    client: httpx.Client
    written: io.StringIO

    def predict(self, inputs: Any, **options: Any) -> httpx.Response:
        return self.client.post("/v1/predict", json={"inputs": inputs}, **options)

    def upload(self, *files: bytes, **options: Any) -> httpx.Response:
        sent = [("images", (f"{i}.png", content)) for i, content in enumerate(files)]
        return self.client.post("/v1/predict", files=sent, **options)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def call(self, function: Callable[[], Any]) -> Any:
        """Call something in the event loop of the service."""
        done = asyncio.run_coroutine_threadsafe(_called(function), self.loop)
        return done.result(PATIENCE)

    def log(self) -> list[dict[str, Any]]:
        self.service.log.flush()
        return [json.loads(line) for line in self.written.getvalue().splitlines()]

    def metric(self, line: str) -> float:
        """The value of a line of /metrics, by what stands before it; 0 where there is none."""
        found = re.search(rf"^{re.escape(line)} (\S+)$", self.service.metrics_text(), re.MULTILINE)
        return 0.0 if found is None else float(found[1])


async def _called(function: Callable[[], Any]) -> Any:
    return function()


@contextlib.contextmanager
def running(
    folder: Path, *, gallery: Path | None = None, token: str | None = None, **limits: Any
) -> Iterator[Running]:
    """Serve a bundle on a free port until the end of the block."""
    written = io.StringIO()
    service = serve.Service.of_folder(
        folder,
        serve.Settings(token=token, **limits),
        gallery=lambda classes: None if gallery is None else serve.read_gallery(gallery, classes),
        log=Log(written),
    )
    listening = serve.bound("127.0.0.1", 0)
    port = listening.getsockname()[1]
    begun = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    def on_ready() -> None:
        loops.append(asyncio.get_running_loop())
        begun.set()

    server = Server(service, on_ready)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    assert begun.wait(PATIENCE)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client:
        try:
            yield Running(service, server, port, loops[0], client, written)
        finally:
            client.close()
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive()


@dataclass
class Process:
    """`dubito serve` in a process of its own."""

    process: subprocess.Popen[str]
    port: int
    log_file: Path

    def __post_init__(self) -> None:
        self.url = f"http://127.0.0.1:{self.port}"

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log_file.read_text().splitlines()]

    def wait_for(self, event: str, count: int = 1) -> dict[str, Any]:
        """The log's entry of an event, once it is there."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            found = [entry for entry in self.log() if entry["event"] == event]
            if len(found) >= count:
                return found[-1]
            time.sleep(0.02)
        raise AssertionError(f"no {event!r} in the log: {self.log()}")


@contextlib.contextmanager
def process(folder: Path, place: Path, env: dict[str, str], *options: str) -> Iterator[Process]:
    """Start `dubito serve`; it is ended with the block where the test has not done so."""
    words = [sys.executable, "-m", "dubito", "serve", str(folder), "--port", "0", *options]
    log_file = place / "log.jsonl"
    with (
        log_file.open("w") as log,
        subprocess.Popen(words, env=env, stdout=log, stderr=subprocess.PIPE, text=True) as started,
    ):
        try:
            assert started.stderr is not None
            told = started.stderr.readline()
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", told)
            assert found is not None, told + started.stderr.read()
            yield Process(started, int(found[1]), log_file)
        finally:
            if started.poll() is None:
                started.send_signal(signal.SIGTERM)
                try:
                    started.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    started.kill()


def png(pixels: Any, form: str = "PNG", **options: Any) -> bytes:
    """An image file of pixels (h, w) or (h, w, 3), as bytes."""
    made = io.BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(made, form, **options)
    return made.getvalue()


def tiff(tags: dict[int, tuple[int, int, int]], data: bytes = b"") -> bytes:
    """A TIFF of 8-bit grey, from its tags {tag: (type, count, value)}; data lies at `TIFF_DATA`."""
    plain = {258: (3, 1, 8), 262: (3, 1, 1), 277: (3, 1, 1)}
    every = sorted({**plain, **tags}.items())
    entries = b"".join(struct.pack("<HHII", tag, *entry) for tag, entry in every)
    directory = struct.pack("<H", len(every)) + entries + bytes(4)
    return b"II*\0" + struct.pack("<I", TIFF_DATA + len(data)) + data + directory


TIFF_DATA = 8


def tiled(size: tuple[int, int], tile: tuple[int, int]) -> bytes:
    """A TIFF of that width and length, whose tiles have those and share what they hold."""
    (width, length), (tile_width, tile_length) = size, tile
    count = -(-width // tile_width) * -(-length // tile_length)
    packed = zlib.compress(bytes(tile_width * tile_length), 9)
    places = struct.pack(f"<{count}I", *[TIFF_DATA] * count)
    lengths = struct.pack(f"<{count}I", *[len(packed)] * count)
    after = TIFF_DATA + len(packed)
    at = (TIFF_DATA, len(packed)) if count == 1 else (after, after + len(places))
    sides = {256: width, 257: length, 322: tile_width, 323: tile_length}
    tags = {tag: (4, 1, side) for tag, side in sides.items()}
    tags |= {259: (3, 1, 8), 324: (4, count, at[0]), 325: (4, count, at[1])}
    return tiff(tags, packed + places + lengths)


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that will be so in a moment."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.01)
