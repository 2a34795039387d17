"""Predictions over HTTP: inputs of every kind, refusals, access."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest
import torch
from fastapi import Depends, FastAPI, Request, Response
from PIL import Image
from starlette.exceptions import HTTPException

from dubito.formats import Encoded, InputFormat
from dubito.model import Model
from dubito.serve import ServeConfig, create_app
from dubito.serve.inputs import InputReader
from tests.serve.conftest import Gate, encoded, png, served, wait_until

JSON, PNG = {"content-type": "application/json"}, {"content-type": "image/png"}


def predictions(response: httpx.Response) -> list[dict]:
    assert response.status_code == 200, response.text
    return response.json()["predictions"]


def assert_same(rows: list[dict], expected: list[dict]) -> None:
    """Compare rows; numbers may differ by rounding, because batches differ."""
    assert len(rows) == len(expected)
    for row, other in zip(rows, expected, strict=True):
        assert list(row) == list(other)
        for name, value in other.items():
            assert row[name] == (
                value if isinstance(value, str | list) else pytest.approx(value, rel=1e-3)
            )


# --- inputs ---


def test_arrays(arrays, array_model):
    inputs = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    response = arrays.post("/v1/predict", json={"inputs": inputs.tolist()})
    assert_same(predictions(response), list(array_model.predict(inputs).rows()))


def test_images_in_every_form(images, image_model, pixels):
    expected = list(image_model.predict(pixels[:2]).rows())
    files = [("images", (f"{k}.png", png(pixels[k]))) for k in range(2)]
    form = images.post("/v1/predict", files=files)
    arrays = images.post("/v1/predict", json={"inputs": pixels[:2, None].tolist()})
    raw = images.post("/v1/predict", content=png(pixels[0]), headers=PNG)
    assert_same(predictions(form), expected)
    assert_same(predictions(arrays), expected)
    assert_same(predictions(raw), expected[:1])


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_formats(images, kind, image_model, pixels):
    content = encoded(Image.fromarray(pixels[0]), kind)
    headers = {"content-type": f"image/{kind.lower()}"}
    response = images.post("/v1/predict", content=content, headers=headers)
    assert_same(predictions(response), list(image_model.predict([content]).rows()))


@pytest.mark.parametrize("mode", ["RGBA", "P", "I;16"])
def test_large_images(images, mode, image_model):
    gradient = np.tile(np.linspace(0, 255, 1600, dtype=np.uint8), (1200, 1))
    content = encoded(Image.fromarray(gradient).convert(mode))
    response = images.post("/v1/predict", content=content, headers=PNG)
    (row,), (expected,) = predictions(response), image_model.predict([content]).rows()
    assert row["probs"] == pytest.approx(expected["probs"], rel=1e-5)


def test_rows_of_a_table(table, table_model):
    rows = [{"height": 2.5, "bark": "grey", "other": 1}, {"height": 99, "bark": "blue"}]
    typical, unusual = predictions(table.post("/v1/predict", json={"rows": rows}))
    info = table.get("/v1/model").json()
    assert typical["lower"] < typical["prediction"] < typical["upper"]
    assert "blue" in unusual["note"]
    assert unusual["reason"] == "out_of_range"
    assert set(unusual) <= set(info["columns"])
    assert typical["lower"] < typical["lower50"] < typical["upper50"] < typical["upper"]
    assert info["levels"] == list(table_model.calibration.levels)


def test_evidence_on_request(arrays):
    body = {"inputs": [[0.1, 0.2, 0.3, 0.4]]}
    (row,) = predictions(arrays.post("/v1/predict?evidence=true", json=body))
    (plain,) = predictions(arrays.post("/v1/predict", json=body))
    assert row["vacuity"] + sum(row["belief"].values()) == pytest.approx(1)
    assert set(row) - set(plain) == {"vacuity", "belief", "alpha"}


def test_engines_agree_and_follow_from_the_model(array_model, arrays):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    body = {"inputs": np.random.default_rng(2).normal(size=(70, 4)).tolist()}
    expected = predictions(arrays.post("/v1/predict", json=body))
    with served(array_model, engine="auto") as client:
        assert client.get("/v1/model").json()["engine"] == "onnx"
        rows = predictions(client.post("/v1/predict", json=body))
    assert_same(rows, expected)
    sampled = Model.build("mc_dropout", array_model.task, array_model.preprocessing)
    assert create_app(sampled).state.service.loaded.engine.name == "torch"


TOKEN = "0123456789abcdef"


def status(app: FastAPI, body: object, path: str = "/v1/predict", **options: Any) -> int:
    """Return the status of a prediction by an application that no server runs."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(path, json=body, **options)

    return asyncio.run(ask()).status_code


