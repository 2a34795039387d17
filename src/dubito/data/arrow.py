"""Datasets of the package datasets: in memory, or folders that `save_to_disk` has written."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dubito import _checks
from dubito._extras import need
from dubito.data.base import PARTS
from dubito.errors import DubitoError
from dubito.formats.tables import target_columns
from dubito.types import Array, Frame

__all__: list[str] = []

EXTRA = "datasets"
#: columns of classes and of texts, by custom
LABELS, TEXT = ("label", "labels"), "text"


class Images(Sequence[Any]):
    """Images of a dataset, contents or paths of files, read when they are needed.

    Args:
        dataset: Dataset.
        column: Column of the images.
        rows: Rows of the dataset; None: all.
    """

    def __init__(self, dataset: Any, column: str, rows: Array | None = None) -> None:
        self.dataset, self.column = dataset, column
        self.rows = np.arange(len(dataset)) if rows is None else rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: Any) -> Any:
        rows = self.rows[place]
        if isinstance(rows, np.ndarray):
            return Images(self.dataset, self.column, rows)
        file = self.dataset[int(rows)][self.column] or {"bytes": b""}  # none, a damaged one
        content: bytes | None = file["bytes"]
        return Path(file["path"]) if content is None else content


def parts(source: Any) -> tuple[str, ...]:
    """Return the parts of a dataset, such as ("train", "test"); empty if it has none.

    Args:
        source: Dataset, or the folder of one.
    """
    if isinstance(source, str | os.PathLike):
        place = Path(source).expanduser()
        return tuple(part for part in PARTS if (place / part / "dataset_info.json").is_file())
    return tuple(part for part in PARTS if isinstance(source, dict) and part in source)


def read(
    source: Any, parts: Sequence[str], labeled: bool, target: str | Sequence[str] | None
) -> tuple[str, Any, Frame | None, str | None]:
    """Return name, inputs and targets; images are not read yet.

    The inputs are the column of images, that of lists of numbers, or all columns as a table.

    Args:
        source: Dataset, or the folder of one.
        parts: Parts to read; empty: all of a dataset without parts.
        labeled: Whether to read targets.
        target: Target columns; None: that of classes, `label`, `labels`, or the last.

    Returns:
        Name of the folder; images, an array, or a table with the targets in its last columns;
        targets of images and arrays; and the column of texts: the only input, or `text`.
    """
    package, source_name = need("datasets", EXTRA), "dataset"
    if isinstance(source, str | os.PathLike):
        place = Path(source).expanduser().resolve()
        source, source_name = package.load_from_disk(str(place)), place.name
    if isinstance(source, dict):
        source = package.concatenate_datasets([source[part] for part in parts])
    dataset, kinds = source.with_format(None), source.features
    named = [target] if isinstance(target, str) else [*(target or ())]
    for column in named:
        _checks.one_of(kinds, column, "column of the dataset")
    classes = [name for name, kind in kinds.items() if isinstance(kind, package.ClassLabel)]
    columns = named or (classes if len(classes) == 1 else [*filter(kinds.get, LABELS)][:1])
    if labeled and not columns and len(kinds) > 1:
        columns = [*kinds][-1:]
    inputs = [name for name in kinds if name not in columns]
    images = [name for name in inputs if isinstance(kinds[name], package.Image)]
    plain = (package.Value, package.ClassLabel)
    lists = [name for name in inputs if not isinstance(kinds[name], plain)]
    if found := images or lists:
        if len(found) > 1:
            raise DubitoError(
                f"the dataset has several columns of inputs, {_checks.listed(found)}: keep one of "
                "them, with select_columns"
            )
        targets = None
        if labeled and columns:
            targets = target_columns(_frame(dataset.select_columns(columns)), columns)
        if images:
            undecoded = dataset.cast_column(found[0], package.Image(decode=False))
            return source_name, Images(undecoded, found[0]), targets, None
        return source_name, dataset.with_format("numpy")[found[0]][:], targets, None
    frame = _frame(dataset.select_columns([*inputs, *columns]))
    texts = [name for name in inputs if frame[name].map(type).eq(str).all()]
    text = texts[0] if len(inputs) == len(texts) == 1 else TEXT if TEXT in texts else None
    return source_name, frame, None, text


def _frame(dataset: Any) -> Frame:
    """Return columns as a table, classes by their names."""
    frame = dataset.to_pandas()
    for name, kind in dataset.features.items():
        if names := getattr(kind, "names", None):  # -1 is no class
            cells = [*names, None]
            frame[name] = [cells[int(cell)] for cell in frame[name].fillna(-1)]
    return frame
