"""Tables as Markdown, LaTeX and HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

from reproduction.summary import Summary
from reproduction.tables import Table, number

__all__ = ["html_page", "latex_document", "markdown_document", "markdown_table"]

SIGNS = {"agrees": "≈", "better": "▲", "worse": "▼"}
QUICK = "quick run: tiny data, few epochs; no evidence"
LEGEND = (
    "Each cell has our mean ± standard deviation over seeds; below it the paper's, and how ours "
    "stands to it: ≈ agrees (within the paper's deviation), ▲ better, ▼ worse. The best of our "
    "means in a column is bold. Figures are in per cent unless the heading says otherwise; a "
    "published deviation of 0.0 is read as 0.05, what it was rounded from at most."
)
TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_", "\u00a0": "~",
    "α₀": r"$\alpha_0$", "α": r"$\alpha$", "λ": r"$\lambda$", "ρ": r"$\rho$", "β": r"$\beta$",
    "→": r"$\rightarrow$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "±": r"$\pm$", "−": "$-$",
    "∞": r"$\infty$", "≈": r"$\approx$", "▲": r"$\blacktriangle$", "▼": r"$\blacktriangledown$",
    "–": "--",
}  # fmt: skip


def lines(cell: Any) -> list[str]:
    """Return the lines of a cell: ours, the published numbers, the verdict."""
    spread = "" if pd.isna(cell.spread) else f" ±{number(cell.spread, cell.digits)}"
    texts = [f"{cell.shown}{spread}"]
    sources = [source for source, _ in cell.beside]
    named = len(sources) > 1 or sources != ["paper"] or cell.episodes > 0
    texts += [f"{source} {theirs}" if named else str(theirs) for source, theirs in cell.beside]
    return texts + ([f"{SIGNS[cell.verdict]} {cell.verdict}"] if cell.verdict else [])


def frame(table: Table, bold: str, separator: str) -> pd.DataFrame:
    """Return the texts of a table: index rows, columns (group, title).

    Args:
        table: Table.
        bold: Template of the best number: "**{}**".
        separator: Between the lines of a cell.
    """
    texts = []
    for cell in table.cells.itertuples():
        first, *rest = lines(cell)
        if cell.best:
            first = first.replace(cell.shown, bold.format(cell.shown), 1)
        texts.append(separator.join([first, *rest]))
    cells = table.cells.assign(text=texts)
    pivoted = cells.pivot(index="i", columns="j", values="text")
    heads = cells.drop_duplicates("j")
    pivoted.columns = pd.MultiIndex.from_arrays([heads["group"], heads["column"]])
    rows = cells.drop_duplicates("i")
    pivoted.insert(0, ("", table.counted), rows["count"].to_numpy())
    pivoted.index = pd.Index(rows["row"], name=table.first)
    return pivoted


def markdown_table(table: Table) -> str:
    """Return a table in Markdown."""
    body = frame(table, "**{}**", "<br>")
    heads = [table.first, *("<br>".join(filter(None, head)) for head in body.columns)]
    rows = [heads, ["---", *["---:"] * len(body.columns)]]
    rows += [[name, *texts] for name, texts in zip(body.index, body.to_numpy(), strict=True)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def markdown_document(tables: Sequence[Table], summary: Summary, quick: bool) -> str:
    """Return all tables in Markdown, with the summary."""
    parts = ["# Reproduction" + (f" ({QUICK})" if quick else ""), summary.sentence, LEGEND]
    if summary.worse:
        parts += ["## Worse than published", "\n".join(f"- {line}" for line in summary.worse)]
    if summary.behind:
        parts += ["## I-EDL behind EDL", "\n".join(f"- {line}" for line in summary.behind)]
    section = ""
    for table in tables:
        if table.section != section:
            section = table.section
            parts.append(f"## {section}")
        parts += [f"### {table.title}", markdown_table(table), *filter(None, [table.note])]
    return "\n\n".join(parts) + "\n"


def latex_document(tables: Sequence[Table], summary: Summary, quick: bool) -> str:
    """Return all tables in LaTeX."""
    head = "% Needs \\usepackage{booktabs, amssymb, graphicx, multirow}.\n"
    head += f"% {QUICK.upper() if quick else summary.sentence}"
    return "\n\n".join([head, *map(_latex_table, tables)]) + "\n"


def _latex_table(table: Table) -> str:
    # Two signs that no cell has stand for bold, and for the lines of a cell, until all is escaped.
    texts = frame(table, "\x01{}\x02", "\x03").map(_tex).rename(index=_tex, columns=_tex)
    texts = texts.map(_stack)
    texts.index.name, texts.columns.names = None, [None, None]
    text: str = (
        texts.to_latex(
            escape=False,
            column_format="l" + "r" * len(texts.columns),
            multicolumn_format="c",
            caption=_tex(f"{table.section}: {table.title}. {table.note}".strip()),
            label=f"tab:{re.sub(r'[^a-z0-9.]+', '-', table.key)}",
            position="t",
        )
        .replace("\\begin{tabular}", "\\centering\\resizebox{\\textwidth}{!}{\\begin{tabular}")
        .replace("\\end{tabular}", "\\end{tabular}}")
    )
    return text


def _stack(text: str) -> str:
    """Set the lines of a cell below each other."""
    stacked = text.replace("\x01", r"\textbf{").replace("\x02", "}").replace("\x03", r"\\")
    return rf"\shortstack[r]{{{stacked}}}" if "\x03" in text else stacked


def _tex(text: str) -> str:
    """Escape text for LaTeX.

    >>> _tex("ECE (%) of α₀")
    'ECE (\\\\%) of $\\\\alpha_0$'
    """
    known = "|".join(map(re.escape, sorted(TEX, key=len, reverse=True)))
    return re.sub(known, lambda match: TEX[match[0]], text)


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
td, th { padding: .3em .6em; text-align: right; vertical-align: top; border-bottom: 1px solid #ccc }
tbody th { text-align: left; white-space: nowrap }
div { overflow-x: auto } img { max-width: 100% } small { color: #666 }
"""


def html_page(
    tables: Sequence[Table], summary: Summary, quick: bool, pictures: Sequence[tuple[str, str]]
) -> str:
    """Return a page with all tables and figures.

    Args:
        tables: Tables.
        summary: Summary.
        quick: Whether numbers come from a quick run.
        pictures: File and caption of each figure.
    """
    parts = [f"<p>{html.escape(text)}</p>" for text in (summary.sentence, LEGEND)]
    parts += [f"<p>{html.escape(line)}</p>" for line in (*summary.worse, *summary.behind)]
    parts += [
        f'<figure><img src="{html.escape(file)}" alt=""><figcaption>{html.escape(caption)}'
        "</figcaption></figure>"
        for file, caption in pictures
    ]
    section = ""
    for table in tables:
        if table.section != section:
            section = table.section
            parts.append(f"<h2>{html.escape(section)}</h2>")
        content = frame(table, "<b>{}</b>", "<br>").to_html(escape=False, border=0)
        note = f"<p><small>{html.escape(table.note)}</small></p>" if table.note else ""
        parts.append(f"<h3>{html.escape(table.title)}</h3><div>{content}</div>{note}")
    title = "Reproduction" + (f" ({QUICK})" if quick else "")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
        f"<h1>{title}</h1>{''.join(parts)}</html>\n"
    )
