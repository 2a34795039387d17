"""The report's few-shot figures: what lambda does, what tuning found, how methods compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from dubito.report import figures
from dubito.report.figures import Cloud, Curve, Interval
from dubito.report.reproduction.drawing import Drawing
from dubito.report.reproduction.episodes import ACCURACY, PREFIX, Episodes, pooled
from dubito.report.reproduction.fewshot import FEWSHOT, METHODS
from dubito.report.reproduction.names import SHOWN, in_order, label_of, method_label, plain
from dubito.report.reproduction.records import Records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["drawings"]


def drawings(records: Records, paper: Mapping[str, Any]) -> list[Drawing]:
    """All few-shot figures that the records have the numbers for."""
    held = Episodes(records, paper)
    return [*_compared(held), *_sweep(held), *_tuning(held)]


def _setting(where: tuple[int, int]) -> str:
    return f"{where[0]} ways, {where[1]} shot{'s' if where[1] > 1 else ''}"


def _compared(held: Episodes) -> Iterator[Drawing]:
    """The methods on 5 ways and 5 shots, as in one of the paper's figures."""
    where = (5, 5)
    given: dict[str, dict[str, Interval]] = {}
    for measure in ("max_prob", "alpha0"):
        rows = {}
        for variant in in_order(v for v, *at_ in held.by_setting if tuple(at_) == where):
            figure = f"ood/{measure}/aupr"
            found = pooled(held.by_setting[variant, *where], figure)
            theirs = held.published.get((plain(variant), *where, figure))
            if variant in METHODS and found is not None:
                pair = None if theirs is None else (theirs.mean, theirs.deviation)
                rows[method_label(variant)] = Interval([found.mean], pair)
        if rows:
            given[f"by {label_of(measure)}"] = rows
    if given:
        yield Drawing(
            f"{PREFIX}methods", FEWSHOT, "5 ways, 5 shots: telling CUB",
            "AUPR. The diamond is ours on our features; the bar is the paper's on its own, so the "
            "distance between them is that of the features as well.",
            "The AUPR of telling CUB from novel classes by Max.P and by alpha0, for each method; "
            "the numbers are in the tables.",
            partial(figures.intervals, given, "AUPR (%)"),
        )  # fmt: skip


def _sweep(held: Episodes) -> Iterator[Drawing]:
    panels: dict[str, dict[str, Curve]] = {}
    ylabels = []
    names = {"accuracy": ACCURACY} | {label_of(m): f"ood/{m}/aupr" for m in SHOWN}
    for where, records in held.sweep.items():
        title = _setting(where)
        for ylabel, wanted in (("accuracy (%)", ["accuracy"]), ("AUPR (%)", list(names)[1:])):
            curves = {}
            for name in wanted:
                found = {w: pooled(given, names[name]) for w, given in records.items()}
                kept = {w: one for w, one in found.items() if one is not None}
                if kept:
                    spread = [one.interval or 0.0 for one in kept.values()]
                    curves[name] = Curve(list(kept), [o.mean for o in kept.values()], spread)
            if curves:
                panels[f"{title}: {ylabel.split(' ')[0]}"] = curves
                ylabels.append(ylabel)
    if panels:
        yield Drawing(
            f"{PREFIX}lambda", FEWSHOT, "What λ, the weight of −log det, does",
            "Mean and 95 % interval over episodes, I-EDL on our features with the published KL.",
            "Accuracy, and AUPR of telling CUB by four measures, against lambda, in each setting; "
            "the numbers are in the table.",
            partial(figures.sweep, panels, "λ", ylabels, None),
        )  # fmt: skip


def _tuning(held: Episodes) -> Iterator[Drawing]:
    """Every candidate on the validation classes: a panel a setting."""
    panels: dict[str, list[Cloud]] = {}
    several = False
    for where in sorted({key[1:] for key in held.by_setting}):
        clouds: list[Cloud] = []
        for variant in ("edl-tuned", "iedl-tuned"):
            records = held.by_setting.get((variant, *where), [])
            tuned = [record["tuning"] for record in records if "tuning" in record]
            clouds += [cloud for one in tuned for cloud in _clouds(variant, one)]
            several = several or len(tuned) > 1
        if clouds:
            panels[_setting(where)] = clouds
    if panels:
        yield Drawing(
            f"{PREFIX}tuning", FEWSHOT, "Candidates on the validation classes",
            f"Each point is a λ, a KL weight and a scaling{', of one seed' * several}; OOD "
            "queries are of validation classes outside the episode. Circled: what was chosen, by "
            "the sum of both figures.",
            "Accuracy against AUPR by alpha0 of all candidates, EDL and I-EDL, in each setting.",
            partial(_drawn, panels),
        )  # fmt: skip


def _drawn(panels: Mapping[str, list[Cloud]], *, narrow: bool = False) -> Figure:
    return figures.clouds(panels, "accuracy (%)", "OOD AUPR by α₀ (%)", narrow=narrow)


def _clouds(variant: str, tuned: Mapping[str, Any]) -> Iterator[Cloud]:
    """The candidates of a method, those without the KL term on centred features apart."""
    apart: dict[str, list[tuple[float, float]]] = {}
    chosen: dict[str, tuple[float, float]] = {}
    method = method_label(variant.removesuffix("-tuned"))
    for trial in tuned["trials"]:
        given = trial["hyperparameters"]
        lever = trial["scaling"] == "centred" and given["kl_weight"] == 0
        name = f"{method}, {'centred, no KL' if lever else 'other'}"
        point = (100 * trial["accuracy"]["mean"], 100 * trial["ood_aupr"]["mean"])
        apart.setdefault(name, []).append(point)
        if given == tuned["choice"] and trial["scaling"] == tuned["scaling"]:
            chosen[name] = point
    for name, points in sorted(apart.items(), reverse=True):
        yield Cloud(name, points, chosen.get(name))
