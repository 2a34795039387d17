"""Engines, which run a model.

The engine "torch" is `Model.predict`. The engine "onnx" runs the file that `dubito.onnx.export`
writes, which compares it with torch on random and extreme inputs.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np
from torch import Tensor

from dubito import onnx
from dubito.data.base import Items
from dubito.errors import DubitoError
from dubito.formats import Encoded, InputFormat
from dubito.model import Model, Prediction
from dubito.model.prediction import NOT_FINITE

__all__: list[str] = []

Name = Literal["torch", "onnx"]
#: seconds of calls that measure an engine
MEASURED = 0.1
#: Seconds that a short batch should take, and how much more an input may cost than in a long one.
SHORT, DEARER = 0.015, 1.3


class Engine(Protocol):
    """Predicts batches of encoded inputs."""

    name: Name

    def __call__(self, batch: Encoded) -> Prediction:
        """Predict a batch."""


class TorchEngine:
    """Runs the model with torch, on its device.

    Args:
        model: Any model.
    """

    name: Name = "torch"

    def __init__(self, model: Model) -> None:
        self._model = model.eval()

    def __call__(self, batch: Encoded) -> Prediction:
        """Predict a batch."""
        inputs, count = self._model.preprocessing.inputs, len(batch.inputs)
        source = Items("batch", inputs, batch.inputs, encoded=batch)
        prediction = self._model.predict(source, batch_size=count, on_error="report")
        return replace(prediction, inputs=None)


@dataclass(frozen=True, eq=False, repr=False)
class _Computed(Prediction):
    """Prediction whose columns are computed already."""

    known: Mapping[str, Tensor] = field(default_factory=dict)

    def tensors(self, scores: Sequence[str] | None = None) -> dict[str, Tensor]:
        return {**self.known, **{name: self.score(name) for name in scores or ()}}


class OnnxEngine:
    """Runs the exported model with onnxruntime, on the CPU.

    Args:
        model: Any model whose method does not sample.
        threads: Threads of one computation.
    """

    name: Name = "onnx"

    def __init__(self, model: Model, threads: int = 1) -> None:
        content, _, _ = onnx.build(model)
        self._model, self._session = model, onnx.Session(content, threads)

    def __call__(self, batch: Encoded) -> Prediction:
        """Predict a batch."""
        known = self._session(batch.inputs)
        model, label = self._model, known["prediction"]
        dist = model.task.to_user_units(model.method.distribution(known.pop("outputs")))
        point = model.task.point(dist) if label.is_floating_point() else label.clamp_min(0)  # or -1
        bad = np.flatnonzero(np.isnan(known["total"].numpy())).tolist()
        return _Computed(
            model.task,
            dist,
            point,
            model.calibration,
            codes=known.get("reason"),
            notes=batch.notes,
            errors=dict.fromkeys(bad, NOT_FINITE) | batch.errors,
            known=known,
        )


def choose(model: Model, engine: Literal["auto", "torch", "onnx"], threads: int) -> Engine:
    """Return an engine; it depends on the arguments and on what is installed alone.

    Replicas that differ in their engine would differ by rounding, and in decisions at a threshold.

    Args:
        model: Model to run.
        engine: Its name; "auto": on a CPU onnx if it is installed and takes the model, else torch.
        threads: Threads of one computation.
    """
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    if engine == "onnx" or (engine == "auto" and on_cpu):
        try:
            return OnnxEngine(model, threads)
        except DubitoError as error:  # such as a method that samples, or a missing package
            if engine == "onnx":
                raise
            logging.getLogger(__name__).info("engine torch: %s", error)
    return TorchEngine(model)


def plan(engine: Engine, format: InputFormat, most: int) -> tuple[float, int]:
    """Return the seconds of the largest batch, and the size of a short one.

    Args:
        engine: Engine of the model.
        format: Inputs of the model.
        most: Size of the largest batch.
    """
    longest = takes = measure(engine, format.blank(most))
    size = most
    while takes > SHORT and size > 1:
        takes = measure(engine, format.blank(size // 2))
        if takes / (size // 2) > DEARER * longest / most:
            break
        size //= 2
    return longest, size


def measure(engine: Engine, inputs: Tensor) -> float:
    """Return the processor time of a prediction, the least of several after a first one."""
    batch, least, end = Encoded(inputs, {}, {}), math.inf, math.inf
    while time.perf_counter() < end:
        start = time.thread_time()  # does not depend on other processes and threads
        list(engine(batch).rows())
        least = min(least, time.thread_time() - start)
        end = min(end, time.perf_counter() + MEASURED)
    return least
