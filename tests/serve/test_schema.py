"""The OpenAPI document, and requests generated from it."""

import os
import random

import httpx
import hypothesis
import numpy as np
import pytest
from PIL import Image

from tests.serve.conftest import encoded

#: requests of each test; the complete run has 1,000
EXAMPLES = int(os.environ.get("DUBITO_FUZZ", "25"))


@pytest.mark.parametrize("kind", ["arrays", "images", "table"])
def test_every_documented_request(kind, request):
    schemathesis = pytest.importorskip("schemathesis")
    client = request.getfixturevalue(kind)
    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    for result in schema.get_all_operations():
        operation = result.ok()

        @hypothesis.given(case=operation.as_strategy())
        @hypothesis.settings(
            max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        )  # fmt: skip
        def check(case: object) -> None:
            response = case.call(base_url=str(client.base_url))
            assert response.status_code < 500

        check()


def damaged(original: bytes, draw: random.Random) -> bytes:
    """Change some bytes, remove or insert some, and cut off the end."""
    content = bytearray(original)
    for _ in range(draw.randint(1, 8)):
        content[draw.randrange(len(content))] = draw.randrange(256)
    start = draw.randrange(len(content))
    content[start : start + draw.randint(0, 9)] = draw.randbytes(draw.randint(0, 9))
    return bytes(content[: draw.choice([None, draw.randint(1, len(content))])])


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "form"])
def test_damaged_images_and_forms(kind, images):
    draw = random.Random(kind)
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))
    original, header = encoded(noise, "PNG" if kind == "form" else kind), f"image/{kind.lower()}"
    if kind == "form":
        form = httpx.Request("POST", "http://a", files=[("a", ("a.png", original))])
        original, header = form.read(), form.headers["content-type"]
    for _ in range(EXAMPLES):
        content, headers = damaged(original, draw), {"content-type": header}
        response = images.post("/v1/predict", content=content, headers=headers)
        assert response.status_code in (200, 413, 422)


def test_damaged_boundaries(images):
    for value in ("multipart/form-data", "multipart/form-data; boundary=" + "x" * 300):
        response = images.post("/v1/predict", content=b"--x", headers={"content-type": value})
        assert response.status_code == 422
