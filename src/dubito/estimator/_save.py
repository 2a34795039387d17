"""A fitted estimator as a bundle."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dubito import bundle
from dubito.bundle import Column, Columns, Factory, Preprocessing
from dubito.calibration import Calibration
from dubito.estimator._learner import Learner
from dubito.policy import Policy, Threshold

__all__ = ["save"]

COARSEST = 0.01  # the step between two float32 numbers, in deviations of a feature
SLACK = 2.0**-21  # four steps of float32: what rounding may move a measure by


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
    _check_resolution(learner, features)
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
        policy=None if policy is None else _rounded(policy),
        about=(f"Learnt by `EvidentialClassifier` in {learner.epochs} epochs.",),
    )


def _check_resolution(learner: Learner, features: Sequence[str] | None) -> None:
    """An error for a feature such as the seconds since 1970, which float32 can't tell apart."""
    mean, scale = learner.scaler.mean_, learner.scaler.scale_
    coarse = np.flatnonzero(np.spacing(np.abs(mean).astype(np.float32)) > COARSEST * scale)
    if len(coarse):
        first = int(coarse[0])
        name = first if features is None else str(features[first])
        raise ValueError(
            f"a bundle takes float32 numbers, which hardly tell the values of feature {name!r} "
            f"apart: they vary by {scale[first]:.3g} around {mean[first]:.10g}; subtract an offset "
            "from it before fit, or remove it"
        )


def _rounded(policy: Policy) -> Policy:
    """The policy for measures in float32: inputs that tie at a bound in float64 still pass it."""
    ood = None if policy.ood_threshold is None else _relaxed(policy.ood_threshold)
    return policy.model_copy(update={"threshold": _relaxed(policy.threshold), "ood_threshold": ood})


def _relaxed(threshold: Threshold) -> Threshold:
    value = threshold.value
    if not np.isfinite(value):
        return threshold
    slack = SLACK * abs(value)
    relaxed = value - slack if threshold.higher == "confidence" else value + slack
    return threshold.model_copy(update={"value": relaxed})
