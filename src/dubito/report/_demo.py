"""Report of the demo: tables, a sentence, a figure and a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from dubito._files import atomic_path, atomic_write
from dubito.report import _figures
from dubito.report._html import image, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Cell", "Table", "densities", "sentence", "tables", "write"]

Result = Mapping[str, Any]
#: values by method and set of images
Scores = Mapping[str, Mapping[str, Tensor]]

#: score -> its name in tables
SCORES = {
    "max_prob": "Max.P", "alpha0": "α₀", "differential_entropy": "D.Ent.",
    "mutual_information": "M.I.",
}  # fmt: skip
METRICS = {"aupr": "AUPR", "auroc": "AUROC"}
UP, DOWN = "\u00a0↑", "\u00a0↓"


class Cell(NamedTuple):
    """A number as text."""

    text: str
    best: bool
    """Whether it is better than those of the other methods, as they are shown."""


class Table(NamedTuple):
    """Rows of a name and cells."""

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]


def write(result: Result, folder: Path, scores: Scores, sets: Mapping[str, Tensor]) -> Path:
    """Write report.html and densities.png.

    Args:
        result: Result of `dubito.demo.demo`.
        folder: Folder of the files.
        scores: Mutual information.
        sets: Images of each set, (N, 1, H, W).

    Returns:
        Path of the page.
    """
    figure = densities(result, scores)
    with atomic_path(folder / "densities.png") as partial:
        figure.savefig(partial, format="png", dpi=160, facecolor="white")
    label = "Densities of the uncertainty of each method, by set of images"
    examples = [(one, image(sets[one["set"]][one["index"]])) for one in result["examples"]]
    page = render(
        "demo.html",
        result=result,
        sentence=sentence(result),
        tables=list(tables(result)),
        figure=_figures.svg(figure, label),
        examples=examples,
    )
    return atomic_write(folder / "report.html", page)


def tables(result: Result) -> Iterator[Table]:
    """Yield the tables: the test digits, then each OOD set.

    Args:
        result: Result of `dubito.demo.demo`.
    """
    methods = result["methods"]
    others = _others(result)
    rows = [
        (f"Accuracy{UP}", _cells(methods, "metrics", "accuracy")),
        (f"Calibration error (ECE){DOWN}", _cells(methods, "metrics", "ece", lower=True)),
        (f"Accepted test digits{UP}", _cells(methods, "policy", "accepted")),
    ]
    for name in others:
        path = ("ood", name, "policy", "accepted")
        rows.append((f"Accepted {name}{DOWN}", _cells(methods, *path, lower=True)))
    yield Table(f"{result['samples']['test']} test digits (%)", ["", *methods], rows)
    for name in others:
        rows = [
            (label, [c for m in METRICS for c in _cells(methods, *_detection(name, score, m))])
            for score, label in SCORES.items()
        ]
        columns = [f"{label} {method}" for label in METRICS.values() for method in methods]
        yield Table(f"Test digits or {name}? (%)", ["Score", *columns], rows)


def sentence(result: Result) -> str:
    """Compare the second method with the first in one sentence.

    Args:
        result: Result of `dubito.demo.demo`.
    """
    (base, base_runs), (name, runs) = result["methods"].items()
    others = _others(result)

    def share(*path: str) -> str:
        ours, theirs = (100 * mean(_values(one, *path)) for one in (runs, base_runs))
        return f"{ours:.1f} % ({base} {theirs:.1f} %)"

    signs = []
    for path in (_detection(s, score, m) for s in others for score in SCORES for m in METRICS):
        pairs = zip(_values(runs, *path), _values(base_runs, *path), strict=True)
        signs.append({(a > b) - (a < b) for a, b in pairs})
    accepted = [f"{share('ood', one, 'policy', 'accepted')} of the {one}" for one in others]
    return (
        f"Over {len(runs)} seeds {name} classifies {share('metrics', 'accuracy')} of the test "
        f"digits correctly. It accepts {share('policy', 'accepted')} of them, "
        f"{' and '.join(accepted)}. Of {len(signs)} OOD figures, {signs.count({1})} are better "
        f"and {signs.count({-1})} worse for every seed."
    )


def densities(result: Result, scores: Scores) -> Figure:
    """Draw the density of a score for each method and set of images.

    Args:
        result: Result of `dubito.demo.demo`.
        scores: Values in [0, 1].
    """
    figure, axes = _figures.new("", "mutual information, scaled", width=2, columns=len(scores))
    for ax, (name, groups) in zip(axes, scores.items(), strict=True):
        drawn: Any = ax.violinplot(
            [values.numpy() for values in groups.values()],
            widths=0.9, showextrema=False, showmedians=True,
        )  # fmt: skip
        drawn["cmedians"].set_color(_figures.INK)
        for body, color in zip(drawn["bodies"], _figures.COLORS, strict=False):
            body.set(facecolor=color, alpha=0.6)
        distances = result["energy_distance"][name]
        notes = {key: f"\nenergy distance {value:.2f}" for key, value in distances.items()}
        labels = [key + notes.get(key, "") for key in groups]
        ax.set_xticks(range(1, len(labels) + 1), labels)
        ax.set_title(name, fontsize=12, fontweight="bold", color=_figures.INK)
    return figure


def _others(result: Result) -> list[str]:
    """Return the names of the OOD sets."""
    return list(next(iter(result["energy_distance"].values())))


def _detection(name: str, score: str, metric: str) -> tuple[str, ...]:
    return "ood", name, "detection", score, metric


def _cells(methods: Mapping[str, Sequence[Result]], *path: str, lower: bool = False) -> list[Cell]:
    """Return mean and standard deviation of a figure over the seeds, in percent."""
    samples = [[100 * value for value in _values(runs, *path)] for runs in methods.values()]
    shown = [f"{mean(sample):.1f}" for sample in samples]
    best = (min if lower else max)(shown, key=float)
    return [
        Cell(f"{text} ±{stdev(sample):.1f}", text == best and len(set(shown)) > 1)
        for text, sample in zip(shown, samples, strict=True)
    ]


def _values(runs: Sequence[Result], *path: str) -> list[float]:
    """Return the figure at a path of each run."""
    values: list[Any] = [reduce(getitem, path, run) for run in runs]
    return values
