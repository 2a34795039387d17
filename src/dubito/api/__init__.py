"""The functions behind the commands: train, evaluate, predict, calibrate, export.

A training run is described by a `RunConfig`, which is saved with the model. The other functions
take a model, or the folder of one. Training is imported when it is used: prediction needs none of
it.

>>> from tempfile import TemporaryDirectory
>>> from dubito.api import evaluate, train
>>> with TemporaryDirectory() as out:
...     model = train("digits", out=out, epochs=5, lr=0.005, report=False)
...     result = evaluate(out, noise=[0.5])
>>> result["metrics"]["accuracy"] > 0.8, list(result["noise"])
(True, ['0.5'])
"""

import csv
import json
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import torch

from dubito import _checks
from dubito import data as datasets
from dubito._files import atomic_path
from dubito.errors import DubitoError
from dubito.model import Model, Prediction
from dubito.plugins import import_function

if TYPE_CHECKING:
    from dubito.api.config import RunConfig
    from dubito.api.runs import calibrate, evaluate, train

__all__ = ["RunConfig", "calibrate", "evaluate", "export", "load", "predict", "train"]

AnyPath = str | os.PathLike[str]
#: a model, or the folder of one
AnyModel = Model | AnyPath
FORMATS = ("csv", "jsonl")
#: rows that are converted for a file at once
PORTION = 10_000

load = Model.load


def find_device(name: str) -> torch.device:
    """Return a device by name.

    Args:
        name: "auto", "cpu" or "cuda".
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DubitoError(f"unknown device {name!r}; known: 'auto', 'cpu', 'cuda'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise DubitoError(f"the device {name!r} needs a GPU, and torch finds none")
    return device


def load_model(model: AnyModel, device: str = "cpu", network: Any = None) -> Model:
    """Return a model, or load it.

    Args:
        model: Model, or the folder of one.
        device: "auto", "cpu" or "cuda".
        network: Factory of a custom network: a function, "module:function" or "file.py:function".
    """
    if isinstance(model, Model):
        return model
    factory = import_function(network) if isinstance(network, str) else network
    return Model.load(model, network=factory, device=find_device(device))


def predict(
    model: AnyModel,
    inputs: AnyPath | Sequence[AnyPath] | Any,
    *,
    out: AnyPath | None = None,
    format: Literal["csv", "jsonl"] | None = None,
    scores: Sequence[str] = (),
    batch_size: int = 1024,
    device: str = "auto",
    network: str | Callable[[], Any] | None = None,
) -> Prediction:
    """Predict with a model: value, probability, uncertainty, accept or abstain.

    An input that cannot be read has an error in its row and does not affect the others.

    Args:
        model: Model, or the folder of one.
        inputs: Images and folders of images; or a .csv, .parquet or .npz file; or arrays, a
            DataFrame, a list of dicts.
        out: File for the rows.
        format: Format of that file: "csv" or "jsonl"; by default that of its name, else csv.
        scores: Further scores: "max_prob", "vacuity", ...
        batch_size: Inputs at once.
        device: "auto", "cpu" or "cuda".
        network: Factory of a custom network: a function, "module:function" or "file.py:function".
    """
    loaded = load_model(model, device, network)
    source = datasets.open(
        inputs, "all", format=loaded.preprocessing.inputs, labeled=False, on_error="report"
    )
    prediction = loaded.predict(source, batch_size=batch_size, on_error="report")
    if out is not None:
        suffix = Path(out).suffix.lower()[1:]
        kind = format or (suffix if suffix in FORMATS else "csv")
        with atomic_path(Path(out)) as partial, partial.open("w", newline="") as file:
            write_rows(prediction, file, kind, scores)
    return prediction


def write_rows(
    prediction: Prediction, file: TextIO, format: str = "csv", scores: Sequence[str] = ()
) -> None:
    """Write the rows of a prediction.

    Args:
        prediction: Prediction of any number of inputs.
        file: Open text file.
        format: "csv" or "jsonl".
        scores: Further scores.
    """
    _checks.one_of(FORMATS, format, "format")
    writer = csv.writer(file, lineterminator="\n")
    for start in range(0, len(prediction), PORTION):
        part = prediction[start : start + PORTION]
        if format == "jsonl":
            for row in part.rows(scores):
                file.write(json.dumps(_rounded(row), ensure_ascii=False, allow_nan=False) + "\n")
            continue
        columns = part.columns(scores)
        if not start:
            writer.writerow(columns)
        writer.writerows(map(_rounded, zip(*columns.values(), strict=True)))


def _rounded(value: Any) -> Any:
    """Round to six digits, about those of float32."""
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def export(
    model: AnyModel,
    path: AnyPath,
    *,
    scores: Sequence[str] | None = None,
    floats: bool = False,
    network: str | Callable[[], Any] | None = None,
) -> Any:
    """Write a model as an ONNX file that needs neither torch nor dubito.

    The file has preprocessing, network, calibration, scores and policy, and is compared with torch
    before it gets its name.

    Args:
        model: Model, or the folder of one.
        path: File to write.
        scores: Further scores; by default none.
        floats: Take images as numbers in [0, 1] rather than bytes.
        network: Factory of a custom network: a function, "module:function" or "file.py:function".
    """
    return load_model(model, "cpu", network).export(path, scores=scores, floats=floats)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "config" if name.endswith("Config") else "runs"
    return getattr(import_module(f"{__name__}.{module}"), name)
