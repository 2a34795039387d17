"""Batches of inputs: their size, and their predictions joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dubito.data import Source
from dubito.distributions import Distribution
from dubito.errors import DubitoError
from dubito.formats import Encoded
from dubito.model.prediction import Prediction

if TYPE_CHECKING:
    from dubito.model.model import Model

__all__: list[str] = []

#: Inputs of a batch: at most so many, and so many numbers, whose activations take 16 to 40 times
#: their memory in convolutional networks: about 1 GB.
MOST, VALUES = 1024, 1 << 23
#: A GPU has more memory, and needs more parallel work.
GPU = 4
#: Numbers that an embedded index, such as that of a token, counts as.
EMBEDDED = 1024
NOT_FINITE = "the outputs of the network are not finite"


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
        return replace(prediction, notes=self.notes, errors=self.errors, inputs=self.names)


def name_of(names: Sequence[str] | None, row: int) -> str:
    """Return the name of an input in messages.

    Args:
        names: Names of all inputs; None if they only have numbers.
        row: Position of the input.
    """
    return f"row {row}" if names is None else names[row]
