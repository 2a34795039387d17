"""Hostile input: whatever is sent, an error with a reason and a service that goes on."""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from PIL import Image

from dubito.serve._metrics import resident_bytes
from dubito.serve._problem import CODES
from serve.running import Running, png, running
from serve.test_limits import bomb

FULL = os.environ.get("DUBITO_FULL") == "1"
UPLOADS = 1000 if FULL else 120
EXAMPLES = 200 if FULL else 5
GROWTH = 200 << 20  # bytes that the process may grow by: a few decoded images at once
Random = np.random.Generator
JSON = "application/json"


@pytest.fixture(scope="module")
def target(digits: Path) -> Iterator[Running]:
    with running(digits, max_body_bytes=1 << 20, max_pixels=2_000_000, timeout_s=20) as found:
        yield found


# --- what is made up -----------------------------------------------------------------------------


def image(random: Random) -> bytes:
    """A good image of any format and size."""
    form = str(random.choice(["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF"]))
    size = tuple(random.integers(1, 60, 2))
    shape = size if random.integers(2) else (*size, 3)
    return png(random.integers(0, 256, shape), form)


def truncated(random: Random) -> bytes:
    whole = image(random)
    return whole[: random.integers(0, len(whole))]


def damaged(random: Random) -> bytes:
    content = bytearray(image(random))
    for place in random.integers(0, len(content), random.integers(1, 20)):
        content[place] = random.integers(256)
    return bytes(content)


def huge(random: Random) -> bytes:
    return bomb(*(int(2 ** random.uniform(10, 31)) for _ in range(2)))


def huge_gif(random: Random) -> bytes:
    sides = struct.pack("<HH", *random.integers(2000, 65536, 2).tolist())
    return b"GIF89a" + sides + png(np.zeros((3, 3)), "GIF")[10:]


