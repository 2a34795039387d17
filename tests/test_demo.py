"""The demo: results, table and page."""

import json
import re
from html.parser import HTMLParser

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
    assert result["seeds"] == [1, 2, 3, 4, 5]
    for method in result["methods"].values():
        assert method["metrics"]["accuracy"]["mean"] > 0.8
        patches = method["ood"]["photo patches"]
        assert patches["policy"]["accepted"]["mean"] < method["policy"]["accepted"]["mean"] / 2


def test_a_seed_determines_the_result(result, tmp_path):
    torch.rand(7)  # the global random state does not matter
    assert demo(out=tmp_path, epochs=8, seed=1) == result


def test_table_shows_means_over_the_seeds(result):
    rows = dict(comparison(result))
    means = [method["metrics"]["accuracy"]["mean"] for method in result["methods"].values()]
    assert [cell.split()[0] for cell in rows["Accuracy ↑"]] == [f"{100 * a:.1f}" for a in means]
    assert {"Accepted photo patches ↓", "AUPR of noisy digits ↑"} <= rows.keys()


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
    assert len(page.addresses) == 18
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
