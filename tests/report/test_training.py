"""Training reports."""

import re
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from dubito import data
from dubito.data import Source
from dubito.formats import Preprocessing
from dubito.methods import METHODS
from dubito.model import Model
from dubito.model.folder import TrainingRecord
from dubito.report.training import training_losses, write
from dubito.tasks import Classification, Regression, Task

HISTORY = [
    {
        "epoch": epoch,
        "loss": 1.0 / epoch,
        "terms": {},
        **({"validation": {"loss": 2.0 / epoch, "accuracy": 0.9, "nll": 1}} if epoch % 2 else {}),
    }
    for epoch in range(1, 13)
]
RECORD = TrainingRecord(
    config={"training": {"epochs": 20}, "data": {"source": "<b>"}},
    epochs=12,
    best_epoch=4,
    samples={"training": 1500},
)


def fitted(method: str, task: Task, source: Source) -> Model:
    """Return a model with random weights, a calibration, a policy and a record."""
    preprocessing = Preprocessing.fit(source.format, source.load())
    model = Model.build(method, task, preprocessing, {"name": "mlp", "hidden": [8]}).eval()
    model.calibrate(source)
    model.record = RECORD
    return model.fit_policy(source, error_rate=0.5) if task.defines_errors else model


@pytest.fixture(scope="module")
def digits() -> tuple[Model, Source]:
    source = data.open("digits").subset(range(300))
    return fitted("iedl", Classification.from_target(source.target), source), source


@pytest.fixture(scope="module")
def text(digits: tuple[Model, Source], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Page of the digits."""
    return page(*digits, tmp_path_factory.mktemp("digits"))


def page(model: Model, source: Source, folder: Path) -> str:
    return write(model, folder, source, model.predict(source), HISTORY).read_text("utf-8")


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.integers(20, 80, 200).astype(float)
    city = rng.choice(["<Bonn>", "Köln"], 200)
    price = 3 * age + 50 * (city == "Köln") + rng.normal(0, 5, 200)
    return pd.DataFrame({"age": age, "city": city, "price": price, "dear": price > 150})


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


def test_pages_are_reproducible(digits: tuple[Model, Source], text: str, tmp_path: Path) -> None:
    assert page(*digits, tmp_path) == text


def test_key_figures(digits: tuple[Model, Source], text: str) -> None:
    model, source = digits
    result = model.evaluate(source)
    tiles = dict(re.findall(r"<dt>([^<]*)</dt><dd><b>([^<]*)</b>", text))
    assert tiles == {
        "Accuracy": f"{result['metrics']['accuracy']:.1%}",
        "Calibration error (ECE)": f"{result['calibrated']['ece']:.1%}",
        "Answered": f"{result['policy']['accepted']:.1%}",
    } | (
        {"Errors among the answers": f"{result['policy']['error_rate']:.1%}"}
        if result["policy"]["accepted"]
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


def test_training_record(text: str) -> None:
    words = " ".join(text.split())
    assert "Trained on 1,500 samples for 12 epochs" in words
    assert "The weights are those of epoch 4" in words
    assert "&lt;b&gt;" in words
    assert "Loss by epoch" in words


def test_table_rows_show_their_values(table: pd.DataFrame, tmp_path: Path) -> None:
    source = data.open(table.drop(columns="price"), target="dear")
    text = page(fitted("edl", Classification.from_target(source.target), source), source, tmp_path)
    row = re.search(r'<th scope="row">row (\d+)</th>(.*?)</tr>', text)
    assert row is not None
    shown, expected = re.findall("<td>([^<]*)</td>", row[2]), table.loc[int(row[1])]
    assert shown[0] == str(expected["dear"])
    assert shown[-2:] == [f"{expected['age']:g}", escape(expected["city"])]


@pytest.mark.parametrize("tolerance", [None, 60.0])
def test_regression(table: pd.DataFrame, tolerance: float | None, tmp_path: Path) -> None:
    source = data.open(table.drop(columns="dear"), target="price")
    model = fitted("der", Regression.from_target(source.target, tolerance=tolerance), source)
    text = page(model, source, tmp_path)
    result = model.evaluate(source)
    assert f"<dt>RMSE of price</dt><dd><b>{result['metrics']['rmse']:.4g}</b>" in text
    assert f"<b>{result['interval_coverage']['0.9']:.1%}</b>" in text
    assert "Predicted against true price" in text
    assert ("needs a <code>tolerance</code>" in text) is (tolerance is None)
    assert ("Error rate among the answers" in text) is (tolerance is not None)


def test_several_targets(table: pd.DataFrame, tmp_path: Path) -> None:
    frame = table.assign(rent=table["price"] / 2).drop(columns="dear")
    source = data.open(frame, target=["price", "rent"])
    text = page(fitted("der", Regression.from_target(source.target), source), source, tmp_path)
    assert "Predicted against true rent" in text


def test_many_classes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(400, 3)).astype(np.float32)
    source = data.open((inputs, [f"class {i % 25}" for i in range(400)]))
    model = fitted("softmax", Classification.from_target(source.target), source)
    text = page(model, source, tmp_path)
    assert "Confusion matrix" not in text
    assert "Classes with the lowest accuracy" in text


def test_page_without_errors_has_no_confident_errors(tmp_path: Path) -> None:
    inputs = np.repeat(np.array([[-9.0, 9.0], [9.0, -9.0]], np.float32), 30, 0)
    source = data.open((inputs, ["a"] * 30 + ["b"] * 30))
    model = fitted("softmax", Classification.from_target(source.target), source)
    layer = nn.Linear(2, 2, bias=False)
    layer.weight.data = torch.tensor([[-1.0, 1.0], [1.0, -1.0]])
    model.network = layer
    text = page(model, source, tmp_path)
    assert "Most confident errors" not in text
    assert "Most uncertain" in text


@pytest.mark.parametrize("ramp", [0, 10])
def test_training_loss_has_the_final_weights(ramp: int) -> None:
    method = METHODS.build("iedl", kl_ramp=ramp, kl_weight=0.5, fisher_weight=0.1)
    terms = {"fisher_bias": 1.0, "fisher_variance": 2.0, "fisher_penalty": 3.0}
    history = [{"epoch": 1, "terms": {**terms, "label_removed_kl": 4.0}}]
    assert training_losses(method, history, 20) == [pytest.approx(1 + 2 + 0.3 + 2)]
