"""What is learnt from data that was not trained on: a calibration, and when to abstain."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dubito._legacy import UNFAMILIAR, Prediction, joined
from dubito.calibration import Calibration
from dubito.estimator._learner import Array, Learner
from dubito.policy import Policy

__all__ = ["LEAST_HELD_OUT", "across_folds", "drawn", "promised"]

LEAST_HELD_OUT = 100  # fewer samples calibrate worse than predictions across folds do
LEAST_CALIBRATED = 20  # fewer samples in all are not calibrated
FOLDS = 3


def drawn(codes: Array, count: int, rng: np.random.RandomState) -> Array:
    """Which samples are held out, `count` of them at most: (N,) bool.

    Drawn like any sample, whatever its class: the promise is about draws, and a rare class counts
    in it. So a class may be missing from what is trained on, but for two: where the samples that
    are left have one class, the last drawn of the others changes sides. Whether it does is seen
    from what is left alone, so wherever it does not, the samples held out are draws like any other.
    """
    order = rng.permutation(len(codes))
    others = np.flatnonzero(codes[order] != codes[order[-1]])
    held = np.zeros(len(codes), bool)
    held[np.delete(order, [others[-1], len(order) - 1])[:count]] = True
    return held


def across_folds(
    trained: Callable[[Array, Array, int], Learner],
    X: Array,
    codes: Array,
    rng: np.random.RandomState,
) -> Calibration | None:
    """The calibration of networks `trained` (X, codes, seed) on parts that they did not see."""
    if len(X) < LEAST_CALIBRATED:
        return None
    fold = rng.permutation(len(X)) % FOLDS
    seeds = rng.randint(2**31 - 1, size=FOLDS)
    said = []
    for number, seed in enumerate(seeds):
        seen = fold != number
        said.append(trained(X[seen], codes[seen], int(seed)).said(X[~seen]))
    order = np.concatenate([np.flatnonzero(fold == number) for number in range(FOLDS)])
    return Calibration.fit(joined(said).distribution, torch.from_numpy(codes[order]))


def promised(
    said: Prediction,
    labels: Tensor,
    *,
    error: float,
    confidence: float,
    measure: str,
    false_alarms: float,
) -> Policy:
    """The policy that keeps the error rate; a warning, at the caller of `fit`, where none does."""
    familiar = [name for name in UNFAMILIAR if name in said.available]
    policy = Policy.control_error(
        said.distribution, said.label != labels, error, confidence, measure,
        ood_score=familiar[0] if familiar else None, false_alarms=false_alarms,
    )  # fmt: skip
    if policy.accepts_nothing:
        warnings.warn(
            f"{policy!r}, so every sample is abstained on. More held-out data, a "
            "greater `error` or a better network may change that",
            UserWarning,
            stacklevel=4,  # through the method that learns limits, and `fit` or `calibrate_on`
        )
    return policy
