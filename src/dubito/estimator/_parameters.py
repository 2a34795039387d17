"""What the estimator's parameters stand for: a method, a backbone, the settings of a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from dubito import _checks, _legacy, methods
from dubito._legacy import MEASURES, Method
from dubito.bundle import Factory
from dubito.training import Settings

__all__ = ["backbone_of", "check_parameters", "method_of", "settings_of"]

#: hyperparameters that differ from a method's own: tables often have few classes
TUNED: dict[str, dict[str, Any]] = {"iedl": {"scale": "per_class"}}
BATCH = (16, 64)  # the least and the largest "auto" batch; between them eight make an epoch
DEVICES = ("auto", "cpu", "cuda")  # they have float64, in which predictions are made


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """What no other part checks, in the user's terms."""
    for name in ("error", "confidence", "false_alarms", "validation_fraction"):
        value = parameters[name]
        if not (name == "error" and value is None) and not 0 < value < 1:
            raise ValueError(f"{name} must be between 0 and 1, not {value!r}")
    _checks.one_of(MEASURES, parameters["measure"], "measure")
    _checks.one_of(DEVICES, parameters["device"], "device")
    if isinstance(parameters["batch_size"], str):
        _checks.one_of(("auto",), parameters["batch_size"], "batch_size")
    for name in ("epochs", "batch_size"):
        if not isinstance(parameters[name], Integral | str):
            raise TypeError(f"{name} must be a whole number, not {parameters[name]!r}")
    if parameters["weight_decay"] < 0:
        raise ValueError(f"weight_decay must be >= 0, not {parameters['weight_decay']!r}")


def method_of(method: str | Method | methods.Method, options: Mapping[str, Any] | None) -> Method:
    """The method: by its name and options, or as it is."""
    if isinstance(method, str):
        return _legacy.method(method, **{**TUNED.get(method, {}), **(options or {})})
    if options:
        raise ValueError("method_options are for a method given by its name")
    return _legacy.method(method)


def backbone_of(backbone: str | Factory, hidden: Sequence[int]) -> dict[str, Any] | Factory:
    """The backbone as a bundle takes it: by name and options, or the user's function.

    >>> backbone_of("mlp", [8])
    {'name': 'mlp', 'hidden': (8,)}
    """
    if not isinstance(backbone, str):
        return backbone
    return {"name": backbone, **({"hidden": tuple(hidden)} if backbone == "mlp" else {})}


def settings_of(
    samples: int,
    *,
    epochs: int,
    batch_size: int | str,
    learning_rate: float,
    weight_decay: float,
    seed: int,
) -> Settings:
    """The settings of a training on so many samples."""
    if isinstance(batch_size, str):
        batch_size = int(np.clip(samples // 8, *BATCH))
    return Settings(
        epochs=epochs,
        batch_size=batch_size,
        optimizer="adamw",
        learning_rate=learning_rate,
        optimizer_options={"weight_decay": weight_decay},
        schedule="cosine",
        validate_every=epochs,  # so that the last weights are kept
        patience=0,
        seed=seed,
    )
