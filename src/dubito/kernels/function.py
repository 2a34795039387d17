"""The CPU kernel under autograd: what it applies to, its threads and its gradient."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dubito import _eager
from dubito.kernels import Plain, Weights
from dubito.kernels.blocks import block_rows
from dubito.kernels.cpu import compiled

#: entries of alpha that are worth a thread; below, to wake it takes longer than it saves
PER_THREAD = 8192

_Rows = Callable[..., bool]


def kernel_loss() -> Callable[..., Tensor | None]:
    """The loss function with the kernel it calls, which is compiled now or found in the cache."""
    try:
        rows = compiled(cache=True)
    except Exception:  # no folder to keep it in, or a full or broken one: for this process, then
        rows = compiled(cache=False)
    if not hasattr(rows, "py_func"):
        raise RuntimeError("NUMBA_DISABLE_JIT is set")
    return partial(_loss, rows)


def _loss(
    rows: _Rows,
    plain: Plain,
    weights: Mapping[str, float | Tensor],
    alpha: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    ignore_index: int,
    reduction: str,
) -> Tensor | None:
    if not (_eager.plainly() and _applies(alpha, target, class_weight)):
        return None
    numbers = _numbers(weights)
    if numbers is None:
        return None
    wanted = alpha.requires_grad and torch.is_grad_enabled()
    inputs = _Inputs.of(numbers, alpha, target, class_weight, ignore_index)
    result = _evaluate(rows, inputs, alpha.shape, reduction, wanted)
    if result is None:
        return None
    if not wanted:
        return result.value
    again = partial(plain, {name: weight for name, weight in numbers.items() if weight})
    return _Fused.apply(alpha, target, result, again)  # type: ignore[no-any-return, no-untyped-call]


# --- where it applies ----------------------------------------------------------------------------


def _constant(values: object) -> bool:
    """A plain CPU tensor that nobody differentiates by."""
    return type(values) is Tensor and values.is_cpu and not values.requires_grad


def _applies(alpha: Tensor, target: Tensor, class_weight: Tensor | None) -> bool:
    if type(alpha) not in (Tensor, torch.nn.Parameter) or alpha.numel() == 0:
        return False
    if not _constant(target) or target.dtype == torch.bool or target.is_complex():
        return False
    if target.shape != (alpha.shape if target.is_floating_point() else alpha.shape[:-1]):
        return False
    if class_weight is None:
        return True
    known = _constant(class_weight) and class_weight.shape == alpha.shape[-1:]
    return known and bool(((class_weight >= 0) & class_weight.isfinite()).all())


def _numbers(weights: Mapping[str, float | Tensor]) -> dict[str, float] | None:
    """The weights of all terms that the kernel knows, or None where one is not a plain number."""
    numbers = dict.fromkeys(Weights._fields, 0.0)
    for name, weight in weights.items():
        if isinstance(weight, Tensor):
            if not _constant(weight) or weight.ndim > 0:
                return None
            weight = weight.item()
        if not 0 <= weight < math.inf:
            return None
        numbers[name] = weight
    return numbers


# --- the call ------------------------------------------------------------------------------------


class _Inputs(NamedTuple):
    """What the kernel takes, in its order."""

    alpha: Any
    labels: Any
    soft: Any
    class_weight: Any
    weights: Any
    ignored: int
    tolerance: float

    @classmethod
    def of(
        cls,
        numbers: dict[str, float],
        alpha: Tensor,
        target: Tensor,
        class_weight: Tensor | None,
        ignore_index: int,
    ) -> _Inputs:
        classes = alpha.shape[-1]
        flat = alpha.detach().reshape(-1, classes).contiguous().numpy()
        labels, soft = np.empty(0, np.int64), np.empty((0, classes), np.float32)
        if target.is_floating_point():
            soft = target.to(torch.float32).reshape(-1, classes).contiguous().numpy()
        else:
            labels = target.to(torch.int64).reshape(-1).contiguous().numpy()
        by_class = np.empty(0)
        if class_weight is not None:
            by_class = class_weight.to(torch.float64).contiguous().numpy()
        tolerance = 1e-2 if target.element_size() == 2 else 1e-4  # as the checks have it
        weights = np.array(list(numbers.values()))
        return cls(flat, labels, soft, by_class, weights, ignore_index, tolerance)


class _Result(NamedTuple):
    value: Tensor
    gradient: Tensor
    """(..., K), or empty where it is not wanted"""
    scale: float
    """what the gradient is still to be multiplied by"""


def _evaluate(
    rows: _Rows, inputs: _Inputs, shape: torch.Size, reduction: str, wanted: bool
) -> _Result | None:
    """Call the kernel; None where it finds alpha below one, or what is no valid input."""
    count, classes = inputs.alpha.shape
    size = min(count, block_rows(classes))
    blocks = -(-count // size)
    loss = np.empty(count, np.float32)
    gradient = np.empty((count if wanted else 0, classes), np.float32)
    sums = np.empty((blocks, 2))
    if not _in_threads(rows, (*inputs, size), (loss, gradient, sums), blocks):
        return None
    slopes = torch.from_numpy(gradient.reshape(shape) if wanted else gradient)
    if reduction == "none":
        return _Result(torch.from_numpy(loss).reshape(shape[:-1]), slopes, 1.0)
    value, weight = sums.sum(0).tolist()
    scale = 1 / weight if reduction == "mean" and weight != 0 else 1.0
    return _Result(torch.from_numpy(np.array(value * scale, np.float32)), slopes, scale)


# --- threads -------------------------------------------------------------------------------------

# Python's threads, not those of numba: numba's end the process when two threads call them at once,
# or when a forked one does.
_pool: ThreadPoolExecutor | None = None


def _forget_pool() -> None:
    global _pool
    _pool = None


# The threads of a pool do not come along into a forked process, but the pool would wait for them.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def _in_threads(
    rows: _Rows, inputs: tuple[Any, ...], outputs: tuple[Any, ...], blocks: int
) -> bool:
    """All blocks, in as many threads as torch has; the result does not depend on their number."""
    global _pool
    most = min(blocks, inputs[0].size // PER_THREAD)
    threads = min(torch.get_num_threads(), most)
    if threads <= 1:
        return rows(*inputs, 0, blocks, *outputs)
    # more parts than threads: one that has to wait for its core leaves parts to the others
    parts = min(4 * threads, most)
    todo = deque(pairwise(blocks * part // parts for part in range(parts + 1)))

    def work() -> bool:
        valid = True
        while valid:
            try:
                pair = todo.popleft()
            except IndexError:
                break
            valid = rows(*inputs, *pair, *outputs)
        return valid

    _pool = _pool or ThreadPoolExecutor(os.cpu_count(), "dubito")
    others = [_pool.submit(work) for _ in range(threads - 1)]
    return all([work(), *(other.result() for other in others)])


# --- autograd ------------------------------------------------------------------------------------


class _Fused(torch.autograd.Function):
    """The kernel's value with the kernel's gradient."""

    @staticmethod
    def forward(
        ctx: Any, alpha: Tensor, target: Tensor, result: _Result, again: Callable[..., Tensor]
    ) -> Tensor:
        ctx.save_for_backward(alpha, target, result.gradient)
        ctx.scale, ctx.again = result.scale, again
        return result.value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        alpha, target, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody wants the gradient's gradient, which plain torch has
            value = ctx.again(alpha, target)
            (slopes,) = torch.autograd.grad(value, alpha, grad, create_graph=True)
            return slopes, None, None, None
        return gradient * (grad * ctx.scale).unsqueeze(-1), None, None, None
