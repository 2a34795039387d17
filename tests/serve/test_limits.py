"""Limits: what is too large, too many, too slow or not allowed is refused, and told why."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import struct
import threading
import time
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from dubito.serve import Settings, _images, token_from
from dubito.serve._metrics import resident_bytes
from serve.running import PATIENCE, Running, png, running, tiff, tiled, until

DIGIT = [0.5] * 64
TOKEN = "a-token-of-enough-characters"


def refused(answer: httpx.Response, status: int, code: str) -> str:
    """The message of an error, which has the form that all have."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == code
    assert "Traceback" not in answer.text
    assert 'File "' not in answer.text
    message: str = error["message"]
    return message


# --- sizes ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(digits: Path) -> Iterator[Running]:
    """A service that takes little."""
    limits: dict[str, Any] = {"max_body_bytes": 20_000, "max_pixels": 10_000, "max_batch": 4}
    with running(digits, queue=8, **limits) as found:
        yield found


def test_a_body_that_is_too_large(small: Running) -> None:
    long = small.client.post("/v1/predict", content=b" " * 20_001, headers=JSON)
    assert "20000 bytes" in refused(long, 413, "too_large")
    assert small.predict([DIGIT]).status_code == 200  # on the same connection


def test_a_body_is_counted_while_it_comes(small: Running) -> None:
    with small.connect() as line:
        line.sendall(
            b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for _ in range(19):
            line.sendall(b"3e8\r\n" + b" " * 1000 + b"\r\n")
        until(lambda: small.metric("dubito_buffered_bytes") == 19_000)
        line.sendall(b"7d0\r\n" + b" " * 2000 + b"\r\n")  # and no end
        assert line.recv(65536).startswith(b"HTTP/1.1 413 ")
    assert small.metric("dubito_buffered_bytes") == 0


JSON = {"content-type": "application/json"}


def test_too_many_inputs(small: Running) -> None:
    assert "5 inputs" in refused(small.predict([DIGIT] * 5), 422, "too_many")
    refused(small.upload(*[png(np.zeros((8, 8)))] * 5), 422, "too_many")
    assert small.predict([DIGIT] * 4).status_code == 200


def test_too_many_pixels(small: Running) -> None:
    assert small.upload(png(np.zeros((100, 100)))).status_code == 200
    message = refused(small.upload(png(np.zeros((100, 101)))), 413, "too_large")
    assert message == "this image has 10100 pixels; a request may have 10000"
    two = small.upload(png(np.zeros((80, 80))), png(np.zeros((80, 80))))
    refused(two, 413, "too_large")
    assert two.json()["error"]["index"] == 1


def bomb(width: int, height: int) -> bytes:
    """A .png whose header promises far more pixels than it holds bytes."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    data = zlib.compress(b"\0" * 1_000_000, 9)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", data), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("side", [5_000, 12_000, 65_535, 2**31 - 1])
def test_a_decompression_bomb_is_not_unpacked(service: Running, side: int) -> None:
    before = resident_bytes()
    answer = service.upload(bomb(side, side))
    assert answer.status_code in (413, 422)
    after = resident_bytes()
    assert before is not None
    assert after is not None
    assert after - before < 50 << 20


def test_whole_tiles_of_a_tiff_count(small: Running) -> None:
    assert small.upload(tiled((16, 16), (96, 96))).status_code == 200
    assert small.upload(tiled((90, 90), (32, 32))).status_code == 200
    for size, tile, count in (((16, 16), (112, 96), 10_752), ((160, 1), (16, 128), 20_480)):
        message = refused(small.upload(tiled(size, tile)), 413, "too_large")
        assert message == f"this image has {count} pixels; a request may have 10000"


FLAT = {256: (3, 1, 4), 257: (3, 1, 4), 259: (3, 1, 1), 273: (4, 1, 8), 278: (3, 1, 4),
        279: (4, 1, 16)}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({1000 + tag: (3, 1, 0) for tag in range(600)}, "may have 500 tags"),
        ({40_000 + tag: (7, 900, 8) for tag in range(3)}, "hold more than the file"),
        ({40_000: (16, 1 << 31, 8)}, "hold more than the file"),
        ({322: (17, 1, 8), 323: (17, 1, 8)}, "the tag 322 must"),  # a type unknown to Pillow
        ({256: (4, 2, 8)}, "the tag 256 must"),
    ],
)
def test_a_tiff_with_tags_that_take_too_much(
    service: Running, more: dict[int, tuple[int, int, int]], words: str
) -> None:
    assert service.upload(tiff(FLAT, bytes(1000))).status_code == 200
    assert words in refused(service.upload(tiff(FLAT | more, bytes(1000))), 422, "bad_image")


@pytest.mark.parametrize(
    "content",
    [b"II*\0", b"MM\0*" + b"\xff" * 9, b"II+\0\x08" + b"\xff" * 30, b"MM\0+\0\x08" + bytes(30),
     b"II*\0\x08" + bytes(3), b"II*\0\x08" + bytes(3) + b"\x09" + bytes(20)],
)  # fmt: skip
def test_a_tiff_without_its_directory(service: Running, content: bytes) -> None:
    assert "can't be decoded" in refused(service.upload(content), 422, "bad_image")


def test_a_big_tiff_is_read_as_others_are(service: Running) -> None:
    big = png(np.full((9, 9), 200), "TIFF", big_tiff=True)
    assert big.startswith(b"II+\0")
    plain = service.upload(png(np.full((9, 9), 200), "TIFF")).json()["predictions"]
    assert service.upload(big).json()["predictions"] == plain


def test_decoders_warn_nobody() -> None:
    """One file can hold thousands of tags to warn of."""
    exif = tiff({40_000 + tag: (7, 1 << 30, 8) for tag in range(9)})
    noisy = png(np.zeros((8, 8)), exif=b"Exif\0\0" + exif)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        _images.decode(noisy, 0, (1, 8, 8), "L")
        assert len(seen) >= 9
        seen.clear()
        _images.prepare()
        _images.decode(noisy, 0, (1, 8, 8), "L")
    assert not seen


def test_a_jpeg_with_endless_scans_is_not_decoded(service: Running) -> None:
    made = io.BytesIO()
    Image.fromarray(np.zeros((2000, 2000), np.uint8)).save(made, "JPEG", progressive=True)
    whole = made.getvalue()
    at = whole.rindex(b"\xff\xda")
    again = whole[:at] + whole[at:-2] * 2000 + b"\xff\xd9"
    started = time.monotonic()
    assert "scans" in refused(service.upload(again), 422, "bad_image")
    assert time.monotonic() - started < 5


def test_headers_that_never_end(service: Running) -> None:
    before = service.service.metrics.refused["bad_request"]
    with service.connect() as line:
        line.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n")
        with contextlib.suppress(OSError):  # it may be closed while we write
            for _ in range(100):
                line.sendall(b"x-more: " + b"y" * 1000 + b"\r\n")
        until(lambda: service.service.metrics.refused["bad_request"] > before)
    assert service.client.get("/healthz").status_code == 200


def received(line: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    parts = []
    while part := line.recv(65536):
        parts.append(part)
    return b"".join(parts)


# --- time ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hurried(digits: Path) -> Iterator[Running]:
    """A service that waits for nobody."""
    with running(digits, header_s=0.3, read_s=0.3, keep_alive_s=1, write_s=0.5) as found:
        yield found


def test_clients_that_say_nothing_or_stop_in_the_headers_are_cut_off(hurried: Running) -> None:
    for begun in (b"", b"POST /v1/predict HTTP/1.1\r\nhost: x\r\n"):
        with hurried.connect() as line:
            line.sendall(begun)
            started = time.monotonic()
            with contextlib.suppress(ConnectionResetError):
                assert received(line) == b""
            assert time.monotonic() - started < 3
    until(lambda: hurried.service.connections <= 1)


def test_a_header_a_byte_at_a_time_is_cut_off_too(hurried: Running) -> None:
    with hurried.connect() as line:
        line.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-slow: ")
        started = time.monotonic()
        with contextlib.suppress(OSError):  # which is what is meant to come
            while time.monotonic() - started < 10:
                line.sendall(b"y")
                time.sleep(0.05)
        assert time.monotonic() - started < 5


def test_a_body_that_does_not_come_is_told_so(hurried: Running) -> None:
    head = b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    for begun in (b"", b'{"inputs": '):
        with hurried.connect() as line:
            line.sendall(head + b"content-length: 500\r\n\r\n" + begun)
            told = received(line)
        assert told.startswith(b"HTTP/1.1 408 "), told
        assert b'"code": "slow"' in told
    until(lambda: hurried.metric("dubito_requests_in_progress") == 0)
    assert hurried.metric("dubito_buffered_bytes") == 0


def test_slow_clients_do_not_hold_up_others(hurried: Running) -> None:
    lines = [hurried.connect() for _ in range(50)]
    for line in lines:
        line.sendall(b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-le")
    assert hurried.predict([DIGIT]).status_code == 200
    until(lambda: hurried.service.connections <= 1)
    for line in lines:
        line.close()


def test_an_answer_that_nobody_reads(digits: Path) -> None:
    with running(digits, write_s=0.3, max_batch=256) as found:
        body = json.dumps({"inputs": [DIGIT] * 256}).encode()
        head = b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        whole = head + b"content-length: %d\r\n\r\n" % len(body) + body
        with socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.settimeout(PATIENCE)
            line.connect(("127.0.0.1", found.port))
            stop = time.monotonic() + 5
            with contextlib.suppress(OSError):
                while found.service.connections and time.monotonic() < stop:
                    line.sendall(whole)
            until(lambda: found.service.connections == 0)
        assert found.client.get("/healthz").status_code == 200


def test_a_request_that_takes_too_long(digits: Path) -> None:
    with running(digits, timeout_s=0.2) as found:
        slow = slowed(found, 0.6)
        answer = found.predict([DIGIT])
        assert "0.2 s" in refused(answer, 504, "timeout")
        slow.set()
        until(lambda: found.predict([DIGIT]).status_code == 200)


def slowed(found: Running, seconds: float) -> threading.Event:
    """Let the model take so long for a batch, until the event is set."""
    ended = threading.Event()
    before = found.service.batcher._said

    def slow(jobs: Any) -> Any:
        ended.wait(seconds)
        return before(jobs)

    found.service.batcher._said = slow  # type: ignore[method-assign]
    return ended


# --- numbers -------------------------------------------------------------------------------------


def test_a_full_queue_says_so_and_when_to_come_back(digits: Path) -> None:
    with running(digits, queue=4, max_batch=4, batch_size=2) as found:
        slow = slowed(found, PATIENCE)
        with ThreadPoolExecutor(10) as pool:
            asked = [pool.submit(found.predict, [DIGIT, DIGIT]) for _ in range(6)]
            # one batch is at work, two wait, the others find no place
            until(lambda: sum(one.done() for one in asked) == 3)
            for one in asked:
                if one.done():
                    assert "wait already" in refused(one.result(), 503, "busy")
                    assert int(one.result().headers["retry-after"]) >= 1
            assert found.client.get("/healthz").status_code == 200  # the loop goes on meanwhile
            slow.set()
            assert sorted(one.result().status_code for one in asked) == [200] * 3 + [503] * 3
        assert found.metric('dubito_refused_total{code="busy"}') == 3
        assert found.predict([DIGIT]).status_code == 200


def test_too_many_requests_at_once(digits: Path) -> None:
    with running(digits, max_requests=2) as found:
        slow = slowed(found, PATIENCE)
        with ThreadPoolExecutor(5) as pool:
            asked = [pool.submit(found.predict, [DIGIT]) for _ in range(5)]
            until(lambda: sum(one.done() for one in asked) == 3)
            slow.set()
            statuses = sorted(one.result().status_code for one in asked)
        assert statuses == [200, 200, 503, 503, 503]


def test_too_many_connections(digits: Path) -> None:
    with running(digits, max_connections=3) as found:
        lines = [found.connect() for _ in range(3)]
        until(lambda: found.service.connections == 3)
        with found.connect() as line:
            told = received(line)
        assert told.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in told
        for one in lines:
            one.close()
        until(lambda: found.service.connections == 0)
        assert found.client.get("/healthz").status_code == 200


def test_too_much_in_memory_at_once(digits: Path) -> None:
    with running(digits, max_body_bytes=3000, max_buffered_bytes=3000) as found:
        head = b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        with found.connect() as line:
            line.sendall(head + b"content-length: 3000\r\n\r\n" + b" " * 2900)
            until(lambda: found.metric("dubito_buffered_bytes") == 2900)
            refused(found.predict([DIGIT]), 503, "busy")
        until(lambda: found.metric("dubito_buffered_bytes") == 0)
        assert found.predict([DIGIT]).status_code == 200


def test_the_largest_body_finds_its_place(digits: Path) -> None:
    with running(digits, max_body_bytes=5000, max_buffered_bytes=3000) as found:
        body = json.dumps({"inputs": [DIGIT]}).encode().ljust(5000)
        assert found.client.post("/v1/predict", content=body, headers=JSON).status_code == 200


# --- who may -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(digits: Path) -> Iterator[Running]:
    with running(digits, token=TOKEN) as found:
        yield found


@pytest.mark.parametrize(
    "given", [None, "", TOKEN, "Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \xe9"]
)
def test_without_the_token_nothing_is_told(guarded: Running, given: str | None) -> None:
    headers = {} if given is None else {"authorization": given.encode("latin-1").decode("latin-1")}
    asked = [("GET", path) for path in ("/v1/model", "/metrics", "/openapi.json")]
    for method, path in (*asked, ("POST", "/v1/predict")):
        sent = httpx.Headers([(k.encode(), v.encode("latin-1")) for k, v in headers.items()])
        answer = guarded.client.request(method, path, headers=sent)
        refused(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"


def test_with_the_token_all_is_answered(guarded: Running) -> None:
    for scheme in ("Bearer", "bearer"):
        headers = {"authorization": f"{scheme} {TOKEN}"}
        assert guarded.client.get("/v1/model", headers=headers).status_code == 200
        assert guarded.predict([DIGIT], headers=headers).status_code == 200
    for path in ("/healthz", "/readyz", "/"):
        assert guarded.client.get(path).status_code == 200
    document = guarded.client.get("/openapi.json", headers=headers).json()
    assert document["paths"]["/v1/predict"]["post"]["security"] == [{"token": []}]


def test_the_token_is_shown_nowhere(guarded: Running) -> None:
    guarded.client.get("/v1/model", headers={"authorization": f"Bearer {TOKEN}"})
    assert TOKEN not in repr(guarded.service.settings)
    assert TOKEN not in "".join(map(str, guarded.log()))


def test_where_a_token_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    monkeypatch.setenv("SERVE_TOKEN", TOKEN)
    assert token_from("SERVE_TOKEN", None) == token_from(None, file) == TOKEN
    with pytest.raises(ValueError, match="not both"):
        token_from("SERVE_TOKEN", file)
    with pytest.raises(ValueError, match="no environment variable NO_SUCH"):
        token_from("NO_SUCH", None)
    for bad in ("short", "with spaces in the middle", "ünïcödé-is-no-header-value"):
        file.write_text(bad)
        with pytest.raises(ValueError, match="at least 16 printable") as caught:
            token_from(None, file)
        assert bad not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_batch", 0), ("timeout_s", -1.0), ("queue", 10), ("max_pixels", float("nan")),
        ("port", -1), ("batch_size", True), ("token", "short"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        Settings(**{name: value})
