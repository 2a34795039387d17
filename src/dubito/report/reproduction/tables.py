"""The report's tables: which there are, and what stands in their rows and columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dubito.report.reproduction.episodes import is_fewshot
from dubito.report.reproduction.layout import Column, Table, table
from dubito.report.reproduction.names import (
    ABLATION,
    BASELINES,
    SETS,
    SHOWN,
    SWEEP,
    base_of,
    in_order,
    label_of,
    method_label,
    ood_label,
    plain,
    set_of,
)
from dubito.report.reproduction.published import Key, Published
from dubito.report.reproduction.records import Records, at
from dubito.report.tables import Better

__all__ = ["drawn_methods", "lambdas", "methods", "outside", "tables", "unshown"]

UP, DOWN = "\u00a0↑", "\u00a0↓"  # which is better; on the line of the last word
OOD, CONFIDENCE, NOISE = "Out-of-distribution detection", "Confidence and accuracy", "Noisy data"
ABLATED, SWEPT, SMOOTHED = "Ablation", "The weight of −log det", "Label smoothing"
CALIBRATION, SELECTION, PEOPLE = "Calibration", "Selective prediction and FPR95", "People"
SEPARATION = "Separation"
Numbers = Mapping[Key, Published]
_METRICS = {"aupr": "AUPR", "auroc": "AUROC"}


def tables(records: Records, numbers: Numbers) -> list[Table]:
    """Every table that has a number of ours or of the paper's, section by section."""
    makers = (_ood, _confidence, _noise, _ablation, _sweep, _smoothing, _calibration,
              _calibrated_ood, _fpr95, _aurc, _energy, _people)  # fmt: skip
    found = [made for maker in makers for data in SETS for made in maker(records, numbers, data)]
    return [t for t in found if any(e.runs or e.published for e in t.entries)]


def methods(records: Records, data: str) -> list[str]:
    """The variants that tables of methods have rows for: the paper's, and what else was run."""
    apart = [v for v in ABLATION if v not in BASELINES]
    others = [v for v in records.variants(data) if v not in apart and not v.startswith(SWEEP)]
    return in_order([*BASELINES, *others])


def drawn_methods(records: Records, data: str) -> list[str]:
    """The variants that figures of methods have: no other form of one that was run as it is."""
    run = set(records.variants(data))
    return [v for v in methods(records, data) if base_of(v) == v or base_of(v) not in run]


def outside(records: Records, data: str) -> list[str]:
    """The OOD sets of a data set: the paper's, and what else it was told from."""
    found = records.keys(data, ("result", "ood"))
    same = {plain(name): name for name in found}
    wanted = [same.get(plain(name), name) for name in SETS[data].ood]
    return list(dict.fromkeys([*wanted, *found]))


def unshown(records: Records) -> list[str]:
    """Recipes whose data set no table is of."""
    others = [recipe for recipe in records.by_recipe if set_of(recipe) is None]
    return [recipe for recipe in others if not is_fewshot(recipe)]


def _rows(records: Records, data: str) -> list[tuple[str, str]]:
    return [(method_label(v), f"{data}-{v}") for v in methods(records, data)]


def _detection(
    where: tuple[str, ...], metric: str, group: str, measures: Sequence[str] = SHOWN
) -> list[Column]:
    better: Better = "lower" if metric == "fpr95" else "higher"
    return [
        Column(label_of(measure), group, (*where, measure, metric), better) for measure in measures
    ]


def _ood(records: Records, numbers: Numbers, data: str) -> Iterator[Table]:
    for name in outside(records, data):
        where = ("result", "ood", name, "detection")
        columns = [c for m, words in _METRICS.items() for c in _detection(where, m, words + UP)]
        head = Table(
            f"ood-{data}-{name}", OOD, f"{SETS[data].label} → {ood_label(name)}",
            tuple(columns), (), note=_SVHN if plain(name) == "svhn" else "",
        )  # fmt: skip
        yield table(records, numbers, head, _rows(records, data))


_SVHN = (
    "SVHN (re-cropped): the digits were cut out anew from the full photographs, so its images are "
    "not the very ones of the paper."
)


