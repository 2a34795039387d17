"""The solver on the CPU: each episode's whole L-BFGS in one compiled function, over threads.

The rules and their form are those of `lbfgs.py`: evaluate, then decide where to go. Loss and
gradient come from the stages of the fused CPU kernel. An episode's vectors are rows of one array,
its numbers another: a view of an array costs more here than the arithmetic with it. Coordinates are
stored by class, so that products with rows of the factor run along memory.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
from numba import njit

from dubito import _coefficients, special
from dubito.fewshot import _compiled_steps, _state
from dubito.fewshot import _numba_blocks as blocks
from dubito.fewshot import _numba_gamma as gamma
from dubito.fewshot import _numba_loss as cpu
from dubito.fewshot._compiled_steps import (
    COUNTS,
    NEW,
    NUMBERS,
    PHASE,
    POINT,
    ROUND,
    ROWS,
    SCALE,
    D,
    F,
    Rules,
    State,
    T,
    X,
    decide,
    part,
)  # fmt: skip
from dubito.fewshot._numba_loss import Weights
from dubito.fewshot._state import DONE

__all__ = ["compiled"]

_LOG2E = 1 / math.log(2)
_LN2_HIGH = 0.6931471803691238  # with zeros at its end, so that small multiples are exact
_LN2_LOW = 1.9082149292705877e-10
_TAYLOR = tuple(1 / math.factorial(k) for k in range(12, -1, -1))


def _inlined(function: F) -> F:
    """A function of numbers: a call would keep the loop around it from vector instructions."""
    return cast(F, gamma.inlined(function))


# --- loss and gradient ---------------------------------------------------------------------------


@_inlined
def _exp(x: Any) -> Any:
    """e^x to 1e-14 for x <= 0, by operations that exist for vectors.

    Zero below e^-100: products with less would soon be subnormal numbers, which are slow.
    """
    nothing = x < -100.0
    x = max(x, -100.0)
    power = np.floor(x * _LOG2E + 0.5)
    r = (x - power * _LN2_HIGH) - power * _LN2_LOW
    value = _TAYLOR[0]
    for c in _TAYLOR[1:]:
        value = value * r + c
    scale = np.int64((np.int64(power) + 1023) << 52).view(np.float64)
    return 0.0 if nothing else value * scale


@part
def _alpha(logits: Any, alpha: Any) -> None:
    """softplus + 1, and the logits become its slopes."""
    x, y = logits.reshape(-1), alpha.reshape(-1)
    for i in range(x.shape[0]):
        small = _exp(-abs(x[i]))
        y[i] = 1 + max(x[i], 0.0) + gamma.ln(1 + small)
        x[i] = (1.0 if x[i] >= 0 else small) / (1 + small)


@part
def _cross_entropy(logits: Any, labels: Any, smoothing: Any) -> Any:
    """The sum of the losses; the logits become their gradient."""
    count, classes = logits.shape
    total = 0.0
    for i in range(count):
        most, mass, mean = -math.inf, 0.0, 0.0
        for j in range(classes):
            most = max(most, logits[i, j])
        for j in range(classes):
            mass += _exp(logits[i, j] - most)
            mean += (logits[i, j] - most) / classes
        log = math.log(mass)
        total += log - (1 - smoothing) * (logits[i, labels[i]] - most) - smoothing * mean
        for j in range(classes):
            y = smoothing / classes + (1 - smoothing if j == labels[i] else 0.0)
            logits[i, j] = _exp(logits[i, j] - most - log) - y
    return total


@part
def _logits(factor: Any, lower: Any, e: Any, v: Any, logits: Any) -> None:
    """factor times POINT."""
    count, classes = logits.shape
    width = factor.shape[2]
    for i in range(count):
        length = min(i + 1, width) if lower else width
        for j in range(classes):
            total = 0.0
            for k in range(length):
                total += factor[e, i, k] * v[POINT, j * width + k]
            logits[i, j] = total


@part
def _gradient(factor: Any, lower: Any, e: Any, slopes: Any, v: Any) -> None:
    """NEW, from the slopes by the logits."""
    count, classes = slopes.shape
    width = factor.shape[2]
    for k in range(v.shape[1]):
        v[NEW, k] = 0.0
    for i in range(count):
        length = min(i + 1, width) if lower else width
        for j in range(classes):
            slope = slopes[i, j] / count
            for k in range(length):
                v[NEW, j * width + k] += slope * factor[e, i, k]


_SIGNATURE = (
    "void(f8[:, :, ::1], b1, i8[::1], i8, f8, f8[:, ::1], f8[::1], i8, i8, i8, f8, f8, i8, i8,"
    " f8[:, ::1])"
)


def _fingerprint() -> int:
    """Of the other sources that are compiled in: numba's cache itself looks at this file alone."""
    modules = (_compiled_steps, _state, blocks, cpu, gamma, special, _coefficients)
    return zlib.crc32(b"".join(Path(str(m.__file__)).read_bytes() for m in modules))


def compiled(cache: bool) -> Callable[..., None]:
    """The solver, compiled now or taken from numba's cache."""
    fingerprint = _fingerprint() if cache else 0

    def episodes(
        factor: Any,  # (E, N, R)
        lower: Any,  # whether it is zero above its diagonal
        labels: Any,  # (N,)
        classes: Any,
        smoothing: Any,  # of a softmax; negative for evidence
        weights: Any,  # (rounds, 8), of `Weights`
        first: Any,  # (E,), the first step
        history: Any,
        iterations: Any,
        evaluations: Any,
        tolerance_grad: Any,
        tolerance_change: Any,
        start: Any,  # the first episode
        stop: Any,  # the last one, which is not included
        out: Any,  # (E, K R)
    ) -> None:
        """Solve some episodes."""
        count, size = factor.shape[1], classes * factor.shape[2]
        block, each, total = blocks.spaces(count, classes)
        rows, pairs = np.empty((2, count, classes)), np.empty((2, history, size))
        numbers, none = np.empty((2, history)), np.empty(0)
        logits, alpha = rows[0], rows[1]
        v, q, c = np.zeros((ROWS, size)), np.zeros(NUMBERS), np.zeros(COUNTS, np.int64)
        z = State(v, q, c, pairs[0], pairs[1], numbers[0], numbers[1])
        for e in range(start, stop):
            v[:], q[:], c[:] = 0.0, 0.0, 0
            q[SCALE] = 1.0
            rules = Rules(
                weights.shape[0], iterations, evaluations, tolerance_grad, tolerance_change,
                first[e],
            )  # fmt: skip
            while c[PHASE] != DONE:
                for k in range(size):
                    v[POINT, k] = v[X, k] + q[T] * v[D, k]
                _logits(factor, lower, e, v, logits)
                if smoothing < 0:
                    u = weights[c[ROUND]]
                    w = Weights(u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7])
                    _alpha(logits, alpha)
                    blocks.load(block, alpha, 0, count)
                    blocks.load_labels(block, labels, none, -100, 0, count)
                    cpu._terms(w, block, each, total, count, True)
                    loss = 0.0
                    for i in range(count):
                        loss += block.value[i]
                        for j in range(classes):
                            logits[i, j] *= block.slopes[i, j]
                else:
                    loss = _cross_entropy(logits, labels, smoothing)
                _gradient(factor, lower, e, logits, v)
                decide(z, loss / count, rules)
            for k in range(size):
                out[e, k] = v[X, k] + fingerprint * 0

    # a closure's values are part of the key in the cache, hence the fingerprint

    return cast(
        Callable[..., None],
        njit(_SIGNATURE, error_model="numpy", nogil=True, cache=cache)(episodes),
    )
