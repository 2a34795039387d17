"""Around the answers: health, metrics, the log, the page, the gallery, the demonstration."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dubito import bundle, cli, serve
from dubito.serve import _demo, _outside, _schema, _strokes
from dubito.serve._app import PAGE
from dubito.serve._metrics import Histogram
from dubito.serve._warp import plain, warped
from serve.running import Running, png, running

DIGIT = [0.5] * 64


# --- metrics and log -----------------------------------------------------------------------------

SAMPLE = re.compile(r'^[a-z_]+(\{([a-z]+="[^"\n]*",?)+\})? [0-9.e+-]+(?:inf)?$')


def test_metrics_count_what_happened(digits: Path) -> None:
    with running(digits) as found:
        found.predict([[0.0] * 64] * 3)
        found.predict([DIGIT[:-1]])
        found.client.get("/no/such")
        text = found.client.get("/metrics").text
        for line in text.splitlines():
            assert line.startswith("# ") or SAMPLE.match(line), line
        families = re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)
        assert len(families) == len(set(families))
        assert found.metric('dubito_requests_total{route="/v1/predict",status="200"}') == 1
        assert found.metric('dubito_requests_total{route="/v1/predict",status="422"}') == 1
        assert found.metric('dubito_requests_total{route="other",status="404"}') == 1
        assert found.metric('dubito_refused_total{code="bad_input"}') == 1
        assert found.metric("dubito_batch_size_sum") == 3
        decided = re.findall(r"^dubito_predictions_total\{.*\} (\d+)$", text, re.MULTILINE)
        assert sum(map(int, decided)) == 3
        for measure in ("data", "distributional", "total", "vacuity"):
            assert found.metric(f'dubito_uncertainty_count{{measure="{measure}"}}') == 3
            top = f'dubito_uncertainty_bucket{{measure="{measure}",le="1"}}'
            assert found.metric(top) == 3  # all are shares of the most they can be
        assert found.metric('dubito_request_seconds_count{route="/v1/predict"}') == 2
        assert found.metric("process_resident_memory_bytes") > 1e7
        assert found.metric("dubito_ready") == 1


def test_a_histogram_agrees_with_numpy() -> None:
    values = np.random.default_rng(0).uniform(0, 2, 500)
    held = Histogram((0.5, 1.0, 1.5))
    held.add(values[:200])
    held.add(values[200:])
    lines = dict(line.split() for line in held.lines("x", {}))
    for bound in (0.5, 1.0, 1.5):
        assert int(lines[f'x_bucket{{le="{bound:g}"}}']) == int((values <= bound).sum())
    assert int(lines["x_count"]) == 500
    assert float(lines["x_sum"]) == pytest.approx(values.sum())


def test_the_log_is_json_and_holds_no_inputs(digits: Path) -> None:
    with running(digits) as found:
        found.predict([[0.123456789] * 64])
        found.upload(b"secret-bytes-of-a-client")
        found.client.get("/secret-path?secret-query", headers={"x-secret": "header"})
        entries = found.log()
    requests = [entry for entry in entries if entry["event"] == "request"]
    assert [(e["method"], e["route"], e["status"]) for e in requests] == [
        ("POST", "/v1/predict", 200), ("POST", "/v1/predict", 422), ("GET", "other", 404),
    ]  # fmt: skip
    assert all(e["ms"] >= 0 and e["time"] > 0 and e["level"] == "info" for e in requests)
    assert "secret" not in json.dumps(entries)
    assert "0.123" not in json.dumps(entries)


# --- the page ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with a gallery of a folder: two known digits and one other thing."""
    folder = tmp_path_factory.mktemp("gallery")
    for name in ("3", "7", "cats"):
        (folder / name).mkdir()
        (folder / name / "a.jpg").write_bytes(png(np.full((9, 9), 99), "JPEG"))
    (folder / "cats" / "b.png").write_bytes(png(np.full((600, 700), 99)))
    with running(digits, gallery=folder) as found:
        yield found


def test_every_answer_has_the_headers_that_protect(shown: Running) -> None:
    for path in ("/", "/v1/model", "/healthz", "/no/such", "/static/style.css", "/metrics"):
        headers = shown.client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self'; ")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers


def test_the_page_is_exactly_its_folder(shown: Running) -> None:
    page = shown.client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.content == (PAGE / "index.html").read_bytes()
    for path in PAGE.iterdir():
        answer = shown.client.get(f"/static/{path.name}")
        assert answer.status_code == 200
        assert answer.content == path.read_bytes()
        if path.suffix == ".js":
            assert answer.headers["content-type"].startswith("text/javascript")


def test_a_gallery_of_a_folder(shown: Running) -> None:
    told = _schema.Gallery.model_validate(shown.client.get("/v1/gallery").json())
    known, cats = told.groups
    assert (known.kind, [item.truth for item in known.items]) == ("known", ["3", "7"])
    assert (cats.name, cats.kind, [i.truth for i in cats.items]) == ("cats", "unknown", [None] * 2)
    for item in (*known.items, *cats.items):
        image = shown.client.get(item.src)
        assert image.headers["content-type"] == "image/png"
        (said,) = shown.upload(image.content).json()["predictions"]
        assert max(said["input"].values()) <= 512


def test_without_a_gallery_it_is_empty(service: Running) -> None:
    assert service.client.get("/v1/gallery").json() == {"groups": []}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"groups": [{"name": "a"}]}', "no description of a gallery"),
        ('{"groups": [{"name": "a", "kind": "odd", "about": "", "items": []}]}', "must be one of"),
        ('{"groups": [{"name": "a", "kind": "known", "about": "", '
         '"items": [{"file": "../x"}]}]}', "not in the folder"),
        ('{"groups": []}', "holds 0 images"),
    ],
)  # fmt: skip
def test_galleries_that_are_wrong(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "gallery.json").write_text(text)
    with pytest.raises(ValueError, match=words):
        serve.read_gallery(tmp_path, ("a",))


