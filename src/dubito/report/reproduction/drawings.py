"""The report's figures: what is drawn of the records, with captions and descriptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from dubito._legacy import MEASURES
from dubito.report import figures
from dubito.report.figures import Curve, Interval, Ridge
from dubito.report.reproduction.drawing import Drawing
from dubito.report.reproduction.epochs import trajectories
from dubito.report.reproduction.extremes import sheets
from dubito.report.reproduction.names import SETS, SHOWN, label_of, method_label, ood_label
from dubito.report.reproduction.published import Key, Published, key_of
from dubito.report.reproduction.records import Records, at
from dubito.report.reproduction.tables import (
    CALIBRATION,
    OOD,
    SELECTION,
    SEPARATION,
    SWEPT,
    drawn_methods,
    lambdas,
    methods,
    outside,
)
from dubito.report.tables import deviation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["drawings"]

#: the methods whose densities and images are shown, as in the paper
COMPARED = ("edl", "iedl")
Numbers = Mapping[Key, Published]


def drawings(records: Records, numbers: Numbers) -> tuple[list[Drawing], list[str]]:
    """All figures that the records have the numbers for, and what was left out and why."""
    found = [
        *_overview(records, numbers),
        *(drawing for data in SETS for drawing in _spreads(records, data)),
        *(drawing for data in SETS for drawing in trajectories(records, data)),
        *(drawing for data in SETS for drawing in _sweep(records, data)),
        *_risks(records),
        *(drawing for data in SETS for drawing in _reliability(records, data)),
    ]
    left_out: list[str] = []
    for data in SETS:
        for sheet in sheets(records, data, COMPARED, left_out):
            draw = partial(_sheet, sheet.title, sheet.rows)
            words = (
                f"Test images of each class that {sheet.method} (seed {sheet.seed}) has the least "
                "and the most data uncertainty (expected entropy) about."
            )
            found.append(
                Drawing(sheet.key, SEPARATION, sheet.title, words, words, draw, narrow=False)
            )
    return found, left_out


def _sheet(title: str, rows: Any, *, narrow: bool = False) -> Figure:
    return figures.pictures(title, rows)


def _overview(records: Records, numbers: Numbers) -> Iterator[Drawing]:
    given: dict[str, dict[str, Interval]] = {}
    for data, known in SETS.items():
        for name in outside(records, data):
            rows = {}
            for variant in methods(records, data):
                path = ("result", "ood", name, "detection", "max_prob", "aupr")
                runs = [100 * v for v in records.numbers(f"{data}-{variant}", path).values()]
                theirs = numbers.get(key_of(data, variant, name, "max_prob", "aupr"))
                pair = None if theirs is None else (theirs.mean, theirs.deviation)
                if runs or pair:
                    rows[method_label(variant)] = Interval(runs, pair)
            if rows:
                given[f"{known.label} → {ood_label(name)}"] = rows
    if given:
        yield Drawing(
            "overview", OOD, "Every run beside the paper's interval",
            "AUPR by Max.P. Dots are runs and the diamond is their mean; the bar is the paper's "
            "mean ± deviation.",
            "For each pair of data sets and each method, the AUPR of every run as a dot and the "
            "paper's mean and deviation as a bar; the numbers are in the tables below.",
            partial(figures.intervals, given, "AUPR (%)"),
        )  # fmt: skip


def _spreads(records: Records, data: str) -> Iterator[Drawing]:
    names = records.keys(data, ("curves", "densities"))
    panels = {
        (variant, measure): _ridge(records, data, variant, measure, names)
        for variant in COMPARED
        for measure in SHOWN
    }
    panels = {place: ridge for place, ridge in panels.items() if ridge.rows}
    if not panels:
        return
    variants = [v for v in COMPARED if any(place[0] == v for place in panels)]
    wide = [panels[v, m] for v in variants for m in SHOWN if (v, m) in panels]
    tall = [panels[v, m] for m in SHOWN for v in variants if (v, m) in panels]

    def draw(*, narrow: bool = False) -> Figure:
        given, across = (tall, len(variants)) if narrow else (wide, len(SHOWN))
        words = "scaled to [0, 1]; numbers: energy distance from the test set"
        return figures.ridges(given, across, words, narrow=narrow)

    yield Drawing(
        f"densities-{data}", SEPARATION, f"{SETS[data].label}: how sure, and of what",
        "Densities of the measures, scaled to [0, 1] over all sets together, mean over seeds. Each "
        "row has its own height, the upright line is the median, and the numbers are energy "
        "distances from the test set.",
        f"Densities of {', '.join(map(label_of, SHOWN))} on the test set and on "
        f"{', '.join(ood_label(n) for n in names if n != 'test')}, for "
        f"{' and '.join(map(method_label, variants))}; the energy distances are in the table.",
        draw,
    )  # fmt: skip


def _ridge(records: Records, data: str, variant: str, measure: str, names: list[str]) -> Ridge:
    recipe, rows, apart = f"{data}-{variant}", {}, []
    for name in sorted(names, key=lambda n: n != "test"):
        every = [at(r, ("curves", "densities", name, measure)) for r in records.of(recipe)]
        given = [np.asarray(one, dtype=np.float64) for one in every if one is not None]
        if given:
            rows[f"{SETS[data].label} test" if name == "test" else _short(name)] = list(
                np.mean(given, axis=0)
            )
        far = list(records.numbers(recipe, ("curves", "energy_distance", name, measure)).values())
        if far:
            apart.append(f"{_short(name)} {_mean_text(far)}")
    ends = ("unsure", "sure")
    ordered = ends if MEASURES[measure].rises_with == "confidence" else ends[::-1]
    return Ridge(f"{method_label(variant)}, {label_of(measure)}", "\n".join(apart), rows, ordered)


def _short(name: str) -> str:
    return ood_label(name).partition(" (")[0]


def _mean_text(values: list[float]) -> str:
    off = deviation(values)
    return f"{mean(values):.2f}" + ("" if off is None else f" ±{off:.2f}")


def _curve(records: Records, by: Mapping[float, str], path: tuple[str, ...]) -> Curve | None:
    """Means in per cent of the recipes' numbers at a path, against what the recipes are by."""
    found = {x: list(records.numbers(recipe, path).values()) for x, recipe in by.items()}
    found = {x: [100 * v for v in values] for x, values in found.items() if values}
    if not found:
        return None
    spread = [deviation(values) or 0.0 for values in found.values()]
    return Curve(list(found), [mean(values) for values in found.values()], spread)


