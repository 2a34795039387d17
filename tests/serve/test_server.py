"""The process: signals and logs."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from dubito.model import Model

BODY = {"inputs": [[1.0, 2.0, 3.0, 4.0]]}


def read_until(stream: Any, text: str) -> str:
    """Read lines until one has a text."""
    for line in stream:
        if text in line:
            return line
    raise AssertionError(f"no line has {text!r}")


def test_sigterm_answers_every_request_whose_headers_were_read(
    array_model: Model, tmp_path: Path, process: Callable[..., Any]
) -> None:
    running, port = process(array_model.save(tmp_path / "model"))
    body = json.dumps(BODY).encode()
    head = (
        "POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nexpect: 100-continue\r\n\r\n"
    )
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            for _ in range(64)
        ]
        for one in sockets:
            one.sendall(head.encode())
        for one in sockets:  # the service has read the headers once it asks for the body
            assert one.recv(1000).startswith(b"HTTP/1.1 100 ")
        running.send_signal(signal.SIGTERM)
        read_until(running.stderr, "Shutting down")
        for one in sockets:
            one.sendall(body)
        assert all(one.recv(1000).startswith(b"HTTP/1.1 200 ") for one in sockets)
    running.wait(60)


def test_sighup_reloads_the_model(
    array_model: Model, tmp_path: Path, process: Callable[..., Any]
) -> None:
    folder = array_model.save(tmp_path / "model")
    options = '{"engine": "torch", "log_json": true}'
    running, port = process(folder, options)
    url = f"http://127.0.0.1:{port}/v1/model"
    before = httpx.get(url).json()["version"]
    saved = (folder / "model.json").read_bytes()

    (folder / "model.json").write_text("{")
    running.send_signal(signal.SIGHUP)
    line = json.loads(read_until(running.stderr, "not reloaded"))
    assert (line["levelname"], "damaged" in line["message"]) == ("ERROR", True)
    assert httpx.get(url).json()["version"] == before

    (folder / "model.json").write_bytes(saved)
    changed = Model.load(folder)
    changed.policy = None
    changed.save(folder)
    running.send_signal(signal.SIGHUP)
    read_until(running.stderr, "reloaded the model")
    assert httpx.get(url).json()["version"] != before
