"""The report's few-shot tables: ours, the published code's on our features, and the paper's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dubito.report.reproduction.episodes import (
    ACCURACY,
    CONFIDENCE,
    OOD,
    PREFIX,
    SWEPT,
    Episodes,
    entry,
)
from dubito.report.reproduction.layout import Column, Entry, Row, Table, with_best
from dubito.report.reproduction.names import (
    ABLATION,
    SHOWN,
    in_order,
    label_of,
    method_label,
)
from dubito.report.reproduction.records import Records
from dubito.report.tables import NONE

__all__ = ["FEWSHOT", "METHODS", "tables"]

FEWSHOT = "Few-shot"
UP = "\u00a0↑"
TUNED = ("edl-tuned", "iedl-tuned-lambda", "iedl-tuned")
#: heads of the tables of methods: the others vary one of them, and have tables of their own
METHODS = ("softmax", "label-smoothing", "kl-pn", "rkl-pn", "redl", "edl", "iedl")
SOURCES = (
    "The paper's numbers are of its own features, and so have no verdict; ours and those of the "
    "published code are of the same, other features. ± is half of a 95 % interval over episodes."
)


def _column(title: str, group: str, figure: str) -> Column:
    return Column(title, group, ("result", "figures", figure))


Columns = Sequence[tuple[tuple[int, int], Column]]


def tables(records: Records, paper: Mapping[str, Any]) -> list[Table]:
    """Every few-shot table that has a number of ours."""
    held = Episodes(records, paper)
    if not held.by_setting and not held.sweep:
        return []
    found = [made for maker in _MAKERS for made in maker(held)]
    return [t for t in found if any(e.runs for e in t.entries)]


def _table(
    held: Episodes,
    key: str,
    title: str,
    columns: Columns,
    rows: Iterable[tuple[str, str]],
    note: str = SOURCES,
    first: str = "Method",
) -> Table:
    made = []
    for name, variant in rows:
        entries = tuple(held.entry(variant, where, column) for where, column in columns)
        made.append(_row(name, variant, entries))
    shown = tuple(column for _, column in columns)
    return Table(
        f"{PREFIX}{key}", FEWSHOT, title, shown, tuple(with_best(made, shown)), first, note,
        held.records.quick, apart=True, counted="Episodes",
    )  # fmt: skip


def _row(name: str, variant: str, entries: tuple[Entry, ...]) -> Row:
    """A row that tells how many episodes its numbers are of, and seeds where some have several."""
    episodes = _ends(e.pooled.episodes for e in entries if e.pooled is not None)
    seeds = [len(e.runs) for e in entries if e.runs]
    of = f"{_ends(seeds)} seeds" if max(seeds, default=0) > 1 else ""
    return Row(name, f"{PREFIX}{variant}", (), entries, episodes or NONE, of)


def _ends(counts: Iterable[int]) -> str:
    """The least and the largest of counts.

    >>> _ends([9990, 10000, 9995]), _ends([2, 2]), _ends([])
    ('9,990 to 10,000', '2', '')
    """
    found = sorted(counts)
    return " to ".join(dict.fromkeys(f"{count:,}" for count in (*found[:1], *found[-1:])))


def _methods(held: Episodes, ways: int) -> list[tuple[str, str]]:
    found = {v for v, w, _ in held.by_setting if w == ways and v in METHODS}
    return [(method_label(variant), variant) for variant in in_order(found)]


def _main(held: Episodes) -> Iterator[Table]:
    for ways in held.ways:
        rows = _methods(held, ways)
        columns = [
            ((ways, shots), _column(title + UP, _shots(shots), figure))
            for shots in held.shots(ways, METHODS)
            for title, figure in (("Acc.", ACCURACY), ("Conf. Max.α", CONFIDENCE), ("OOD α₀", OOD))
        ]
        title = f"{ways} ways: accuracy, and AUPR of right or wrong and of CUB"
        yield _table(held, f"{ways}w", title, columns, rows, f"{SOURCES} {_judged(held)}")


def _judged(held: Episodes) -> str:
    """How ours stands to the published code over all its numbers."""
    found: dict[str, int] = {}
    for variant, ways, shots, figure in held.code:
        one = held.entry(variant, (ways, shots), _column("", "", figure))
        if one.verdict is not None:
            found[one.verdict] = found.get(one.verdict, 0) + 1
    words = [f"{found[name]} {name}" for name in ("agrees", "better", "worse") if name in found]
    if not words:
        return ""
    return (
        f"Against the published code, all tables together: {', '.join(words)}; a number agrees "
        "that is within the interval of its 1,000 episodes."
    )


def _measures(held: Episodes) -> Iterator[Table]:
    for ways in held.ways:
        for metric, words in (("aupr", "AUPR"), ("auroc", "AUROC")):
            columns = [
                ((ways, shots), _column(label_of(m), _shots(shots), f"ood/{m}/{metric}"))
                for shots in held.shots(ways, METHODS)
                for m in SHOWN
            ]
            title = f"{ways} ways: {words}{UP} of telling CUB, by measure"
            yield _table(held, f"{ways}w-{metric}", title, columns, _methods(held, ways))


def _shots(shots: int) -> str:
    return f"{shots} shot{'s' if shots > 1 else ''}"


def _ablation(held: Episodes) -> Iterator[Table]:
    rows = [(words, variant) for variant, words in ABLATION.items()]
    columns = [
        ((5, 5), _column(title + UP, "", figure))
        for title, figure in (("Acc.", ACCURACY), ("Conf. Max.α", CONFIDENCE), ("OOD α₀", OOD))
    ]
    if any((variant, 5, 5) in held.by_setting for variant in ("edl-logdet", "iedl-no-logdet")):
        title = "5 ways, 5 shots: what each part of the loss brings"
        yield _table(held, "ablation", title, columns, rows, first="Loss")


def _smoothing(held: Episodes) -> Iterator[Table]:
    rows = [(method_label(v), v) for v in ("softmax", "label-smoothing", "iedl")]
    columns = [
        ((5, shots), _column(label_of(m), _shots(shots), f"ood/{m}/aupr"))
        for shots in held.shots(5, ["label-smoothing"])
        for m in ("max_prob", "entropy_of_mean", "alpha0")
    ]
    title = f"5 ways: smoothed labels or evidence, AUPR{UP} of telling CUB"
    yield _table(held, "label-smoothing", title, columns, rows)


def _sweep(held: Episodes) -> Iterator[Table]:
    settings = list(held.sweep)
    weights = sorted({weight for found in held.sweep.values() for weight in found})
    columns = [
        (where, _column(title + UP, f"{where[0]} ways, {_shots(where[1])}", figure))
        for where in settings
        for title, figure in (
            ("Acc.", ACCURACY),
            ("OOD Max.P", "ood/max_prob/aupr"),
            ("OOD α₀", OOD),
        )
    ]
    rows = []
    for weight in weights:
        entries = tuple(
            entry(held.sweep[where].get(weight, []), f"{PREFIX}{SWEPT}-{weight:g}", column)
            for where, column in columns
        )
        rows.append(_row(f"{weight:g}", SWEPT, entries))
    shown = tuple(column for _, column in columns)
    if rows:
        yield Table(
            f"{PREFIX}lambda", FEWSHOT, "−log det weighted by λ", shown,
            tuple(with_best(rows, shown)), "λ", "The paper draws these numbers and prints none.",
            held.records.quick, apart=True, counted="Episodes",
        )  # fmt: skip


def _tuned(held: Episodes) -> Iterator[Table]:
    variants = ("edl", "edl-tuned", "iedl", *TUNED[1:])
    if not any(variant in TUNED for variant, _, _ in held.by_setting):
        return
    settings = sorted({(ways, shots) for v, ways, shots in held.by_setting if v in TUNED})
    columns = [
        (where, _column(title + UP, f"{where[0]}w{where[1]}s", figure))
        for where in settings
        for title, figure in (("Acc.", ACCURACY), ("Conf.", CONFIDENCE), ("OOD α₀", OOD))
    ]
    rows = [(_TUNED_SHOWN[v], v) for v in variants if any(k[0] == v for k in held.by_setting)]
    yield _table(
        held, "tuned", "Chosen on validation classes, judged on novel ones", columns, rows,
        f"{SOURCES} {_choices(held)}",
    )  # fmt: skip


_TUNED_SHOWN = {
    "edl": "EDL as published",
    "edl-tuned": "EDL, KL and scaling tuned",
    "iedl": "I-EDL, the paper's λ",
    "iedl-tuned-lambda": "I-EDL, λ tuned",
    "iedl-tuned": "I-EDL, λ, KL and scaling tuned",
}


def _choices(held: Episodes) -> str:
    """What the validation classes chose, seed by seed where that differs."""
    words = []
    for (variant, ways, shots), records in sorted(held.by_setting.items()):
        chosen: dict[str, list[str]] = {}
        for record in records:
            if (tuned := record.get("tuning")) is not None:
                chosen.setdefault(_choice(tuned), []).append(str(record["seed"]))
        if chosen:
            told = [
                f"{choice} (seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)})"
                for choice, seeds in chosen.items()
            ]
            said = ", ".join(told if len(chosen) > 1 else chosen)
            words.append(f"{method_label(variant)} {ways}w{shots}s: {said}")
    return f"Chosen: {'; '.join(words)}." if words else ""


def _choice(tuned: Mapping[str, Any]) -> str:
    given = tuned["choice"]
    told = [f"λ {given['fisher_weight']:g}"] if "fisher_weight" in given else []
    return " / ".join([*told, f"KL {given['kl_weight']:g}", tuned["scaling"]])


_MAKERS: tuple[Callable[[Episodes], Iterator[Table]], ...] = (
    _main, _measures, _ablation, _smoothing, _sweep, _tuned,
)  # fmt: skip
