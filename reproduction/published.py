"""Published numbers, and how ours compare with them."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

__all__ = ["Number", "Published", "Verdict", "verdict"]

FILE = Path(__file__).with_name("published.toml")
Verdict = Literal["agrees", "better", "worse", ""]
#: published deviations have one decimal: 0.0 stands for anything below
LEAST_DEVIATION = 0.05
#: keys of the published code's numbers -> quantity
CODE = {
    "accuracy": "accuracy",
    "confidence": "confidence/max_alpha/aupr",
    "aupr": "ood/alpha0/aupr",
    "auroc": "ood/alpha0/auroc",
}


class Number(NamedTuple):
    """A published mean in per cent, and its deviation or half of its interval."""

    mean: float
    deviation: float | None
    digits: int = 1
    """Least number of decimals of the deviation."""

    def __str__(self) -> str:
        if self.deviation is None:
            return f"{self.mean:.2f}"
        exact = math.isclose(self.deviation, round(self.deviation, self.digits), abs_tol=1e-9)
        return f"{self.mean:.2f} ±{self.deviation:.{self.digits if exact else 2}f}"


class Published:
    """Numbers of the paper, and of the published few-shot code on our features.

    Args:
        content: Content of published.toml.

    Attributes:
        images: (data, method, quantity) -> number of the paper's tables on images.
        fewshot: (ways, shots, method, quantity) -> number of the paper's few-shot tables; methods
            with their variant: "edl logdet".
        code: (ways, shots, method, quantity) -> number of the published code on our features.
    """

    def __init__(self, content: Mapping[str, Any] | None = None) -> None:
        if content is None:
            content = tomllib.loads(FILE.read_text("utf-8"))
        self.images: dict[tuple[str, str, str], Number] = {}
        self.fewshot: dict[tuple[int, int, str, str], Number] = {}
        self.code: dict[tuple[int, int, str, str], Number] = {}
        for cell in (cell for table in content["table"] for cell in table["cell"]):
            number = Number(cell["mean"], cell["deviation"], 2 if "ways" in cell else 1)
            method = f"{cell['method']} {cell.get('variant', '')}".strip()
            # Some numbers are in two tables, one of them with two deviations: the first counts.
            if "ways" in cell:
                place = cell["ways"], cell["shots"], method, _quantity(cell, "ood", "confidence")
                self.fewshot.setdefault(place, number)
            else:
                ood = f"ood/{cell.get('ood')}"
                key = cell["data"], method, _quantity(cell, ood, "misclassification")
                self.images.setdefault(key, number)
        for cell in content["code"]["cell"]:
            for name, quantity in CODE.items():
                mean, deviation = (*cell[name], None)[:2]
                place = cell["ways"], cell["shots"], cell["method"], quantity
                self.code[place] = Number(mean, deviation)


def _quantity(cell: Mapping[str, Any], ood: str, errors: str) -> str:
    """Return the name of a number in the records."""
    if cell["metric"] == "accuracy":
        return "accuracy"
    return f"{ood if 'ood' in cell else errors}/{cell['measure']}/{cell['metric']}"


def verdict(ours: float, theirs: Number, higher_is_better: bool = True) -> Verdict:
    """Compare our mean in per cent with a published one; within its deviation both agree.

    Empty if ours is not finite, or the published number has no deviation.

    Args:
        ours: Our mean.
        theirs: Published number.
        higher_is_better: Direction of the metric.

    >>> verdict(98.0, Number(98.3, 0.2)), verdict(98.15, Number(98.3, 0.2))
    ('worse', 'agrees')
    """
    if theirs.deviation is None or not math.isfinite(ours):
        return ""
    off, room = ours - theirs.mean, max(theirs.deviation, LEAST_DEVIATION)
    if abs(off) < room or math.isclose(abs(off), room, rel_tol=1e-9):
        return "agrees"
    return "better" if (off > 0) == higher_is_better else "worse"
