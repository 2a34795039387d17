"""Faults: workers that die, clients that leave, a service told to stop, a bundle that changes."""

from __future__ import annotations

import asyncio
import ctypes
import http.client
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from dubito import serve
from dubito.serve import _server, _sockets
from serve.conftest import trained
from serve.running import PATIENCE, Process, Running, process, running, until
from serve.test_limits import DIGIT, refused, slowed

#: trials of SIGTERM under load: one here, and twenty where DUBITO_FULL=1 asks for all
TRIALS = 20 if os.environ.get("DUBITO_FULL") == "1" else 1


#: pytest tells of threads that die, which here they are meant to
DIES = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


# --- the model's thread --------------------------------------------------------------------------


def kill_thread(found: Running, held: threading.Event) -> None:
    """Raise SystemExit in the model's thread, which nothing there catches, and let it go on."""
    thread = found.service.batcher._thread
    assert thread is not None
    assert thread.ident is not None
    count = ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
    )
    assert count == 1
    held.set()
    until(lambda: not thread.is_alive())


@DIES
def test_a_thread_that_dies_at_work_loses_that_batch_alone(digits: Path) -> None:
    with running(digits, batch_size=1) as found, ThreadPoolExecutor(3) as pool:
        slow = slowed(found, PATIENCE)
        first = pool.submit(found.predict, [DIGIT])
        until(lambda: bool(found.service.batcher._working))
        second = pool.submit(found.predict, [DIGIT])
        until(lambda: found.service.batcher.waiting == 1)
        kill_thread(found, slow)
        answer = first.result()
        assert "try again" in refused(answer, 503, "not_ready")
        assert answer.headers["retry-after"]
        assert second.result().status_code == 200  # it waited, and the new thread took it
        assert found.client.get("/readyz").status_code == 200
        assert found.metric("dubito_worker_restarts_total") == 1
        assert [e["lost"] for e in found.log() if e["event"] == "worker_died"] == [1]


def test_a_thread_that_dies_idle_is_replaced(digits: Path) -> None:
    with running(digits) as found:
        batcher = found.service.batcher
        before = batcher._thread
        found.call(lambda: batcher._batches.put(None))  # ends it, though nobody said to stop
        until(lambda: batcher._thread is not before and batcher.alive)
        assert found.predict([DIGIT]).status_code == 200


@DIES
def test_a_thread_that_keeps_dying_ends_the_service(digits: Path) -> None:
    with running(digits) as found:

        def die(jobs: Any) -> Any:
            raise SystemExit

        found.service.batcher._told = die  # type: ignore[method-assign]
        codes = [found.predict([DIGIT]).status_code for _ in range(6)]
        assert set(codes) == {503}
        until(lambda: found.service.failed.is_set())
        assert found.service.stopping or found.service.ready is not None
        until(lambda: found.service.stopping)


def test_a_model_that_fails_is_told_without_its_trace(digits: Path) -> None:
    with running(digits) as found:

        def fail(inputs: Any) -> Any:
            raise RuntimeError("secret of the inside")

        object.__setattr__(found.service.served, "answer", fail)
        answer = found.predict([DIGIT])
        assert "secret" not in answer.text
        refused(answer, 500, "internal")
        (entry,) = [e for e in found.log() if e["event"] == "prediction_failed"]
        assert "secret of the inside" in entry["trace"]
        assert found.service.batcher.alive


def test_the_event_loop_goes_on_while_the_model_works(digits: Path) -> None:
    with running(digits) as found, ThreadPoolExecutor(1) as pool:
        slow = slowed(found, PATIENCE)
        asked = pool.submit(found.predict, [DIGIT])
        until(lambda: bool(found.service.batcher._working))
        started = time.monotonic()
        assert found.client.get("/healthz").status_code == 200
        assert time.monotonic() - started < 2
        slow.set()
        assert asked.result().status_code == 200


def test_a_model_that_is_stuck_is_not_ready(digits: Path) -> None:
    with running(digits, timeout_s=0.05) as found:
        slow = slowed(found, PATIENCE)
        refused(found.predict([DIGIT]), 504, "timeout")
        until(lambda: found.client.get("/readyz").status_code == 503)
        assert found.client.get("/healthz").status_code == 200
        slow.set()
        until(lambda: found.client.get("/readyz").status_code == 200)


# --- clients that leave --------------------------------------------------------------------------


