"""Predictions of files, in bounded memory: a row for each input."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dubito.bundle._bundle import Bundle
from dubito.bundle._inputs import portions
from dubito.bundle._portion import Portion, in_one_line

__all__ = ["Rows", "row_columns", "stream"]

#: a prediction's measures that are told, where it has them
MEASURES = ("vacuity", "mutual_information", "expected_entropy")
ACCEPT, ABSTAIN = "accept", "abstain"
Row = dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """Rows of an output, {column: value}; a column that says nothing of a row is not in it."""

    rows: list[Row]

    @property
    def failed(self) -> int:
        """How many inputs could not be predicted."""
        return sum("error" in row for row in self.rows)


def row_columns(bundle: Bundle) -> tuple[str, ...]:
    """The columns of the rows that a bundle's predictions make.

    An error where the calibration or the policy asks for what the method does not say.
    """
    said = bundle.predict(torch.zeros(1, *bundle.shape))
    bundle.calibrated(said)
    has = [name for name in MEASURES if name in said.available]
    belief = ["belief"] if "vacuity" in said.available else []
    decided = []
    if bundle.policy is not None:
        bundle.decide(said)
        decided = ["decision", "why"]
    return ("source", "label", "probability", *belief, *has, *decided, "note", "error")


def stream(
    bundle: Bundle, paths: Iterable[str | os.PathLike[str]], *, batch_size: int = 1024
) -> Iterator[Rows]:
    """What a bundle says of the inputs in files, `batch_size` or fewer rows at a time.

    Files are images, folders of images, .npz (an array `inputs` or `x`) and .csv. A row has the
    `source`, the `label`, its calibrated `probability`; `belief` in the label, `vacuity`,
    `mutual_information` and `expected_entropy` of the evidence before calibration, where the method
    has them; the `decision` and `why` where the bundle has a policy. A `note` tells of a category
    that training did not know, and an `error` stands alone with its source.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size!r}")
    for portion in portions(bundle, paths, batch_size):
        yield Rows(_rows(bundle, portion))


def _rows(bundle: Bundle, portion: Portion) -> list[Row]:
    told = iter(() if portion.inputs is None else _told(bundle, portion.inputs))
    rows = []
    for place, source in enumerate(portion.sources):
        row: Row = {"source": source}
        row |= {"error": portion.errors[place]} if place in portion.errors else next(told)
        if place in portion.notes and "error" not in row:
            row["note"] = portion.notes[place]
        rows.append(row)
    return rows


def _told(bundle: Bundle, inputs: Tensor) -> list[Row]:
    """What is said of each input; one that the network can't take does not spoil its neighbours."""
    try:
        return _said(bundle, inputs)
    except ValueError as error:
        if len(inputs) == 1:
            return [{"error": in_one_line(error)}]
    half = len(inputs) // 2
    return _told(bundle, inputs[:half]) + _told(bundle, inputs[half:])


def _said(bundle: Bundle, inputs: Tensor) -> list[Row]:
    said = bundle.predict(inputs, len(inputs))
    labels = said.label
    found: dict[str, list[Any]] = {
        "label": [bundle.classes[label] for label in labels.tolist()],
        "probability": _of_label(bundle.calibrated(said).probs, labels),
    }
    if "vacuity" in said.available:
        found["belief"] = _of_label(said.belief, labels)
    found |= {name: said.measure(name).tolist() for name in MEASURES if name in said.available}
    if bundle.policy is not None:
        decided = bundle.decide(said)
        accept, reason = decided.accepted.tolist(), decided.reason.tolist()
        found["decision"] = [ACCEPT if one else ABSTAIN for one in accept]
        found["why"] = [None if yes else why for yes, why in zip(accept, reason, strict=True)]
    rows = [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]
    return [{key: value for key, value in row.items() if value is not None} for row in rows]


def _of_label(values: Tensor, labels: Tensor) -> list[float]:
    picked: list[float] = values.gather(-1, labels[:, None])[:, 0].tolist()
    return picked
