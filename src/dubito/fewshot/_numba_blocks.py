"""Blocks of rows for the CPU kernel: the workspace, and how rows come into it and out of it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dubito.fewshot._numba_gamma import Family, Floats, Removed, exact, reordered

#: entries of alpha in a block of rows: the workspace fits a second-level cache
BLOCK = 1024


class Block(NamedTuple):
    """Rows in work: (R, K) arrays of the classes, then (R,) arrays."""

    alpha: Floats
    y: Floats
    evidence: Floats  # without the label's share
    slopes: Floats  # the gradient so far
    field: Floats  # what is to be centred
    top: NDArray[np.int64]  # the class with the largest alpha: only there can 1 - p cancel
    rest: Floats  # alpha0 less the top class
    alpha0: Floats
    evidence0: Floats
    weight: Floats
    value: Floats
    terms: Floats  # (R, 8), in the order of `Weights`


@exact
def spaces(rows: Any, classes: Any) -> Any:
    """A workspace, of ones: a stage that is left out leaves what is finite behind."""
    w, t, r = np.ones((15, rows, classes)), np.ones((10, rows, 1)), np.ones((5, rows))
    top = np.zeros(rows, np.int64)
    terms = np.zeros((rows, 8))
    block = Block(w[0], w[1], w[2], w[3], w[4], top, r[0], r[1], r[2], r[3], r[4], terms)
    each = Family(w[5], w[6], w[7], w[8], w[9], w[10]), Removed(w[11], w[12], w[13], w[14])
    total = Family(t[0], t[1], t[2], t[3], t[4], t[5]), Removed(t[6], t[7], t[8], t[9])
    return block, each, total


@reordered
def load(block: Any, alpha: Any, first: Any, count: Any) -> Any:
    """Take the rows in; whether all are finite and >= 1."""
    classes = alpha.shape[1]
    valid = True
    for i in range(count):
        top, largest = 0, 0.0
        for j in range(classes):
            a = float(alpha[first + i, j])
            valid &= a >= 1 and a < math.inf
            if a > largest:
                top, largest = j, a
            block.alpha[i, j] = a
            block.evidence[i, j] = a - 1
            block.slopes[i, j] = 0.0
        rest = 0.0
        for j in range(classes):
            rest += 0.0 if j == top else block.alpha[i, j]
        block.top[i], block.rest[i], block.alpha0[i] = top, rest, rest + largest
        block.value[i] = 0.0
    return valid


@exact
def load_labels(
    block: Any, labels: Any, class_weight: Any, ignored: Any, first: Any, count: Any
) -> Any:
    """Take the targets in; whether all are labels or ignored."""
    block.y[:count] = 0.0
    for i in range(count):
        label = labels[first + i]
        if label == ignored:
            block.weight[i] = 0.0
        elif 0 <= label < block.y.shape[1]:
            block.y[i, label] = 1.0
            block.evidence[i, label] = 0.0
            block.weight[i] = class_weight[label] if class_weight.shape[0] > 0 else 1.0
        else:
            return False
    return True