# --- the command line ----------------------------------------------------------------------------


def invoke(*words: str) -> Any:
    return CliRunner().invoke(cli.app, ["serve", *words], env={"COLUMNS": "100", "NO_COLOR": "1"})


def test_a_bundle_or_the_demo_must_be_given(digits: Path) -> None:
    for words in ([], [str(digits), "--demo"]):
        done = invoke(*words)
        assert done.exit_code == 1
        assert "a BUNDLE, or --demo" in str(done.exception)


def test_what_cannot_be_served_is_told_before_anything_listens(tmp_path: Path) -> None:
    assert "no folder" in str(invoke(str(tmp_path / "x"), "--port", "0").exception)
    done = invoke(str(tmp_path), "--max-batch", "0")
    assert "max_batch must be" in str(done.exception)


def test_a_network_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import torch\nfactory = lambda shape, outputs: torch.nn.Linear(*shape, outputs)\n"
    (tmp_path / "own_served.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    network = torch.nn.Linear(3, 2)
    folder = bundle.save(tmp_path / "b", network, method="iedl", classes="ab", shape=(3,))
    asked: list[Any] = []
    monkeypatch.setattr(serve, "run", lambda service, *_: asked.append(service.served))
    done = invoke(str(folder), "--port", "0", "--module", "own_served:factory")
    assert done.exit_code == 0, (done.output, done.exception)
    assert "running your code: own_served:factory" in done.stderr
    assert torch.equal(asked[0].bundle.model.weight, network.weight)
    done = invoke(str(folder), "--port", "0", "--module", "own_served:none")
    assert "has no attribute 'none'" in str(done.exception)


def test_a_port_that_is_taken(digits: Path) -> None:
    with serve.bound("127.0.0.1", 0) as taken:
        taken.listen()
        done = invoke(str(digits), "--port", str(taken.getsockname()[1]))
    assert "cannot listen on 127.0.0.1 port" in str(done.exception)


# --- the demonstration ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demonstration, trained a little."""
    root = tmp_path_factory.mktemp("demo")
    recipe = _demo.Recipe(variants=6, strokes=300, outliers=1000, epochs=6, hidden=(64,))
    told: list[tuple[int, int]] = []
    place = _demo.demo(lambda done, total: told.append((done, total)), root, recipe)
    assert told[-1] == (6, 6)
    kept = place.stat().st_mtime_ns
    assert _demo.demo(root=root, recipe=recipe) == place
    assert place.stat().st_mtime_ns == kept
    assert [path.name for path in (root / "demo").iterdir() if path.is_dir()] == [place.name]
    return place


def test_the_demo_is_served_with_its_gallery(made: Path) -> None:
    with running(made / "digits", gallery=made / "gallery") as found:
        model = _schema.Model.model_validate(found.client.get("/v1/model").json())
        groups = found.client.get("/v1/gallery").json()["groups"]
        assert model.shape == [1, 16, 16]
        assert model.drawing is not None
        assert model.drawing.centre == "box"
        right, told = 0, {}
        for group in groups:
            images = [found.client.get(item["src"]).content for item in group["items"]]
            told[group["name"]] = found.upload(*images).json()["predictions"]
            pairs = zip(told[group["name"]], group["items"], strict=True)
            right += sum(said["label"] == item["truth"] for said, item in pairs)
    vacuity = {name: np.mean([p["vacuity"] for p in said]) for name, said in told.items()}
    assert right >= 15  # of 20 digits
    for name in ("Photographs", "Noise and waves", "Signs"):
        assert vacuity[name] > vacuity["Test digits"] + 0.05


def test_the_card_of_the_demo_says_what_it_was_trained_with(made: Path) -> None:
    text = bundle.load(made / "digits").card
    assert "scribbles" in text
    assert "scikit-learn's 1797 digits" in text


def test_what_is_made_up_is_images_and_the_same_each_time() -> None:
    digits = _demo.parts().train.floats()[:50]

    def drawn() -> torch.Tensor:
        generator = torch.Generator().manual_seed(3)
        return torch.cat([_outside.outliers(digits, 80, generator), warped(digits, generator)])

    first = drawn()
    assert torch.equal(first, drawn())
    shown = torch.cat([plain(digits), _outside.letters(), _outside.signs(), _outside.static(4)])
    for images in (first, shown):
        assert images.shape[1:] == (1, 16, 16)
        assert 0 <= images.min() <= images.max() <= 1
    assert (shown.flatten(1).std(1) > 0.1).all()  # none is empty


def test_digits_of_strokes_come_in_all_shapes_and_as_often() -> None:
    images, labels = _strokes.written(600, torch.Generator().manual_seed(0))
    assert images.shape == (600, 1, 32, 32)
    assert torch.bincount(labels, minlength=10).min() > 30
    ink = images.flatten(1).mean(1)
    assert ink.min() > 0.02
    assert ink.max() < 0.7
    assert set(_strokes.SHAPES) == set(range(10))


def test_parts_of_the_demo_share_no_digit() -> None:
    parts = _demo.parts()
    seen = [{x.numpy().tobytes() for x in part.inputs} for part in vars(parts).values()]
    assert all(not one & other for one, other in itertools.combinations(seen, 2))
    assert sum(map(len, seen)) > 1700
