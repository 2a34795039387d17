"""The report's files: the page, and the tables in Markdown and LaTeX."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from markdown_it import MarkdownIt

from dubito import experiments
from dubito.report import reproduction
from dubito.report.reproduction.formats import QUICK, latex, markdown
from dubito.report.reproduction.layout import Table
from dubito.report.reproduction.provenance import origins, setup
from dubito.report.reproduction.published import published
from dubito.report.reproduction.records import Records
from report import synthetic
from report.synthetic import NOTE

Made = reproduction.Report
VOID = {"meta", "img", "source", "br"}


class Page(HTMLParser):
    """What is where in a page; a tag that closes another one is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None], tuple[str, ...]]] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), tuple(self.open)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes, _ in self.found if name == tag]


def rendered(text: str) -> Page:
    """What a reader of Markdown sees."""
    return Page(MarkdownIt("commonmark", {"xhtmlOut": False}).enable("table").render(text))


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page((folder / "report.html").read_text("utf-8"))


# --- the page ------------------------------------------------------------------------------------


def test_the_page_stands_alone(page: Page, folder: Path) -> None:
    for _, attributes, _ in page.found:
        for name in ("src", "srcset", "href"):
            if (value := attributes.get(name)) is not None:
                assert value.startswith(("#", "data:image/png;base64,")), value[:60]
    assert not page.all("script") + page.all("link")
    assert "url(" not in (folder / "report.html").read_text("utf-8")


def test_links_lead_somewhere_and_names_are_given_once(page: Page) -> None:
    names = [a["id"] for _, a, _ in page.found if "id" in a]
    assert len(names) == len(set(names))
    assert {str(a["href"])[1:] for a in page.all("a")} <= set(names)


def test_pictures_are_described_and_have_a_narrow_form(page: Page) -> None:
    pictures = page.all("img")
    assert len(pictures) == 7
    assert all(len(str(a["alt"])) > 40 for a in pictures)
    narrow = [str(a["srcset"]) for a in page.all("source")]
    assert len(narrow) == 5  # sheets of images are narrow as they are
    assert not set(narrow) & {a["src"] for a in pictures}


def test_tables_scroll_in_their_own_box(page: Page) -> None:
    boxes = [a for a in page.all("div") if a.get("class") == "wide"]
    assert len(boxes) == len(page.all("table")) > 10
    for box in boxes:
        assert box["tabindex"] == "0"  # without a mouse, too
        assert "aria-label" in box or "aria-labelledby" in box


def test_cells_show_numbers_verdict_and_reason(page: Page, made: Made) -> None:
    hints = [str(a["title"]) for a in page.all("td") if "title" in a]
    assert sum(hint.startswith("not run") for hint in hints) > 10
    assert sum(hint.startswith("this method has no α₀") for hint in hints) > 2
    classes = {a.get("class") for a in page.all("span")}
    assert {"mark agrees", "mark better", "mark worse", "mark missing"} & classes >= {
        "mark better", "mark missing"
    }  # fmt: skip
    shown = re.sub(r"\s+", " ", page.words)
    for sign, word in (("▲", "better"), ("▼", "worse")):
        assert f"{sign} {word}" in shown
    assert "paper 98.34 ±0.2" in shown


def test_a_quick_run_is_marked_everywhere(page: Page, folder: Path) -> None:
    title = re.search("<title>(.*)</title>", (folder / "report.html").read_text("utf-8"))
    assert title is not None
    assert QUICK in title[1]
    tables = len(page.all("table")) - 1  # that of the recipes has no figures
    tags = sum(a.get("class") == "tag" for a in page.all("span"))
    assert tags == tables + len(page.all("img"))
    text = (folder / "tables.md").read_text("utf-8")
    assert text.startswith(f"# Reproduction ({QUICK})")
    assert all(QUICK in line for line in text.splitlines() if line.startswith("### "))
    tex = (folder / "tables.tex").read_text("utf-8")
    assert all(QUICK in line for line in tex.splitlines() if line.startswith(r"\caption"))


def test_notes_are_shown_and_escaped(page: Page, folder: Path) -> None:
    assert NOTE in page.words
    assert "<network>" not in (folder / "report.html").read_text("utf-8")
    assert NOTE in rendered((folder / "tables.md").read_text("utf-8")).words


def test_seeds_time_versions_and_settings_are_below(page: Page) -> None:
    for words in ("322, 365, 382, 510, 988", "torch 2.13.0", "NVIDIA H200", "fisher_weight=0.05",
                  "2026-11-10 to 2026-11-14", "learning_rate=0.0005"):  # fmt: skip
        assert words in page.words


def test_a_full_run_has_no_mark(made: Made) -> None:
    text = markdown(made.sections, made.summary, made.records.quick, "figures")
    assert QUICK not in text + latex(made.tables, made.summary, made.records.quick)


def test_settings_that_differ_between_seeds_are_told() -> None:
    every = [synthetic.record("mnist-edl", seed) for seed in (322, 365)]
    assert origins(Records(every))[0].differs == ()
    every[1]["config"]["training"]["learning_rate"] = 1.0
    every[1]["versions"]["torch"] = "2.14"
    records = Records(every)
    assert origins(records)[0].differs == ("training.learning_rate",)
    every[1]["config"]["training"]["compile"] = True  # which changes nothing, and is said
    assert origins(Records(every))[0].differs == ("training.learning_rate", "training.compile")
    assert dict(setup(records).versions)["torch"] == "2.13.0 and 2.14"
    seconds = sum(record["training"]["seconds"] for record in every)
    assert setup(records).hours == pytest.approx(seconds / 3600)


