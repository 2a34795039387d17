"""The tables in Markdown and in LaTeX."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from dubito.report.reproduction.drawing import Drawing
from dubito.report.reproduction.layout import Entry, Table
from dubito.report.reproduction.published import VERDICTS
from dubito.report.reproduction.summary import Group, Summary, grouped

__all__ = ["QUICK", "latex", "markdown"]

QUICK = "quick run: tiny data, few epochs; no evidence"
LEGEND = (
    "Each cell has our mean ± standard deviation over seeds; below it the paper's, and how ours "
    "stands to it: ≈ agrees (within the paper's deviation), ▲ better, ▼ worse. The best of our "
    "means in a column is bold. Figures are in per cent unless the heading says otherwise; a "
    "published deviation of 0.0 is read as 0.05, what it was rounded from at most."
)


def markdown(
    sections: Sequence[tuple[str, Sequence[Drawing], Sequence[Table]]],
    summary: Summary,
    quick: bool,
    figures: str,
) -> str:
    """All figures, as links into a folder, and tables; the summary is on top."""
    order = summary.order
    heading = "# Reproduction" + (f" ({QUICK})" if quick else "")
    parts = [heading, md(summary.sentence), LEGEND]
    if summary.worse:
        parts.append("## Worse than published")
        parts.append("\n".join(_worse_item(group) for group in grouped(summary.worse)))
    if order.broken:
        parts.append(f"## Where {order.ahead} is not ahead of {order.behind}")
        parts.append("\n".join(f"- {md(words)}" for words in order.broken))
        parts += map(md, order.notes)
    for name, drawings, tables in sections:
        parts.append(f"## {name}")
        for drawing in drawings:
            parts.append(f"![{md(drawing.alt)}]({figures}/{quote(drawing.key)}.png)")
            end = "" if drawing.title.endswith("?") else "."
            parts.append(f"*{md(f'{drawing.title}{end} {drawing.caption}')}*")
        for table in tables:
            parts.append(f"### {md(table.title)}" + (f" ({QUICK})" if table.quick else ""))
            parts.append(_markdown_table(table))
            if table.note:
                parts.append(md(table.note))
    return "\n\n".join(parts) + "\n"


def _worse_item(group: Group) -> str:
    cells = [
        f"{f.name} {f'{f.entry.ours} {f.entry.spread}'.strip()} ({f.compared})"
        for f in group.findings
    ]
    said = f"{group.table.title}, {group.row}: {'; '.join(cells)}."
    return f"- {md(' '.join([said, *group.notes]))}"


def _markdown_table(table: Table) -> str:
    heads = ["<br>".join(md(w) for w in (c.group, c.title) if w) for c in table.columns]
    lines = [
        "| " + " | ".join([md(table.first), table.counted, *heads]) + " |",
        "| --- | ---: | " + " | ".join("---:" for _ in heads) + " |",
    ]
    for row in table.rows:
        texts = [_markdown_cell(entry) for entry in row.entries]
        lines.append("| " + " | ".join([md(row.name), row.count, *texts]) + " |")
    return "\n".join(lines)


def _markdown_cell(entry: Entry) -> str:
    ours = f"**{entry.ours}**" if entry.best else entry.ours
    lines = [f"{ours} {entry.spread}".strip()]
    named = len(entry.lines) > 1 or entry.source != "paper"
    lines += [f"{whose} {text}" if named else text for whose, text in entry.lines]
    if entry.verdict:
        lines.append(f"{VERDICTS[entry.verdict]} {entry.verdict}")
    return "<br>".join(lines)


#: What is more than text to Markdown, with tables and formulas: not all that read it know a
#: backslash before the last ones.
_MARKDOWN = {
    **{sign: f"\\{sign}" for sign in "\\`*_#|"}, "](": r"]\(",
    **{sign: f"&#{ord(sign)};" for sign in "<>&$~"},
}  # fmt: skip
_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_", "$": r"\$",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "\u00a0": "~", "α₀": r"$\alpha_0$", "α": r"$\alpha$", "λ": r"$\lambda$", "ρ": r"$\rho$",
    "→": r"$\rightarrow$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "±": r"$\pm$",
    "−": "$-$", "∞": r"$\infty$", "≈": r"$\approx$", "▲": r"$\blacktriangle$",
    "▼": r"$\blacktriangledown$", "–": "--",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "`": r"\textasciigrave{}",
}  # fmt: skip
#: A sign alone has the room of a word in print.
_MARKS = {"agrees": r"$^{\approx}$", "better": r"$^{\blacktriangle}$",
          "worse": r"$^{\blacktriangledown}$"}  # fmt: skip


def md(text: str) -> str:
    """Text as Markdown takes it.

    >>> print(md("a|b, x_1 < $2"))
    a\\|b, x\\_1 &#60; &#36;2
    """
    return _escaped(text, _MARKDOWN)


def tex(text: str) -> str:
    """Text as LaTeX takes it.

    >>> tex("ECE (%) of α₀")
    'ECE (\\\\%) of $\\\\alpha_0$'
    """
    return _escaped(text, _TEX)


def _escaped(text: str, signs: Mapping[str, str]) -> str:
    """Text on one line, with what stands for each sign that is not to be taken as it is."""
    known = "|".join(map(re.escape, sorted(signs, key=len, reverse=True)))
    return re.sub(known, lambda found: signs[found[0]], _line(text))


def _line(text: str) -> str:
    return " ".join(text.splitlines())


def latex(tables: Sequence[Table], summary: Summary, quick: bool) -> str:
    """Each table as a float with booktabs rules: our row, and below it the paper's."""
    head = (
        "% Needs \\usepackage{booktabs, amssymb, graphicx}.\n"
        f"% {_line(summary.sentence)}\n"
        "% Marks: \\approx agrees, \\blacktriangle better, \\blacktriangledown worse."
    )
    if quick:
        head = f"% {QUICK.upper()}\n{head}"
    return "\n\n".join([head, *map(_latex_table, tables)]) + "\n"


