"""What another stopping rule would have kept, from the records of runs that were watched.

    python tools/stopping_rules.py results/cifar10-iedl

A watched run has accuracy and detection on the test sets at every check, and no decision of the
training looks at them; so a rule that stops no later than the run did can be applied afterwards.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

History = dict[str, Any]
#: checks that the window of a rule holds; the published one has 10
WINDOWS = (4, 5, 6, 7, 8, 9, 10)
EPOCHS = (20, 30, 40, 50, 60, 80)


def by_window(size: int) -> Callable[[History], int | None]:
    """The best check of a run that stops once the first of its last `size` checks is their best."""

    def kept(history: History) -> int | None:
        seen = history["validation_accuracy"]
        for last in range(size - 1, len(seen)):
            window = seen[last - size + 1 : last + 1]
            if window[0] == max(window):
                return seen.index(max(seen[: last + 1]))
        return None

    return kept


def by_epoch(epoch: int) -> Callable[[History], int | None]:
    """The check after that epoch."""
    return lambda history: history["epoch"].index(epoch) if epoch in history["epoch"] else None


def row(name: str, rule: Callable[[History], int | None], histories: Sequence[History]) -> str:
    """A line of the table; a dash where a run ended before the rule could decide."""
    places = [rule(history) for history in histories]
    quantities = [q for q in histories[0]["watched"] if "max_prob/aupr" in q or q == "accuracy"]
    if None in places:
        return f"| {name} | – |" + " – |" * len(quantities)
    pairs = list(zip(histories, places, strict=True))
    epochs = [history["epoch"][place] for history, place in pairs]
    cells = [f"{min(epochs)} to {max(epochs)}" if len(set(epochs)) > 1 else f"{epochs[0]}"]
    for quantity in quantities:
        values = [100 * history["watched"][quantity][place] for history, place in pairs]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        cells.append(f"{statistics.mean(values):.1f} ±{spread:.1f}")
    return f"| {name} | " + " | ".join(cells) + " |"


def main(folder: Path) -> None:
    """Print the table of a recipe's records."""
    records = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("seed-*.json"))]
    histories = [record["training"]["history"] for record in records]
    if not histories or not all("watched" in history for history in histories):
        sys.exit(f"{folder} holds no records of watched runs")
    quantities = [q for q in histories[0]["watched"] if "max_prob/aupr" in q or q == "accuracy"]
    heads = ["rule", "epochs", *(q.replace("/max_prob/aupr", " AUPR") for q in quantities)]
    print("| " + " | ".join(heads) + " |")
    print("| --- |" + " ---: |" * (len(heads) - 1))
    for size in WINDOWS:
        print(row(f"window of {size} checks", by_window(size), histories))
    for epoch in EPOCHS:
        print(row(f"epoch {epoch}", by_epoch(epoch), histories))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
