"""The end of a training: what the weights are worth, by the validation samples, and the bundle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dubito import bundle
from dubito._legacy import promise_of
from dubito.bundle import Promise
from dubito.data import Arrays
from dubito.runs import _folder
from dubito.runs._folder import Recorded, Run
from dubito.training import checkpoint

__all__ = ["finish", "finish_again", "keeps"]


def finish(
    folder: Path,
    config: Recorded,
    model: nn.Module,
    validation: Arrays,
    summary: Mapping[str, Any],
    promise: Promise | None,
) -> None:
    """Write the bundle of a trained network, with a calibration and a policy."""
    run = Run(config.make_method(), model, config, folder)
    said = run.predict(validation.inputs)
    limits = bundle.limits(said, validation.labels.cpu(), promise)
    _folder.save(folder, model, config, summary, limits)


def finish_again(
    folder: Path,
    config: Recorded,
    validation: Arrays,
    promise: Promise | None,
    device: torch.device,
) -> None:
    """The same for weights that are there already."""
    path, facts = folder / _folder.WEIGHTS, config.facts
    tensors, summary = checkpoint.load(path)
    model = bundle.filled(
        config.make_method(), config.backbone, facts.shape, len(facts.classes),
        facts.class_counts, tensors, path,
    )  # fmt: skip
    finish(folder, config, model.to(device).eval(), validation, summary, promise)


def keeps(folder: Path, promise: Promise) -> bool:
    """Whether the policy of a finished run is for this promise, as far as its measures have it."""
    policy = bundle.read_limits(folder).policy
    asked = vars(promise)
    return policy is not None and all(asked.get(k, v) == v for k, v in promise_of(policy).items())
