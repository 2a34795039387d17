"""What goes in: samples and labels, checked, labels as numbers, and the weights of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import Tensor

from dubito.estimator._learner import Array

__all__ = ["class_weights", "coded", "labelled", "samples"]

FLOATS = (np.float64, np.float32)  # kept; all else becomes the first


def samples(estimator: BaseEstimator, X: Any, shape: tuple[int, ...]) -> Array:
    """X as finite numbers (N, *shape), with the names of features that the estimator knows."""
    X = validate_data(estimator, X, reset=False, dtype=FLOATS, allow_nd=True)
    return _shaped(X, shape)


def labelled(
    estimator: BaseEstimator, X: Any, y: Any, shape: tuple[int, ...] | None
) -> tuple[Array, Array]:
    """X like `samples` and labels y (N,); without a shape, the estimator takes note of X's kind."""
    X, y = validate_data(estimator, X, y, reset=shape is None, dtype=FLOATS, allow_nd=True)
    check_classification_targets(y)
    return X if shape is None else _shaped(X, shape), y


def _shaped(X: Array, shape: tuple[int, ...]) -> Array:
    if X.shape[1:] != shape:
        raise ValueError(f"a sample of X has the shape {X.shape[1:]}, but {shape} in fit")
    return X


def coded(y: Array, classes: Array) -> Array:
    """Labels (N,) as places in the sorted `classes` (K,).

    >>> coded(np.array(["b", "a"]), np.array(["a", "b"])).tolist()
    [1, 0]
    """
    unknown = np.setdiff1d(y, classes)
    if len(unknown):
        raise ValueError(f"y has the classes {unknown.tolist()}; known: {classes.tolist()}")
    codes: Array = np.searchsorted(classes, y)
    return codes


def class_weights(
    class_weight: str | Mapping[Any, float] | None, y: Array, classes: Array
) -> Tensor | None:
    """Weights (K,), 1 on the mean of the samples: the learning rate keeps its meaning.

    >>> class_weights({"a": 3.0, "b": 1.0}, np.array(["a", "b"]), np.array(["a", "b"]))
    tensor([1.5000, 0.5000])
    """
    if class_weight is None:
        return None
    weights = compute_class_weight(class_weight, classes=classes, y=y)
    if not np.all(np.isfinite(weights) & (weights >= 0)) or not np.any(weights):
        raise ValueError(f"class_weight must be >= 0 and not all 0, but is {class_weight}")
    mean = weights[coded(y, classes)].mean()
    return torch.as_tensor(weights / (mean or 1.0), dtype=torch.float32)
