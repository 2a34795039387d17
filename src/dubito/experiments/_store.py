"""Records on disk: OUT/RECIPE/seed-S.json, and results.json, which has the figures of them all.

A record counts only while its identity is that of the recipe as it stands. One of an earlier state
of the recipe is put aside as seed-S.ID.stale before its cell runs again, and is never mixed in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from dubito.experiments._cell import FORMAT, Record
from dubito.experiments._recipe import Cell, Recipe
from dubito.report import files
from dubito.report.reproduction.records import WHERE, no_number
from dubito.runs import AUTO

__all__ = ["CHANGED", "DONE", "MISSING", "RESULTS", "Store"]

MISSING, DONE, CHANGED = "missing", "done", "changed"
RESULTS = "results.json"


class Store:
    """The records in a folder, either quick ones or real ones."""

    def __init__(self, out: Path, *, quick: bool = False) -> None:
        self.out, self.quick = out, quick

    def path(self, cell: Cell) -> Path:
        """Where the record of a cell is."""
        return self.out / cell.recipe.name / f"seed-{cell.seed}.json"

    def read(self, cell: Cell) -> Record | None:
        """The record of a cell, of whatever state of the recipe; None where there is none."""
        path = self.path(cell)
        return self._read(path, cell) if path.exists() else None

    def _read(self, path: Path, cell: Cell) -> Record:
        try:
            found = json.loads(path.read_text("utf-8"), parse_constant=no_number)
            if found["format"] != FORMAT or not isinstance(found["result"], dict):
                raise ValueError(f"its format is {found['format']!r}, not {FORMAT}")
            if not isinstance(found["id"], str) or not isinstance(found["config"], dict):
                raise ValueError("it does not tell the state and the settings of its recipe")
            if (found["recipe"], found["seed"]) != (cell.recipe.name, cell.seed):
                raise ValueError(f"it is of {found['recipe']!r}, seed {found['seed']!r}")
            if found["quick"] != self.quick:
                raise ValueError(
                    f"it is {'a quick' if found['quick'] else 'no quick'} record; choose another "
                    "folder (--out), quick and real records do not mix"
                )
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} can't be used: {error}") from error
        return dict(found)

    def state(self, cell: Cell) -> str:
        """Whether the cell is done, missing, or done for another state of its recipe."""
        found = self.read(cell)
        return MISSING if found is None else self._judged(found, cell)

    def _judged(self, found: Record, cell: Cell) -> str:
        same = found["id"] == cell.id and not _moved(found["config"], cell.recipe)
        return DONE if same else CHANGED

    def put_aside(self, cell: Cell) -> Path:
        """Rename the record of an earlier state of the recipe; none put aside before is lost."""
        path, found = self.path(cell), self.read(cell)
        assert found is not None
        stem = f"{path.stem}.{found['id']}"
        places = (path.with_name(f"{stem}{f'-{n}' if n > 1 else ''}.stale") for n in count(1))
        return path.rename(next(place for place in places if not place.exists()))

    def take_back(self, cell: Cell) -> bool:
        """Whether there was a record of this very cell among those put aside; it is one again."""
        path = self.path(cell)
        for aside in sorted(path.parent.glob(f"{path.stem}.{cell.id}*.stale")):
            try:
                done = self._judged(self._read(aside, cell), cell) == DONE
            except ValueError:  # it is damaged, and stays where it is
                continue
            if done:
                aside.rename(path)
                return True
        return False

    def write(self, record: Record) -> Path:
        """Write a record, whole or not at all: a line for each of its parts."""
        path = self.out / record["recipe"] / f"seed-{record['seed']}.json"
        files.folder(path.parent)
        lines = [f"{json.dumps(key)}: {_text(value)}" for key, value in record.items()]
        return files.write(path, "{\n" + ",\n".join(lines) + "\n}\n")

    def records(self, recipes: Iterable[Recipe]) -> list[Record]:
        """All records of recipes as they stand, whichever seeds they have, in order."""
        found = []
        for recipe in sorted(recipes, key=lambda one: one.name):
            for cell in recipe.cells(self.seeds(recipe)):
                record = self.read(cell)
                if record is not None and self._judged(record, cell) == DONE:
                    found.append(record)
        return found

    def seeds(self, recipe: Recipe) -> list[int]:
        """The seeds that there are records of."""
        names = [path.stem.removeprefix("seed-") for path in self._files(recipe)]
        return sorted(int(name) for name in names if re.fullmatch(r"-?\d+", name))

    def _files(self, recipe: Recipe) -> list[Path]:
        return list((self.out / recipe.name).glob("seed-*.json"))

    def write_results(self, records: Iterable[Record]) -> Path:
        """results.json: the figures by recipe and seed, and nothing that changes between runs."""
        found: dict[str, dict[str, Any]] = {}
        for record in records:
            found.setdefault(record["recipe"], {})[str(record["seed"])] = record["result"]
        held = {"format": FORMAT, "quick": self.quick, "results": found}
        files.folder(self.out)
        text = json.dumps(held, indent=1, sort_keys=True, allow_nan=False)
        return files.write(self.out / RESULTS, text + "\n")


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _moved(before: Mapping[str, Mapping[str, Any]], recipe: Recipe) -> bool:
    """Whether a default that the recipe leaves to dubito is another now than for the record."""
    for name, values in recipe.resolved.items():
        for key, value in values.items():
            known = before.get(name, {})
            decided = value == AUTO  # when it ran, by its data
            if key not in WHERE and key in known and not decided and known[key] != value:
                return True
    return False
