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


def fitted(method: str, task: Task, source: Source, backbone: Any = None) -> Model:
    """Return a model with random weights, a calibration, a policy and a record."""
    preprocessing = Preprocessing.fit(source.format, source.load())
    backbone = backbone or {"name": "mlp", "hidden": [8]}
    model = Model.build(method, task, preprocessing, backbone).eval()
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


def facts(card: str) -> list[tuple[str, str]]:
    return re.findall(r"<dt>([^<]*)</dt><dd[^>]*>([^<]*)</dd>", card)


def cards(text: str) -> dict[str, str]:
    """Return the samples of a page by name."""
    parts = text.split('class="example"')[1:]
    return {unescape(re.findall(r'title="([^"]*)"', part)[0]): part for part in parts}


def test_images_have_names_truth_and_answer(digits: tuple[Model, Source], text: str) -> None:
    model, source = digits
    prediction = model.predict(source)
    assert prediction.accepted is not None
    rows = {source.item(row): row for row in range(len(source))}
    found = cards(text)
    assert len(found) >= 9
    for name, card in found.items():
        row = rows[name]
        answer = "answer" if prediction.accepted[row] else "guess"
        values = [("true", str(source.target[row])), (answer, prediction.labels[row])]
        assert facts(card)[:2] == values
        assert ("abstains: " in card) is (answer == "guess")


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
    for name, card in cards(text).items():
        expected = table.loc[int(name.removeprefix("row "))]
        found = dict(facts(card))
        assert found["true"] == str(expected["dear"])
        assert found["age"] == f"{expected['age']:g}"
        assert found["city"] == escape(expected["city"])


def test_a_text_is_shown(tmp_path: Path) -> None:
    texts = [f"a {'dull' if i % 2 else 'moving'} film" + " indeed" * (i % 60) for i in range(120)]
    frame = pd.DataFrame({"text": texts, "good": ["no", "yes"] * 60})
    source = data.open(frame, text="text", target="good")
    model = fitted("iedl", Classification.from_target(source.target), source, "embedding")
    found = cards(page(model, source, tmp_path))
    for name, card in found.items():
        shown = re.search(r"<div><dd>([^<]*)</dd></div>", card)
        assert shown is not None
        words = texts[int(name.removeprefix("row "))]
        assert shown[1] == words if len(words) <= 300 else shown[1] == f"{words[:299]}…"


# --- evaluation ---


def strange(model: Model, name: str, pixels: torch.Tensor) -> tuple[str, tuple[Source, Prediction]]:
    source = data.open(pixels, format=model.preprocessing.inputs, labeled=False)
    return name, (source, model.predict(source))


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
def answering(digits: tuple[Model, Source]) -> tuple[Model, Source]:
    """Return a model that accepts most samples."""
    model, source = digits
    return deepcopy(model).fit_policy(source, coverage=0.8), source


@pytest.fixture(scope="module")
def two_kinds(answering: tuple[Model, Source]) -> Any:
    """Return foreign inputs by name: some that look like digits, and noise."""
    model, source = answering
    noise = torch.randint(256, (40, 8, 8), generator=torch.Generator().manual_seed(0))
    known = source.load()[:, 0]
    pairs = [("old/digits", known), ("noise", noise.byte())]
    return dict(strange(model, *pair) for pair in pairs)


def test_accepted_foreign_inputs(
    answering: tuple[Model, Source], two_kinds: Any, tmp_path: Path
) -> None:
    model, source = answering
    text = evaluated(model, source, tmp_path, two_kinds)
    for name, (share, much) in shares(text).items():
        expected = two_kinds[name.replace("\u200b", "")][1].accepted.double().mean().item()
        assert share == f"{expected:.1%}"
        assert much is (expected > 0.05)
    shown = text.split("<h3>old/digits</h3>")[1].split("<h3>")[0]
    _, prediction = two_kinds["old/digits"]
    confidence = prediction.score("max_prob").masked_fill(~prediction.accepted, -1)
    top = confidence.argsort(descending=True, stable=True)[:6]
    found = [dict(facts(card))["answer"] for card in cards(shown).values()]
    assert found == prediction.labels[top].tolist()
    assert shown.count("<img") == 6


def test_detection_is_by_auroc_first(
    answering: tuple[Model, Source], two_kinds: Any, tmp_path: Path
) -> None:
    model, source = answering
    text = evaluated(model, source, tmp_path, two_kinds)
    table = text.split('<table class="detection">')[1].split("</table>")[0]
    heads = re.findall(r'<th scope="col">(\w+)', table)
    assert heads == ["score", "AUROC", "FPR95", "AUPR"]
    part = model.evaluate(source, ood={"noise": two_kinds["noise"][1]})["ood"]["noise"]["detection"]
    noise = table.split("<b>noise</b>")[1]
    found = re.findall(r'<th scope="row">(\w+) <span[^>]*>([^<]*)<.*?<td>([\d.%]*)', noise, re.S)
    assert [what for _, what, _ in found[:2]] == ["right or wrong", "foreign"]
    declared = {score for score, _, _ in found[:2]}
    rest = [values["auroc"] for name, values in part.items() if name not in declared]
    for score, what, auroc in found:
        assert auroc == f"{part[score]['auroc']:.1%}"
        if what == "worst of the rest":
            assert part[score]["auroc"] == min(rest)


def test_shares_of_the_sanity_check(digits: tuple[Model, Source], tmp_path: Path) -> None:
    model, source = digits
    policy = model.policy
    assert policy is not None
    shares_of = {"noise": 0.52, "flat": 0.01}
    found = {name: SanityCheck(accepted=share, wrong=share) for name, share in shares_of.items()}
    model.policy = policy.model_copy(update={"sanity": found})
    text = page(model, source, tmp_path)
    model.policy = policy
    assert shares(text) == {"noise": ("52.0%", True), "flat": ("1.0%", False)}
    assert "More than 5% wrong answers to noise:" in " ".join(text.split())


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_model_without_calibration_and_record(
    kind: str, table: pd.DataFrame, tmp_path: Path
) -> None:
    target = "dear" if kind == "classification" else "price"
    source = data.open(table.drop(columns={"dear", "price"} - {target}), target=target)
    task: Task = Classification.from_target(source.target)
    if kind == "regression":
        task = Regression.from_target(source.target)
    method = "edl" if kind == "classification" else "der"
    preprocessing = Preprocessing.fit(source.format, source.load())
    model = Model.build(method, task, preprocessing, {"name": "mlp", "hidden": [8]}).eval()
    text = evaluated(model, source, tmp_path, {})
    assert "Evaluation report" in text
    assert "it answers every input" in text
    assert "<h2>Calibration</h2>" not in text


# --- tasks ---


def test_prediction_sets(digits: tuple[Model, Source], tmp_path: Path) -> None:
    model, source = digits
    model = deepcopy(model).calibrate(source, levels=(0.95,))
    text, result = page(model, source, tmp_path), model.evaluate(source)
    share, size = result["set_coverage"]["0.95"], result["set_size"]["0.95"]
    assert f"<dt>In the 95% set</dt><dd><b>{share:.1%}</b>" in text
    assert f"of {size:.4g} classes on average" in text
    assert "Prediction sets of 95% contain the true class" in text
    assert "<dt>set</dt>" in text


@pytest.mark.parametrize("tolerance", [None, 60.0])
def test_regression(table: pd.DataFrame, tolerance: float | None, tmp_path: Path) -> None:
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