def _confidence(records: Records, numbers: Numbers, data: str) -> Iterator[Table]:
    wrong = ("result", "misclassification")
    columns = [
        Column(f"Acc.{UP}", "", ("result", "accuracy")),
        *_detection(wrong, "aupr", f"Right or wrong, AUPR{UP}", ("max_prob", "max_alpha")),
        *_detection(wrong, "auroc", f"Right or wrong, AUROC{UP}", ("max_prob", "max_alpha")),
    ]
    title = f"{SETS[data].label}: accuracy, and right or wrong"
    head = Table(f"confidence-{data}", CONFIDENCE, title, tuple(columns), ())
    yield table(records, numbers, head, _rows(records, data))


def _noise(records: Records, numbers: Numbers, data: str) -> Iterator[Table]:
    for sigma in records.keys(data, ("result", "noise")):
        where = ("result", "noise", sigma, "detection")
        columns = [c for m, words in _METRICS.items() for c in _detection(where, m, words + UP)]
        head = Table(
            f"noise-{data}-{sigma}", NOISE, f"{SETS[data].label}, clean or noisy: N(0, {sigma})",
            tuple(columns), (), note="The paper draws these numbers and does not print them.",
        )  # fmt: skip
        yield table(records, numbers, head, _rows(records, data))


def _parts(records: Records, data: str) -> list[Column]:
    """What the ablation and the sweep show: accuracy, confidence and each OOD set."""
    wrong = ("result", "misclassification", "max_alpha", "aupr")
    columns = [
        Column(f"Acc.{UP}", "", ("result", "accuracy")),
        Column(f"Conf. (Max.α){UP}", "AUPR", wrong),
    ]
    for name in outside(records, data):
        for measure in ("max_prob", "alpha0"):
            path = ("result", "ood", name, "detection", measure, "aupr")
            columns.append(Column(label_of(measure), f"{ood_label(name)}, AUPR{UP}", path))
    return columns


def _ablation(records: Records, numbers: Numbers, data: str) -> Iterator[Table]:
    head = Table(
        f"ablation-{data}", ABLATED, f"{SETS[data].label}: what each part of the loss brings",
        tuple(_parts(records, data)), (),
        first="Loss", note=_FEW_SHOT_ONLY,
    )  # fmt: skip
    if set(records.variants(data)) & (set(ABLATION) - set(BASELINES)):
        rows = [(words, f"{data}-{variant}") for variant, words in ABLATION.items()]
        yield table(records, numbers, head, rows)


_FEW_SHOT_ONLY = (
    "The paper has this comparison on few-shot features alone; published numbers here are those of "
    "its image tables."
)


def lambdas(records: Records, data: str) -> dict[float, str]:
    """The recipes of the sweep, and those beside it that differ in the same, by their lambda."""
    found: dict[float, str] = {}
    for variant in records.variants(data):
        if variant.startswith(SWEEP) or variant in ("iedl", "iedl-no-logdet"):
            recipe = f"{data}-{variant}"
            weight = at(records.of(recipe)[0], ("config", "method", "fisher_weight"))
            if weight is not None and (variant.startswith(SWEEP) or weight not in found):
                found[float(weight)] = recipe
    swept = any(SWEEP in recipe for recipe in found.values())
    return dict(sorted(found.items())) if swept else {}


def _sweep(records: Records, numbers: Numbers, data: str) -> Iterator[Table]:
    head = Table(
        f"lambda-{data}", SWEPT, f"{SETS[data].label}: −log det weighted by λ",
        tuple(_parts(records, data)), (),
        first="λ", note=_FEW_SHOT_ONLY,
    )  # fmt: skip
    rows = [(f"{weight:g}", recipe) for weight, recipe in lambdas(records, data).items()]
    yield table(records, numbers, head, rows)


def _smoothing(records: Records, numbers: Numbers, data: str) -> Iterator[Table]:
    columns = []
    for name in outside(records, data):
        for measure in ("max_prob", "entropy_of_mean", "alpha0"):
            path = ("result", "ood", name, "detection", measure, "aupr")
            columns.append(Column(label_of(measure), f"{ood_label(name)}, AUPR{UP}", path))
    head = Table(
        f"label-smoothing-{data}", SMOOTHED, f"{SETS[data].label}: smoothed labels or evidence",
        tuple(columns), (),
        note=_FEW_SHOT_ONLY,
    )  # fmt: skip
    if records.of(f"{data}-label-smoothing"):
        rows = [r for r in _rows(records, data) if r[1].removeprefix(f"{data}-") in _SMOOTHED]
        yield table(records, numbers, head, rows)


