"""The reproduction's report: every table and figure of the paper, ours beside theirs."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dubito.report import files, html
from dubito.report.figures.style import drawn
from dubito.report.reproduction import fewshot, fewshot_drawings
from dubito.report.reproduction.drawing import Drawing
from dubito.report.reproduction.drawings import drawings
from dubito.report.reproduction.episodes import of_code, of_paper
from dubito.report.reproduction.formats import LEGEND, QUICK, latex, markdown
from dubito.report.reproduction.layout import Table
from dubito.report.reproduction.names import METHODS_SHOWN
from dubito.report.reproduction.provenance import origins, setup
from dubito.report.reproduction.published import VERDICTS, published
from dubito.report.reproduction.records import Records, read
from dubito.report.reproduction.summary import Summary, grouped, summary
from dubito.report.reproduction.tables import tables, unshown

__all__ = [
    "METHODS_SHOWN",
    "NOTES",
    "QUICK",
    "Report",
    "read",
    "read_notes",
    "read_paper",
    "report",
    "write",
    "write_report",
]

#: the file beside the records that explains cells: label = "text"
NOTES = "notes.toml"
FIGURES = "figures"


@dataclass(frozen=True)
class Report:
    """All that the page shows."""

    records: Records
    tables: list[Table]
    drawings: list[Drawing]
    summary: Summary
    left_out: list[str]

    @property
    def sections(self) -> list[tuple[str, list[Drawing], list[Table]]]:
        """The sections in order, each with its figures and tables."""
        names = dict.fromkeys([t.section for t in self.tables] + [d.section for d in self.drawings])
        return [
            (
                name,
                [d for d in self.drawings if d.section == name],
                [t for t in self.tables if t.section == name],
            )
            for name in names
        ]


def report(
    records: Iterable[Mapping[str, Any]],
    paper: Mapping[str, Any],
    notes: Mapping[str, str] | None = None,
) -> Report:
    """Tables, figures and summary of the records of finished cells.

    `paper` has the published numbers, as in experiments/paper.toml, and `notes` explains cells by
    their label, in which * stands for anything.
    """
    checked, numbers = Records(list(records)), published(paper)
    made = [*tables(checked, numbers), *fewshot.tables(checked, paper)]
    figures, left_out = drawings(checked, numbers)
    figures += fewshot_drawings.drawings(checked, paper)
    return Report(checked, made, figures, summary(made, notes), left_out)


def read_notes(folder: Path) -> dict[str, str]:
    """What explains cells, from the file notes.toml beside the records; nothing without one."""
    path = Path(folder) / NOTES
    if not path.exists():
        return {}
    notes = _toml(path)
    for label, text in notes.items():
        if not isinstance(text, str):
            raise ValueError(f"{path}: {label!r} must be a text in quotes, not {text!r}")
    return notes


def read_paper(path: Path) -> dict[str, Any]:
    """Published numbers from a file that is like experiments/paper.toml."""
    paper = _toml(path)
    try:
        for numbers in (published, of_paper, of_code):
            numbers(paper)
    except ValueError as error:
        raise ValueError(f"{path} can't be compared with: {error}") from error
    return paper


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:  # of letters that are no UTF-8, too
        raise ValueError(f"{path} is no toml: {error}") from error


def write(
    records: Iterable[Mapping[str, Any]],
    paper: Mapping[str, Any],
    out: Path,
    notes: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write report.html, tables.md, tables.tex and figures/*.png and *.pdf to a folder."""
    return write_report(report(records, paper, notes), out)


def write_report(made: Report, out: Path) -> list[Path]:
    """Write the files of a report to a folder, each whole or not at all."""
    folder = files.folder(Path(out))
    place = files.folder(folder / FIGURES) if made.drawings else folder
    written, wide, narrow = [], {}, {}
    for drawing in made.drawings:
        forms = drawn(drawing.draw(), ("png", "pdf"))
        wide[drawing.key] = html.picture(forms["png"])
        if drawing.narrow:
            narrow[drawing.key] = html.picture(drawn(drawing.draw(narrow=True))["png"])
        written += [files.write(place / f"{drawing.key}.{f}", data) for f, data in forms.items()]
    texts = {
        "report.html": _page(made, wide, narrow),
        "tables.md": markdown(made.sections, made.summary, made.records.quick, FIGURES),
        "tables.tex": latex(made.tables, made.summary, made.records.quick),
    }
    return [files.write(folder / name, text) for name, text in texts.items()] + written


def _page(made: Report, wide: Mapping[str, str], narrow: Mapping[str, str]) -> str:
    return html.page(
        "reproduction.html",
        quick=QUICK if made.records.quick else "",
        sections=made.sections,
        summary=made.summary,
        worse=grouped(made.summary.worse),
        missing=grouped(made.summary.missing),
        signs={**VERDICTS, "missing": "–"},
        legend=LEGEND,
        notes_file=NOTES,
        left_out=made.left_out,
        unshown=unshown(made.records),
        origins=origins(made.records),
        setup=setup(made.records),
        wide=wide,
        narrow=narrow,
    )
