"""Engines, which run a model.

The engine "torch" is `Model.predict`. The engine "onnx" runs the file that `dubito.onnx.export`
writes, which compares it with torch on random and extreme inputs.
"""

import logging
import tempfile
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dubito._extras import need
from dubito.errors import DubitoError
from dubito.model import Model, Prediction
from dubito.model.collector import NOT_FINITE

#: function from inputs to predictions
Engine = Callable[[Any], Prediction]
#: seconds of calls that measure an engine
MEASURED = 0.1


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

    def __init__(self, model: Model, threads: int = 1) -> None:
        self.model, runtime = model, need("onnxruntime", "onnx")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            model.export(path)
            self._session = runtime.InferenceSession(
                path.read_bytes(), options, providers=["CPUExecutionProvider"]
            )
        self._input = self._session.get_inputs()[0].name
        self._outputs = [output.name for output in self._session.get_outputs()]

    def __call__(self, items: Any) -> Prediction:
        """Predict inputs as users have them, or an encoded tensor (N, *shape)."""
        model, encode = self.model, self.model.preprocessing.inputs.encode
        inputs, errors, notes = (items, {}, {}) if isinstance(items, Tensor) else encode(items)
        arrays = self._session.run(self._outputs, {self._input: inputs.numpy()})
        known = dict(zip(self._outputs, map(torch.from_numpy, arrays), strict=True))
        dist = model.task.to_user_units(model.method.distribution(known.pop("outputs")))
        label = known["prediction"]
        for row in np.flatnonzero(np.isnan(known["total"].numpy())).tolist():
            errors.setdefault(row, NOT_FINITE)
        return _Computed(
            model.task,
            dist,
            model.task.point(dist) if label.is_floating_point() else label.clamp_min(0),  # or -1
            model.calibration,
            known.get("reason"),
            notes=notes,
            errors=errors,
            known=known,
        )


def choose(
    model: Model, engine: Literal["auto", "torch", "onnx"], threads: int, batch_size: int
) -> tuple[Literal["torch", "onnx"], Engine]:
    """Return the name of an engine and the engine.

    Args:
        model: Model to run.
        engine: Its name; "auto": on a CPU the faster one, else torch.
        threads: Threads of one computation.
        batch_size: Maximum number of inputs in a batch.
    """
    if engine == "onnx":
        return "onnx", OnnxEngine(model, threads)
    by_torch: Engine = partial(model.eval().predict, on_error="report")
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    if engine == "torch" or not on_cpu:
        return "torch", by_torch
    try:
        by_onnx = OnnxEngine(model, threads)
    except DubitoError as error:  # such as a method that samples, or a missing package
        logging.getLogger(__name__).info("engine torch: %s", error)
        return "torch", by_torch
    by_onnx_takes, by_torch_takes = (
        measure(engine, model, 1) + measure(engine, model, batch_size)
        for engine in (by_onnx, by_torch)
    )
    return ("onnx", by_onnx) if by_onnx_takes < by_torch_takes else ("torch", by_torch)


def measure(engine: Engine, model: Model, count: int) -> float:
    """Return the seconds that a prediction of some inputs takes, the least of several calls."""
    format = model.preprocessing.inputs
    dtype = torch.uint8 if format.is_pixels else torch.float32
    inputs = torch.zeros(count, *format.shape, dtype=dtype)
    engine(inputs)  # the first call is slow
    times: list[float] = []
    while sum(times) < MEASURED:
        times.append(timeit.timeit(lambda: list(engine(inputs).rows()), number=1))
    return min(times)
