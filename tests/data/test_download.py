from __future__ import annotations

import contextlib
import gzip
import hashlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dubito.data import download
from dubito.data.download import data_root, fetch

CONTENT = bytes(range(256)) * 1024  # several chunks
HALF = len(CONTENT) // 2
MD5 = hashlib.md5(CONTENT).hexdigest()
PATIENCE = 60.0  # seconds until a step that should take one is given up


class Site:
    """A web server on this machine: what it serves, how, and what it was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"/data.bin": CONTENT}
        self.asked: list[tuple[str, str | None]] = []
        self.ranges = True  # whether it can send a part of a file
        self.headers: dict[str, str] = {}
        self.stop_at: int | None = None  # send that many bytes, then wait for `proceed`
        self.proceed = threading.Event()
        self.cut = False  # after the wait, hang up
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        self.asked.append((request.path, wanted))
        if request.path not in self.files:
            request.send_error(404)
            return
        body, status = self.files[request.path], 200
        if wanted and self.ranges:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            body, status = body[start:], 206 if start < len(body) else 416
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        for name, value in self.headers.items():
            request.send_header(name, value)
        request.end_headers()
        # The client may be killed: that is a test.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send(request, body)

    def send(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        if self.stop_at is not None:
            request.wfile.write(body[: self.stop_at])
            request.wfile.flush()
            self.proceed.wait(PATIENCE)
            if self.cut:
                return
            body = body[self.stop_at :]
        request.wfile.write(body)

    def close(self) -> None:
        self.proceed.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(PATIENCE)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made = Site()
    yield made
    made.close()


def wait_until(condition: object, what: str) -> None:
    assert callable(condition)
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


def start_fetch(file: Path, address: str) -> subprocess.Popen[str]:
    """A process that says "ready", waits for a line, fetches the file and prints its size."""
    code = (
        "import pathlib, runpy, sys\n"
        # By its path: this module needs nothing of dubito, whose import takes seconds for torch.
        f"fetch = runpy.run_path({download.__file__!r})['fetch']\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        f"path = fetch(pathlib.Path({str(file)!r}), {MD5!r}, ({address!r},))\n"
        "print(path.stat().st_size)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_file_is_downloaded_once(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "new" / "data.bin"
    for _ in range(2):
        assert fetch(file, MD5, (site.address,)).read_bytes() == CONTENT
    assert site.asked == [("/data.bin", None)]
    assert leftovers(file.parent) == ["data.bin"]


def test_a_file_that_is_there_is_not_touched(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "data.bin"
    file.write_bytes(b"the user's own")
    assert fetch(file, MD5, (site.address,)).read_bytes() == b"the user's own"
    assert site.asked == []


def test_two_processes_at_once(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "data.bin"
    site.stop_at = HALF
    processes = [start_fetch(file, site.address) for _ in range(2)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            go(process)
        wait_until(lambda: site.asked, "a request")
        time.sleep(0.5)  # for the second one to come, if nothing held it back
        assert not file.exists()
        site.proceed.set()
        for process in processes:
            said, _ = process.communicate(timeout=PATIENCE)
            assert (process.returncode, said) == (0, f"{len(CONTENT)}\n")
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert site.asked == [("/data.bin", None)]
    assert file.read_bytes() == CONTENT


def test_a_killed_download_is_not_a_file_and_is_continued(site: Site, tmp_path: Path) -> None:
    file, part = tmp_path / "data.bin", tmp_path / "data.bin.part"
    site.stop_at = HALF
    process = start_fetch(file, site.address)
    try:
        go(process)
        wait_until(lambda: part.exists() and part.stat().st_size == HALF, "half of the file")
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    assert leftovers(tmp_path) == ["data.bin.part"]
    site.stop_at = None
    assert fetch(file, MD5, (site.address,)).read_bytes() == CONTENT
    assert site.asked == [("/data.bin", None), ("/data.bin", f"bytes={HALF}-")]
    assert leftovers(tmp_path) == ["data.bin"]


def test_a_connection_that_breaks_is_taken_up_again(site: Site, tmp_path: Path) -> None:
    site.stop_at, site.cut = HALF, True
    site.proceed.set()
    assert fetch(tmp_path / "data.bin", MD5, (site.address,)).read_bytes() == CONTENT
    assert [wanted for _, wanted in site.asked] == [None, f"bytes={HALF}-"]


@pytest.mark.parametrize("ranges", [True, False])
def test_whatever_part_is_left_the_file_is_right(site: Site, tmp_path: Path, ranges: bool) -> None:
    site.ranges = ranges
    lefts = {
        "half": CONTENT[:HALF],
        "all": CONTENT,
        "more": CONTENT + b"x",
        "nothing": b"",
        "something else": b"x" * HALF,
    }
    for name, left in lefts.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "data.bin.part").write_bytes(left)
        assert fetch(folder / "data.bin", MD5, (site.address,)).read_bytes() == CONTENT, name
        assert leftovers(folder) == ["data.bin"]


def test_a_gzip_file_is_kept_as_it_is_published(site: Site, tmp_path: Path) -> None:
    packed = gzip.compress(CONTENT)
    site.files["/data.gz"] = packed
    site.headers = {"Content-Encoding": "x-gzip"}  # as some servers call files that end in .gz
    file = fetch(tmp_path / "data.gz", hashlib.md5(packed).hexdigest(), (site.address,))
    assert file.read_bytes() == packed


def test_the_next_mirror_is_tried(site: Site, tmp_path: Path) -> None:
    site.files["/bad/data.bin"] = b"<html>moved</html>"
    mirrors = (site.address + "gone/", site.address + "bad/", site.address)
    assert fetch(tmp_path / "data.bin", MD5, mirrors).read_bytes() == CONTENT
    assert [path for path, _ in site.asked] == ["/gone/data.bin", "/bad/data.bin", "/data.bin"]


def test_a_wrong_checksum_names_both_and_leaves_nothing(site: Site, tmp_path: Path) -> None:
    site.files["/data.bin"] = b"other"
    with pytest.raises(FileNotFoundError) as caught:
        fetch(tmp_path / "data.bin", MD5, (site.address,))
    message = str(caught.value)
    assert MD5 in message
    assert hashlib.md5(b"other").hexdigest() in message
    assert leftovers(tmp_path) == []


def test_without_a_network_it_says_what_to_do(site: Site, tmp_path: Path) -> None:
    nowhere = site.address
    site.close()
    folder = tmp_path / "mnist"
    with pytest.raises(FileNotFoundError) as caught:
        fetch(folder / "data.bin", MD5, (nowhere, nowhere + "second/"))
    message = str(caught.value)
    wanted = (f"{nowhere}data.bin: ConnectionError", f"{nowhere}second/data.bin", "DUBITO_DATA")
    for part in (*wanted, str(folder), "mnist/data.bin"):
        assert part in message
    assert not (folder / "data.bin").exists()


def test_a_server_that_falls_silent(site: Site, tmp_path: Path) -> None:
    site.stop_at = 1000  # at each of the two attempts
    with pytest.raises(FileNotFoundError, match="timed out"):
        fetch(tmp_path / "data.bin", MD5, (site.address,), timeout=0.2)
    assert not (tmp_path / "data.bin").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"")
    with pytest.raises(OSError, match=r"cannot write to .*taken.*set DUBITO_DATA"):
        fetch(tmp_path / "taken" / "data.bin", MD5, ())


def test_progress_is_drawn_on_a_terminal_only(
    site: Site, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(tmp_path / "a" / "data.bin", MD5, (site.address,))
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    fetch(tmp_path / "b" / "data.bin", MD5, (site.address,))
    said = capfd.readouterr()
    assert said.out == ""
    assert "data.bin" in said.err
    assert "262.1/262.1 kB" in said.err


def test_the_download_is_logged(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="dubito"):
        fetch(tmp_path / "data.bin", MD5, (site.address,))
    assert f"downloading {site.address}data.bin" in caplog.text


def test_the_folder_of_the_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DUBITO_DATA", str(tmp_path))
    assert data_root() == tmp_path
    assert data_root("other") == Path("other")
    monkeypatch.setenv("DUBITO_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root().name == "dubito"
    assert tmp_path in data_root().parents