def test_app_can_be_mounted(array_model):
    outer = FastAPI()
    config = ServeConfig(engine="torch", allowed_hosts=("own",), token=TOKEN)
    outer.mount("/model", create_app(array_model, config))
    for token, expected in (("wrong", 401), (TOKEN, 200)):
        headers = {"host": "own", "authorization": f"Bearer {token}"}
        assert status(outer, ARRAYS, "/model/v1/predict", headers=headers) == expected


@pytest.mark.parametrize("inputs", ["array_model", "image_model", "table_model"])
def test_batches_have_the_same_rows_in_the_loop_and_in_a_thread(inputs, request, monkeypatch):
    model = request.getfixturevalue(inputs)
    answers = []
    for brief in (0, 60):
        monkeypatch.setattr("dubito.serve.service.BRIEF", brief)
        loaded = create_app(model, ServeConfig(engine="torch")).state.service.loaded
        body = BODIES[inputs]
        items = loaded.reader.read("application/json", json.dumps(body).encode())
        answers.append(asyncio.run(loaded.predict(items, False, "a", stays)))
    assert answers[0] == answers[1]


ARRAYS = {"inputs": [[0.1, 2, 3, 4]] * 3}
BODIES = {
    "array_model": ARRAYS,
    "image_model": {"inputs": [[[[7] * 8] * 8]] * 3},
    "table_model": {"rows": [{"height": 2.5, "bark": "grey"}] * 3},
}


async def stays() -> bool:
    return False


def test_dependencies_and_handlers_apply_to_predictions(array_model):
    app, body = create_app(array_model, ServeConfig(engine="torch", token=TOKEN)), ARRAYS

    @app.exception_handler(401)
    async def teapot(request: Request, error: Exception) -> Response:
        return Response("no", 418)

    @app.exception_handler(422)
    async def bad(request: Request, error: Exception) -> Response:
        return Response("bad", 400)

    (route,) = [route for route in app.routes if getattr(route, "path", "") == "/v1/predict"]
    (dependency,) = route.dependencies
    assert status(app, body) == 418
    app.dependency_overrides[dependency.dependency] = lambda: None
    assert status(app, body) == 200
    assert status(app, {}) == 400

    def refuse() -> None:
        raise HTTPException(409)

    outer = FastAPI()
    outer.include_router(app.router, dependencies=[Depends(refuse)])
    assert status(outer, body) == 409


class Sound(InputFormat):
    """Lengths of sounds, in a format that the service does not know."""

    media_types: ClassVar[tuple[str, ...]] = ("audio/wav",)
    shape: ClassVar[tuple[int, ...]] = (1,)

    @classmethod
    def fit(cls, items: Any) -> "Sound":
        return cls()

    def encode(self, items: Any) -> Encoded:
        errors = {row: "silent" for row, item in enumerate(items) if not item}
        lengths = torch.tensor([[len(item)] for item in items], dtype=torch.float32)
        return Encoded(lengths, errors, {})


def test_files_of_another_format():
    reader = InputReader(Sound(), ServeConfig(max_pixels=8))
    form = httpx.Request("POST", "http://a", files=[("a", b"12"), ("b", b"345")])
    items = [
        *reader.read("audio/wav", b"1234"),
        *reader.read(form.headers["content-type"], form.read()),
        *reader.read("application/json", b'{"inputs": [[7.5]]}'),
    ]
    assert reader.encode(items).checked().tolist() == [[4], [2], [3], [7.5]]
    for kind, body, status, detail in [
        ("audio/wav", b"", 422, "file 0: silent"),
        ("audio/wav", b"123456789", 413, "9 pixels"),
        ("application/json", b'{"inputs": [[1e39]]}', 422, "inputs.0: value"),
    ]:
        with pytest.raises(HTTPException) as error:
            reader.read(kind, body)
        assert (error.value.status_code, error.value.detail[: len(detail)]) == (status, detail)


