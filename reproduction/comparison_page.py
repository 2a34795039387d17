"""The page of the comparison: tables, a figure of ranks, and what they say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import t as student

from dubito._files import atomic_write, make_folder
from reproduction.comparison import FINAL, QUICK, RIVAL, TRIAL, Entrant, Protocol
from reproduction.figures import COLORS, FAINT, heading, new_figure
from reproduction.report import frame_text, png
from reproduction.results import OOD
from reproduction.store import Record

__all__ = ["Results", "progress", "write"]

PICTURE = "comparison-ranks.png"
#: what methods are compared by: name -> (label, factor, digits, whether higher is better)
COMPARED: dict[str, tuple[str, float, int, bool]] = {
    "accuracy": ("Accuracy", 100, 2, True),
    "nll": ("NLL", 1, 3, False),
    "errors": ("Errors, AUPR", 100, 2, True),
    "ood": ("OOD, AUROC", 100, 2, True),
}
#: further columns
SHOWN: dict[str, tuple[str, float, int, bool]] = {
    "ece": ("ECE", 100, 2, False),
    "brier": ("Brier", 1, 3, False),
    "aurc": ("AURC", 100, 2, False),
    "answered": ("Answered at 5%", 100, 1, True),
    "shifted": ("Accuracy, corrupted", 100, 2, True),
    "fpr95": ("OOD, FPR95", 100, 2, False),
}
NAMES = {**OOD, "cifar-10": "CIFAR-10", "mnist": "MNIST", "gaussian": "Normal noise"}
NAMES |= {"uniform": "Uniform noise"}
HEAD = """# Comparison

All methods by one protocol. In a setting they share images, division, augmentation, budget,
stopping rule and weight averaging, and have the same number of trials of their hyperparameters.
Validation images choose among the trials, by accuracy, NLL, detection of errors, and detection of
OOD images that are made of them: shuffled patches, blends of two classes, inverted colors. Test
and OOD sets choose nothing. Every number of the protocol is in `reproduction/comparison.toml`; this
page is generated from the records in `results/`:

```bash
python -m reproduction comparison            # run what is missing, on a GPU
python -m reproduction comparison --pages    # write this page
```