_SMOOTHED = ("softmax", "label-smoothing", "iedl")


def _calibration(records: Records, numbers: Numbers, data: str) -> Iterator[Table]:
    columns = []
    for metric, words, factor, form in (
        ("ece", "ECE (%)", 100, ".2f"),
        ("nll", "NLL", 1, ".3f"),
        ("brier", "Brier", 1, ".3f"),
    ):
        for when, where in (("before", ()), ("after", ("calibrated",))):
            path = ("result", *where, "calibration", metric)
            columns.append(Column(when, words + DOWN, path, "lower", factor, form))
    head = Table(
        f"calibration-{data}", CALIBRATION, f"{SETS[data].label}, before and after",
        tuple(columns), (), note="Fitted on validation data, judged on test data.",
    )  # fmt: skip
    yield table(records, numbers, head, _rows(records, data))


def _calibrated_ood(records: Records, numbers: Numbers, data: str) -> Iterator[Table]:
    columns: list[Column] = []
    for name in records.keys(data, ("result", "calibrated", "ood")):
        where = ("result", "calibrated", "ood", name, "detection")
        columns += _detection(where, "aupr", f"{ood_label(name)}, AUPR{UP}")
    head = Table(
        f"calibrated-ood-{data}", CALIBRATION,
        f"{SETS[data].label}, out-of-distribution detection after calibration", tuple(columns), (),
    )  # fmt: skip
    yield table(records, numbers, head, _rows(records, data))


def _fpr95(records: Records, numbers: Numbers, data: str) -> Iterator[Table]:
    columns: list[Column] = []
    for name in outside(records, data):
        where = ("result", "ood", name, "detection")
        columns += _detection(where, "fpr95", f"{ood_label(name)}, FPR95{DOWN}")
    head = Table(
        f"fpr95-{data}", SELECTION, f"{SETS[data].label}, what passes where 95 % of its own do",
        tuple(columns), (),
    )  # fmt: skip
    yield table(records, numbers, head, _rows(records, data))


def _aurc(records: Records, numbers: Numbers, data: str) -> Iterator[Table]:
    measures = ("max_prob", "max_alpha", *SHOWN[1:])
    columns = [
        Column(label_of(m), f"AURC (%){DOWN}", ("result", "aurc", m), "lower", 100, ".3f")
        for m in measures
    ]
    title = f"{SETS[data].label}, area under the risk-coverage curve"
    head = Table(f"aurc-{data}", SELECTION, title, tuple(columns), ())
    yield table(records, numbers, head, _rows(records, data))


def _energy(records: Records, numbers: Numbers, data: str) -> Iterator[Table]:
    columns = [
        Column(
            label_of(measure),
            f"{ood_label(name)}, energy distance{UP}",
            ("curves", "energy_distance", name, measure),
            "higher",
            1,
            ".3f",
        )
        for name in records.keys(data, ("curves", "energy_distance"))
        for measure in SHOWN
    ]
    head = Table(
        f"energy-{data}", SEPARATION, f"{SETS[data].label}, how far apart", tuple(columns), (),
        note="Of the measures scaled to [0, 1] over all sets together.",
    )  # fmt: skip
    yield table(records, numbers, head, _rows(records, data))


def _people(records: Records, numbers: Numbers, data: str) -> Iterator[Table]:
    ordered = ("expected_entropy", "entropy_of_mean", *SHOWN, "max_alpha", "vacuity", "dissonance")
    found = records.keys(data, ("result", "humans"))
    columns = [
        Column(
            label_of(m),
            "Spearman's ρ",
            ("result", "humans", m, "spearman"),
            "higher" if m in ordered[:2] else None,
            1,
            ".3f",
        )
        for m in ordered
        if m in found
    ]
    head = Table(
        f"people-{data}", PEOPLE, f"{SETS[data].label}: doubt of networks and of people",
        tuple(columns), (),
        note="Rank correlation of each measure with the entropy of the labels that people gave "
        "(CIFAR-10H). E.Ent. is the data uncertainty that the paper's first figure is about; "
        "measures of confidence correlate negatively.",
    )  # fmt: skip
    yield table(records, numbers, head, _rows(records, data))