# --- Markdown and LaTeX --------------------------------------------------------------------------


def test_markdown_has_every_cell(made: Made) -> None:
    text = markdown(made.sections, made.summary, False, "figures")
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        lines = block.splitlines()
        assert len({line.count("|") for line in lines}) == 1
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == sum(len(table.rows) + 2 for table in made.tables)
    entry = next(e for t in made.tables for e in t.entries if e.verdict == "worse")
    assert f"{entry.ours} {entry.spread}<br>{entry.paper}<br>▼ worse" in text
    assert text.count("](figures/") == len(made.drawings)


def test_latex_is_whole(made: Made) -> None:
    assert_whole(latex(made.tables, made.summary, False), made.tables)


def assert_whole(text: str, tables: list[Table]) -> None:
    code = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert code.isascii()
    assert code.count("{") == code.count("}")
    assert len(re.findall(r"(?<!\\)\$", code)) % 2 == 0
    assert not re.search(r"(?<!\\)[%#]", code.replace("{%\n", "{\n"))  # that one is meant
    for table, block in zip(tables, code.split(r"\begin{tabular}")[1:], strict=True):
        width = len(table.columns) + 2
        assert block.startswith("{lr" + "r" * len(table.columns) + "}")
        body = block.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
        assert {len(re.split(r"(?<!\\)&", line)) for line in body} == {width}
        assert all(line.endswith(r"\\") for line in body)
        spans = re.findall(r"\\multicolumn\{(\d+)\}", block)
        assert not spans or sum(map(int, spans)) == len(table.columns)


def test_a_record_without_curves_has_tables_alone(paper: dict[str, Any], tmp_path: Path) -> None:
    record = synthetic.record("mnist-iedl", 322)
    for key in ("curves", "extremes", "training", "versions", "device", "created"):
        del record[key]
    record["result"] = {"accuracy": 0.99}
    made = reproduction.report([record], paper)
    assert [drawing.key for drawing in made.drawings] == ["overview"]  # the paper's numbers
    paths = reproduction.write([record], {}, tmp_path)
    assert [path.name for path in paths] == ["report.html", "tables.md", "tables.tex"]
    assert "99.00" in Page(paths[0].read_text("utf-8")).words


def test_recipes_of_other_data_are_named(paper: dict[str, Any], tmp_path: Path) -> None:
    record = synthetic.record("mnist-iedl", 322) | {"recipe": "digits-iedl"}
    page = Page(reproduction.write([record], {}, tmp_path)[0].read_text("utf-8"))
    assert "No table is of the data of these recipes: digits-iedl." in page.words
    assert len(published(paper)) == 127


# --- names with signs ----------------------------------------------------------------------------

#: a name of all that some format takes for more than text
ODD = r"a|b $c$ 50% _d_ #1 & \\e <i> `f` *g* ~h~ [i](j) {k}^ $\frac$"


@pytest.fixture(scope="module")
def odd() -> Made:
    """A report of a recipe and a data set with such names, and with lines that end within."""
    record = synthetic.record("mnist-iedl", 322) | {"recipe": f"mnist-iedl-{ODD}\n\nz"}
    for part in (record["result"]["ood"], record["curves"]["densities"]):
        part[f"ood {ODD}\n\nz"] = part["kmnist"]
    history = {"epoch": [1, 2], "watched": {"accuracy": [0.5, 0.6]}}
    record["training"] |= {"history": history, "best_epoch": 2}
    other = {**record, "recipe": f"mnist-edl-{ODD}\n\nz"}
    notes = {"mnist-iedl/ood/kmnist/max_prob/aupr": f"Note {ODD}\n\nz"}
    return reproduction.report([record, other], experiments.paper(), notes)


def test_signs_in_names_are_text_in_markdown(odd: Made) -> None:
    text = markdown(odd.sections, odd.summary, False, "figures")
    assert "$" not in text
    page = rendered(text)
    for name in (f"I-EDL ({ODD}  z)", f"MNIST → ood {ODD}  z"):
        assert name in page.words
    assert not page.all("code") + page.all("i") + page.all("a") + page.all("del")
    assert len(page.all("img")) == len(odd.drawings)
    assert {str(a["src"]) for a in page.all("img")} >= {
        f"figures/{quote(d.key)}.png" for d in odd.drawings
    }
    rows = len(page.all("tr"))
    assert rows == sum(len(table.rows) + 1 for table in odd.tables)
    cells = len(page.all("td")) + len(page.all("th"))
    assert cells == sum((len(t.rows) + 1) * (len(t.columns) + 2) for t in odd.tables)


def test_signs_in_names_are_text_in_latex(odd: Made) -> None:
    text = latex(odd.tables, odd.summary, False)
    assert_whole(text, odd.tables)
    assert r"a\textbar{}b \$c\$ 50\% \_d\_ \#1 \& " in text
    labels = re.findall(r"\\label\{(.*)\}", text)
    assert len(labels) == len(set(labels)) == len(odd.tables)
    assert all(re.fullmatch(r"tab:[A-Za-z0-9.-]+", label) for label in labels)
    assert "\n\n\n" not in text
    assert text.count("\n\n") == len(odd.tables)


def test_signs_in_names_are_text_on_the_page(odd: Made, tmp_path: Path) -> None:
    (path, *_) = reproduction.write_report(replace(odd, drawings=[]), tmp_path)
    assert f"I-EDL ({ODD}\n\nz)" in Page(path.read_text("utf-8")).words