Each method has the scores that it declares, one for errors and one for OOD inputs; OOD AUROC and
FPR95 are means over the OOD sets. NLL, ECE and Brier are before calibration. Means and deviations
are over seeds, and intervals are about the randomness of training, not about that of the test
images. SVHN is re-cropped."""
SOLE, PUBLISHED = "1 network, 1 pass", ", as published"


class Results:
    """Numbers of the trainings that count.

    Args:
        protocol: Protocol.
        folder: Folder of the records.
    """

    def __init__(self, protocol: Protocol, folder: Path) -> None:
        self.protocol, store = protocol, protocol.store(folder)
        self.records: list[tuple[Entrant, Record]] = [
            (entrant, record)
            for entrant in protocol.entrants([*protocol.settings], store)
            if entrant.kind != TRIAL
            for cell in entrant.cells()
            if (record := store.get(cell)) is not None
        ]

    @cached_property
    def runs(self) -> pd.DataFrame:
        """Numbers of each training: index (setting, row, seed)."""
        rows = {
            (entrant.place, self.label(entrant), record["seed"]): dict(numbers(record))
            for entrant, record in self.records
        }
        frame = pd.DataFrame(rows.values())
        names = ["setting", "row", "seed"]
        frame.index = pd.MultiIndex.from_tuples(rows or [("", "", 0)][:0], names=names)
        return frame

    def label(self, entrant: Entrant) -> str:
        """Return the name of a row."""
        published = "" if entrant.kind == FINAL else PUBLISHED
        return f"{self.protocol.methods[entrant.key]['label']}{published}"

    def cost(self, row: str) -> str:
        """Return how many networks a row trains, and how many passes a prediction takes."""
        by_label = {method["label"]: method for method in self.protocol.methods.values()}
        return str(by_label[row.removesuffix(PUBLISHED)].get("cost", SOLE))

    @property
    def rival(self) -> str:
        """Name of the row that others are compared with."""
        return str(self.protocol.methods[RIVAL]["label"])

    def of(self, setting: str) -> pd.DataFrame:
        """Return the numbers of a setting, (row, seed); none before the softmax is there."""
        if self.runs.empty or (setting, self.rival) not in self.runs.index.droplevel("seed"):
            return pd.DataFrame()
        found: pd.DataFrame = self.runs.loc[setting].dropna(axis=1, how="all")
        return found

    def gains(self, setting: str) -> pd.DataFrame:
        """Return the gains over softmax and energy, with half of their intervals.

        Index: row; columns: (name, "mean") and (name, "half"). A gain is positive where better.
        """
        frame = self.of(setting)[[*COMPARED]].astype(float)
        signs = [1 if higher else -1 for *_, higher in COMPARED.values()]
        rival = frame.loc[self.rival]
        apart = (frame - rival.reindex(frame.index, level="seed")) * signs
        apart = apart.drop(index=self.rival, level="row").dropna()
        return with_intervals(apart)


def numbers(record: Record) -> Iterator[tuple[str, Any]]:
    """Yield the numbers of a record by name."""
    result = record["result"]
    error, ood = result["declared"]["errors"], result["declared"]["ood"]
    for name in ("accuracy", "nll", "ece", "brier", "answered"):
        yield name, result[name]
    yield "errors", result["errors"][error]["aupr"]
    yield "aurc", result["aurc"][error]
    if result["shifted"]:
        yield "shifted", fmean(each["accuracy"] for each in result["shifted"].values())
    sets = result["ood"].values()
    yield "ood", fmean(each[ood]["auroc"] for each in sets)
    yield "fpr95", fmean(each[ood]["fpr95"] for each in sets)
    for name, each in result["ood"].items():
        yield f"ood/{name}", each[ood]["aupr"]
    for score in result["errors"]:
        yield f"score/{score}", fmean(each[score]["auroc"] for each in sets)
        for name, each in result["ood"].items():
            yield f"auroc/{score}/{name}", each[score]["auroc"]
    yield "declared", ood
    yield "seconds", record["training"]["seconds"]


def with_intervals(frame: pd.DataFrame) -> pd.DataFrame:
    """Return mean and half of the 95% interval of each column, by row.

    Args:
        frame: Index (row, seed).
    """
    grouped = frame.groupby(level="row", sort=False)
    count = grouped.count()
    half = grouped.std() / count.pow(0.5) * student.ppf(0.975, count - 1)
    return pd.concat({"mean": grouped.mean(), "half": half}, axis=1).swaplevel(axis=1)


# --- page ---


def write(protocol: Protocol, folder: Path, out: Path, assets: str = "") -> Path:
    """Write comparison.md and its figure.

    Args:
        protocol: Protocol.
        folder: Folder of the records.
        out: Folder of the page.
        assets: Folder of the figure, in that of the page.
    """
    results = Results(protocol, folder)
    known = [name for name in protocol.settings if name != QUICK or not results.of(name).empty]
    done = [name for name in known if not results.of(name).empty]
    parts = [HEAD]
    if done:
        make_folder(out / assets)
        atomic_write(out / assets / PICTURE, png(ranks(results, done)))
        path = f"{assets}/{PICTURE}" if assets else PICTURE
        alt = "Mean rank of each method over accuracy, NLL, detection of errors and of OOD inputs"
        parts += ["## What it says", *said(results, done), f"![{alt}]({path})"]
    for name in known:
        parts += [f"## {protocol.settings[name]['title']}"]
        if name in done:
            parts += section(results, name)
        else:
            parts += [f"Not run yet: `python -m reproduction comparison {name}`."]
    return atomic_write(out / "comparison.md", "\n\n".join(parts) + "\n")


def progress(protocol: Protocol, folder: Path, settings: Sequence[str]) -> str:
    """Return how many trainings of each setting have a record.

    Args:
        protocol: Protocol.
        folder: Folder of the records.
        settings: Names of settings.
    """
    store, lines = protocol.store(folder), []
    for name in settings:
        cells = [cell for one in protocol.entrants([name], store) for cell in one.cells()]
        done = sum(store.get(cell) is not None for cell in cells)
        lines.append(
            f"{name:20} {done:3} of at least {len(cells):3}  {protocol.settings[name]['title']}"
        )
    return "\n".join(lines)


def section(results: Results, setting: str) -> list[str]:
    """Return the tables of a setting as Markdown."""
    frame = results.of(setting)
    rows = frame.groupby(level="row", sort=False)
    means, deviations = rows.mean(numeric_only=True), rows.std(numeric_only=True)
    columns = {**COMPARED, **SHOWN}
    columns |= {
        name: (f"{NAMES.get(name[4:], name[4:])}, AUPR", 100, 1, True)
        for name in means
        if name.startswith("ood/")
    }
    table = pd.DataFrame(index=pd.Index(means.index, name="Method"))
    for name, (label, factor, digits, higher) in columns.items():
        if name not in means:
            continue
        arrow = "\u00a0↑" if higher else "\u00a0↓"
        best = means[name].max() if higher else means[name].min()
        cells = []
        for row in means.index:
            text = f"{factor * means.at[row, name]:.{digits}f}"
            mark = "**" if text == f"{factor * best:.{digits}f}" else ""
            spread = factor * deviations.at[row, name]
            own = "" if "/" in name or math.isnan(spread) else f" ± {spread:.{digits}f}"
            cells.append(f"{mark}{text}{mark}{own}")
        table[label + arrow] = cells
    table["OOD score"] = rows["declared"].first()
    scores = means[[name for name in means if name.startswith("score/")]]
    picks = {"Best score": scores.idxmax(axis=1), "Worst score": scores.idxmin(axis=1)}
    for title, names in picks.items():
        table[title] = [
            f"{name.removeprefix('score/')} {100 * scores.at[row, name]:.1f}"
            for row, name in names.items()
        ]
    table["Cost"] = [results.cost(row) for row in means.index]
    seeds, minutes = frame.index.get_level_values("seed").nunique(), frame["seconds"].sum() / 60
    devices = {record["device"] for entrant, record in results.records if entrant.place == setting}
    gains = results.gains(setting)
    differences = pd.DataFrame(index=pd.Index(gains.index, name="Method"))
    for name, (label, factor, digits, _) in COMPARED.items():
        differences[label] = [shown(gains.loc[row, name] * factor, digits) for row in gains.index]
    return [
        f"{seeds} seeds; the trainings of this table took {minutes:.0f} minutes on "
        f"{', '.join(sorted(devices))}.",
        frame_text(table),
        "Better (+) or worse (−) than the softmax of the same seed, whose OOD score is its "
        "energy. Intervals hold 95%, bold where 0 is outside.",
        frame_text(differences),
        f"Every score of the {results.rival.lower()}, AUROC:",
        frame_text(scores_by_set(means.loc[results.rival])),
    ]


def scores_by_set(means: pd.Series[float]) -> pd.DataFrame:
    """Return the AUROC of each score on each OOD set, the best score first."""
    own = 100 * means.filter(like="auroc/").dropna()
    own.index = pd.MultiIndex.from_tuples([tuple(name.split("/")[1:]) for name in own.index])
    table = own.unstack().rename(columns=lambda name: NAMES.get(name, name))
    order = table.mean(axis=1).sort_values(ascending=False).index
    return table.loc[order].map("{:.1f}".format).rename_axis("Score")


def shown(gain: pd.Series[float], digits: int) -> str:
    """Format a gain and half of its interval.

    >>> shown(pd.Series({"mean": -1.234, "half": 0.5}), 1)
    '**−1.2** ± 0.5'
    """
    mean, half = gain["mean"], gain["half"]
    mark = "**" if abs(mean) > half else ""
    mean = round(mean, digits) + 0.0  # no negative zero
    interval = "" if math.isnan(half) else f" ± {half:.{digits}f}"
    return f"{mark}{mean:+.{digits}f}{mark}{interval}".replace("-", "−")


def ranks(results: Results, settings: list[str]) -> Figure:
    """Draw the mean rank of each method with its interval over seeds, a panel for each setting."""
    most = max(results.of(name).index.get_level_values("row").nunique() for name in settings)
    figure, axes = new_figure(len(settings), 2, (6.4, 1 + 0.3 * most))
    for ax, setting in zip(axes, settings, strict=True):
        frame = results.of(setting)[[*COMPARED]].astype(float)
        signs = [-1 if higher else 1 for *_, higher in COMPARED.values()]
        by_seed = (frame * signs).groupby(level="seed").rank().mean(axis=1)
        found = with_intervals(by_seed.to_frame("rank"))["rank"].sort_values("mean")
        for place, (row, (mean, half)) in enumerate(found.iterrows()):
            color = COLORS[1] if row == results.rival else COLORS[0]
            width = 0 if math.isnan(half) else half
            ax.errorbar(mean, place, xerr=width, fmt="o", color=color, capsize=3)
        ax.set_yticks(range(len(found)), [*found.index])
        ax.invert_yaxis()
        ax.grid(axis="x", color=FAINT, alpha=0.3)
        ax.set_xlim(0.8, len(found) + 0.2)
        ax.set_xlabel("Mean rank, 1 is best")
        note = "over " + "; ".join(label for label, *_ in COMPARED.values())
        heading(ax, results.protocol.settings[setting]["title"].split(":")[0], note)
    return figure


# --- sentences ---


def said(results: Results, settings: list[str]) -> list[str]:
    """Return what the records say to someone who has to choose, for each setting."""
    parts = []
    for name in settings:
        if sentences := [f"- {each}" for each in _said(results, name)]:
            title = results.protocol.settings[name]["title"]
            parts.append("\n".join([f"**{title}**", "", *sentences]))
    return parts


def _said(results: Results, setting: str) -> Iterator[str]:
    frame, gains = results.of(setting), results.gains(setting)
    if gains.empty or bool(gains.xs("half", axis=1, level=1).isna().all(axis=None)):
        return
    means = frame.groupby(level="row", sort=False).mean(numeric_only=True)
    alone = [row for row in gains.index if results.cost(row) == SOLE]
    enough = []
    for name, (label, factor, digits, _) in COMPARED.items():
        ahead = _ahead(gains.loc[alone, name], factor, digits)
        if ahead:
            read = " with its energy" if name == "ood" else ""
            yield f"**{label}.** Single networks ahead of the softmax{read}: {ahead}."
        else:
            enough.append(label)
    if enough:
        yield (
            f"**When a softmax is enough.** No other single network is ahead of it in "
            f"{'; '.join(enough)}."
        )
    for row in gains.index.difference(alone, sort=False):
        parts = [
            f"{label} {shown(gains.loc[row, name] * factor, digits)}"
            for name, (label, factor, digits, _) in COMPARED.items()
        ]
        yield f"**{row}** ({results.cost(row)}) against one softmax: {'; '.join(parts)}."
    scores = means[[name for name in means if name.startswith("score/")]]
    scores = 100 * scores.rename(columns=lambda name: name.removeprefix("score/"))
    own = scores.loc[results.rival].dropna()
    yield (
        f"**Which score.** `{own.idxmax()}` detects OOD inputs of the softmax best: AUROC "
        f"{own.max():.1f}, energy {own['energy']:.1f}, largest probability {own['max_prob']:.1f}. "
        f"For all methods together it is `{scores.mean().idxmax()}` ({scores.mean().max():.1f})."
    )
    apart, methods = scores.max(axis=1) - scores.min(axis=1), 100 * means["ood"]
    yield (
        f"**Method or score.** Methods, each with its declared score, are {np.ptp(methods):.0f} "
        f"points of AUROC apart; the scores of one network {apart.min():.0f} ({apart.idxmin()}) "
        f"to {apart.max():.0f} ({apart.idxmax()})."
    )
    answered = 100 * means["answered"]
    yield (
        f"**Abstention.** With at most 5% errors {answered.idxmax()} answers most of the test "
        f"images, {answered.max():.0f}%; softmax {answered[results.rival]:.0f}%, least "
        f"{answered.idxmin()}, {answered.min():.0f}%."
    )


def _ahead(gain: pd.DataFrame, factor: float, digits: int) -> str:
    """Name the rows whose interval is above 0, the best first."""
    ahead = gain[gain["mean"] > gain["half"]].sort_values("mean", ascending=False) * factor
    return ", ".join(f"{row} ({shown(ahead.loc[row], digits)})" for row in ahead.index)
