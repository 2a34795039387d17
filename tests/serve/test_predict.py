"""Answers: what is said is what the bundle says, in the order asked, however it was sent."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from dubito import backbones, bundle
from dubito.serve import _schema
from serve.conftest import saved
from serve.running import Running, png, running
from tests.limits import policy

PIXELS = load_digits().images[:40] / 16  # (40, 8, 8)


@pytest.fixture(scope="module")
def rows(table: Path) -> Iterator[Running]:
    with running(table) as found:
        yield found


def close(found: Any, wanted: Any) -> bool:
    return bool(np.allclose(found, wanted, rtol=2e-6, atol=1e-9))


def test_an_answer_is_what_the_bundle_says(service: Running, digits: Path) -> None:
    answer = service.predict(PIXELS[:, None].tolist())
    assert answer.status_code == 200
    told = _schema.Answer.model_validate_json(answer.content).predictions
    loaded = bundle.load(digits)
    said = loaded.predict(torch.tensor(PIXELS[:, None]).float())
    decided = loaded.decide(said)
    assert [p.label for p in told] == [loaded.classes[k] for k in said.label.tolist()]
    assert close([p.probabilities for p in told], loaded.calibrated(said).probs)
    assert close([p.alpha for p in told], said.alpha)
    assert close([p.belief for p in told], said.belief)
    assert close([p.vacuity for p in told], said.vacuity)
    assert close([p.uncertainty.data for p in told], said.expected_entropy)
    assert close([p.uncertainty.distributional for p in told], said.mutual_information)
    assert close([p.uncertainty.total for p in told], said.entropy_of_mean)
    assert [p.reason for p in told] == decided.reason.tolist()
    assert [p.decision == "accept" for p in told] == decided.accepted.tolist()
    assert [p.probability for p in told] == [max(p.probabilities or []) for p in told]
    right = np.mean([int(p.label) == k for p, k in zip(told, load_digits().target, strict=False)])
    assert right > 0.85


def test_many_clients_get_their_own_answers(service: Running) -> None:
    before = service.metric("dubito_batch_size_count")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda image: service.predict([image.flatten().tolist()]), PIXELS))
    alone = service.predict(PIXELS[:, None].tolist()).json()["predictions"]
    for answer, wanted in zip(found, alone, strict=True):
        (told,) = answer.json()["predictions"]
        assert told["label"] == wanted["label"]
        assert close(told["alpha"], wanted["alpha"])
    assert service.metric("dubito_batch_size_count") - before < len(PIXELS)  # some were gathered


def test_images_are_read_as_predict_reads_them(
    service: Running, digits: Path, tmp_path: Path
) -> None:
    big = np.kron(PIXELS[3] * 255, np.ones((5, 5)))
    colour = np.stack([big, big / 2, big / 3], -1)
    clear = Image.fromarray(np.dstack([colour, 255 - big]).astype(np.uint8), "RGBA")
    made = io.BytesIO()
    clear.save(made, "PNG")
    files = [
        png(PIXELS[0] * 255), png(big), png(colour, "JPEG"), png(colour, "WEBP", lossless=True),
        png(big, "BMP"), png(big, "GIF"), png(big, "TIFF"), made.getvalue(),
    ]  # fmt: skip
    paths = [tmp_path / f"{i:02}" for i in range(len(files))]
    for path, content in zip(paths, files, strict=True):
        path.write_bytes(content)
    (wanted,) = bundle.stream(bundle.load(digits), paths)
    told = service.upload(*files).json()["predictions"]
    assert [p["label"] for p in told] == [row["label"] for row in wanted.rows]
    for name in ("probability", "vacuity"):
        assert close([p[name] for p in told], [row[name] for row in wanted.rows])
    assert told[0]["input"] == {"width": 8, "height": 8}
    assert told[1]["input"] == {"width": 40, "height": 40}


def test_lean_leaves_out_what_is_long(service: Running) -> None:
    short = service.predict([PIXELS[0, None].tolist()], params={"lean": "1"}).json()
    long = service.predict([PIXELS[0, None].tolist()], params={"lean": "0"}).json()
    (lean,), (full,) = short["predictions"], long["predictions"]
    assert set(full) - set(lean) == {"probabilities", "belief", "alpha"}
    assert lean == {key: full[key] for key in lean}
    assert service.predict([PIXELS[0, None].tolist()], params={"lean": "2"}).status_code == 422


def test_rows_of_a_table(rows: Running, table: Path) -> None:
    given = [{"size": 2.5, "hue": "red", "other": None}, {"hue": "mauve", "size": "1"}]
    answer = rows.client.post("/v1/predict", json={"rows": given})
    told = _schema.Answer.model_validate_json(answer.content).predictions
    said = bundle.load(table).predict(torch.tensor([[2.5, 1, 0], [1, 0, 0]]))
    assert close([p.alpha for p in told], said.alpha)
    assert [p.note for p in told] == [None, "unseen hue 'mauve'"]
    assert rows.predict([[2.5, 1, 0]]).json()["predictions"][0]["alpha"] == told[0].alpha
    assert rows.upload(png(np.zeros((4, 4)))).status_code == 415


def test_strange_numbers_are_noted_however_they_are_sent(rows: Running) -> None:
    row = rows.client.post("/v1/predict", json={"rows": [{"size": 1e9, "hue": "red"}]}).json()
    plain = rows.predict([[2.5, 0, 1], [1e9, 1, 0]]).json()["predictions"]
    assert [p.get("note") for p in plain] == [None, "size 1e+09 is far from [0, 5]"]
    assert plain[1] == row["predictions"][0]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"size": 1}, "lacks the column 'hue'"),
        ({"size": "?", "hue": "red"}, "'size' is missing"),
        ({"size": "big", "hue": "red"}, "must be a finite number"),
        ({"size": 10**400, "hue": "red"}, "must be a finite number"),
        ({"size": True, "hue": "red"}, "must be a number or a word"),
        ({"size": None, "hue": "red"}, "must be a number or a word"),
        ([1, "red"], "must be an object"),
    ],
)
def test_wrong_rows_are_told(rows: Running, row: Any, words: str) -> None:
    good = {"size": 1, "hue": "red"}
    answer = rows.client.post("/v1/predict", json={"rows": [good, row]})
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["code"] == "bad_input"
    assert error["index"] == 1
    assert words in error["message"]


def test_a_method_without_evidence_or_policy(softmax: Path) -> None:
    with running(softmax) as found:
        (told,) = found.predict([[0.5, 2.0]]).json()["predictions"]
        model = found.client.get("/v1/model").json()
    assert told["belief"] is told["vacuity"] is told["alpha"] is None
    assert told["uncertainty"]["data"] is told["uncertainty"]["distributional"] is None
    assert told["decision"] is told["reason"] is None
    assert "no policy" in told["why"]
    assert (model["evidential"], model["calibrated"], model["policy"]) == (False, False, None)
    assert model["kind"] == "array"


def test_the_model_tells_of_itself(service: Running, rows: Running, digits: Path) -> None:
    told = service.client.get("/v1/model").json()
    model = _schema.Model.model_validate(told)
    assert (model.name, model.kind, model.shape) == ("digits", "image", [1, 8, 8])
    assert model.classes == [str(k) for k in range(10)]
    assert model.scales.total == pytest.approx(math.log(10))
    assert model.policy is not None
    assert model.policy.text.startswith("It answers when max_prob >= ")
    assert model.limits.max_batch == service.service.settings.max_batch
    assert len(model.version) == len(model.policy.version) == 12
    columns = rows.client.get("/v1/model").json()["columns"]
    assert [c["name"] for c in columns] == ["size", "hue"]
    assert columns[1]["categories"] == ["red", "sky"]


def test_sentences_say_why(service: Running) -> None:
    nothing = service.predict([[0.0] * 64]).json()["predictions"][0]
    assert nothing["decision"] == "abstain"
    assert nothing["why"].startswith("I don't know: ")
    sure = service.predict([PIXELS[0].flatten().tolist()]).json()["predictions"][0]
    assert sure["why"] == "I am sure enough that this is 0, and the input looks familiar."


def test_a_policy_that_accepts_nothing_says_so_of_sure_predictions(tmp_path: Path) -> None:
    never = policy(("max_prob", math.inf), error=0.01, samples=40)
    with running(saved(tmp_path, (2,), policy=never)) as found:
        (told,) = found.predict([[0.5, 2.0]]).json()["predictions"]
        text = found.client.get("/v1/model").json()["policy"]["text"]
    assert (told["decision"], told["reason"]) == ("abstain", "ambiguous")
    assert "abstains on everything: 40 validation samples could not show" in text
    assert told["why"] == f"I don't know: my policy {text.removeprefix('It ')}"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "no JSON"),
        (b"{", 400, "no JSON"),
        (b"\xff\xfe", 400, "no JSON"),
        (b'{"inputs": [[NaN]]}', 400, "NaN is no number"),
        (b"[" * 100_000, 400, "nested too deeply"),
        (b'{"inputs": ' + b"9" * 5000 + b"}", 400, "no JSON"),
        (b"[]", 422, "an object with one key: inputs"),
        (b'{"rows": []}', 422, "an object with one key: inputs"),
        (b'{"inputs": [], "x": 1}', 422, "one key"),
        (b'{"inputs": []}', 422, "at least one"),
        (b'{"inputs": {"0": 1}}', 422, "a list"),
        (b'{"inputs": [[1, 2]]}', 422, "shape [1, 8, 8] or [64]"),
        (b'{"inputs": [' + b"[" * 50 + b"]" * 50 + b"]}", 422, "shape"),
        (b'{"inputs": ["' + b"1" * 64 + b'"]}', 422, "shape"),
    ],
)
def test_bodies_that_are_wrong(service: Running, body: bytes, status: int, words: str) -> None:
    answer = service.client.post(
        "/v1/predict", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize("value", [True, None, "1", [1], 1.5, -0.1, 1e39, 10**400])
def test_a_value_that_is_wrong_is_found(service: Running, value: Any) -> None:
    good: list[Any] = [0.5] * 64
    answer = service.predict([good, [*good[:-1], value], good])
    assert answer.status_code == 422
    assert answer.json()["error"]["index"] == 1


def test_an_input_that_the_model_cannot_take_spoils_no_other(tmp_path: Path) -> None:
    network = backbones.build("mlp", (2,), 2, hidden=())
    torch.nn.init.constant_(network.head.weight, 100)  # overflows where inputs are large
    place = bundle.save(
        tmp_path, network, method="iedl", classes="ab", shape=(2,),
        backbone={"name": "mlp", "hidden": []},
    )  # fmt: skip
    with running(place, gather_ms=50) as found, ThreadPoolExecutor(3) as pool:
        given = [[[1.0, 2.0]], [[1.0, 2.0], [3e38, -3e38], [0.0, 1.0]], [[2.0, 1.0]]]
        first, bad, last = pool.map(found.predict, given)
        assert (first.status_code, last.status_code) == (200, 200)
        assert bad.status_code == 422
        assert bad.json()["error"]["index"] == 1


def test_the_openapi_document_has_examples_that_work(service: Running, rows: Running) -> None:
    for one in (service, rows):
        document = one.client.get("/openapi.json").json()
        body = document["paths"]["/v1/predict"]["post"]["requestBody"]["content"]
        example = body["application/json"]["example"]
        assert one.client.post("/v1/predict", json=example).status_code == 200
    said = document["paths"]["/v1/predict"]["post"]["responses"]["200"]["content"]
    _schema.Answer.model_validate(said["application/json"]["example"])
    assert json.dumps(document).count("http") <= 3  # it links to nothing elsewhere
