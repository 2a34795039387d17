"""Training reports."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from dubito import data
from dubito.data import Source
from dubito.errors import DubitoError
from dubito.methods.base import build
from dubito.model import Model, Preprocessing
from dubito.model._folder import TrainingRecord
from dubito.report._training import write
from dubito.tasks import Classification, Regression, Task

HISTORY = [
    {
        "epoch": epoch,
        "loss": 1.0 / epoch,
        "terms": {"fisher_bias": 0.1, "fisher_variance": 0.1, "fisher_penalty": 1.0},
        **({"validation": {"loss": 2.0 / epoch, "accuracy": 0.9}} if epoch % 2 == 0 else {}),
    }
    for epoch in range(1, 13)
]
for record in HISTORY:
    record["terms"]["label_removed_kl"] = 0.5  # type: ignore[index]


def fitted(method: str, task: Task, source: Source) -> Model:
    """Return a model with random weights, a calibration and a policy."""
    preprocessing = Preprocessing.fit(source.format, source.load())
    model = Model.build(method, task, preprocessing, {"name": "mlp", "hidden": [8]}).eval()
    model.calibrate(source)
    return model.fit_policy(source, error_rate=0.5) if task.defines_errors else model


@pytest.fixture(scope="module")
def digits() -> tuple[Model, Source]:
    source = data.open("digits").subset(range(300))
    return fitted("iedl", Classification.from_target(source.target), source), source


@pytest.fixture(scope="module")
def text(digits: tuple[Model, Source], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Page of the digits."""
    folder = tmp_path_factory.mktemp("digits")
    return write(digits[0], folder, digits[1], history=HISTORY).read_text("utf-8")


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    drawn = np.random.default_rng(0)
    age = drawn.integers(20, 80, 200).astype(float)
    city = drawn.choice(["<Bonn>", "Köln"], 200)
    price = 3 * age + 50 * (city == "Köln") + drawn.normal(0, 5, 200)
    return pd.DataFrame({"age": age, "city": city, "price": price, "dear": price > 150})


@pytest.fixture
def page(tmp_path: Path) -> Callable[..., str]:
    def written(*arguments: Any, **options: Any) -> str:
        model, *rest = arguments
        return write(model, tmp_path / "new", *rest, **options).read_text("utf-8")

    return written