def _sweep(records: Records, data: str) -> Iterator[Drawing]:
    by = lambdas(records, data)
    panels: dict[str, dict[str, Curve]] = {}
    if (accuracy := _curve(records, by, ("result", "accuracy"))) is not None:
        panels[f"{SETS[data].label} accuracy"] = {"accuracy": accuracy}
    for name in outside(records, data):
        where = ("result", "ood", name, "detection")
        curves = {label_of(m): _curve(records, by, (*where, m, "aupr")) for m in SHOWN}
        kept = {label: curve for label, curve in curves.items() if curve is not None}
        if kept:
            panels[f"→ {ood_label(name)}"] = kept
    if not by or not panels:
        return
    ylabels = ["AUPR (%)" if title.startswith("→") else "accuracy (%)" for title in panels]
    used = records.of(f"{data}-iedl")
    chosen = at(used[0], ("config", "method", "fisher_weight")) if used else None
    marked = "" if chosen is None else f" The dotted line is I-EDL's own weight, {chosen:g}."
    yield Drawing(
        f"lambda-{data}", SWEPT, f"{SETS[data].label}: what λ, the weight of −log det, does",
        f"Mean ± standard deviation over seeds.{marked}",
        f"Accuracy, and AUPR of telling {SETS[data].label} from other sets, against lambda from "
        f"{min(by):g} to {max(by):g}; the numbers are in the table.",
        partial(figures.sweep, panels, "λ", ylabels, chosen),
    )  # fmt: skip


def _risks(records: Records, measure: str = "max_prob") -> Iterator[Drawing]:
    given: dict[str, dict[str, Curve]] = {}
    for data, known in SETS.items():
        curves = {}
        for variant in drawn_methods(records, data):
            path = ("curves", "risk_coverage", measure)
            found = [at(record, path) for record in records.of(f"{data}-{variant}")]
            found = [one for one in found if one is not None]
            if found:
                x = found[0]["coverage"]
                y = np.mean([np.interp(x, one["coverage"], one["risk"]) for one in found], axis=0)
                curves[method_label(variant)] = Curve(x, list(y))
        if curves:
            # the last rows of tables, I-EDL and EDL, get the styles that differ most
            given[known.label] = dict(reversed(curves.items()))
    if given:
        yield Drawing(
            "risk-coverage", SELECTION, "What is gained by not answering",
            f"Share of wrong answers when only the surest are given, by {label_of(measure)}; mean "
            "over seeds, logarithmic. A curve begins where its first error is made.",
            "Risk against coverage for each method; the areas under the curves are in the tables.",
            partial(figures.risk_coverage, given),
        )  # fmt: skip


def _reliability(records: Records, data: str) -> Iterator[Drawing]:
    panels: dict[str, tuple[str, dict[str, Curve]]] = {}
    for variant in drawn_methods(records, data):
        recipe = f"{data}-{variant}"
        curves = {when: _pooled(records, recipe, when) for when in ("before", "after")}
        kept = {when: curve for when, curve in curves.items() if curve is not None}
        if kept:
            errors = [
                list(records.numbers(recipe, ("result", *where, "calibration", "ece")).values())
                for where in ((), ("calibrated",))
            ]
            told = " → ".join(f"{100 * mean(e):.1f}" for e in errors if e)
            panels[method_label(variant)] = (f"ECE {told} %" if told else "", kept)
    if not panels:
        return

    def draw(*, narrow: bool = False) -> Figure:
        return figures.reliability(panels, 2 if narrow else 5, narrow=narrow)

    yield Drawing(
        f"reliability-{data}", CALIBRATION, f"{SETS[data].label}: is a probability what it says?",
        "Accuracy against the probability given to the answer, all seeds together, in bins whose "
        "points have the area of their share; on the diagonal both are the same, above it the "
        "method is too modest.",
        "Reliability diagrams of each method before and after calibration; the calibration errors "
        "are in the table.",
        draw,
    )  # fmt: skip


def _pooled(records: Records, recipe: str, when: str) -> Curve | None:
    """The bins of all seeds together, those that are not empty."""
    found = [at(record, ("curves", "reliability", when)) for record in records.of(recipe)]
    found = [one for one in found if one is not None]
    if not found:
        return None
    count = np.array([one["count"] for one in found], dtype=np.float64)
    total = count.sum(0)
    full = total > 0

    def pooled(key: str) -> list[float]:
        # an empty bin has no figure of its own
        values = np.array([[v or 0.0 for v in one[key]] for one in found], dtype=np.float64)
        return list(((values * count).sum(0)[full] / total[full]).tolist())

    return Curve(pooled("confidence"), pooled("accuracy"), samples=total[full].tolist())