def polyglot(random: Random) -> bytes:
    """Two kinds of file in one."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("a.txt", "b" * 100)
    others = [archive.getvalue(), b"%PDF-1.7\n", b"<script>alert(1)</script>", b"\x7fELF", b"MZ"]
    one, other = image(random), others[random.integers(len(others))]
    return one + other if random.integers(2) else other + one


def no_image(random: Random) -> bytes:
    kinds = [
        b"", b"hello", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS-Adobe-3.0 EPSF-3.0",
        b"P6 1 1 255 abc", b"\x00\x00\x01\x00", b"\x93NUMPY", b"\x80\x04.",
        b"II*\x00\xff\xff\xff\xff", random.bytes(int(random.integers(1, 3000))),
    ]  # fmt: skip
    return kinds[random.integers(len(kinds))]


def animated(random: Random) -> bytes:
    frames = [Image.fromarray(random.integers(0, 256, (20, 20), dtype=np.uint8)) for _ in range(30)]
    made = io.BytesIO()
    frames[0].save(made, "GIF", save_all=True, append_images=frames[1:])
    return made.getvalue()


def deep(random: Random) -> bytes:
    """Sixteen bits a pixel, floats, palettes, and directions that no camera has."""
    kind = random.integers(4)
    made = io.BytesIO()
    if kind == 0:
        Image.fromarray(random.integers(0, 65536, (9, 9), dtype=np.uint16)).save(made, "PNG")
    elif kind == 1:
        Image.fromarray(random.standard_normal((9, 9)).astype(np.float32)).save(made, "TIFF")
    elif kind == 2:
        Image.new("P", (9, 9)).save(made, "PNG", transparency=0)
    else:
        picture = Image.new("RGB", (9, 5))
        exif = picture.getexif()
        exif[0x0112] = int(random.integers(0, 65536))
        picture.save(made, "JPEG", exif=exif.tobytes())
    return made.getvalue()


FILES: list[Callable[[Random], bytes]] = [
    truncated, damaged, huge, huge_gif, polyglot, no_image, animated, deep,
]  # fmt: skip


def form(random: Random) -> tuple[bytes, str]:
    """A form with files of all these kinds, at times damaged itself."""
    made = [FILES[random.integers(len(FILES))](random) for _ in range(random.integers(1, 4))]
    kind = random.integers(8)
    names = ["images"] * len(made)
    if kind == 0:
        names[0] = str(random.choice(["image", "", "images[]", '"; name="images', "x" * 5000]))
    request = httpx.Request(
        "POST", "http://x", files=[(n, ("f", c)) for n, c in zip(names, made, strict=True)]
    )
    body, content_type = request.read(), request.headers["content-type"]
    if kind == 1:
        body = body[: random.integers(0, len(body))]
    elif kind == 2:
        body = body.replace(b"\r\n", b"\n")
    elif kind == 3:
        content_type = str(random.choice(["multipart/form-data", "multipart/form-data; boundary="]))
    elif kind == 4:
        content_type = "multipart/form-data; boundary=" + "y" * int(random.integers(1, 200))
    return body, content_type


def array(random: Random) -> tuple[bytes, str]:
    """JSON that is nearly right, or not at all."""
    good: list[Any] = [[0.5] * 64]
    strange: list[Any] = [
        float("nan"), float("inf"), -float("inf"), 1e308, 10**350, -1, 2, True, None, "0.5", [], {},
        [[[]]], "\ud800", 10**4000,
    ]  # fmt: skip
    value = strange[random.integers(len(strange))]
    kind = random.integers(6)
    if kind == 0:
        good[0][random.integers(64)] = value
    elif kind == 1:
        good = [good[0][: random.integers(64)]]
    elif kind == 2:
        good = value
    elif kind == 3:
        good = [good[0]] * int(random.integers(257, 400))
    body = json.dumps({"inputs": good}).encode()
    if kind == 4:
        body = body[: random.integers(0, len(body))]
    elif kind == 5:
        body = b"[" * int(random.integers(1, 100_000))
    return body, JSON


def other(random: Random) -> tuple[bytes, str]:
    """Another content type than any that is taken."""
    kinds = ["", "text/plain", "application/x-www-form-urlencoded", "image/png", "application/jso"]
    return image(random), kinds[random.integers(len(kinds))]


# --- what becomes of it --------------------------------------------------------------------------


def test_fuzzed_uploads_get_reasons_and_harm_nothing(target: Running) -> None:
    makers = [form, form, form, array, other]
    random = np.random.default_rng(8)
    before, counted = resident_bytes(), dict.fromkeys((200, 400, 413, 415, 422), 0)
    for _ in range(UPLOADS):
        body, content_type = makers[random.integers(len(makers))](random)
        answer = target.client.post(
            "/v1/predict", content=body, headers={"content-type": content_type}
        )
        assert answer.status_code in counted, answer.text
        counted[answer.status_code] += 1
        if answer.status_code != 200:
            error = answer.json()["error"]
            assert CODES[error["code"]] == answer.status_code
            assert len(error["message"]) > 10
            assert "Traceback" not in answer.text
            assert "object at 0x" not in answer.text
    after = resident_bytes()
    assert before is not None
    assert after is not None
    assert after - before < GROWTH
    assert all(counted.values()), counted  # each of these came up
    assert target.predict([[0.5] * 64]).status_code == 200
    assert target.metric("dubito_worker_restarts_total") == 0
    assert target.metric("dubito_buffered_bytes") == 0


@pytest.mark.parametrize("make", FILES, ids=lambda make: str(make.__name__))
def test_each_kind_of_file_is_answered(target: Running, make: Callable[[Random], bytes]) -> None:
    for seed in range(5):
        answer = target.upload(make(np.random.default_rng(seed)))
        assert answer.status_code in (200, 413, 422), answer.text
        if answer.status_code != 200:
            assert answer.json()["error"]["index"] == 0


@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a browser that tries https
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999\r\n\r\n",
        b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
    ],
)
def test_what_is_no_http(target: Running, sent: bytes) -> None:
    with target.connect() as line:
        line.sendall(sent)
        line.shutdown(1)
        told = line.recv(65536)
    assert told == b"" or told[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 415"), told
    assert target.client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../_app.py", "/static/..%2f_app.py", "/static/%2e%2e/_app.py", "/static/",
        "/static//etc/passwd", "/gallery/../../x.png", "/gallery/0-0", "/gallery/%00.png", "/v1/",
        "//", "/docs", "/%ff", "/v1/predict/", "/static/index.html%00.js", "/.git/config",
    ],
)  # fmt: skip
def test_paths_that_lead_nowhere(target: Running, path: str) -> None:
    with target.connect() as line:  # a client's library would tidy the path
        line.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        told = b"".join(iter(lambda: line.recv(65536), b""))
    assert told.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 400 ")), told[:200]
    assert b'"error"' in told


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "QUERY"])
def test_methods_that_are_not_allowed(target: Running, method: str) -> None:
    answer = target.client.request(method, "/v1/predict")
    assert answer.status_code == 405
    assert answer.json()["error"]["code"] == "not_allowed"
    assert answer.headers["allow"] == "POST"


# --- the document --------------------------------------------------------------------------------

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")


@pytest.mark.parametrize("bundle", ["digits", "table", "softmax"])
def test_the_service_does_what_its_document_says(
    bundle: str, request: pytest.FixtureRequest
) -> None:
    """Made-up requests by the OpenAPI document, right ones and wrong ones.

    None may be answered with an error of the service, a status or a body that is not described.
    """
    with running(request.getfixturevalue(bundle)) as found:
        schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{found.port}/openapi.json")
        asked = 0
        for operation in (result.ok() for result in schema.get_all_operations()):
            for mode in schemathesis.GenerationMode:
                asked += checked(operation.as_strategy(generation_mode=mode))
        assert asked > 2 * EXAMPLES  # predictions, right and wrong ones, and each other route
        assert found.client.get("/readyz").status_code == 200


def checked(strategy: Any) -> int:
    """Send what a strategy makes, and count it."""
    from schemathesis.specs.openapi import checks

    asked = 0
    # What is an image, and which number a network can take, no schema tells.
    loose = [checks.positive_data_acceptance, checks.negative_data_rejection]

    @given(case=strategy)
    @settings(
        max_examples=EXAMPLES, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def holds(case: Any) -> None:
        nonlocal asked
        asked += 1
        answer = case.call(timeout=20)
        case.validate_response(answer, excluded_checks=loose)
        assert answer.status_code < 500

    with contextlib.suppress(Unsatisfiable):  # of what has no parameters nothing can be wrong
        holds()
    return asked
