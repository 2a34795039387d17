"""Few-shot tables: ours, the published code's on our features, and the paper's on its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from reproduction.published import verdict
from reproduction.recipes import Recipe
from reproduction.results import METHODS, SCORES, Results, label
from reproduction.store import Record
from reproduction.tables import ABLATION, NONE, SHOWN, UP, Cell, Column, Table, build

__all__ = ["Pooled", "pooled", "settings", "sweep", "tables"]

SECTION = "Few-shot"
ACCURACY, CONFIDENCE, OOD = "accuracy", "confidence/max_alpha/aupr", "ood/alpha0/aupr"
MAIN = {"Acc.": ACCURACY, "Conf. Max.α": CONFIDENCE, "OOD α₀": OOD}
SOURCES = (
    "The paper's numbers are of its own features, and so have no verdict; ours and those of the "
    "published code are of the same, other features. ± is half of a 95 % interval over episodes."
)
#: (method, variant) -> row of the table of tuned methods
TUNED = {
    ("edl", ""): "EDL as published",
    ("edl", "tuned"): "EDL, KL and scaling tuned",
    ("iedl", ""): "I-EDL, the paper's λ",
    ("iedl", "tuned lambda"): "I-EDL, λ tuned",
    ("iedl", "tuned"): "I-EDL, λ, KL and scaling tuned",
}
#: standard errors in half of a 95 % interval
HALF = 1.96
Setting = tuple[int, int]
Key = tuple[str, str]


class Pooled(NamedTuple):
    """Mean over the episodes of all seeds in per cent, and half of its 95 % interval."""

    mean: float
    interval: float
    episodes: int


def pooled(records: Iterable[Record], quantity: str) -> Pooled | None:
    """Pool the episodes of all seeds; None if there are none.

    Args:
        records: Records of one recipe.
        quantity: Name of the metric.
    """
    summaries = [record["result"]["figures"].get(quantity) for record in records]
    summaries = [summary for summary in summaries if summary and summary["mean"] is not None]
    if not summaries:
        return None
    total = sum(summary["episodes"] for summary in summaries)
    mean = sum(summary["episodes"] * summary["mean"] for summary in summaries) / total
    if len(summaries) == 1:
        half = summaries[0]["interval"]
        return Pooled(100 * summaries[0]["mean"], math.nan if half is None else 100 * half, total)
    squares = 0.0
    for summary in summaries:
        half = math.nan if summary["interval"] is None else summary["interval"]
        within = (summary["episodes"] - 1) * (half / HALF) ** 2
        squares += summary["episodes"] * (within + (summary["mean"] - mean) ** 2)
    return Pooled(100 * mean, 100 * HALF * math.sqrt(squares / (total - 1) / total), total)


def settings(results: Results) -> dict[tuple[str, str, Setting], Recipe]:
    """Return the recipes that were run, by method, variant, and ways and shots; no sweeps."""
    return {
        (recipe.method, recipe.variant, recipe.setting): recipe
        for name in results.by_recipe
        if (recipe := results.recipes[name]).is_fewshot and recipe.swept is None
    }


def sweep(results: Results) -> dict[Setting, dict[float, Recipe]]:
    """Return the recipes of the sweep that were run, by setting and weight."""
    swept: dict[Setting, dict[float, Recipe]] = {}
    for name in results.by_recipe:
        recipe = results.recipes[name]
        if recipe.is_fewshot and recipe.swept is not None:
            swept.setdefault(recipe.setting, {})[recipe.swept] = recipe
    return {where: dict(sorted(by_weight.items())) for where, by_weight in sorted(swept.items())}


class _Builder:
    """Builds tables whose columns belong to settings."""

    def __init__(self, results: Results) -> None:
        self.results, self.known = results, settings(results)
        methods = [m for m in METHODS if any(k[:2] == (m, "") for k in self.known)]
        self.methods: dict[Key, str] = {(method, ""): METHODS[method] for method in methods}

    def shots(self, ways: int, key: Key | None = None) -> list[int]:
        """Return the shots that published methods, or one of them, were run with."""
        shots = {
            where[1]
            for method, variant, where in self.known
            if where[0] == ways and (variant == "" if key is None else (method, variant) == key)
        }
        return sorted(shots)

    @property
    def ways(self) -> list[int]:
        return sorted({where[0] for _, _, where in self.known})

    def cell(self, key: Key, where: Setting, quantity: str) -> Cell:
        """Return our number, compared with that of the published code on the same features."""
        recipe = self.known.get((*key, where))
        ours = None if recipe is None else pooled(self.records(recipe), quantity)
        published = self.results.published
        lookup = (*where, " ".join(key).strip(), quantity)
        code, paper = published.code.get(lookup), published.fewshot.get(lookup)
        beside = [("code", code)] if code is not None else []
        beside += [("paper", paper)] if paper is not None else []
        compared = code if code is not None and code.deviation is not None else None
        if ours is None:
            return Cell(published=compared, beside=tuple(beside))
        result = "" if compared is None else verdict(ours.mean, compared)
        seeds = len(self.records(recipe))
        return Cell(ours.mean, ours.interval, seeds, compared, result, tuple(beside), ours.episodes)

    def records(self, recipe: Recipe | None) -> list[Record]:
        return [] if recipe is None else self.results.by_recipe[recipe.name]

    def table(
        self,
        key: str,
        title: str,
        columns: Sequence[tuple[Setting, Column]],
        rows: Mapping[Key, str],
        note: str = SOURCES,
        first: str = "Method",
    ) -> Iterator[Table]:
        """Yield the table, unless it has no numbers of ours."""
        table_rows = []
        for row, name in rows.items():
            cells = [self.cell(row, where, column.quantity) for where, column in columns]
            table_rows.append((name, None, _count(cells), cells))
        yield from _nonempty(key, title, [column for _, column in columns], table_rows, note, first)


def _nonempty(
    key: str, title: str, columns: Sequence[Column], rows: Any, note: str, first: str
) -> Iterator[Table]:
    head = Table(f"fewshot-{key}", SECTION, title, note, first, "Episodes")
    if any(cell.seeds for *_, cells in rows for cell in cells):
        yield build(head, columns, rows)


def _count(cells: Sequence[Cell]) -> str:
    """Return the number of episodes, and of seeds if there are several."""
    episodes = _range(cell.episodes for cell in cells if cell.seeds)
    seeds = [cell.seeds for cell in cells if cell.seeds]
    return f"{episodes} ({_range(seeds)} seeds)" if max(seeds, default=0) > 1 else episodes or NONE


def _range(counts: Iterable[int]) -> str:
    """Return the lowest and the highest count.

    >>> _range([9990, 10000, 9995]), _range([2, 2]), _range([])
    ('9,990 to 10,000', '2', '')
    """
    ordered = sorted(counts)
    return " to ".join(dict.fromkeys(f"{count:,}" for count in (*ordered[:1], *ordered[-1:])))


def tables(results: Results) -> list[Table]:
    """Build all few-shot tables."""
    builder = _Builder(results)
    makers = (_main, _scores, _ablation, _smoothing, _lambda, _tuned)
    return [table for make in makers for table in make(builder)]


def _shots(shots: int) -> str:
    return f"{shots} shot{'s' if shots > 1 else ''}"


def _main(builder: _Builder) -> Iterator[Table]:
    for ways in builder.ways:
        columns = [
            ((ways, shots), Column(title + UP, _shots(shots), quantity))
            for shots in builder.shots(ways)
            for title, quantity in MAIN.items()
        ]
        title = f"{ways} ways: accuracy, and AUPR of right or wrong and of CUB"
        rows = _rows(builder, ways)
        note = f"{SOURCES} {_against_code(builder)}".strip()
        yield from builder.table(f"{ways}w", title, columns, rows, note)


def _rows(builder: _Builder, ways: int) -> dict[Key, str]:
    return {key: name for key, name in builder.methods.items() if builder.shots(ways, key)}


def _against_code(builder: _Builder) -> str:
    """Count the verdicts over all numbers of the published code."""
    tally: dict[str, int] = {}
    for ways, shots, method, quantity in builder.results.published.code:
        outcome = builder.cell((method, ""), (ways, shots), quantity).verdict
        if outcome:
            tally[outcome] = tally.get(outcome, 0) + 1
    words = [f"{tally[name]} {name}" for name in ("agrees", "better", "worse") if name in tally]
    return (
        f"Against the published code, all tables together: {', '.join(words)}; a number agrees "
        "that is within the interval of its 1,000 episodes."
        if words
        else ""
    )


def _scores(builder: _Builder) -> Iterator[Table]:
    for ways in builder.ways:
        for metric, words in (("aupr", "AUPR"), ("auroc", "AUROC")):
            columns = [
                ((ways, shots), Column(SCORES[score], _shots(shots), f"ood/{score}/{metric}"))
                for shots in builder.shots(ways)
                for score in SHOWN
            ]
            title = f"{ways} ways: {words}{UP} of telling CUB, by measure"
            yield from builder.table(f"{ways}w-{metric}", title, columns, _rows(builder, ways))


def _ablation(builder: _Builder) -> Iterator[Table]:
    columns = [((5, 5), Column(title + UP, "", quantity)) for title, quantity in MAIN.items()]
    if any((*key, (5, 5)) in builder.known for key in ABLATION if key[1]):
        title = "5 ways, 5 shots: what each part of the loss brings"
        yield from builder.table("ablation", title, columns, ABLATION, first="Loss")


def _smoothing(builder: _Builder) -> Iterator[Table]:
    rows = {(method, ""): METHODS[method] for method in ("softmax", "label_smoothing", "iedl")}
    columns = [
        ((5, shots), Column(SCORES[score], _shots(shots), f"ood/{score}/aupr"))
        for shots in builder.shots(5, ("label_smoothing", ""))
        for score in ("max_prob", "entropy_of_mean", "alpha0")
    ]
    title = f"5 ways: smoothed labels or evidence, AUPR{UP} of telling CUB"
    yield from builder.table("label-smoothing", title, columns, rows)


def _lambda(builder: _Builder) -> Iterator[Table]:
    swept = sweep(builder.results)
    columns = [
        (where, Column(title + UP, f"{where[0]} ways, {_shots(where[1])}", quantity))
        for where in swept
        for title, quantity in (
            ("Acc.", ACCURACY),
            ("OOD Max.P", "ood/max_prob/aupr"),
            ("OOD α₀", OOD),
        )
    ]
    rows = []
    for weight in sorted({weight for by_weight in swept.values() for weight in by_weight}):
        cells = []
        for where, column in columns:
            records = builder.records(swept[where].get(weight))
            ours = pooled(records, column.quantity)
            cells.append(Cell() if ours is None else _unpublished(ours, len(records)))
        rows.append((f"{weight:g}", None, _count(cells), cells))
    note = "The paper draws these numbers and prints none."
    shown = [column for _, column in columns]
    yield from _nonempty("lambda", "−log det weighted by λ", shown, rows, note, "λ")


def _unpublished(ours: Pooled, seeds: int) -> Cell:
    return Cell(ours.mean, ours.interval, seeds, episodes=ours.episodes)


def _tuned(builder: _Builder) -> Iterator[Table]:
    tuned = [key for key in TUNED if key[1]]
    tuned_settings = sorted({where for *key, where in builder.known if tuple(key) in tuned})
    columns = [
        (where, Column(title + UP, f"{where[0]}w{where[1]}s", quantity))
        for where in tuned_settings
        for title, quantity in (("Acc.", ACCURACY), ("Conf.", CONFIDENCE), ("OOD α₀", OOD))
    ]
    rows = {key: n for key, n in TUNED.items() if any(k[:2] == key for k in builder.known)}
    note = f"{SOURCES} {_choices(builder)}"
    title = "Chosen on validation classes, judged on novel ones"
    yield from builder.table("tuned", title, columns, rows, note)


def _choices(builder: _Builder) -> str:
    """List the choices on the validation classes, with the seeds if these differ."""
    words = []
    tuned = sorted(builder.known.values(), key=lambda recipe: (recipe.group, recipe.setting))
    for recipe in tuned:
        seeds_of: dict[str, list[str]] = {}
        for record in builder.records(recipe):
            if "tuning" in record:
                seeds_of.setdefault(_choice(record["tuning"]), []).append(str(record["seed"]))
        choices = [f"{choice} (seeds {', '.join(seeds)})" for choice, seeds in seeds_of.items()]
        if seeds_of:
            choice = ", ".join(choices if len(seeds_of) > 1 else seeds_of)
            ways, shots = recipe.setting
            words.append(f"{label(recipe)} {ways}w{shots}s: {choice}")
    return f"Chosen: {'; '.join(words)}." if words else ""


def _choice(tuning: Mapping[str, Any]) -> str:
    choice = tuning["choice"]
    words = [f"λ {choice['fisher_weight']:g}"] if "fisher_weight" in choice else []
    return " / ".join([*words, f"KL {choice['kl_weight']:g}", tuning["scaling"]])
