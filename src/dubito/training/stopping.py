"""Which check of a training is the best, and when there have been enough."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from dubito.training.settings import Settings

__all__ = ["is_best", "is_over", "worths"]

Entry = Mapping[str, Any]


def worths(entries: Iterable[Entry], keep: str) -> list[float]:
    """Of those that are checks, the higher the better; NaN, which nothing is below, is the worst.

    >>> worths([{"validation_loss": 2.0}, {}, {"validation_loss": math.nan}], "loss")
    [-2.0, -inf]
    """
    name, sign = f"validation_{keep}", 1 if keep == "accuracy" else -1
    values = [sign * entry[name] for entry in entries if name in entry]
    return [-math.inf if math.isnan(value) else value for value in values]


def is_best(checked: Entry, history: Iterable[Entry], keep: str) -> bool:
    """Whether a check is better than all before; of equals the first is."""
    before = worths(history, keep)
    return not before or worths([checked], keep)[0] > max(before)


def is_over(history: Iterable[Entry], settings: Settings) -> bool:
    """Whether the first of the last `patience` checks is their best."""
    checks = worths(history, settings.keep)[-settings.patience :]
    return 0 < settings.patience <= len(checks) and checks[0] == max(checks)