# --- refusals ---


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ('{"inputs": [[1, 2, 3, 4], [1, 2]]}', "inputs.1:"),
        ('{"inputs": [[1, 2, 3, "4"]]}', "inputs.0.3: Input should be a valid number"),
        ('{"inputs": [[1, 2, 3, true]]}', "inputs.0.3:"),
        ('{"inputs": [[1, 2, 3, NaN]]}', "inputs.0.3:"),
        ('{"inputs": [[1, 2, 3, 1e39]]}', "inputs.0: value [3] is 1e+39"),
        ('{"inputs": []}', "inputs: List should have at least 1 item"),
        (json.dumps({"inputs": [[1, 2, 3, 4]] * 257}), "inputs: List should have at most 256"),
        ('{"rows": [{}]}', "inputs: Field required"),
        ("[" * 500, "body: Invalid JSON"),
        ("", "body: Invalid JSON"),
    ],
)  # fmt: skip
def test_bad_json(arrays, body, detail):
    response = arrays.post("/v1/predict", content=body, headers=JSON)
    assert response.status_code == 422
    assert response.json()["detail"].startswith(detail)


@pytest.mark.parametrize("height", [{}, {"height": [1]}, {"height": "tall"}, {"height": 10**400}])
def test_bad_rows(table, height):
    good = {"height": 2, "bark": "grey"}
    response = table.post("/v1/predict", json={"rows": [good, {"bark": "grey", **height}]})
    assert response.status_code == 422
    assert response.json()["detail"].startswith("rows.1")


def test_bad_images(images, pixels):
    good = png(pixels[0])
    tall = png(np.zeros((20_000, 1), np.uint8))
    wide = encoded(Image.new("1", (5000, 4000)))
    scans = encoded(Image.new("L", (64, 64)), "JPEG", progressive=True)[:-2] + b"\xff\xda" * 200
    cases = [
        (b"", 422, "file 0: damaged"),
        (good[:50], 422, "file 0: "),
        (encoded(Image.fromarray(pixels[0]), "TIFF"), 422, "file 0: damaged, or not one of JPEG"),
        (tall, 422, "file 0: a side has 20000 pixels"),
        (wide, 413, "20000000 pixels"),
        (scans, 422, "file 0: more than 100 scans"),
    ]
    for content, status, detail in cases:
        response = images.post("/v1/predict", content=content, headers=PNG)
        assert (response.status_code, response.json()["detail"][: len(detail)]) == (status, detail)
    second = [("a", ("a.png", good)), ("b", ("b.png", b"no image"))]
    assert "file 1:" in images.post("/v1/predict", files=second).json()["detail"]
    many = [("images", ("a.png", good))] * 257
    assert "at most 256 files" in images.post("/v1/predict", files=many).json()["detail"]
    assert images.post("/v1/predict", data={"a": "b"}, files={}).status_code == 415


def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size(images):
    content = encoded(Image.new("RGB", (9000, 6000), "gray"), "JPEG")  # more than max_pixels
    response = images.post("/v1/predict", content=content, headers={"content-type": "image/jpeg"})
    assert len(predictions(response)) == 1


def test_bodies_that_cost_too_much(array_model):
    html, gzip = {"content-type": "text/html"}, {**JSON, "content-encoding": "gzip"}
    limits = {"max_body": 10_000, "max_json": 8000, "memory": 20_000, "max_inputs": 64}
    with served(array_model, **limits) as client:

        def post(content: Any, headers: dict[str, str] = JSON) -> httpx.Response:
            return client.post("/v1/predict", content=content, headers=headers)

        refused = post(b"[" * 8001)
        assert refused.status_code == 413
        assert "at most 8000 bytes" in refused.json()["detail"]
        assert post(b" " * 6000 for _ in range(2)).status_code == 413  # chunked
        assert "brackets and commas" in post(b"[" * 7000).json()["detail"]
        assert {post(b"1", kind).status_code for kind in (html, gzip)} == {415}
        assert client.get("/v1/predict").status_code == 405
        assert client.service.memory.free == 20_000
        assert client.service.slots.free == client.service.config.max_requests


def raw_request(body: bytes, length: int | None = None) -> bytes:
    head = "POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {length or len(body)}\r\n\r\n".encode() + body


def connect(client: httpx.Client) -> socket.socket:
    return socket.create_connection((client.base_url.host, client.base_url.port), timeout=600)


def test_a_slow_body(array_model):
    with served(array_model, body_timeout=0.05) as client, connect(client) as slow:
        slow.sendall(raw_request(b'{"inputs": ', length=100))
        assert slow.recv(1000).startswith(b"HTTP/1.1 408 ")


@contextmanager
def occupied(client: httpx.Client, gate: Gate, body: object) -> Iterator[None]:
    """Hold the network with a request until the end."""
    first = threading.Thread(target=client.post, args=("/v1/predict",), kwargs={"json": body})
    first.start()
    gate.entered.acquire()
    yield
    gate.open.set()
    first.join()


