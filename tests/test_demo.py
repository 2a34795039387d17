"""The demo: results, table and page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from statistics import mean

import pytest
import torch
from PIL import Image

from dubito import cli
from dubito.demo import comparison, demo

FILES = ["densities.png", "report.html", "results.json"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo") / "new" / "folder"


@pytest.fixture(scope="module")
def result(folder):
    return demo(out=folder, epochs=8, seed=1)


def test_writes_three_files(result, folder):
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert json.loads((folder / "results.json").read_text()) == result


def test_methods_learn_and_reject_patches(result):
    assert list(result["methods"]) == ["EDL", "I-EDL"]
    for runs in result["methods"].values():
        assert len(runs) == 5
        for run in runs:
            assert run["metrics"]["accuracy"] > 0.7
            rejected = 1 - run["policy"]["accepted"]
            assert 1 - run["ood"]["photo patches"]["policy"]["accepted"] > 2 * rejected


def test_a_seed_determines_the_result(result, tmp_path):
    torch.rand(7)  # the global random state does not matter
    assert demo(out=tmp_path, epochs=8, seed=1) == result


def test_table_shows_means_over_the_seeds(result):
    rows = dict(comparison(result))
    runs = result["methods"].values()
    accuracy = [100 * mean(run["metrics"]["accuracy"] for run in seeds) for seeds in runs]
    assert [cell.split()[0] for cell in rows["Accuracy ↑"]] == [f"{a:.1f}" for a in accuracy]
    assert {"Accepted photo patches ↓", "AUPR of noisy digits ↑"} <= rows.keys()


def test_examples_match_their_headings(result):
    examples = {example["heading"]: example for example in result["examples"]}
    assert len(examples) == 6
    surest = examples["The surest of the test digits"]
    assert surest["accepted"]
    assert surest["label"] == surest["truth"]
    doubted = examples["The most doubted of the photo patches"]
    assert doubted["truth"] is None
    assert not doubted["accepted"]
    assert doubted["vacuity"] > examples["The surest of the photo patches"]["vacuity"]
    for example in result["examples"]:
        assert example["belief"] + example["second_belief"] + example["vacuity"] < 1 + 1e-5


class Page(HTMLParser):
    """Text and addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.addresses = "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.text += data


def test_page_is_standalone(result, folder):
    text = (folder / "report.html").read_text()
    page = Page(text)
    assert len(page.addresses) == len(result["examples"])
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    assert not re.search(r"<script|<link|@import|url\(http", text)
    for name, cells in comparison(result):
        assert all(text in page.text for text in (name, *cells))


def test_picture_is_not_blank(result, folder):
    with Image.open(folder / "densities.png") as image:
        assert image.size[0] > image.size[1] > 400
        assert len(image.convert("RGB").getcolors(1 << 20)) > 100


def test_command_prints_the_table(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["demo", "--out", str(tmp_path), "--epochs", "1"])
    assert not stop.value.code
    text = capsys.readouterr().out
    assert "test digits" in text
    assert "report.html" in text
