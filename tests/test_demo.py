"""The demo: results, table and page."""

import json
import re
from html import unescape
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from PIL import Image

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
FILES = ["densities.png", "report.html", "results.json"]


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:  # a script imports from its folder
        patch.syspath_prepend(EXAMPLES)
        return import_module("demo")


def run(demo: ModuleType, folder: Path) -> dict[str, Any]:
    demo.main(["--out", str(folder), "--epochs", "8", "--seed", "1"])
    return json.loads((folder / "results.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "new" / "folder"


@pytest.fixture(scope="module")
def result(demo: ModuleType, folder: Path) -> dict[str, Any]:
    return run(demo, folder)


def test_writes_three_files(result: dict[str, Any], folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == FILES


def test_methods_learn_and_reject_patches(result: dict[str, Any]) -> None:
    assert list(result["methods"]) == ["EDL", "I-EDL"]
    assert result["seeds"] == [1, 2, 3, 4, 5]
    for method in result["methods"].values():
        assert method["metrics"]["accuracy"]["mean"] > 0.8
        patches = method["ood"]["photo patches"]
        assert patches["policy"]["accepted"]["mean"] < method["policy"]["accepted"]["mean"] / 2


def test_a_seed_determines_the_result_that_is_printed(
    demo: ModuleType, result: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.rand(7)  # the global random state does not matter
    assert run(demo, tmp_path) == result
    text = capsys.readouterr().out
    for name, cells in demo.comparison(result):
        (line,) = (line for line in text.splitlines() if line.startswith(name))
        assert line.endswith(cells[-1])
    assert "report.html" in text


def test_table_shows_means_over_the_seeds(demo: ModuleType, result: dict[str, Any]) -> None:
    rows = dict(demo.comparison(result))
    means = [method["metrics"]["accuracy"]["mean"] for method in result["methods"].values()]
    assert [cell.split()[0] for cell in rows["Accuracy ↑"]] == [f"{100 * a:.1f}" for a in means]
    assert {"Accepted photo patches ↓", "AUPR of noisy digits ↑"} <= rows.keys()


def test_page_is_standalone(demo: ModuleType, result: dict[str, Any], folder: Path) -> None:
    page = (folder / "report.html").read_text()
    addresses = re.findall(r'\s(?:src|href)="([^"]*)"', page)
    assert len(addresses) == 18
    assert all(address.startswith("data:image/png;base64,") for address in addresses)
    assert not re.search(r"<script|<link|@import|url\(http", page)
    words = unescape(re.sub("<[^>]*>", "", page))
    for name, cells in demo.comparison(result):
        assert all(text in words for text in (name, *cells))


def test_picture_is_not_blank(result: dict[str, Any], folder: Path) -> None:
    with Image.open(folder / "densities.png") as image:
        assert image.size[0] > image.size[1] > 400
        assert len(image.convert("RGB").getcolors(1 << 20)) > 100
