import re

from reproduction.report import DOCS, SHOWN, pages
from reproduction.results import Results


def test_pages_are_up_to_date(results: Results) -> None:
    for path, text in pages(results).items():
        assert text == path.read_text("utf-8"), f"run: python -m reproduction --pages ({path.name})"


def test_figures_that_pages_show_exist_and_no_others(results: Results) -> None:
    text = "".join(path.read_text("utf-8") for path in DOCS.glob("*.md"))
    shown = set(re.findall(r"assets/([a-z0-9-]+)\.png", text))
    drawn = re.compile(r"overview|epochs-.*|lambda-.*|reliability-.*|risk-coverage|fewshot-.*")
    assert {name for name in shown if drawn.fullmatch(name)} == set(SHOWN)
    assert {path.stem for path in (DOCS / "assets").glob("*.png")} >= set(SHOWN)