def _latex_table(table: Table) -> str:
    width = len(table.columns)
    caption = f"{table.section}: {table.title}" + (f" ({QUICK})" if table.quick else "")
    note = f" {table.note}" if table.note else ""
    lines = [
        r"\begin{table}[t]",
        rf"\caption{{{tex(caption + '.' + note)}}}",
        rf"\label{{tab:{_slug(table.key)}}}",
        r"\centering\resizebox{\textwidth}{!}{%",
        rf"\begin{{tabular}}{{lr{'r' * width}}}",
        r"\toprule",
        *_latex_head(table),
        r"\midrule",
        *_latex_rows(table),
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def _slug(key: str) -> str:
    """A key as a label takes it.

    >>> _slug("ood-mnist-/my data/50%_#1.npz")
    'ood-mnist-my-data-50-1.npz'
    """
    return re.sub(r"[^A-Za-z0-9.]+", "-", key)


def _latex_head(table: Table) -> list[str]:
    lines = []
    if any(group for group, _ in table.groups):
        spans = [rf"\multicolumn{{{count}}}{{c}}{{{tex(group)}}}" for group, count in table.groups]
        lines.append(" & ".join(["", "", *spans]) + r" \\")
        at = 3
        for group, count in table.groups:
            if group:
                lines.append(rf"\cmidrule(lr){{{at}-{at + count - 1}}}")
            at += count
    titles = [tex(column.title) for column in table.columns]
    return [*lines, " & ".join([tex(table.first), tex(table.counted), *titles]) + r" \\"]


def _latex_rows(table: Table) -> list[str]:
    lines = []
    for row in table.rows:
        ours = [_latex_ours(entry) for entry in row.entries]
        lines.append(" & ".join([tex(row.name), tex(row.count), *ours]) + r" \\")
        others = [dict(entry.lines) for entry in row.entries]
        for whose in dict.fromkeys(name for one in others for name in one):
            texts = [rf"\small {tex(one[whose])}" if whose in one else "" for one in others]
            lines.append(" & ".join([rf"\quad\small {whose}", "", *texts]) + r" \\")
    return lines


def _latex_ours(entry: Entry) -> str:
    mean = rf"\textbf{{{tex(entry.ours)}}}" if entry.best else tex(entry.ours)
    spread = f" {tex(entry.spread)}" if entry.spread else ""
    return mean + spread + (_MARKS[entry.verdict] if entry.verdict else "")