def test_nothing_is_computed_for_a_client_that_has_gone(digits: Path) -> None:
    with running(digits, batch_size=1) as found, ThreadPoolExecutor(1) as pool:
        slow = slowed(found, PATIENCE)
        asked = pool.submit(found.predict, [DIGIT])
        until(lambda: bool(found.service.batcher._working))
        body = json.dumps({"inputs": [DIGIT]}).encode()
        head = b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        for _ in range(5):
            count = found.service.batcher.waiting + 1
            with found.connect() as line:
                line.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
                until(lambda count=count: found.service.batcher.waiting == count)  # type: ignore[misc]
        until(lambda: found.service.connections <= 1)
        slow.set()
        assert asked.result().status_code == 200
        until(lambda: found.service.batcher.waiting == 0)
        assert found.predict([DIGIT]).status_code == 200
        assert found.metric("dubito_batch_size_sum") == 2  # and not seven
        assert found.metric('dubito_requests_total{route="/v1/predict",status="499"}') == 5


# --- the end -------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What clients saw: whole answers, refused connections, and requests that got no answer."""

    answers: int = 0
    lost: int = 0


async def asking(port: int, seen: Seen, stopped: asyncio.Event, fresh: bool) -> None:
    """Ask until there is nobody to ask; a request that was sent must be answered."""
    body = json.dumps({"inputs": [DIGIT]}).encode()
    head = "POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    asked = head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            assert stopped.is_set(), "a connection was refused before it was told to stop"
            return
        last = False
        while not last:
            try:
                writer.write(asked)
                answer = await reader.readuntil(b"\r\n\r\n")
                length = int(answer.split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
            except (OSError, asyncio.IncompleteReadError):
                seen.lost += 1
                return
            assert answer.startswith(b"HTTP/1.1 200 "), answer
            seen.answers += 1
            last = fresh or b"connection: close" in answer
        writer.close()


async def under_load(started: Process, clients: int, fresh: int) -> Seen:
    """SIGTERM while clients ask, `fresh` of them on a new connection for each request."""
    seen, stopped = Seen(), asyncio.Event()
    tasks = [
        asyncio.create_task(asking(started.port, seen, stopped, place < fresh))
        for place in range(clients)
    ]
    async with asyncio.timeout(PATIENCE):
        while seen.answers < 10 * clients and not any(task.done() for task in tasks):
            await asyncio.sleep(0.01)
    before = seen.answers
    stopped.set()
    started.process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
    assert seen.answers > before > 0
    return seen


@pytest.mark.parametrize("trial", range(TRIALS))
def test_sigterm_under_load_loses_nothing(
    digits: Path, tmp_path: Path, source_env: dict[str, str], trial: int
) -> None:
    with process(digits, tmp_path, source_env) as started:
        seen = asyncio.run(under_load(started, clients=16, fresh=8))
        assert started.process.wait(PATIENCE) == 0
    assert seen.lost == 0
    answered = sum(e["event"] == "request" and e["status"] == 200 for e in started.log())
    assert answered == seen.answers
    assert [e["event"] for e in started.log()][-1] == "stopped"


def test_a_request_at_work_is_finished_and_no_other_taken(digits: Path) -> None:
    with running(digits) as found, ThreadPoolExecutor(1) as pool:
        slow = slowed(found, PATIENCE)
        asked = pool.submit(found.predict, [DIGIT])
        until(lambda: bool(found.service.batcher._working))
        found.server.should_exit = True
        until(lambda: found.service.stopping)
        with pytest.raises(OSError, match="refused"):
            found.connect().close()
        slow.set()
        assert asked.result().status_code == 200
        assert asked.result().headers["connection"] == "close"


# --- the bundle ----------------------------------------------------------------------------------


def replaced(place: Path, by: Path) -> None:
    """Put other files where a bundle was, the manifest last."""
    for name in ("model.safetensors", "config.json", "policy.json", "card.md", "manifest.json"):
        shutil.copyfile(by / name, place / name)


def version(url: str) -> str:
    found: str = httpx.get(f"{url}/v1/model", timeout=PATIENCE).json()["version"]
    return found


def test_a_bundle_is_reloaded_when_told_and_a_bad_one_refused(
    digits: Path, table: Path, tmp_path: Path, source_env: dict[str, str]
) -> None:
    place = tmp_path / "served"
    shutil.copytree(digits, place)
    other = trained(tmp_path / "other", seed=5)
    with process(place, tmp_path, source_env) as started:
        first = version(started.url)
        ask = {"inputs": [DIGIT]}
        said = httpx.post(f"{started.url}/v1/predict", json=ask).json()
        replaced(place, other)
        assert version(started.url) == first  # the old one goes on
        assert httpx.post(f"{started.url}/v1/predict", json=ask).json() == said
        started.process.send_signal(signal.SIGHUP)
        told = started.wait_for("reloaded")
        assert (told["before"], told["version"]) == (first, version(started.url))
        assert version(started.url) != first
        second = version(started.url)
        assert httpx.post(f"{started.url}/v1/predict", json=ask).json() != said
        weights = (place / "model.safetensors").read_bytes()
        (place / "model.safetensors").write_bytes(weights[:-4])
        started.process.send_signal(signal.SIGHUP)
        told = started.wait_for("reload_refused")
        assert "is damaged" in told["reason"]
        assert version(started.url) == told["kept"] == second
        assert httpx.post(f"{started.url}/v1/predict", json=ask).status_code == 200
        replaced(place, table)  # of another kind and shape
        started.process.send_signal(signal.SIGHUP)
        started.wait_for("reloaded", 2)
        assert httpx.post(f"{started.url}/v1/predict", json=ask).status_code == 422
        row = {"rows": [{"size": 1, "hue": "red"}]}
        assert httpx.post(f"{started.url}/v1/predict", json=row).status_code == 200


def test_what_waits_is_answered_by_the_model_it_was_meant_for(
    digits: Path, table: Path, tmp_path: Path
) -> None:
    place = tmp_path / "served"
    shutil.copytree(digits, place)
    with running(place) as found, ThreadPoolExecutor(2) as pool:
        slow = slowed(found, PATIENCE)
        first = pool.submit(found.predict, [DIGIT])
        until(lambda: bool(found.service.batcher._working))
        second = pool.submit(found.predict, [DIGIT])
        until(lambda: found.service.batcher.waiting == 1)
        before = found.service.served.version
        replaced(place, table)
        done = asyncio.run_coroutine_threadsafe(found.service.reload(), found.loop)
        assert done.result(PATIENCE)
        third = pool.submit(found.predict, [[1.0, 0.0, 1.0]])
        slow.set()
        for asked in (first, second):
            assert asked.result().json()["model"]["version"] == before
        assert third.result().json()["model"]["version"] == found.service.served.version != before


# --- the supervisor ------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is supervised without fork")
def test_a_killed_service_comes_back_on_the_same_port(
    digits: Path, tmp_path: Path, source_env: dict[str, str]
) -> None:
    with process(digits, tmp_path, source_env, "--supervise") as started:
        children = Path(f"/proc/{started.process.pid}/task/{started.process.pid}/children")
        if not children.exists():
            pytest.skip("the system does not tell which process is whose child")
        (child,) = map(int, children.read_text().split())
        held = http.client.HTTPConnection("127.0.0.1", started.port, timeout=PATIENCE)
        held.request("GET", "/healthz")
        assert held.getresponse().read()
        os.kill(child, signal.SIGKILL)
        held.close()
        # The socket was never closed: this waits in its queue until somebody answers.
        assert httpx.get(f"{started.url}/healthz", timeout=PATIENCE).status_code == 200
        assert httpx.post(f"{started.url}/v1/predict", json={"inputs": [DIGIT]}).status_code == 200
        assert started.wait_for("service_died")["status"] == -signal.SIGKILL
        (again,) = map(int, children.read_text().split())
        assert again != child
        started.process.send_signal(signal.SIGHUP)
        started.wait_for("reloaded")
        started.process.send_signal(signal.SIGTERM)
        assert started.process.wait(PATIENCE) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{started.url}/healthz")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is supervised without fork")
