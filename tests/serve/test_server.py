"""The process: signals and logs."""

import gc
import json
import signal
import socket
import subprocess
import sys
import weakref
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import torch
from torch import nn

from dubito.errors import DubitoError
from dubito.formats import ArrayFormat, Preprocessing
from dubito.model import Model
from dubito.serve import ServeConfig, create_app, serve
from dubito.serve.server import reload
from tests.serve.conftest import wait_until

BODY, TOKEN = {"inputs": [[1.0, 2.0, 3.0, 4.0]]}, "0123456789abcdef"
NETWORK = """
from torch import nn


def make():
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
"""


def wait_for_line(log: Path, text: str) -> str:
    """Wait until a line of a log has a text, and return the line."""
    wait_until(lambda: text in log.read_text().rpartition("\n")[0])
    return next(line for line in log.read_text().splitlines() if text in line)


def test_sigterm_answers_every_request_whose_headers_were_read(array_model, tmp_path, process, log):
    running, port = process(array_model.save(tmp_path / "model"))
    body = json.dumps(BODY).encode()
    head = (
        "POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nexpect: 100-continue\r\n\r\n"
    )
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=600))
            for _ in range(64)
        ]
        for client in sockets:
            client.sendall(head.encode())
        for client in sockets:  # the service has read the headers once it asks for the body
            assert client.recv(1000).startswith(b"HTTP/1.1 100 ")
        running.send_signal(signal.SIGTERM)
        wait_for_line(log, "Shutting down")
        for client in sockets:
            client.sendall(body)
        assert all(client.recv(1000).startswith(b"HTTP/1.1 200 ") for client in sockets)
    running.wait(600)


@pytest.mark.parametrize("proxies", [["127.0.0.1"], []])
def test_clients_behind_a_trusted_proxy(array_model, tmp_path, process, proxies):
    """A client that fills its memory does not affect others, unless they have one address."""
    folder = array_model.save(tmp_path / "model")
    _, port = process(folder, memory=400, trusted_proxies=proxies)

    def post(client: str) -> int:
        headers = {"x-forwarded-for": client}
        url = f"http://127.0.0.1:{port}/v1/predict"
        return httpx.post(url, json=BODY, headers=headers, timeout=600).status_code

    with socket.create_connection(("127.0.0.1", port), timeout=600) as heavy:
        head = "POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        more = "content-length: 1000\r\nx-forwarded-for: 10.0.0.1\r\n\r\n"
        heavy.sendall((head + more).encode() + b" " * 200)
        wait_until(lambda: post("10.0.0.1") == 503)
        assert post("10.0.0.2") == (200 if proxies else 503)


def test_sighup_reloads_the_model(array_model, tmp_path, process, log):
    folder = array_model.save(tmp_path / "model")
    running, port = process(folder, log_json=True)

    def version() -> str:
        return httpx.get(f"http://127.0.0.1:{port}/v1/model", timeout=600).json()["version"]

    before = version()
    saved = (folder / "model.json").read_bytes()

    (folder / "model.json").write_text("{")
    running.send_signal(signal.SIGHUP)
    line = json.loads(wait_for_line(log, "not reloaded"))
    assert (line["levelname"], "damaged" in line["message"]) == ("ERROR", True)
    assert version() == before

    (folder / "model.json").write_bytes(saved)
    changed = Model.load(folder)
    changed.policy = None
    changed.save(folder)
    running.send_signal(signal.SIGHUP)
    wait_for_line(log, "reloaded the model")
    assert version() != before


def test_a_reload_frees_the_old_model_and_only_the_server_freezes_objects(array_model, tmp_path):
    config = ServeConfig(engine="torch")
    service = create_app(array_model.save(tmp_path / "model"), config).state.service
    before = gc.get_freeze_count()
    service.reload()
    assert gc.get_freeze_count() == before
    gc.freeze()
    old = weakref.ref(service.loaded)
    try:
        reload(service)
        assert old() is None
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_a_short_token_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("DUBITO_TOKEN", "short")
    with pytest.raises(DubitoError, match="DUBITO_TOKEN must be at least 16"):
        serve(tmp_path)


def test_the_command_serves_a_custom_network_with_a_token(array_model, tmp_path, source_env):
    file = tmp_path / "my_network.py"
    file.write_text(NETWORK)
    network = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    inputs = torch.tensor(BODY["inputs"])
    preprocessing = Preprocessing(inputs=ArrayFormat(shape=(4,)))
    parts = (network, array_model.method, array_model.task, preprocessing)
    model = Model.from_network(*parts, check=(inputs, network(inputs).detach()))
    folder = model.save(tmp_path / "model")
    options = ["--network", f"{file}:make", "--engine", "torch", "--port", "0"]
    command = [sys.executable, "-m", "dubito", "serve", str(folder), *options]
    env, headers = {**source_env, "DUBITO_TOKEN": TOKEN}, {"authorization": f"Bearer {TOKEN}"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            url = running.stdout.readline().strip()
            refused = httpx.post(f"{url}v1/predict", json=BODY, timeout=600)
            response = httpx.post(f"{url}v1/predict", json=BODY, timeout=600, headers=headers)
        finally:
            running.terminate()
    assert refused.status_code == 401
    (row,), (expected,) = response.json()["predictions"], model.predict(inputs).rows()
    assert row["probs"] == pytest.approx(expected["probs"], rel=1e-5)
