"""The report: tables, figures and the pages of the documentation."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from dubito._files import atomic_write, make_folder
from dubito.errors import DubitoError
from reproduction import fewshot, stopping, tables
from reproduction.figures import drawings
from reproduction.formats import (
    LEGEND,
    html_page,
    latex_document,
    markdown_document,
    markdown_table,
)
from reproduction.results import DATASETS, Results
from reproduction.store import Store
from reproduction.summary import summarize
from reproduction.tables import Table

__all__ = ["all_tables", "pages", "stopping_text", "write", "write_pages"]

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("results.md", "fewshot-results.md", "stopping.md")
#: figures that pages show; `write` makes all of them
SHOWN = (
    "overview", "epochs-cifar10-iedl-by-accuracy-bf16", "epochs-cifar10-iedl-averaged",
    "epochs-cifar10-rkl-pn-averaged",
)  # fmt: skip
#: recipes of the figure of stopping rules
RULES = ("cifar10-iedl-by-accuracy", "cifar10-iedl-by-accuracy-bf16")
BLOCK = re.compile(r"(<!-- begin (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def all_tables(results: Results) -> list[Table]:
    """Build all tables."""
    return [*tables.tables(results), *fewshot.tables(results)]


def write(store: Store, out: Path) -> Path:
    """Write tables.md, tables.tex, report.html and figures/*.png.

    Args:
        store: Records.
        out: Folder of the files.

    Returns:
        The page.
    """
    results = Results(store.current(), store.recipes)
    every = all_tables(results)
    summary, quick = summarize(results, every), results.quick
    pictures = []
    make_folder(out / "figures")
    for drawing in drawings(results):
        path = out / "figures" / f"{drawing.key}.png"
        atomic_write(path, png(drawing.draw()))
        pictures.append((f"figures/{path.name}", drawing.caption))
    atomic_write(out / "tables.md", markdown_document(every, summary, quick))
    atomic_write(out / "tables.tex", latex_document(every, summary, quick))
    return atomic_write(out / "report.html", html_page(every, summary, quick, pictures))


def png(figure: Figure) -> bytes:
    """Return a figure as PNG, the same bytes for the same figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()


def pages(results: Results, docs: Path = DOCS) -> dict[Path, str]:
    """Return the pages of the documentation with their generated blocks updated.

    A block is between `<!-- begin NAME -->` and `<!-- end -->`.

    Args:
        results: Results.
        docs: Folder of the pages.
    """
    blocks = _blocks(results)
    texts = {docs / name: (docs / name).read_text("utf-8") for name in PAGES}
    return {
        path: BLOCK.sub(lambda match: f"{match[1]}\n{blocks[match[2]]}\n\n{match[3]}", text)
        for path, text in texts.items()
    }


def write_pages(store: Store) -> None:
    """Update the generated blocks and the figures of the documentation."""
    results = Results(store.current(), store.recipes)
    for path, text in pages(results).items():
        atomic_write(path, text)
    for drawing in drawings(results):
        if drawing.key in SHOWN:
            atomic_write(DOCS / "assets" / f"{drawing.key}.png", png(drawing.draw()))
    recipes = [store.recipes[name] for name in RULES]
    atomic_write(DOCS / "assets" / "stopping-rules.png", png(stopping.figure(results, recipes)))


def _blocks(results: Results) -> dict[str, str]:
    """Return the generated blocks by name."""
    every = all_tables(results)
    blocks = {table.key: markdown_table(table) for table in every}
    blocks["summary"] = summarize(results, every).sentence
    blocks["legend"] = LEGEND
    for dataset in DATASETS:
        blocks[f"main-{dataset}"] = markdown_table(tables.main_table(results, dataset))
    for recipe in results.recipes.values():
        if runs := stopping.histories(results, recipe):
            blocks[f"rules-{recipe.name}"] = frame_text(stopping.rules(runs))
    return blocks


def stopping_text(store: Store, names: Iterable[str]) -> str:
    """Return the results of stopping rules in the trainings of some recipes.

    Args:
        store: Records.
        names: Recipes; those without evaluations at each validation are left out.
    """
    results = Results(store.current(), store.recipes)
    parts = []
    for name in names:
        if runs := stopping.histories(results, store.recipes[name]):
            texts = frame_text(stopping.rules(runs)), frame_text(stopping.spans(runs))
            parts.append(f"{name}, {len(runs)} seeds\n\n{texts[0]}\n\n{texts[1]}")
    if not parts:
        raise DubitoError("none of these recipes was evaluated at each validation")
    return "\n\n".join(parts)


def frame_text(frame: pd.DataFrame) -> str:
    """Return a data frame of text as a Markdown table."""
    rows = [[str(frame.index.name), *frame.columns], ["---", *["---:"] * len(frame.columns)]]
    rows += [[str(name), *row] for name, row in zip(frame.index, frame.to_numpy(), strict=True)]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)
