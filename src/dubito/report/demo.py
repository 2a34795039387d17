"""The demonstration's results as tables, a reading in one sentence, a figure and a page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from dubito._legacy import MEASURES
from dubito.demo import DRAWN, OUTSIDE, SETS, Outcome, Results
from dubito.report import figures, files, html
from dubito.report.tables import Better, Cell, Table, markdown, mean_cells

__all__ = ["SHOWN", "densities", "reading", "tables", "write"]

#: the measures that the summary shows
SHOWN = ("max_prob", "alpha0", "differential_entropy", "mutual_information")
METRICS = {"aupr": "AUPR", "auroc": "AUROC"}
UP, DOWN = "\u00a0↑", "\u00a0↓"  # which is better; on the line of the last word


def tables(results: Results, measures: Iterable[str] = SHOWN) -> list[Table]:
    """How the methods do on the test digits, and how they tell these from each other set."""
    asked = tuple(measures)
    return [_digits_table(results), *(_ood_table(results, name, asked) for name in OUTSIDE)]


def _digits_table(results: Results) -> Table:
    rows = [
        (f"Accuracy{UP}", _percents(results, ["accuracy"], "higher")),
        (f"Calibration error (ECE){DOWN}", _percents(results, ["calibration", "ece"], "lower")),
    ]
    for measure in ("max_prob", "max_alpha"):
        path = ["confidence", measure, "aupr"]
        name = f"Right or wrong, AUPR by {MEASURES[measure].label}{UP}"
        rows.append((name, _percents(results, path, "higher", ".2f")))  # all but 100: it takes two
    rows.append(
        (f"Refused {SETS['digits']}{DOWN}", _percents(results, ["refused", "digits"], "lower"))
    )
    for name in OUTSIDE:
        rows.append((f"Refused {SETS[name]}{UP}", _percents(results, ["refused", name], "higher")))
    title = f"{results.samples['test']} test digits, and what is refused (%)"
    return Table(title, ("", *_titles(results)), tuple(rows))


def _ood_table(results: Results, name: str, measures: Sequence[str]) -> Table:
    rows = []
    for measure in measures:
        pairs = [_percents(results, ["ood", name, measure, m], "higher") for m in METRICS]
        rows.append((MEASURES[measure].label, tuple(cell for pair in pairs for cell in pair)))
    columns = [f"{label} {title}" for label in METRICS.values() for title in _titles(results)]
    title = f"{SETS['digits'].capitalize()} or {SETS[name]}? (%)"
    return Table(title, ("Measure", *columns), tuple(rows))


def _titles(results: Results) -> list[str]:
    return [outcome.title for outcome in results.methods.values()]


def _percents(
    results: Results, path: Sequence[str], better: Better, form: str = ".1f"
) -> tuple[Cell, ...]:
    samples = [[100 * v for v in _found(o, path)] for o in results.methods.values()]
    return tuple(mean_cells(samples, better, form))


def _found(outcome: Outcome, path: Sequence[str]) -> list[float]:
    """The number at a path into the scores of each run that has it."""
    found = []
    for scores in outcome.runs:
        value: Any = vars(scores)
        for key in path:
            value = value.get(key, {})
        if value != {}:
            found.append(value)
    return found


def reading(results: Results) -> str:
    """What the numbers say, in one sentence: the second method against the first."""
    base, ours = results.methods.values()
    paths = [["ood", n, measure, m] for n in OUTSIDE for measure in SHOWN for m in METRICS]
    signs = [
        {(a > b) - (a < b) for a, b in zip(_found(ours, path), _found(base, path), strict=True)}
        for path in paths
    ]

    def share(*path: str) -> str:
        a, b = (100 * mean(_found(outcome, path)) for outcome in (ours, base))
        return f"{a:.1f} % ({base.title} {b:.1f} %)"

    refused = [f"{share('refused', name)} of the {words}" for name, words in SETS.items()]
    return (
        f"Over {len(ours.runs)} runs {ours.title} is right on {share('accuracy')} of the test "
        f"digits, refuses {', '.join(refused[:-1])} and {refused[-1]}, and of {len(paths)} "
        f"out-of-distribution figures has the better one in every run for {signs.count({1})} "
        f"and the worse one in every run for {signs.count({-1})}."
    )


def densities(results: Results, *, stacked: bool = False) -> bytes:
    """The figure: how the drawn measure spreads over each set, in a panel for each method."""
    panels = []
    for outcome in results.methods.values():
        apart = ", ".join(f"{outcome.energy_distance[name]:.2f} {SETS[name]}" for name in OUTSIDE)
        samples = {words: outcome.drawn[name].numpy() for name, words in SETS.items()}
        panels.append(figures.Panel(outcome.title, f"energy distance: {apart}", samples))
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
        mean_of=lambda outcome, *path: mean(_found(outcome, path)),
        reading=said,
    )
