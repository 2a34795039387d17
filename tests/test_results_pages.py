"""The pages of results are those of the records that are there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_pages", ROOT / "tools/results_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_up_to_date(tool: ModuleType) -> None:
    made = tool.report()
    for page in tool.PAGES:
        text = (ROOT / "docs" / page).read_text("utf-8")
        above, _, below = text.partition(tool.MARK)
        assert above.startswith("# "), page
        assert below.strip() == tool.made_part(page, made).strip(), (
            f"docs/{page} is not what results/ gives: run `make results`"
        )
        pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", below)
        assert pictures, page
        for picture in pictures:
            assert (ROOT / "docs" / picture).exists(), picture


def test_no_picture_shows_data(tool: ModuleType) -> None:
    assert not [d.key for d in tool.report().drawings if d.key.startswith("images-")]
    assert not list((ROOT / "docs" / "assets").glob("images-*"))
