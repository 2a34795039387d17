"""Tables of results on images, ours beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pandas as pd

from reproduction.published import Number, Verdict, verdict
from reproduction.recipes import Recipe
from reproduction.results import DATASETS, OOD, SCORES, Results, label

__all__ = ["ABLATION", "Cell", "Column", "Table", "build", "main_table", "tables"]

UP, DOWN = "\u00a0↑", "\u00a0↓"
NONE = "–"
#: scores that the paper detects OOD inputs by
SHOWN = ("max_prob", "alpha0", "differential_entropy", "mutual_information")
METRICS = {"aupr": "AUPR", "auroc": "AUROC"}
#: (method, variant) -> row of the ablation
ABLATION = {
    ("edl", ""): "MSE (EDL)",
    ("edl", "logdet"): "MSE + log det",
    ("iedl", "no logdet"): "I-MSE",
    ("iedl", ""): "I-MSE + log det (I-EDL)",
}
SVHN = (
    "SVHN (re-cropped): the digits were cut again from the full photographs, so its images are "
    "not the very ones of the paper."
)
FEWSHOT_ONLY = (
    "The paper has this comparison on few-shot features alone; published numbers here are those of "
    "its image tables."
)


class Column(NamedTuple):
    """A column of a table."""

    title: str
    group: str
    quantity: str
    higher: bool | None = True
    """Whether higher is better; None if neither is."""
    factor: float = 100.0
    digits: int = 2


@dataclass(frozen=True)
class Cell:
    """Our number, and the published ones beside it."""

    mean: float = math.nan
    spread: float = math.nan
    """Standard deviation over seeds, or half of a 95 % interval over episodes."""
    seeds: int = 0
    published: Number | None = None
    """Number that ours is compared with."""
    verdict: Verdict = ""
    beside: tuple[tuple[str, Number], ...] = ()
    """Published numbers with their sources, in the order shown."""
    episodes: int = 0


@dataclass(frozen=True)
class Table:
    """A table; `cells` has one row per cell."""

    key: str
    section: str
    title: str
    note: str = ""
    first: str = "Method"
    counted: str = "Seeds"
    cells: pd.DataFrame = None

    @property
    def is_fewshot(self) -> bool:
        """Whether numbers are means over episodes."""
        return self.counted == "Episodes"


def number(value: float, digits: int) -> str:
    """Format a number; NaN is a dash.

    >>> number(-1.5, 2), number(math.inf, 2), number(math.nan, 2)
    ('−1.50', '∞', '–')
    """
    if math.isnan(value):
        return NONE
    return f"{value:.{digits}f}".replace("-", "−").replace("inf", "∞")


def build(
    head: Table,
    columns: Sequence[Column],
    rows: Iterable[tuple[str, Recipe | None, str, Sequence[Cell]]],
) -> Table:
    """Fill a table.

    Args:
        head: Table without cells.
        columns: Columns.
        rows: Name, recipe, number of seeds or episodes, and cells of each row.
    """
    records: list[dict[str, Any]] = []
    for place, (name, recipe, count, cells) in enumerate(rows):
        for index, (column, cell) in enumerate(zip(columns, cells, strict=True)):
            records.append(
                {
                    "i": place, "j": index, "row": name, "count": count,
                    "group": column.group, "column": column.title, "quantity": column.quantity,
                    "recipe": None if recipe is None else recipe.name,
                    "dataset": None if recipe is None else recipe.dataset,
                    "method": None if recipe is None else recipe.method,
                    "variant": None if recipe is None else recipe.variant,
                    "higher": column.higher, "digits": column.digits,
                    **{key: getattr(cell, key) for key in Cell.__dataclass_fields__},
                }
            )  # fmt: skip
    frame = pd.DataFrame(records)
    frame["shown"] = [number(*pair) for pair in zip(frame["mean"], frame["digits"], strict=True)]
    frame["best"] = pd.concat([_best(column) for _, column in frame.groupby("j")])
    return replace(head, cells=frame)


def _best(column: pd.DataFrame) -> pd.Series[bool]:
    """Mark the best numbers of a column as they are shown, unless all look alike."""
    higher, shown = column["higher"].iloc[0], column["shown"]
    known = column["mean"].dropna()
    if pd.isna(higher) or shown[known.index].nunique() < 2:
        return pd.Series(False, column.index)
    best = shown[known.idxmax() if higher else known.idxmin()]
    return shown == best


def _cell(results: Results, recipe: Recipe, column: Column) -> Cell:
    key = DATASETS[recipe.dataset][0], recipe.method, column.quantity
    theirs = None if recipe.variant or recipe.swept else results.published.images.get(key)
    beside = () if theirs is None else (("paper", theirs),)
    mean, std, count = results.statistics(recipe, column.quantity)
    mean, std = column.factor * mean, column.factor * std
    judged: Verdict = ""
    if theirs is not None and column.higher is not None:
        judged = verdict(mean, theirs, column.higher)
    return Cell(mean, std, count, theirs, judged, beside)


def _table(
    results: Results,
    head: Table,
    columns: Sequence[Column],
    recipes: Sequence[Recipe],
    names: Sequence[str] | None = None,
) -> Iterator[Table]:
    """Yield the table, unless it has neither numbers of ours nor published ones."""
    rows = []
    for place, recipe in enumerate(recipes):
        cells = [_cell(results, recipe, column) for column in columns]
        count = len(results.by_recipe.get(recipe.name, ()))
        name = label(recipe) if names is None else names[place]
        rows.append((name, recipe, str(count) if count else NONE, cells))
    if any(cell.seeds or cell.published for *_, cells in rows for cell in cells):
        yield build(head, columns, rows)


def _detection(where: str, metric: str, group: str, scores: Sequence[str] = SHOWN) -> list[Column]:
    higher = metric != "fpr95"
    return [Column(SCORES[score], group, f"{where}/{score}/{metric}", higher) for score in scores]


def tables(results: Results) -> list[Table]:
    """Build all tables of trainings, section by section."""
    makers = (_ood, _confidence, _noise, _ablation, _lambda, _smoothing, _calibration,
              _calibrated_ood, _fpr95, _aurc, _energy, _humans)  # fmt: skip
    return [table for make in makers for dataset in DATASETS for table in make(results, dataset)]


def main_table(results: Results, dataset: str) -> Table:
    """Build the table of a dataset that the documentation shows.

    Args:
        results: Results.
        dataset: "mnist" or "cifar10".
    """
    columns = [
        Column(f"Acc.{UP}", "", "accuracy"),
        Column("Max.P", f"Right or wrong, AUPR{UP}", "misclassification/max_prob/aupr"),
        *_parts(results, dataset)[2:],
    ]
    head = Table(f"main-{dataset}", "Main results", DATASETS[dataset][1])
    (table,) = _table(results, head, columns, results.trained(dataset))
    return table


def _ood(results: Results, dataset: str) -> Iterator[Table]:
    for name in results.ood(dataset):
        columns = [
            column
            for metric, words in METRICS.items()
            for column in _detection(f"ood/{name}", metric, words + UP)
        ]
        title = f"{DATASETS[dataset][1]} → {OOD[name]}"
        note = SVHN if name == "svhn" else ""
        head = Table(f"ood-{dataset}-{name}", "Out-of-distribution detection", title, note)
        yield from _table(results, head, columns, results.trained(dataset))


def _confidence(results: Results, dataset: str) -> Iterator[Table]:
    columns = [Column(f"Acc.{UP}", "", "accuracy")]
    for metric, words in METRICS.items():
        group = f"Right or wrong, {words}{UP}"
        columns += _detection("misclassification", metric, group, ("max_prob", "max_alpha"))
    title = f"{DATASETS[dataset][1]}: accuracy, and right or wrong"
    head = Table(f"confidence-{dataset}", "Confidence and accuracy", title)
    yield from _table(results, head, columns, results.trained(dataset))


def _noise(results: Results, dataset: str) -> Iterator[Table]:
    recipes = results.trained(dataset)
    for sigma in dict.fromkeys(f"{sigma:g}" for r in recipes for sigma in r.evaluate["noise"]):
        columns = [
            column
            for metric, words in METRICS.items()
            for column in _detection(f"noise/{sigma}", metric, words + UP)
        ]
        title = f"{DATASETS[dataset][1]}, clean or noisy: N(0, {sigma})"
        note = "The paper draws these numbers and does not print them."
        head = Table(f"noise-{dataset}-{sigma}", "Noisy data", title, note)
        yield from _table(results, head, columns, recipes)


def _parts(results: Results, dataset: str) -> list[Column]:
    """Return the columns of the ablation and of the sweep."""
    columns = [
        Column(f"Acc.{UP}", "", "accuracy"),
        Column(f"Conf. (Max.α){UP}", "AUPR", "misclassification/max_alpha/aupr"),
    ]
    for name in results.ood(dataset):
        group = f"{OOD[name]}, AUPR{UP}"
        columns += _detection(f"ood/{name}", "aupr", group, ("max_prob", "alpha0"))
    return columns


def _ablation(results: Results, dataset: str) -> Iterator[Table]:
    known = {(r.method, r.variant): r for r in results.recipes.values() if r.dataset == dataset}
    rows = {words: known[key] for key, words in ABLATION.items() if key in known}
    title = f"{DATASETS[dataset][1]}: what each part of the loss brings"
    head = Table(f"ablation-{dataset}", "Ablation", title, FEWSHOT_ONLY, first="Loss")
    if any(r.variant and r.name in results.by_recipe for r in rows.values()):
        columns = _parts(results, dataset)
        yield from _table(results, head, columns, list(rows.values()), list(rows))


def _lambda(results: Results, dataset: str) -> Iterator[Table]:
    swept = results.swept(dataset)
    title = f"{DATASETS[dataset][1]}: −log det weighted by λ"
    head = Table(f"lambda-{dataset}", "The weight of −log det", title, FEWSHOT_ONLY, first="λ")
    names = [f"{weight:g}" for weight in swept]
    yield from _table(results, head, _parts(results, dataset), list(swept.values()), names)


def _smoothing(results: Results, dataset: str) -> Iterator[Table]:
    shown = ("softmax", "label_smoothing", "iedl")
    recipes = [r for r in results.trained(dataset) if r.method in shown and not r.variant]
    columns = [
        column
        for name in results.ood(dataset)
        for column in _detection(
            f"ood/{name}", "aupr", f"{OOD[name]}, AUPR{UP}",
            ("max_prob", "entropy_of_mean", "alpha0"),
        )
    ]  # fmt: skip
    title = f"{DATASETS[dataset][1]}: smoothed labels or evidence"
    head = Table(f"label-smoothing-{dataset}", "Label smoothing", title, FEWSHOT_ONLY)
    if any(recipe.method == "label_smoothing" for recipe in recipes):
        yield from _table(results, head, columns, recipes)


def _calibration(results: Results, dataset: str) -> Iterator[Table]:
    columns = [
        Column(when, words + DOWN, f"{prefix}calibration/{metric}", False, factor, digits)
        for metric, words, factor, digits in (
            ("ece", "ECE (%)", 100, 2),
            ("nll", "NLL", 1, 3),
            ("brier", "Brier", 1, 3),
        )
        for when, prefix in (("before", ""), ("after", "calibrated/"))
    ]
    title = f"{DATASETS[dataset][1]}, before and after"
    note = "Fitted on validation data, judged on test data."
    head = Table(f"calibration-{dataset}", "Calibration", title, note)
    yield from _table(results, head, columns, results.trained(dataset))


def _ood_columns(
    results: Results, dataset: str, prefix: str, metric: str, label: str
) -> list[Column]:
    return [
        column
        for name in results.ood(dataset)
        for column in _detection(f"{prefix}/{name}", metric, f"{OOD[name]}, {label}")
    ]


def _calibrated_ood(results: Results, dataset: str) -> Iterator[Table]:
    columns = _ood_columns(results, dataset, "calibrated/ood", "aupr", f"AUPR{UP}")
    title = f"{DATASETS[dataset][1]}, out-of-distribution detection after calibration"
    head = Table(f"calibrated-ood-{dataset}", "Calibration", title)
    yield from _table(results, head, columns, results.trained(dataset))


def _fpr95(results: Results, dataset: str) -> Iterator[Table]:
    columns = _ood_columns(results, dataset, "ood", "fpr95", f"FPR95{DOWN}")
    title = f"{DATASETS[dataset][1]}, what passes where 95 % of its own do"
    head = Table(f"fpr95-{dataset}", "Selective prediction and FPR95", title)
    yield from _table(results, head, columns, results.trained(dataset))


def _aurc(results: Results, dataset: str) -> Iterator[Table]:
    columns = [
        Column(SCORES[score], f"AURC (%){DOWN}", f"aurc/{score}", False, 100, 3)
        for score in ("max_prob", "max_alpha", *SHOWN[1:])
    ]
    title = f"{DATASETS[dataset][1]}, area under the risk-coverage curve"
    head = Table(f"aurc-{dataset}", "Selective prediction and FPR95", title)
    yield from _table(results, head, columns, results.trained(dataset))


def _energy(results: Results, dataset: str) -> Iterator[Table]:
    columns = [
        Column(SCORES[score], f"{OOD[name]}, energy distance{UP}",
               f"energy_distance/{name}/{score}", True, 1, 3)
        for name in results.ood(dataset)
        for score in SHOWN
    ]  # fmt: skip
    title = f"{DATASETS[dataset][1]}, how far apart"
    note = "Of the measures scaled to [0, 1] over all sets together."
    head = Table(f"energy-{dataset}", "Separation", title, note)
    yield from _table(results, head, columns, results.trained(dataset))


def _humans(results: Results, dataset: str) -> Iterator[Table]:
    scores = ("expected_entropy", "entropy_of_mean", *SHOWN, "max_alpha", "vacuity", "dissonance")
    columns = [
        Column(SCORES[score], "Spearman's ρ", f"humans/{score}/spearman",
               True if score.endswith(("expected_entropy", "entropy_of_mean")) else None, 1, 3)
        for score in scores
        if f"humans/{score}/spearman" in results.runs
    ]  # fmt: skip
    note = (
        "Rank correlation of each measure with the entropy of the labels that people gave "
        "(CIFAR-10H). E.Ent. is the data uncertainty that the paper's first figure is about; "
        "measures of confidence correlate negatively."
    )
    title = f"{DATASETS[dataset][1]}: doubt of networks and of people"
    head = Table(f"people-{dataset}", "People", title, note)
    yield from _table(results, head, columns, results.trained(dataset))
