"""The demonstration's results as tables, a reading in one sentence, a figure and a page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from dubito.demo import DRAWN, OUTSIDE, SETS, Results
from dubito.measures import MEASURES
from dubito.report import figures, files, html
from dubito.report.tables import Better, Cell, Table, cells, markdown

__all__ = ["SHOWN", "densities", "reading", "tables", "write"]

#: the measures that the summary shows
SHOWN = ("max_prob", "alpha0", "differential_entropy", "mutual_information")
METRICS = {"aupr": "AUPR", "auroc": "AUROC"}


def tables(results: Results, measures: Iterable[str] = SHOWN) -> list[Table]:
    """How the methods do on the test digits, and how they tell these from each other set."""
    asked = tuple(measures)
    return [_digits_table(results), *(_ood_table(results, name, asked) for name in OUTSIDE)]


def _digits_table(results: Results) -> Table:
    scores = list(results.scores.values())
    rows = [
        ("Accuracy ↑", _percents([s.accuracy for s in scores], "higher")),
        ("Calibration error (ECE) ↓", _percents([s.calibration["ece"] for s in scores], "lower")),
    ]
    for measure in ("max_prob", "max_alpha"):
        found = [s.confidence[measure]["aupr"] if s.confidence else None for s in scores]
        name = f"Right or wrong, AUPR by {MEASURES[measure].label} ↑"
        rows.append((name, _percents(found, "higher")))
    for name, words in SETS.items():
        better: Better = "lower" if name == "digits" else "higher"
        arrow = "↓" if name == "digits" else "↑"
        shares = [s.refused[name] for s in scores]
        rows.append((f"Refused {words} {arrow}", _percents(shares, better)))
    title = f"{results.samples['test']} test digits, and what is refused (%)"
    return Table(title, ("", *(s.title for s in scores)), tuple(rows))


def _ood_table(results: Results, name: str, measures: Sequence[str]) -> Table:
    scores = list(results.scores.values())
    columns = [f"{label} {s.title}" for label in METRICS.values() for s in scores]
    rows = []
    for measure in measures:
        row: list[Cell] = []
        for metric in METRICS:
            row += _percents([s.ood[name][measure][metric] for s in scores], "higher")
        rows.append((MEASURES[measure].label, tuple(row)))
    title = f"{SETS['digits'].capitalize()} or {SETS[name]}? (%)"
    return Table(title, ("Measure", *columns), tuple(rows))


def _percents(fractions: Sequence[float | None], better: Better) -> tuple[Cell, ...]:
    return tuple(cells([None if f is None else 100 * f for f in fractions], better))


def reading(results: Results) -> str:
    """What the numbers say, in one line: the second method against the first."""
    base, ours = results.scores.values()
    gaps = [
        ours.ood[name][measure][metric] - base.ood[name][measure][metric]
        for name in OUTSIDE
        for measure in SHOWN
        for metric in METRICS
    ]
    ahead, behind = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
    more = round((ours.accuracy - base.accuracy) * results.samples["test"])
    count = f"{abs(more)} {'more' if more > 0 else 'fewer'} test digits right than"
    refusals = [
        f"{100 * ours.refused[name]:.0f} % of the {SETS[name]} ({100 * base.refused[name]:.0f} %)"
        for name in (*OUTSIDE, "digits")
    ]
    return (
        f"{ours.title} is ahead of {base.title} in {ahead} and behind in {behind} of {len(gaps)} "
        f"out-of-distribution figures, gets {count if more else 'as many test digits right as'} "
        f"{base.title}, and refuses (in brackets {base.title}) "
        f"{', '.join(refusals[:-1])} and {refusals[-1]}."
    )


def densities(results: Results, *, stacked: bool = False) -> bytes:
    """The figure: how the drawn measure spreads over each set, in a panel for each method."""
    panels = []
    for scores in results.scores.values():
        apart = ", ".join(f"{scores.energy_distance[name]:.2f} {SETS[name]}" for name in OUTSIDE)
        samples = {words: scores.drawn[name].numpy() for name, words in SETS.items()}
        panels.append(figures.Panel(scores.title, f"energy distance: {apart}", samples))
    measure = DRAWN.replace("_", " ")
    label = f"{measure}, scaled to [0, 1]"
    return figures.densities(panels, label, ("sure", "unsure"), stacked=stacked)


def write(results: Results, folder: Path) -> Results:
    """Write the four files, each whole or not at all; the results know them then."""
    said, figure = reading(results), densities(results)
    everything = tables(results, MEASURES)
    content: dict[str, str | bytes] = {
        "results.json": json.dumps({**results.as_dict(), "reading": said}, indent=2) + "\n",
        "results.md": "\n\n".join(["# dubito demo", *map(markdown, everything), said]) + "\n",
        "densities.png": figure,
        "report.html": _page(results, everything, figure, said),
    }
    written = {name: files.write(folder / name, data) for name, data in content.items()}
    return replace(results, files=written)


def _page(results: Results, everything: list[Table], figure: bytes, said: str) -> str:
    images = [html.picture(html.png(example.image.numpy())) for example in results.examples]
    return html.page(
        "demo.html",
        results=results,
        sets=SETS,
        tables=everything,
        figure=html.picture(figure),
        narrow_figure=html.picture(densities(results, stacked=True)),
        examples=list(zip(results.examples, images, strict=True)),
        reading=said,
    )
