"""Reports of trainings and evaluations."""

import re
from copy import deepcopy
from html import escape, unescape
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
from dubito.formats import Preprocessing
from dubito.methods import METHODS
from dubito.model import Model, Prediction
from dubito.model.folder import TrainingRecord
from dubito.policy import SanityCheck
from dubito.report.page import View, training_losses
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


MLP = {"name": "mlp", "hidden": [8]}


def fitted(method: str, task: Task, source: Source, backbone: Any = None) -> Model:
    """Return a model with random weights, a calibration, a policy and a record."""
    preprocessing = Preprocessing.fit(source.format, source.load())
    model = Model.build(method, task, preprocessing, backbone or MLP).eval()
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
    return View(model, source, model.predict(source), HISTORY).write(folder).read_text("utf-8")


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


def test_page_is_complete(digits, text, tmp_path):
    checker = Checker()
    checker.feed(text)
    assert not checker.open
    assert not checker.problems
    assert all(address.startswith("data:image/") for address in checker.addresses)
    assert page(*digits, tmp_path) == text  # reproducible
    words = " ".join(text.split())
    assert "Trained on 1,500 samples for 12 epochs" in words
    assert "The weights are those of epoch 4" in words
    assert "&lt;b&gt;" in words
    assert "Loss by epoch" in words


def test_key_figures(digits, text):
    model, source = digits
    result = model.evaluate(source)
    expected = {
        "Accuracy": result["metrics"]["accuracy"],
        "Calibration error (ECE)": result["calibrated"]["ece"],
        "Answered": result["policy"]["accepted"],
    }
    if result["policy"]["accepted"]:
        expected["Errors among the answers"] = result["policy"]["error_rate"]
    tiles = dict(re.findall(r"<dt>([^<]*)</dt><dd><b>([^<]*)</b>", text))
    assert tiles == {name: f"{value:.1%}" for name, value in expected.items()}
    shares = re.findall(r"at most ([\d.]+)%</th>\s*<td>.*?<b>([\d.]+%)</b>", text)
    table = model.policy.table
    assert shares == [(f"{100 * p.error_rate:g}", f"{p.coverage:.1%}") for p in table]
    cells = re.findall(r'<td class="(?:right|wrong)[^"]*"[^>]*>(\d*)</td>', text)
    assert len(cells) == 100  # of the confusion matrix
    assert sum(int(cell or 0) for cell in cells) == len(source)


def facts(card: str) -> list[tuple[str, str]]:
    return re.findall(r"<dt>([^<]*)</dt><dd[^>]*>([^<]*)</dd>", card)


def cards(text: str) -> dict[str, str]:
    """Return the samples of a page by name."""
    parts = text.split('class="example"')[1:]
    return {unescape(re.findall(r'title="([^"]*)"', part)[0]): part for part in parts}


def test_images_have_names_truth_and_answer(digits, text):
    model, source = digits
    prediction = model.predict(source)
    rows = {source.item(row): row for row in range(len(source))}
    found = cards(text)
    assert len(found) >= 9
    for name, card in found.items():
        row = rows[name]
        answer = "answer" if prediction.accepted[row] else "guess"
        values = [("true", str(source.target[row])), (answer, prediction.labels[row])]
        assert facts(card)[:2] == values
        assert ("abstains: " in card) is (answer == "guess")


def test_table_rows_show_their_values(table, tmp_path):
    source = data.open(table.drop(columns="price"), target="dear")
    text = page(fitted("edl", Classification.from_target(source.target), source), source, tmp_path)
    for name, card in cards(text).items():
        expected = table.loc[int(name.removeprefix("row "))]
        found = dict(facts(card))
        assert found["true"] == str(expected["dear"])
        assert found["age"] == f"{expected['age']:g}"
        assert found["city"] == escape(expected["city"])