@pytest.mark.parametrize("limit", [{"max_requests": 1}, {"memory": 6000}])
def test_busy(gate, gated_model, limit):
    body = {"inputs": [[1.0, 2.0]] * 100}
    with served(gated_model, **limit) as client:
        with occupied(client, gate, body):
            refused = client.post("/v1/predict", json=body)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert client.post("/v1/predict", json=body).status_code == 200


def test_a_request_waits_for_a_slot(gate, gated_model, monkeypatch):
    monkeypatch.setattr("dubito.serve.service.BUSY_DELAY", 600)
    with served(gated_model, max_requests=1) as client, ThreadPoolExecutor(2) as pool:
        post = partial(client.post, "/v1/predict", json={"inputs": [[1, 2]]})
        first = pool.submit(post)
        gate.entered.acquire()
        second = pool.submit(post)
        wait_until(lambda: len(client.connections) == 2)
        gate.open.set()
        assert (first.result().status_code, second.result().status_code) == (200, 200)


def test_timeout(gate, gated_model):
    with served(gated_model, timeout=0.05) as client:
        assert client.post("/v1/predict", json={"inputs": [[1, 2]]}).status_code == 504


def test_a_failing_model(gate, gated_model):
    gate.open.set()
    with served(gated_model) as client:
        failed = client.post("/v1/predict", json={"inputs": [[-1, 2]]})
        assert (failed.status_code, failed.json()) == (500, {"detail": "the model failed"})
        assert client.post("/v1/predict", json={"inputs": [[1, 2]]}).status_code == 200


def test_a_client_that_has_left_is_dropped(gate, gated_model, monkeypatch):
    monkeypatch.setattr("dubito.serve.batcher.IMPATIENT", -1.0)
    body = {"inputs": [[1, 2]]}
    with served(gated_model, max_requests=2) as client:
        with occupied(client, gate, body):
            with connect(client) as second:
                second.sendall(raw_request(json.dumps(body).encode()))
                wait_until(lambda: not client.service.slots.free)
            wait_until(lambda: len(client.connections) == 1)
        client.post("/v1/predict", json=body)
        assert gate.sizes == [1, 1]


# --- access ---


WRONG_TOKENS = [
    "", "Bearer", "Bearer wrong", "Basic 0123456789abcdef", "0123456789abcdef",
    "Bearer 0123456789abcdef0", "Bearer 0123456789abcde", "Bearer  0123456789abcdef",
    "Bearer 0123456789abcdeF", "Bearer \xe9", "bearer,0123456789abcdef",
]  # fmt: skip


def test_token(array_model):
    paths = ("/v1/model", "/v1/gallery", "/metrics", "/openapi.json")
    with served(array_model, token="0123456789abcdef") as client:
        for header in WRONG_TOKENS:
            headers = {"authorization": header.encode("latin-1")}
            for path in paths:
                assert client.get(path, headers=headers).status_code == 401, header
            refused = client.post("/v1/predict", json={"inputs": [[1, 2, 3, 4]]}, headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
        for path in paths:
            right = {"authorization": "bearer 0123456789abcdef"}
            assert client.get(path, headers=right).status_code == 200
        for path in ("/healthz", "/"):
            assert client.get(path).status_code == 200


def test_other_hosts(arrays):
    for host in ("localhost:8000", "127.0.0.1", "[::1]:80"):
        assert arrays.get("/healthz", headers={"host": host}).status_code == 200
    assert arrays.get("/healthz", headers={"host": "evil.example"}).status_code == 400


@pytest.mark.parametrize(
    ("name", "value"),
    [("token", "short"), ("engine", "steam"), ("device", "gpu"), ("allowed_hosts", ["a.*.org"])],
)
def test_settings_are_checked_at_once(name, value):
    with pytest.raises(ValueError, match=name):
        ServeConfig(**{name: value})


# --- other routes ---


def test_metrics(array_model):
    with served(array_model) as client:
        client.post("/v1/predict", json={"inputs": [[1, 2, 3, 4]] * 3})
        client.post("/v1/predict", json={})
        text = client.get("/metrics").text
    assert 'dubito_requests_total{status="200"} 1.0' in text
    assert 'dubito_requests_total{status="422"} 1.0' in text
    assert "dubito_batch_size_sum 3.0" in text
    assert "dubito_epistemic_count 3.0" in text


def test_page(arrays):
    page = arrays.get("/")
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert arrays.get("/static/main.js").headers["content-type"].startswith("text/javascript")
    assert arrays.get("/static/..%2Fapp.py").status_code == 404