class Checker(HTMLParser):
    """Collects ids, addresses, and elements that are not closed in order."""

    VOID = ("meta", "img", "br", "input", "path", "use", "rect")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.problems: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.addresses += [v or "" for k, v in attributes if k in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID and self.open.pop() != tag:
            self.problems.append(tag)


def test_page_is_complete(text: str) -> None:
    checker = Checker()
    checker.feed(text)
    assert not checker.open
    assert not checker.problems
    assert all(address.startswith("data:image/") for address in checker.addresses)


def test_pages_are_reproducible(
    digits: tuple[Model, Source], text: str, page: Callable[..., str]
) -> None:
    assert page(*digits, history=HISTORY) == text


def test_key_figures(digits: tuple[Model, Source], text: str) -> None:
    model, source = digits
    found = model.evaluate(source)
    tiles = dict(re.findall(r"<dt>([^<]*)</dt><dd><b>([^<]*)</b>", text))
    assert tiles == {
        "Accuracy": f"{found['metrics']['accuracy']:.1%}",
        "Calibration error (ECE)": f"{found['calibrated']['ece']:.1%}",
        "Answered": f"{found['policy']['accepted']:.1%}",
    } | (
        {"Errors among the answers": f"{found['policy']['error_rate']:.1%}"}
        if found["policy"]["accepted"]
        else {}
    )


def test_shares_answered(digits: tuple[Model, Source], text: str) -> None:
    policy = digits[0].policy
    assert policy is not None
    shares = re.findall(r"at most ([\d.]+)%</th>\s*<td>.*?<b>([\d.]+%)</b>", text)
    assert shares == [(f"{100 * p.error_rate:g}", f"{p.coverage:.1%}") for p in policy.table]


def test_images_have_names_truth_and_prediction(digits: tuple[Model, Source], text: str) -> None:
    model, source = digits
    cards = text.split('class="example"')[1:]
    prediction = model.predict(source)
    rows = {source.item(row): row for row in range(len(source))}
    assert len(cards) >= 12
    for card in cards:
        row = rows[re.search(r'title="([^"]*)"', card)[1]]  # type: ignore[index]
        values = re.findall(r"<span>(true|prediction)</span> <b[^>]*>(\d)</b>", card)
        assert values == [("true", str(source.target[row])), ("prediction", prediction.labels[row])]


def test_confusion_matrix(digits: tuple[Model, Source], text: str) -> None:
    cells = re.findall(r'<td class="(?:right|wrong)[^"]*"[^>]*>(\d*)</td>', text)
    assert sum(int(cell or 0) for cell in cells) == len(digits[1])
    assert len(cells) == 100


def test_rising_weight_is_explained(text: str) -> None:
    assert "Why the training loss may rise" in text
    assert "grows until epoch 11" in " ".join(text.split())
    assert "training, final weights" in text


def test_constant_weights_are_not_explained(
    digits: tuple[Model, Source], page: Callable[..., str]
) -> None:
    method = digits[0].method
    digits[0].method = build("iedl", kl_ramp=0)
    try:
        text = page(*digits, history=HISTORY)
    finally:
        digits[0].method = method
    assert "Loss by epoch" in text
    assert "Why the training loss may rise" not in text


def test_training_record(digits: tuple[Model, Source], page: Callable[..., str]) -> None:
    model, source = digits
    model.record = TrainingRecord(config={"a": "<b>"}, epochs=12, best_epoch=4, train_samples=1500)
    try:
        text = " ".join(page(model, source, history=HISTORY).split())
    finally:
        model.record = None
    assert "Trained on 1,500 samples for 12 epochs" in text
    assert "The weights are those of epoch 4" in text
    assert "&lt;b&gt;" in text


def test_table_rows_show_their_values(table: pd.DataFrame, page: Callable[..., str]) -> None:
    source = data.open(table.drop(columns="price"), target="dear")
    text = page(fitted("edl", Classification.from_target(source.target), source), source)
    row = re.search(r'<th scope="row">row (\d+)</th>(.*?)</tr>', text)
    assert row is not None
    shown, expected = re.findall("<td>([^<]*)</td>", row[2]), table.loc[int(row[1])]
    assert shown[0] == str(expected["dear"])
    assert shown[-2:] == [f"{expected['age']:g}", escape(expected["city"])]


@pytest.mark.parametrize("tolerance", [None, 60.0])
def test_regression(table: pd.DataFrame, tolerance: float | None, page: Callable[..., str]) -> None:
    source = data.open(table.drop(columns="dear"), target="price")
    model = fitted("der", Regression.from_target(source.target, tolerance=tolerance), source)
    text = page(model, source)
    found = model.evaluate(source)
    assert f"<dt>RMSE of price</dt><dd><b>{found['metrics']['rmse']:.4g}</b>" in text
    assert f"<b>{found['interval_coverage']['0.9']:.1%}</b>" in text
    assert "Predicted against true price" in text
    assert ("needs a <code>tolerance</code>" in text) is (tolerance is None)
    assert ("RMSE of the answers" in text) is (tolerance is None)


def test_several_targets(table: pd.DataFrame, page: Callable[..., str]) -> None:
    frame = table.assign(rent=table["price"] / 2).drop(columns="dear")
    source = data.open(frame, target=["price", "rent"])
    text = page(fitted("der", Regression.from_target(source.target), source), source)
    assert "Predicted against true rent" in text


def test_many_classes(page: Callable[..., str]) -> None:
    drawn = np.random.default_rng(0)
    inputs = drawn.normal(size=(400, 3)).astype(np.float32)
    source = data.open((inputs, [f"class {i % 25}" for i in range(400)]))
    text = page(fitted("softmax", Classification.from_target(source.target), source), source)
    assert "Confusion matrix" not in text
    assert "Classes with the lowest accuracy" in text


def test_custom_network_without_calibration(page: Callable[..., str]) -> None:
    inputs = np.random.default_rng(0).normal(size=(90, 4)).astype(np.float32)
    source = data.open((inputs, ["a", "b", "c"] * 30))
    task = Classification.from_target(source.target)
    with torch.random.fork_rng():
        network = nn.Linear(4, 3)
    model = Model(network, build("edl"), task, Preprocessing(inputs=source.format))
    text = page(model, source, role="test")
    assert "network custom" in " ".join(text.split())
    assert "not calibrated" in text
    assert "90 test samples" in text
    assert "slightly optimistic" not in text


def test_page_without_samples(digits: tuple[Model, Source], page: Callable[..., str]) -> None:
    text = page(digits[0], title="<mine>")
    assert "<h1>&lt;mine&gt;</h1>" in text
    assert "at most 5%" in text
    assert "Samples to look at" not in text


def test_unlabeled_source(digits: tuple[Model, Source], page: Callable[..., str]) -> None:
    model, source = digits
    with pytest.raises(DubitoError, match="needs labeled samples"):
        page(model, data.open(source.load().numpy(), labeled=False))
