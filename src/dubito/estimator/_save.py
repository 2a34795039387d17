"""A fitted estimator as a bundle."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dubito import bundle
from dubito.bundle import Column, Columns, Factory, Preprocessing
from dubito.calibration import Calibration
from dubito.estimator._learner import Learner
from dubito.policy import Policy

__all__ = ["save"]


def save(
    folder: str | os.PathLike[str],
    learner: Learner,
    *,
    classes: Sequence[Any],
    features: Sequence[str] | None,
    backbone: Mapping[str, Any] | Factory,
    calibration: Calibration | None,
    policy: Policy | None,
) -> Path:
    """Write what `dubito.bundle.load` reads, in float32; named features are a table's columns."""
    named = None if features is None else Columns(columns=tuple(Column(str(f)) for f in features))
    return bundle.save(
        folder,
        copy.deepcopy(learner.network).float(),
        method=learner.method,
        classes=[str(name) for name in classes],
        shape=learner.shape,
        backbone=backbone if isinstance(backbone, Mapping) else None,
        class_counts=learner.class_counts,
        preprocessing=Preprocessing(
            columns=named,
            mean=tuple(float(value) for value in learner.scaler.mean_),
            scale=tuple(float(value) for value in learner.scaler.scale_),
        ),
        calibration=calibration,
        policy=policy,
        about=(f"Learnt by `EvidentialClassifier` in {learner.epochs} epochs.",),
    )
