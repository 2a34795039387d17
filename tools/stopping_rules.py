"""What another stopping rule would have kept, from the records of runs that were watched.

    python tools/stopping_rules.py results/cifar10-iedl results/cifar10-edl --figure rules.png

A watched run has accuracy and detection on the test sets at every check, and no decision of the
training looks at them; so a rule that stops no later than the run did can be applied afterwards.
With several folders the figure has a line for each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dubito.training import Settings
from dubito.training.stopping import is_over, worths

if TYPE_CHECKING:
    from matplotlib.figure import Figure

History = dict[str, Any]
Rule = Callable[[History], int | None]
#: checks that the window of a rule holds; the published one has 10
WINDOWS = (4, 5, 6, 7, 8, 9, 10)
EPOCHS = (20, 30, 40, 50, 60, 80)
#: checks before and after the kept one that count with it where a moment is not to decide
AROUND = 3
SPANS = ((20, 38), (40, 58), (60, 78), (80, 98), (100, 118), (120, 138), (140, 158))


def by_window(size: int, keep: str = "accuracy") -> Rule:
    """The best check of a run that stops once the first of its last `size` checks is their best."""

    settings, name = Settings(patience=size, keep=keep), f"validation_{keep}"

    def kept(history: History) -> int | None:
        checks = [{name: value} for value in history.get(name, ())]
        for end in range(size, len(checks) + 1):
            if is_over(checks[:end], settings):
                seen = worths(checks[:end], keep)
                return seen.index(max(seen))
        return None

    return kept


def by_epoch(epoch: int) -> Rule:
    """The check after that epoch."""
    return lambda history: history["epoch"].index(epoch) if epoch in history["epoch"] else None


def quantities(histories: Sequence[History]) -> list[str]:
    """What the table and the figure show of what was watched."""
    return [q for q in histories[0]["watched"] if "max_prob/aupr" in q or q == "accuracy"]


def kept_by(
    rule: Rule, histories: Sequence[History], around: int = 0
) -> tuple[list[int], dict[str, list[float]]]:
    """The epochs that a rule keeps and what they have, in percent; nothing where one run ended
    before the rule could decide. With `around`, the mean with that many checks either side."""
    places = [rule(history) for history in histories]
    found = [(h, place) for h, place in zip(histories, places, strict=True) if place is not None]
    if len(found) < len(places):
        return [], {}
    epochs = [history["epoch"][place] for history, place in found]
    return epochs, {
        q: [
            100 * statistics.mean(h["watched"][q][max(0, place - around) : place + around + 1])
            for h, place in found
        ]
        for q in quantities(histories)
    }


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """The mean and the deviation, 0 for a single value."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def row(name: str, rule: Rule, histories: Sequence[History], around: int = 0) -> str:
    """A line of the table; dashes where there is nothing to say."""
    epochs, found = kept_by(rule, histories, around)
    if not epochs:
        return f"| {name} | – |" + " – |" * len(quantities(histories))
    cells = [f"{min(epochs)} to {max(epochs)}" if len(set(epochs)) > 1 else f"{epochs[0]}"]
    for values in found.values():
        mean, spread = mean_and_spread(values)
        cells.append(f"{mean:.1f} ±{spread:.1f}")
    return f"| {name} | " + " | ".join(cells) + " |"


def table(histories: Sequence[History]) -> str:
    """Each rule's epochs, accuracy and detection."""
    shown = [q.replace("/max_prob/aupr", " AUPR") for q in quantities(histories)]
    lines = [f"| rule | epochs | {' | '.join(shown)} |", "| --- |" + " ---: |" * (len(shown) + 1)]
    lines += [row(f"window of {size} checks", by_window(size), histories) for size in WINDOWS]
    by_loss = by_window(10, "loss")
    lines.append(row("window of 10, by loss", by_loss, histories))
    lines.append(row(f"with {AROUND} checks either side", by_loss, histories, AROUND))
    lines += [row(f"epoch {epoch}", by_epoch(epoch), histories) for epoch in EPOCHS]
    return "\n".join(lines)


def spans(histories: Sequence[History]) -> str:
    """Over spans of epochs: the mean, how far checks of a run spread, and how far the runs' means
    do. Were all checks draws from one distribution, the last would be the one before it over the
    square root of the number of checks."""
    lines = [
        "| quantity | epochs | runs | mean | in a run | of means | if alike |",
        "| --- |" + " ---: |" * 6,
    ]
    for quantity in quantities(histories):
        for first, last in SPANS:
            parts = [
                [100 * value for epoch, value in pairs(history, quantity) if first <= epoch <= last]
                for history in histories
            ]
            parts = [part for part in parts if len(part) > 2]
            if len(parts) < 3:
                continue
            means = [statistics.mean(part) for part in parts]
            inside = statistics.mean(statistics.variance(part) for part in parts) ** 0.5
            alike = inside * statistics.mean(1 / len(part) for part in parts) ** 0.5
            lines.append(
                f"| {quantity} | {first} to {last} | {len(parts)} | {statistics.mean(means):.1f} | "
                f"{inside:.1f} | {statistics.stdev(means):.1f} | {alike:.1f} |"
            )
    return "\n".join(lines)


def pairs(history: History, quantity: str) -> list[tuple[int, float]]:
    """Epochs and values."""
    return list(zip(history["epoch"], history["watched"][quantity], strict=True))


def figure(given: dict[str, list[History]]) -> Figure:
    """A panel for each quantity: what is kept against the window, a line for each recipe."""
    from dubito.report.figures.style import panels, plain, style
    from dubito.report.reproduction.names import method_label, ood_label, variant_of

    shown = quantities(next(iter(given.values())))
    drawing, axes = panels(len(shown), 3, (4.2, 3.2))
    for ax, quantity in zip(axes, shown, strict=True):
        outside, _, of = quantity.partition("/")
        plain(ax, ood_label(outside) if of else "Test", "AUPR, %" if of else "accuracy, %")
        for index, (name, histories) in enumerate(given.items()):
            found = {size: kept_by(by_window(size), histories)[1] for size in WINDOWS}
            known = {n: mean_and_spread(values[quantity]) for n, values in found.items() if values}
            if not known:
                continue
            means, spreads = zip(*known.values(), strict=True)
            places = [size + 0.08 * index for size in known]  # side by side
            label = method_label(variant_of(name))
            ax.errorbar(places, means, spreads, label=label, capsize=2, **style(index))
        ax.set_xlabel("checks in the window", fontsize=9)
    axes[0].legend(frameon=False, fontsize=9, loc="lower right")
    return drawing


def watched(folder: Path) -> list[History]:
    """The histories of a recipe's records."""
    records = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("seed-*.json"))]
    histories = [record["training"]["history"] for record in records]
    if not histories or not all("watched" in history for history in histories):
        sys.exit(f"{folder} holds no records of watched runs")
    return histories


def main() -> None:
    """Print the table of each recipe's records, and draw them together."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="RESULTS/RECIPE")
    parser.add_argument("--figure", type=Path, help="a .png or .pdf to write")
    chosen = parser.parse_args()
    given = {folder.name: watched(folder) for folder in chosen.folders}
    for name, histories in given.items():
        print(f"{name}, {len(histories)} seeds\n\n{table(histories)}\n\n{spans(histories)}\n")
    if chosen.figure:
        figure(given).savefig(chosen.figure, dpi=150)


if __name__ == "__main__":
    main()