def test_a_service_that_never_started_is_not_started_again(
    tmp_path: Path, source_env: dict[str, str]
) -> None:
    with (
        pytest.raises(AssertionError, match="no folder"),
        process(tmp_path / "nothing", tmp_path, source_env, "--supervise"),
    ):
        pass


# --- systemd -------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="systemd is told through such sockets")
def test_systemd_is_told(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(tmp_path / "notify"))
        told.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "1000000")
        monkeypatch.setattr(_server, "BEATS", 1)
        with running(digits) as found:
            assert told.recv(100) == b"READY=1"
            assert told.recv(100) == b"WATCHDOG=1"
            found.server.should_exit = True
            while (last := told.recv(100)) == b"WATCHDOG=1":
                pass
            assert last == b"STOPPING=1"


# --- the door ------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such filters")
def test_who_waits_at_a_closed_door_is_still_let_in() -> None:
    with serve.bound("127.0.0.1", 0) as listening:
        listening.listen(8)
        place = listening.getsockname()
        with socket.create_connection(place, timeout=PATIENCE) as early:
            early.sendall(b"asked before")
            _sockets.close_door(listening)
            with pytest.raises(TimeoutError):
                socket.create_connection(place, timeout=0.3)
            accepted, _ = listening.accept()
            with accepted:
                assert accepted.recv(100) == b"asked before"
        _sockets.open_door(listening)
        socket.create_connection(place, timeout=PATIENCE).close()
