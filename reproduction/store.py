"""Records: one compressed file of JSON lines per dataset, and a journal of new ones.

| file | content |
| --- | --- |
| mnist.jsonl.xz, cifar10.jsonl.xz, fewshot.jsonl.xz | records, sorted by recipe and seed |
| regression.jsonl.xz | the same of `reproduction.regression` |
| journal.jsonl, regression-journal.jsonl | records since the last `compact` |

A record is appended to the journal as a whole line, so that a killed run loses no finished record.
A record counts while its id is that of its recipe: after a change of the recipe it is replaced.

| key | content |
| --- | --- |
| recipe, seed, id, quick | cell of the record |
| config | sections of the recipe; format 1 has the names of the first edition |
| training | epochs, seconds, and metrics at each validation |
| result | metrics as fractions |
| curves, extremes | densities, reliability, risk-coverage; most and least uncertain test samples |
| tuning | trials on validation classes |
| versions, device, created | origin |
"""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from dubito._files import atomic_write, make_folder
from dubito.errors import DubitoError

__all__ = ["FORMAT", "Record", "Store", "comparable"]

Record = dict[str, Any]
FORMAT = 2
KNOWN_FORMATS = (1, 2)
JOURNAL, SUFFIX = "journal.jsonl", ".jsonl.xz"
#: file of the records of unknown recipes
OTHER = "other"


class Keyed(Protocol):
    """Cell of a record, such as `Cell`."""

    @property
    def recipe(self) -> Any:
        """Recipe or experiment."""

    @property
    def seed(self) -> int:
        """Seed or split."""

    @property
    def id(self) -> str:
        """Hash of everything that the record depends on."""


class Store:
    """Records in a folder.

    Args:
        folder: Folder of the files.
        recipes: Recipes that records may be of; files of other datasets are left alone.
        journal: Name of the journal.
    """

    def __init__(self, folder: Path, recipes: Mapping[str, Any], journal: str = JOURNAL) -> None:
        self.folder, self.recipes = folder, recipes
        self._records: dict[tuple[str, int], Record] = {}
        for stem in sorted({OTHER, *(recipe.dataset for recipe in recipes.values())}):
            if (path := folder / f"{stem}{SUFFIX}").exists():
                self._add(path, _decompress(path).decode().splitlines())
        self.journal = folder / journal
        if self.journal.exists():
            # What follows the last line break is a record that was being written.
            complete = self.journal.read_text("utf-8").rpartition("\n")[0]
            self._add(self.journal, complete.splitlines())

    def _add(self, path: Path, lines: Iterable[str]) -> None:
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                key = record["recipe"], record["seed"]
                if record["format"] not in KNOWN_FORMATS:
                    raise ValueError(f"unknown format {record['format']!r}")
            except (ValueError, KeyError, TypeError) as error:
                raise DubitoError(f"cannot read line {number} of {path}: {error!r}") from error
            self._records[key] = record

    def __len__(self) -> int:
        return len(self._records)

    def get(self, cell: Keyed) -> Record | None:
        """Return the record of a cell, unless its recipe has changed."""
        record = self._records.get((cell.recipe.name, cell.seed))
        return record if record is not None and record["id"] == cell.id else None

    def current(self) -> list[Record]:
        """Return the records of all recipes as they are, sorted by recipe and seed."""
        cells: list[Keyed] = [
            cell
            for name, seed in sorted(self._records)
            if name in self.recipes
            for cell in self.recipes[name].cells([seed])
        ]
        return [record for cell in cells if (record := self.get(cell)) is not None]

    def add(self, record: Record) -> None:
        """Append a record to the journal."""
        line = json.dumps(record, separators=(",", ":"), allow_nan=False)
        make_folder(self.folder)
        if self.journal.exists() and not self.journal.read_bytes().endswith(b"\n"):
            complete = self.journal.read_text("utf-8").rpartition("\n")
            atomic_write(self.journal, complete[0] + complete[1])
        with self.journal.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._records[record["recipe"], record["seed"]] = json.loads(line)

    def compact(self) -> None:
        """Write all records to the compressed files and remove the journal."""
        files: dict[str, list[str]] = {}
        for (name, _), record in sorted(self._records.items()):
            recipe = self.recipes.get(name)
            stem = OTHER if recipe is None else recipe.dataset
            line = json.dumps(record, separators=(",", ":"), allow_nan=False)
            files.setdefault(stem, []).append(line + "\n")
        for stem, lines in files.items():
            path, text = self.folder / f"{stem}{SUFFIX}", "".join(lines).encode()
            if not path.exists() or _decompress(path) != text:
                atomic_write(path, lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))
        self.journal.unlink(missing_ok=True)


def comparable(record: Record) -> Record:
    """Return the parts of a record that do not depend on time and machine."""
    content = {k: v for k, v in record.items() if k not in ("created", "device", "versions")}
    training = {k: v for k, v in record["training"].items() if k != "seconds"}
    return {**content, "training": training}


def _decompress(path: Path) -> bytes:
    try:
        return lzma.decompress(path.read_bytes())
    except (lzma.LZMAError, EOFError) as error:
        raise DubitoError(f"{path} is damaged: {error}; restore it from git") from error