def test_a_text_is_shown(tmp_path):
    texts = [f"a {'dull' if i % 2 else 'moving'} film" + " indeed" * (i % 60) for i in range(120)]
    frame = pd.DataFrame({"text": texts, "good": ["no", "yes"] * 60})
    source = data.open(frame, text="text", target="good")
    model = fitted("iedl", Classification.from_target(source.target), source, "embedding")
    found = cards(page(model, source, tmp_path))
    for name, card in found.items():
        shown = re.search(r"<div><dd>([^<]*)</dd></div>", card)
        words = texts[int(name.removeprefix("row "))]
        assert shown[1] == words if len(words) <= 300 else shown[1] == f"{words[:299]}…"


# --- evaluation ---


def evaluated(model: Model, source: Source, folder: Path, foreign: Any) -> str:
    prediction = model.predict(source)
    ood = {name: other for name, (_, other) in foreign.items()}
    result = {"part": "test", **model.evaluate(prediction, source, ood=ood)}
    path = View(model, source, prediction, evaluation=result, foreign=foreign).write(folder)
    return path.read_text("utf-8")


def shares(text: str) -> dict[str, tuple[str, bool]]:
    """Return the shares of "What it accepts", and whether there is a warning, by name."""
    section = text.split("<h2>What it accepts</h2>")[1].split("</section>")[0]
    row = r'<tr( class="much")?>\s*<th scope="row">([^<]*)</th>\s*<td>.*?<b>([^<]*)</b>'
    return {name: (share, bool(much)) for much, name, share in re.findall(row, section)}


@pytest.fixture(scope="module")
def accepting(digits, tmp_path_factory) -> tuple[Model, Source, dict[str, Prediction], str]:
    """Return a model that accepts most samples, foreign predictions by name, and their page."""
    model, source = deepcopy(digits[0]).fit_policy(digits[1], coverage=0.8), digits[1]
    noise = torch.randint(256, (40, 8, 8), generator=torch.Generator().manual_seed(0))
    foreign = {}
    for name, pixels in (("old/digits", source.load()[:, 0]), ("noise", noise.byte())):
        other = data.open(pixels, format=model.preprocessing.inputs, labeled=False)
        foreign[name] = other, model.predict(other)
    text = evaluated(model, source, tmp_path_factory.mktemp("foreign"), foreign)
    return model, source, {name: prediction for name, (_, prediction) in foreign.items()}, text


def test_accepted_foreign_inputs(accepting):
    _, _, foreign, text = accepting
    for name, (share, much) in shares(text).items():
        expected = foreign[name.replace("\u200b", "")].accepted.double().mean().item()
        assert share == f"{expected:.1%}"
        assert much is (expected > 0.05)
    shown = text.split("<h3>old/digits</h3>")[1].split("<h3>")[0]
    prediction = foreign["old/digits"]
    confidence = prediction.score("max_prob").masked_fill(~prediction.accepted, -1)
    top = confidence.argsort(descending=True, stable=True)[:6]
    found = [dict(facts(card))["answer"] for card in cards(shown).values()]
    assert found == prediction.labels[top].tolist()
    assert shown.count("<img") == 6


def test_detection_is_by_auroc_first(accepting):
    model, source, foreign, text = accepting
    table = text.split('<table class="detection">')[1].split("</table>")[0]
    heads = re.findall(r'<th scope="col">(\w+)', table)
    assert heads == ["score", "AUROC", "FPR95", "AUPR"]
    part = model.evaluate(source, ood={"noise": foreign["noise"]})["ood"]["noise"]["detection"]
    noise = table.split("<b>noise</b>")[1]
    found = re.findall(r'<th scope="row">(\w+) <span[^>]*>([^<]*)<.*?<td>([\d.%]*)', noise, re.S)
    assert [what for _, what, _ in found[:2]] == ["right or wrong", "foreign"]
    declared = {score for score, _, _ in found[:2]}
    rest = [values["auroc"] for name, values in part.items() if name not in declared]
    for score, what, auroc in found:
        assert auroc == f"{part[score]['auroc']:.1%}"
        if what == "worst of the rest":
            assert part[score]["auroc"] == min(rest)


