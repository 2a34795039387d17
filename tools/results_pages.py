"""Bring the pages of results up to date with the records: tables and figures below a page's mark.

    python tools/results_pages.py

What stands above the mark is written by hand. Pictures of test images are left out: they are data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dubito import experiments
from dubito.report import reproduction
from dubito.report.figures.style import drawn
from dubito.report.reproduction.formats import markdown

ROOT = Path(__file__).resolve().parent.parent
RESULTS, DOCS, ASSETS = ROOT / "results", ROOT / "docs", "assets"
MARK = "<!-- from here on made by tools/results_pages.py -->"
FEWSHOT = "Few-shot"
#: page -> the sections of the report that it has
PAGES: dict[str, Callable[[str], bool]] = {
    "results.md": lambda section: section != FEWSHOT,
    "fewshot-results.md": lambda section: section == FEWSHOT,
}


def report() -> reproduction.Report:
    """The report of all records, without pictures of data."""
    records, notes = reproduction.read(RESULTS), reproduction.read_notes(RESULTS)
    made = reproduction.report(records, experiments.paper(), notes)
    kept = [drawing for drawing in made.drawings if not drawing.key.startswith("images-")]
    return replace(made, drawings=kept)


def made_part(page: str, made: reproduction.Report) -> str:
    """What stands below the mark of a page."""
    sections = [one for one in made.sections if PAGES[page](one[0])]
    text = markdown(sections, made.summary, made.records.quick, ASSETS)
    if len(sections) > 1:
        return text.partition("\n\n")[2]  # the page has a heading of its own
    return text.partition(f"## {sections[0][0]}\n\n")[2].replace("\n### ", "\n## ")


def main() -> None:
    """Write the pages and their figures."""
    made = report()
    for page in PAGES:
        path = DOCS / page
        above, mark, _ = path.read_text("utf-8").partition(MARK)
        if not mark:
            raise SystemExit(f"{path} has no line {MARK}")
        path.write_text(f"{above}{MARK}\n\n{made_part(page, made)}", "utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    for drawing in made.drawings:
        file = DOCS / ASSETS / f"{drawing.key}.png"
        file.write_bytes(drawn(drawing.draw())["png"])
        print(f"wrote {file.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
