"""Predictions: their columns, and how batches are joined to one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch import distributions as td

from dubito._extras import need
from dubito.calibration import Calibration
from dubito.data import Source
from dubito.data.base import take_texts
from dubito.distributions import Distribution
from dubito.distributions.base import COMMON
from dubito.errors import DubitoError
from dubito.formats import Encoded
from dubito.policy import REASONS
from dubito.targets import Target, known_rows, values_and_weight
from dubito.tasks import Task
from dubito.types import Array, Json

if TYPE_CHECKING:
    from dubito.model.model import Model

__all__ = ["Prediction"]

#: Inputs of a batch: at most so many, and so many numbers, whose activations take 16 to 40 times
#: their memory in convolutional networks: about 1 GB.
MOST, VALUES = 1024, 1 << 23
#: A GPU has more memory, and needs more parallel work.
GPU = 4
#: Numbers that an embedded index, such as that of a token, counts as.
EMBEDDED = 1024
NOT_FINITE = "the outputs of the network are not finite"
#: values of a column: numbers, texts, None
Column = list[Any]
Cells = dict[str, Column]


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """Prediction of N inputs.

    The distribution is not calibrated: it ranks inputs, and the point prediction and the policy's
    decision follow from it. Reported probabilities are those of the calibrated `predictive`.

    A row that could not be read or predicted is in `errors`: it is never accepted, and its other
    values are placeholders.

    Args:
        task: What is predicted.
        distribution: Distribution before calibration, batch shape (N,), in units of the target.
        point: Class indices (N,), or numbers (N, T).
        calibration: Calibration of the model.
        codes: Decision of the policy, indices into `REASONS`: (N,); None without a policy.
        in_range: Which inputs are in the range of the training data: bool (N,); None: all.
        notes: Inputs and predictions outside the range of the training data, by row.
        errors: Why a row could not be read or predicted, by row.
        inputs: Names of the inputs for users: file names, numbers of rows; None if unknown.
        out_of_fold: Whether each input was predicted by the member of an ensemble that was not
            trained on it, in place of all members.
    """

    task: Task
    distribution: Distribution
    point: Tensor
    calibration: Calibration | None = None
    codes: Tensor | None = None
    in_range: Tensor | None = None
    notes: Mapping[int, str] = field(default_factory=dict)
    errors: Mapping[int, str] = field(default_factory=dict)
    inputs: Sequence[str] | None = None
    out_of_fold: bool = False

    @property
    def predictive(self) -> td.Distribution:
        """Calibrated distribution of the target; raw if the model has no calibration."""
        if self.calibration is None:
            return self.distribution.predictive
        return self.calibration(self.distribution)

    @property
    def labels(self) -> Array:
        """Class names (N,), or numbers (N,) or (N, T)."""
        return self.task.decode(self.point)

    @property
    def accepted(self) -> Tensor | None:
        """Which predictions the policy accepts: bool (N,); None without a policy."""
        return None if self.codes is None else self.codes == 0

    @property
    def reason(self) -> Array | None:
        """Reason of the decision: (N,); None without a policy.

        One of "accepted", "ambiguous", "unfamiliar", "out_of_range"; "error" for rows in `errors`.
        """
        if self.codes is None:
            return None
        reasons: Array = np.asarray(REASONS)[self.codes.cpu().numpy()]
        reasons[list(self.errors)] = "error"
        return reasons

    @property
    def levels(self) -> tuple[float, ...]:
        """Levels of intervals or prediction sets."""
        return () if self.calibration is None else self.calibration.levels

    def interval(self, level: float | None = None) -> tuple[Tensor, Tensor]:
        """Return the lower and upper ends of intervals of numbers: (N, T) each.

        Args:
            level: One of `levels`; None: the first.
        """
        return self._calibrated("intervals").interval(self.distribution, level)

    def prediction_set(self, level: float | None = None) -> Tensor:
        """Return which classes are in the prediction sets: bool (N, K).

        Args:
            level: One of `levels`; None: the first.
        """
        return self._calibrated("prediction sets").prediction_set(self.distribution, level)

    def _calibrated(self, what: str) -> Calibration:
        if self.calibration is None or not self.levels:
            raise DubitoError(f"there are no {what}: calibrate the model with levels=[0.9]")
        return self.calibration

    def score(self, name: str) -> Tensor:
        """Compute a score: (N,).

        Args:
            name: One of `distribution.scores`, or "total", "aleatoric", "epistemic".
        """
        return self.distribution.score(name)

    def reread(self, model: Model) -> Prediction:
        """Return this prediction with the present calibration and policy of its model.

        Args:
            model: Model that predicted.
        """
        new = model.prediction(self.distribution, self.in_range)
        return replace(self, calibration=new.calibration, codes=new.codes)

    def decisions(self, target: Tensor | Target | None = None) -> Json:
        """Return the share of each decision of the policy as "policy", nothing without a policy.

        Args:
            target: Encoded targets, for the error rate among accepted predictions.
        """
        if self.codes is None:
            return {}
        counts = torch.bincount(self.codes, minlength=len(REASONS)).tolist()
        shares = {name: n / len(self) for name, n in zip(REASONS, counts, strict=True)}
        if target is not None and self.task.defines_errors and counts[0]:
            errors = self.task.errors(self.point, values_and_weight(target)[0])
            known = known_rows(target)
            accepted = known[(self.codes == 0)[known]]
            if len(accepted):
                shares["error_rate"] = errors[accepted].double().mean().item()
        return {"policy": shares}

    def __len__(self) -> int:
        return len(self.distribution)

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> Prediction:
        """Select rows; a number selects one row, as a prediction of one input."""
        if isinstance(index, Tensor):
            index = index.cpu()
        elif isinstance(index, Sequence):
            index = list(index)  # torch reads a tuple as one index per axis
        rows = torch.arange(len(self))[index].reshape(-1)  # a number selects one row
        places = rows.tolist()
        return replace(
            self,
            distribution=self.distribution[rows],
            point=self.point[rows],
            codes=None if self.codes is None else self.codes[rows],
            in_range=None if self.in_range is None else self.in_range[rows],
            notes=take_texts(self.notes, places),
            errors=take_texts(self.errors, places),
            inputs=None if self.inputs is None else [self.inputs[row] for row in places],
        )

    def tensors(self, scores: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Return the columns that are numbers, as tensors (N,); probs are (N, K).

        Classes and reasons are indices. Regression with T > 1 target values has (N, T), and sets
        of classes are bool (N, K). Columns of the first level have no number in their name.

        Args:
            scores: Names of further scores.
        """
        names = dict.fromkeys((*COMMON, *(scores or ())))
        columns = self.task.tensors(self.point, self.predictive)
        probs = columns.pop("probs", None)
        for level in self.levels:
            number = "" if level == self.levels[0] else f"{100 * level:g}".replace(".", "_")
            if probs is not None:
                columns[f"set{number}"] = self.prediction_set(level)
                continue
            for name, end in zip(("lower", "upper"), self.interval(level), strict=True):
                columns[f"{name}{number}"] = end[..., 0] if self.task.size == 1 else end
        columns |= {name: self.score(name).float() for name in names}
        if self.codes is not None:
            columns |= {"accepted": self.codes == 0, "reason": self.codes}
        return columns if probs is None else {**columns, "probs": probs}

    def columns(self, scores: Sequence[str] | None = None, *, probs: bool = True) -> Cells:
        """Return all columns as lists of plain values, None where a row has none.

        A set of classes is a list of their names.

        Args:
            scores: Names of further scores.
            probs: Include a column of calibrated probabilities for each class.
        """
        columns, shares = self._table(scores)
        return columns | {f"probs.{name}": v for name, v in shares.items() if probs}

    def rows(self, scores: Sequence[str] | None = None, *, probs: bool = True) -> Iterator[Json]:
        """Yield each row without its empty columns; `probs` is a dict from class to probability.

        Args:
            scores: Names of further scores.
            probs: Include the calibrated probabilities of all classes.
        """
        columns, shares = self._table(scores)
        for place, values in enumerate(zip(*columns.values(), strict=True)):
            row = {k: v for k, v in zip(columns, values, strict=True) if v is not None}
            if probs and shares and "error" not in row:
                row["probs"] = {name: share[place] for name, share in shares.items()}
            yield row

    def to_pandas(self, scores: Sequence[str] | None = None, *, probs: bool = True) -> Any:
        """Return the columns as a DataFrame.

        Args:
            scores: Names of further scores.
            probs: Include a column of calibrated probabilities for each class.
        """
        return need("pandas", "data").DataFrame(self.columns(scores, probs=probs))

    def _table(self, scores: Sequence[str] | None) -> tuple[Cells, Cells]:
        """Return columns and shares of classes as plain values, None in rows with an error."""
        tensors = self.tensors(scores)
        probs = tensors.pop("probs", None)
        texts = {k: text for k, text in self.notes.items() if k not in self.errors}
        rows = range(len(self))
        named: Cells = {} if self.inputs is None else {"input": list(self.inputs)}
        shares = {} if probs is None else self._by_name(probs)
        values = {k: v for name, tensor in tensors.items() for k, v in self._lists(name, tensor)}
        for row in self.errors:
            for cells in (*values.values(), *shares.values()):
                cells[row] = None
        notes: Cells = {"note": [*map(texts.get, rows)], "error": [*map(self.errors.get, rows)]}
        return named | values | notes, shares

    def _lists(self, name: str, values: Tensor) -> Iterator[tuple[str, Column]]:
        """Yield a tensor as columns of plain values."""
        if values.ndim > 1 and values.dtype == torch.bool:
            classes = self.task.names
            yield name, [[*compress(classes, inside)] for inside in values.tolist()]
        elif values.ndim > 1:
            yield from ((f"{name}.{part}", v) for part, v in self._by_name(values).items())
        elif name == "prediction":
            yield name, self.labels.tolist()
        elif name == "reason":
            yield name, [REASONS[code] for code in values.tolist()]
        else:
            yield name, values.tolist()

    def _by_name(self, values: Tensor) -> Cells:
        """Return values (N, K) or (N, T) as a column for each class or target."""
        return dict(zip(self.task.names, values.mT.tolist(), strict=True))

    def __repr__(self) -> str:
        accepted = self.accepted
        decided = "" if accepted is None else f", {int(accepted.sum())} accepted"
        failed = f", {len(self.errors)} with errors" if self.errors else ""
        return f"Prediction({len(self)} inputs{decided}{failed})"


