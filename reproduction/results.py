"""Numbers of the records as data frames."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import pandas as pd

from dubito.errors import DubitoError
from reproduction.published import Published
from reproduction.recipes import Recipe
from reproduction.store import Record

__all__ = ["BASELINES", "DATASETS", "METHODS", "SCORES", "Results", "at", "label"]

#: dataset of recipes -> its name in published tables, and its label
DATASETS = {"mnist": ("mnist", "MNIST"), "cifar10": ("cifar-10", "CIFAR-10")}
#: label of each OOD set
OOD = {
    "kmnist": "KMNIST",
    "fashion-mnist": "FMNIST",
    "svhn": "SVHN (re-cropped)",
    "cifar-100": "CIFAR-100",
}
#: label of each method, in the order of tables
METHODS = {
    "softmax": "Softmax",
    "label_smoothing": "Label smoothing",
    "mc_dropout": "MC Dropout",
    "kl_pn": "KL-PN",
    "rkl_pn": "RKL-PN",
    "posterior_network": "PostN",
    "redl": "R-EDL",
    "edl": "EDL",
    "iedl": "I-EDL",
}
#: methods of the paper, which have a row even if they were not run
BASELINES = ("mc_dropout", "kl_pn", "rkl_pn", "posterior_network", "edl", "iedl")
#: label of each score
SCORES = {
    "max_prob": "Max.P",
    "alpha0": "α₀",
    "differential_entropy": "D.Ent.",
    "mutual_information": "M.I.",
    "max_alpha": "Max.α",
    "expected_entropy": "E.Ent.",
    "entropy_of_mean": "Ent.",
    "vacuity": "Vacuity",
    "dissonance": "Dissonance",
}
#: tables in which a recipe has its own row; it has none in tables of methods
APART = {"ablation", "lambda"}


def label(recipe: Recipe) -> str:
    """Return the name of a row: the method, and how it differs from the published one."""
    return METHODS[recipe.method] + (f" ({recipe.variant})" if recipe.variant else "")


def at(record: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path of keys in a record; None if there is none.

    >>> at({"a": {"b": 1}}, "a.b"), at({"a": {}}, "a.b.c")
    (1, None)
    """
    value: Any = record
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


class Results:
    """Records with their recipes, and the published numbers.

    Args:
        records: Records of current recipes.
        recipes: All recipes.
        published: Published numbers.
    """

    def __init__(
        self,
        records: Sequence[Record],
        recipes: Mapping[str, Recipe],
        published: Published | None = None,
    ) -> None:
        if not records:
            raise DubitoError("there are no records: run some recipes first")
        self.records, self.recipes = list(records), recipes
        self.published = published or Published()
        self.quick = any(record["quick"] for record in records)
        self.by_recipe: dict[str, list[Record]] = {}
        for record in self.records:
            self.by_recipe.setdefault(record["recipe"], []).append(record)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """Numbers of each training: index (recipe, seed), one column per quantity."""
        rows = {
            (record["recipe"], record["seed"]): dict(_numbers(record))
            for record in self.records
            if not self.recipes[record["recipe"]].is_fewshot
        }
        if not rows:
            return pd.DataFrame(index=pd.MultiIndex.from_arrays([[], []], names=["recipe", "seed"]))
        frame = pd.DataFrame(list(rows.values()), dtype=float)
        frame.index = pd.MultiIndex.from_tuples(rows, names=["recipe", "seed"])
        return frame

    @cached_property
    def _statistics(self) -> tuple[pd.DataFrame, ...]:
        grouped = self.runs.groupby(level="recipe")
        return grouped.mean(), grouped.std(), grouped.count()

    def statistics(self, recipe: Recipe, quantity: str) -> tuple[float, float, int]:
        """Return mean, standard deviation and number of seeds; NaN and 0 without any.

        Args:
            recipe: Recipe of a training.
            quantity: Name of a number: "ood/svhn/max_prob/aupr".
        """
        mean, std, count = self._statistics
        if recipe.name not in mean.index or quantity not in mean.columns:
            return math.nan, math.nan, 0
        place = recipe.name, quantity
        return float(mean.at[place]), float(std.at[place]), int(count.at[place])

    def trained(self, dataset: str) -> list[Recipe]:
        """Return the recipes of a dataset in the order of tables: the paper's, and others if run.

        Args:
            dataset: "mnist" or "cifar10".
        """
        order = list(METHODS)
        recipes = [
            recipe
            for recipe in self.recipes.values()
            if recipe.dataset == dataset
            and not set(recipe.tables) <= APART
            and (recipe.name in self.by_recipe or self._is_baseline(recipe))
        ]
        return sorted(recipes, key=lambda r: (order.index(r.method), bool(r.variant), r.name))

    def _is_baseline(self, recipe: Recipe) -> bool:
        return recipe.method in BASELINES and not recipe.variant

    def drawn(self, dataset: str) -> list[Recipe]:
        """Return the recipes that figures show: of each method the published form."""
        return [r for r in self.trained(dataset) if not r.variant and r.name in self.by_recipe]

    def swept(self, dataset: str) -> dict[float, Recipe]:
        """Return the recipes that differ in the weight of the log-determinant, by that weight."""
        by_value = {}
        for recipe in self.recipes.values():
            beside = recipe.method == "iedl" and recipe.variant in ("", "no logdet", "lambda")
            if recipe.dataset == dataset and beside and recipe.name in self.by_recipe:
                by_value[float(recipe.sections["method"]["fisher_weight"])] = recipe
        return dict(sorted(by_value.items())) if any(r.swept for r in by_value.values()) else {}

    def ood(self, dataset: str) -> list[str]:
        """Return the OOD sets of a dataset."""
        names = [r.evaluate["ood"] for r in self.recipes.values() if r.dataset == dataset]
        return list(dict.fromkeys(name for some in names for name in some))


def _numbers(record: Record) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a record with their names: "ood/svhn/max_prob/aupr"."""
    yield from _flatten(record["result"], "")
    yield from _flatten(at(record, "curves.energy_distance") or {}, "energy_distance/")


def _flatten(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, prefix if key == "detection" else f"{prefix}{key}/")
        elif isinstance(value, int | float) or value in ("inf", "-inf"):
            yield f"{prefix}{key}", float(value)
