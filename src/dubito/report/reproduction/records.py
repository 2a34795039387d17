"""The records of finished cells: read from a folder, checked, and asked for numbers."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dubito.report.reproduction.names import in_order, set_of, variant_of

__all__ = ["FORMAT", "Records", "read"]

FORMAT = 1
NEEDED = ("format", "recipe", "seed", "config", "result")
#: settings that decide where and how fast, not what comes out; and what the identity has in it
WHERE = ("graph", "compile", "workers", "channels_last", "seed", "source")
Record = Mapping[str, Any]


def read(folder: Path) -> list[dict[str, Any]]:
    """The records in a folder of results, RECIPE/seed-S.json, in the order of their names.

    Where seeds of a recipe were run with different settings, as after a change of it, those with
    the settings of the newest count; a warning names the others.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {str(folder)!r}")
    found = []
    for path in sorted(folder.glob("*/seed-*.json")):
        try:
            record = json.loads(path.read_text("utf-8"), parse_constant=no_number)
        except ValueError as error:
            raise ValueError(f"{path} is no json: {error}") from error
        try:
            _check(record)
        except ValueError as error:
            raise ValueError(f"{path} can't be reported: {error}") from error
        found.append(record)
    if not found:
        raise ValueError(
            f"{str(folder)!r} holds no records: expected RECIPE/seed-S.json, as "
            "`dubito reproduce` writes them"
        )
    newest: dict[str, Record] = {}
    for record in sorted(found, key=lambda one: str(one.get("created", "")), reverse=True):
        newest.setdefault(record["recipe"], record)
    return [record for record in found if not _is_outdated(record, newest[record["recipe"]])]


def no_number(name: str) -> float:
    """An error instead of NaN, which no figure of a record is."""
    raise ValueError(f"{name} is no figure")


def _is_outdated(record: Record, newest: Record) -> bool:
    """Whether a record has other settings than the newest one of its recipe."""
    differs = differences([record, newest])
    if _choice(record) != _choice(newest):  # and so another head on other features was used
        differs = [key for key in differs if not key.startswith("used.")]
    if differs:
        warnings.warn(
            f"the record of {record['recipe']!r}, seed {record['seed']}, is left out: it "
            f"has another {', '.join(differs)} than the newest of that recipe",
            stacklevel=3,
        )
    return bool(differs)


def _choice(record: Record) -> tuple[Any, Any]:
    """What the validation classes chose where some were asked, which is no setting."""
    return at(record, ("tuning", "choice")), at(record, ("tuning", "scaling"))


def differences(records: Sequence[Record], but: Sequence[str] = WHERE) -> list[str]:
    """The settings in which records differ, but for those that don't change what comes out."""
    flat = [flattened(record["config"]) for record in records]
    keys = dict.fromkeys(key for one in flat for key in one if key.rpartition(".")[2] not in but)
    return [key for key in keys if len({repr(one.get(key)) for one in flat}) > 1]


def flattened(config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested tables as one, with dots in its keys.

    >>> flattened({"data": {"source": "mnist"}})
    {'data.source': 'mnist'}
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        inner = isinstance(value, Mapping)
        found |= flattened(value, f"{before}{key}.") if inner else {f"{before}{key}": value}
    return found


@dataclass(frozen=True)
class Records:
    """Checked records, by recipe and seed."""

    given: Sequence[Record]

    def __post_init__(self) -> None:
        seen: set[tuple[str, int]] = set()
        for record in self.given:
            _check(record)
            cell = (record["recipe"], record["seed"])
            if cell in seen:
                raise ValueError(f"two records of the recipe {cell[0]!r} have the seed {cell[1]}")
            seen.add(cell)
        if len({bool(record.get("quick")) for record in self.given}) > 1:
            quick = sorted({r["recipe"] for r in self.given if r.get("quick")})
            raise ValueError(
                "quick and full runs can't stand in one report; quick are the records of "
                + ", ".join(quick)
            )

    @cached_property
    def quick(self) -> bool:
        """Whether these are runs on tiny data."""
        return any(record.get("quick") for record in self.given)

    @cached_property
    def by_recipe(self) -> dict[str, list[Record]]:
        """The records of each recipe, by seed."""
        found: dict[str, list[Record]] = {}
        for record in sorted(self.given, key=lambda r: (r["recipe"], r["seed"])):
            found.setdefault(record["recipe"], []).append(record)
        return found

    def of(self, recipe: str) -> list[Record]:
        """The records of a recipe, none where it was not run."""
        return self.by_recipe.get(recipe, [])

    def variants(self, data: str) -> list[str]:
        """The recipes of a data set, without its name, in the order of tables."""
        return in_order(variant_of(recipe) for recipe in self.by_recipe if set_of(recipe) == data)

    def seeds(self, recipe: str) -> list[int]:
        """The seeds that a recipe was run with."""
        return [record["seed"] for record in self.of(recipe)]

    def numbers(self, recipe: str, path: Sequence[str]) -> dict[int, float]:
        """The number at a path into each record that has it, by seed."""
        found = {record["seed"]: at(record, path) for record in self.of(recipe)}
        return {seed: float(value) for seed, value in found.items() if value is not None}

    def keys(self, data: str, path: Sequence[str]) -> list[str]:
        """The keys at a path into the records of a data set, in the order of first sight."""
        found: dict[str, None] = {}
        for recipe, records in self.by_recipe.items():
            if set_of(recipe) == data:
                for record in records:
                    found |= dict.fromkeys(at(record, path) or ())
        return list(found)


def at(record: Mapping[str, Any], path: Iterable[str]) -> Any:
    """What is at a path into nested tables, None where it ends early.

    >>> at({"a": {"b": 1}}, ["a", "b"]), at({"a": {}}, ["a", "b", "c"])
    (1, None)
    """
    value: Any = record
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


def _check(record: Any) -> None:
    if not isinstance(record, Mapping):
        raise ValueError(f"a record is a table, not {type(record).__name__}")
    lacking = [key for key in NEEDED if key not in record]
    if lacking:
        raise ValueError(f"a record of {record.get('recipe', '?')!r} lacks {', '.join(lacking)}")
    if record["format"] != FORMAT:
        raise ValueError(
            f"the record of {record['recipe']!r}, seed {record['seed']}, has format "
            f"{record['format']!r}: this version reads {FORMAT}"
        )
    for key, kind in (("recipe", str), ("seed", int), ("config", Mapping), ("result", Mapping)):
        if not isinstance(record[key], kind):
            raise ValueError(f"a record of {record['recipe']!r} has {key} {record[key]!r}")
    if not all(isinstance(section, Mapping) for section in record["config"].values()):
        raise ValueError(f"a record of {record['recipe']!r} has config {record['config']!r}")