def batch_size(source: Source, device: torch.device) -> int:
    """Return how many inputs a network runs at once.

    A power of two, so that noise, which is drawn in groups of 16, depends on the seed alone.

    Args:
        source: Inputs.
        device: Device of the network.
    """
    format = source.format
    values = prod(format.shape) * (EMBEDDED if format.dtype == "int64" else 1)
    budget = VALUES * (GPU if device.type == "cuda" else 1)
    return min(MOST, 1 << max(1, budget // values).bit_length() - 1)


class Collector:
    """Predicts one batch after another, and joins the predictions.

    Args:
        model: Model in evaluation mode.
        names: Names of all inputs; None if they only have numbers.
        stop: Raise at an input that cannot be predicted.
    """

    def __init__(self, model: Model, names: Sequence[str] | None, stop: bool) -> None:
        self.model, self.names, self.stop = model, names, stop
        self.dists: list[Distribution] = []
        self.ranges: list[Tensor] = []
        self.notes: dict[int, str] = {}
        self.errors: dict[int, str] = {}
        self.count = 0

    def add(self, batch: Encoded) -> None:
        """Predict a batch.

        Args:
            batch: The next inputs.
        """
        dist, bad = self._predict(batch.inputs)
        if self.stop and bad:
            raise DubitoError(f"{name_of(self.names, self.count + bad[0])}: {NOT_FINITE}")
        reasons = batch.errors | dict.fromkeys(bad, NOT_FINITE)
        self.notes |= {self.count + row: text for row, text in batch.notes.items()}
        self.errors |= {self.count + row: text for row, text in reasons.items()}
        self.dists.append(dist.to("cpu"))
        self.ranges.append(self.model.preprocessing.inputs.in_range(batch.inputs))
        self.count += len(batch.inputs)

    def _predict(self, inputs: Tensor) -> tuple[Distribution, list[int]]:
        """Return the distribution, and the rows whose outputs are not finite."""
        features, outputs = self.model.run(inputs)
        dist = self.model.distribution(features, outputs)
        finite = outputs.flatten(1).isfinite().all(1) & dist.total.isfinite()
        if not bool(finite.all()):  # these rows become errors
            rows = finite.view(-1, *[1] * (outputs.ndim - 1))
            dist = self.model.distribution(features, torch.where(rows, outputs, 0))
        return dist, (~finite).nonzero().flatten().tolist()

    def prediction(self) -> Prediction:
        """Return the prediction of all batches."""
        if not self.count:
            raise DubitoError("there are no inputs to predict")
        in_range = torch.cat(self.ranges)
        for row in (~in_range).nonzero().flatten().tolist():
            self.notes.setdefault(row, "outside the range of the training data")
        in_range[list(self.errors)] = False  # never accept a row that could not be read
        prediction = self.model.prediction(Distribution.cat(self.dists), in_range)
        for row, text in prediction.task.notes(prediction.point).items():
            self.notes[row] = f"{self.notes[row]}; {text}" if row in self.notes else text
        return replace(prediction, notes=self.notes, errors=self.errors, inputs=self.names)


def name_of(names: Sequence[str] | None, row: int) -> str:
    """Return the name of an input in messages.

    Args:
        names: Names of all inputs; None if they only have numbers.
        row: Position of the input.
    """
    return f"row {row}" if names is None else names[row]


def names_of(items: object) -> list[str] | None:
    """Return the names of inputs for users, such as paths; None if they only have numbers.

    Args:
        items: Inputs; see `Model.predict`.
    """
    if isinstance(items, Source):
        return [items.item(row) for row in range(len(items))]
    if isinstance(items, list | tuple) and all(isinstance(i, str | os.PathLike) for i in items):
        return [os.fspath(item) for item in items]
    return None
