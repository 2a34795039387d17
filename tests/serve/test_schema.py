"""The OpenAPI document, and requests generated from it."""

import os
import random

import httpx
import numpy as np
import pytest

from dubito.model import Model
from tests.serve.conftest import Serve, encoded, png

#: requests of each test; the complete run has 1,000
EXAMPLES = int(os.environ.get("DUBITO_FUZZ", "25"))


@pytest.mark.parametrize("kind", ["array_model", "image_model", "table_model"])
def test_every_documented_request(kind: str, served: Serve, request: pytest.FixtureRequest) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    hypothesis = pytest.importorskip("hypothesis")
    with served(request.getfixturevalue(kind)) as client:
        schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
        for result in schema.get_all_operations():
            operation = result.ok()

            @hypothesis.given(case=operation.as_strategy())
            @hypothesis.settings(
                max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
                suppress_health_check=list(hypothesis.HealthCheck),
            )  # fmt: skip
            def check(case: object) -> None:
                response = case.call(base_url=str(client.base_url))  # type: ignore[attr-defined]
                assert response.status_code < 500

            check()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_damaged_images(kind: str, image_model: Model, served: Serve) -> None:
    from PIL import Image

    draw = random.Random(kind)
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    original = encoded(Image.fromarray(noise), kind)
    headers = {"content-type": f"image/{kind.lower()}"}
    with served(image_model) as client:
        for _ in range(EXAMPLES):
            content = bytearray(original)
            for _ in range(draw.randint(1, 20)):
                content[draw.randrange(len(content))] = draw.randrange(256)
            del content[draw.randint(1, len(content)) :]
            response = client.post("/v1/predict", content=bytes(content), headers=headers)
            assert response.status_code in (200, 413, 422)


def test_damaged_forms(image_model: Model, pixels: np.ndarray, served: Serve) -> None:
    draw = random.Random(0)
    form = httpx.Request("POST", "http://a", files=[("a", ("a.png", png(pixels[0])))])
    original, headers = form.read(), {"content-type": form.headers["content-type"]}
    with served(image_model) as client:
        for _ in range(EXAMPLES):
            content = bytearray(original)
            for _ in range(draw.randint(1, 8)):
                start = draw.randrange(len(content))
                content[start : start + draw.randint(0, 9)] = draw.randbytes(draw.randint(0, 9))
            response = client.post("/v1/predict", content=bytes(content), headers=headers)
            assert response.status_code in (200, 413, 422)
        for value in ("multipart/form-data", "multipart/form-data; boundary=" + "x" * 300):
            response = client.post("/v1/predict", content=original, headers={"content-type": value})
            assert response.status_code == 422