def test_shares_of_the_sanity_check(digits, tmp_path):
    model, source = digits
    policy = model.policy
    shares_of = {"noise": 0.52, "flat": 0.01}
    found = {name: SanityCheck(accepted=share, wrong=share) for name, share in shares_of.items()}
    model.policy = policy.model_copy(update={"sanity": found})
    text = page(model, source, tmp_path)
    model.policy = policy
    assert shares(text) == {"noise": ("52.0%", True), "flat": ("1.0%", False)}
    assert "More than 5% wrong answers to noise:" in " ".join(text.split())


@pytest.mark.parametrize(
    ("method", "task", "target"), [("edl", Classification, "dear"), ("der", Regression, "price")]
)
def test_a_model_without_calibration_and_record(method, task, target, table, tmp_path):
    source = data.open(table[["age", "city", target]], target=target)
    preprocessing = Preprocessing.fit(source.format, source.load())
    model = Model.build(method, task.from_target(source.target), preprocessing, MLP).eval()
    text = evaluated(model, source, tmp_path, {})
    assert "Evaluation report" in text
    assert "it answers every input" in text
    assert "<h2>Calibration</h2>" not in text


# --- tasks ---


def test_prediction_sets(digits, tmp_path):
    model, source = digits
    model = deepcopy(model).calibrate(source, levels=(0.95,))
    text, result = page(model, source, tmp_path), model.evaluate(source)
    share, size = result["set_coverage"]["0.95"], result["set_size"]["0.95"]
    assert f"<dt>In the 95% set</dt><dd><b>{share:.1%}</b>" in text
    assert f"of {size:.4g} classes on average" in text
    assert "Prediction sets of 95% contain the true class" in text
    assert "<dt>set</dt>" in text


@pytest.mark.parametrize("tolerance", [None, 60.0])
def test_regression(table, tolerance, tmp_path):
    source = data.open(table.drop(columns="dear"), target="price")
    model = fitted("der", Regression.from_target(source.target, tolerance=tolerance), source)
    model.calibrate(source, levels=(0.9, 0.5))
    text = page(model, source, tmp_path)
    result = model.evaluate(source)
    assert f"<dt>RMSE of price</dt><dd><b>{result['metrics']['rmse']:.4g}</b>" in text
    for level in ("0.9", "0.5"):
        assert f"<dt>In the {float(level):.0%} interval</dt>" in text
        assert f"<b>{result['interval_coverage'][level]:.1%}</b>" in text
        assert f"mean width {result['interval_width'][level]:.4g}" in text
    assert "Predicted against true price" in text
    assert ("needs a <code>tolerance</code>" in text) is (tolerance is None)
    assert ("Error rate among the answers" in text) is (tolerance is not None)


def test_several_targets(table, tmp_path):
    frame = table.assign(rent=table["price"] / 2).drop(columns="dear")
    source = data.open(frame, target=["price", "rent"])
    text = page(fitted("der", Regression.from_target(source.target), source), source, tmp_path)
    assert "Predicted against true rent" in text


def test_many_classes(tmp_path):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(400, 3)).astype(np.float32)
    source = data.open((inputs, [f"class {i % 25}" for i in range(400)]))
    model = fitted("softmax", Classification.from_target(source.target), source)
    text = page(model, source, tmp_path)
    assert "Confusion matrix" not in text
    assert "Classes with the lowest accuracy" in text


def test_page_without_errors_has_no_confident_errors(tmp_path):
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
def test_training_loss_has_the_final_weights(ramp):
    method = METHODS.build("iedl", kl_ramp=ramp, kl_weight=0.5, fisher_weight=0.1)
    terms = {"fisher_bias": 1.0, "fisher_variance": 2.0, "fisher_penalty": 3.0}
    history = [{"epoch": 1, "terms": {**terms, "label_removed_kl": 4.0}}]
    assert training_losses(method, history, 20) == [pytest.approx(1 + 2 + 0.3 + 2)]
