"""What other stopping rules would have kept, from trainings that were evaluated at each validation.

No decision of these trainings depends on test or OOD sets, so a rule that stops no later than the
training did can be applied afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import mean  # exact: the mean of few validations is often halfway
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from reproduction.figures import heading, new_figure, shared_legend, style
from reproduction.recipes import Recipe
from reproduction.results import OOD, Results, at, label

__all__ = ["by_epoch", "by_patience", "figure", "histories", "rules", "spans"]

History = Mapping[str, Any]
#: index of the validation that is kept; None if the training ended before the rule decides
Rule = Callable[[History], int | None]
#: validations from the best one to the end, both included; the published rule has 10
WINDOWS = (4, 5, 6, 7, 8, 9, 10)
EPOCHS = (20, 30, 40, 50, 60, 80)
SPANS = ((20, 38), (40, 58), (60, 78), (80, 98), (100, 118), (120, 138), (140, 158))
#: validations before and after the kept one, where a moment is not to decide
AROUND = 3
#: validations of a training, and trainings, that a span needs
LEAST = 3


def by_patience(window: int, keep: str = "accuracy") -> Rule:
    """Keep the best validation once it is the first of `window` validations.

    Args:
        window: Validations from the best one to the end of the training.
        keep: "accuracy" or "loss".
    """
    sign = -1 if keep == "loss" else 1

    def rule(history: History) -> int | None:
        best, best_value = 0, -math.inf
        for place, value in enumerate(history.get(f"validation_{keep}", ())):
            if sign * float(value) > best_value:
                best, best_value = place, sign * float(value)
            if place - best + 1 >= window:
                return best
        return None

    return rule


def by_epoch(epoch: int) -> Rule:
    """Keep the validation after an epoch."""
    return lambda history: history["epoch"].index(epoch) if epoch in history["epoch"] else None


def histories(results: Results, recipe: Recipe) -> list[History]:
    """Return the histories of a recipe's trainings, if they were evaluated at each validation."""
    records = results.by_recipe.get(recipe.name, [])
    runs = [at(record, "training.history") for record in records]
    return runs if all(run and "watched" in run for run in runs) else []


def quantities(runs: Sequence[History]) -> list[str]:
    """Return accuracy, and AUPR by Max.P of each OOD set."""
    return [q for q in runs[0]["watched"] if "max_prob/aupr" in q or q == "accuracy"]


def kept(rule: Rule, runs: Sequence[History], around: int = 0) -> pd.DataFrame:
    """Return the epoch that a rule keeps in each training, and the numbers there in per cent.

    Empty if a training ended before the rule decides.

    Args:
        rule: Rule.
        found: Histories.
        around: Average over so many validations before and after.
    """
    places = [rule(history) for history in runs]
    if None in places:
        return pd.DataFrame()
    rows = []
    for history, place in zip(runs, places, strict=True):
        assert place is not None
        span = slice(max(0, place - around), place + around + 1)
        values = {q: 100 * mean(history["watched"][q][span]) for q in quantities(runs)}
        rows.append({"epoch": history["epoch"][place], **values})
    return pd.DataFrame(rows)


def rules(runs: Sequence[History]) -> pd.DataFrame:
    """Return epochs, accuracy and detection of the weights that each rule keeps, as text."""
    by_loss = by_patience(10, "loss")
    named: list[tuple[str, Rule, int]] = [
        *((f"window of {size} checks", by_patience(size), 0) for size in WINDOWS),
        ("window of 10, by loss", by_loss, 0),
        (f"with {AROUND} checks either side", by_loss, AROUND),
        *((f"epoch {epoch}", by_epoch(epoch), 0) for epoch in EPOCHS),
    ]
    rows = {name: _texts(kept(rule, runs, around), runs) for name, rule, around in named}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("rule")


def _texts(frame: pd.DataFrame, runs: Sequence[History]) -> dict[str, str]:
    names = {q: q.replace("/max_prob/aupr", " AUPR") for q in quantities(runs)}
    if frame.empty:
        return dict.fromkeys(["epochs", *names.values()], "–")
    ends = dict.fromkeys([frame["epoch"].min(), frame["epoch"].max()])
    std = frame.std().fillna(0.0)
    texts = {name: f"{mean(frame[q]):.1f} ±{std[q]:.1f}" for q, name in names.items()}
    return {"epochs": " to ".join(map(str, ends)), **texts}


def spans(runs: Sequence[History]) -> pd.DataFrame:
    """Return, over spans of epochs, the mean, and how far validations and means of trainings vary.

    If all validations were draws from one distribution, means would vary as in the last column.
    """
    rows = []
    for quantity in quantities(runs):
        for first, last in SPANS:
            parts = [
                pd.Series([100 * v for e, v in zip(h["epoch"], h["watched"][quantity], strict=True)
                           if first <= e <= last])
                for h in runs
            ]  # fmt: skip
            parts = [part for part in parts if len(part) >= LEAST]
            if len(parts) < LEAST:
                continue
            means = pd.Series([part.mean() for part in parts])
            inside = pd.Series([part.var() for part in parts]).mean() ** 0.5
            alike = inside * pd.Series([1 / len(part) for part in parts]).mean() ** 0.5
            numbers = (means.mean(), inside, means.std(), alike)
            rows.append(
                [quantity, f"{first} to {last}", str(len(parts)), *(f"{x:.1f}" for x in numbers)]
            )
    columns = ["quantity", "epochs", "runs", "mean", "in a run", "of means", "if alike"]
    return pd.DataFrame(rows, columns=columns).set_index("quantity")


def figure(results: Results, recipes: Sequence[Recipe]) -> Figure:
    """Draw the results against the window, a line for each recipe.

    Args:
        results: Results.
        recipes: Recipes whose trainings were evaluated at each validation.
    """
    by_label = {label(recipe): histories(results, recipe) for recipe in recipes}
    shown = quantities(next(iter(by_label.values())))
    drawn, axes = new_figure(len(shown), 3, (4.2, 3.4))
    for ax, quantity in zip(axes, shown, strict=True):
        ood, _, is_ood = quantity.partition("/")
        for number, (name, runs) in enumerate(by_label.items()):
            frames = {size: kept(by_patience(size), runs) for size in WINDOWS}
            known = {size: frame[quantity] for size, frame in frames.items() if len(frame)}
            ax.errorbar(
                [size + 0.08 * number for size in known], [v.mean() for v in known.values()],
                [v.std() for v in known.values()], label=name, capsize=2, **style(number),
            )  # fmt: skip
        ax.set(xlabel="validations in the window", ylabel="AUPR (%)" if is_ood else "accuracy (%)")
        heading(ax, OOD[ood] if is_ood else "Test")
    shared_legend(drawn, axes, 2)
    return drawn
