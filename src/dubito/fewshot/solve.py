"""Linear classifiers of a batch of episodes, and their logits; compiled or by torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubito.fewshot.design import Design, design_of
from dubito.fewshot.heads import Evidential, Head, SoftmaxHead
from dubito.fewshot.lbfgs import Solver, minimise
from dubito.kernels import switched_on

__all__ = ["fit", "products"]

_PARTS = 8  # of the episodes a thread: one that has to wait for its core leaves parts to the others


def fit(head: Head, support: Tensor, labels: Tensor, ways: int, solver: Solver) -> Tensor:
    """Linear classifiers of E episodes, weights and bias: (E, D + 1, K).

    Shapes: support features (E, N, D), their labels (N,). On the CPU by the compiled solver where
    numba is installed and the head is one it knows, otherwise by batched torch operations.

    >>> from dubito.fewshot.heads import head
    >>> support, labels = torch.eye(4)[None], torch.tensor([0, 0, 1, 1])
    >>> fit(head("softmax"), support, labels, 2, Solver()).shape
    torch.Size([1, 5, 2])
    """
    design = design_of(support)
    y = torch.eye(ways, device=support.device)[labels.to(support.device)]
    scale = _first_scale(head, design, y, solver)
    compiled = _compiled("compiled") if support.is_cpu and switched_on() else None
    if compiled is not None and isinstance(head, Evidential | SoftmaxHead):
        coordinates = _by_numba(compiled, head, design, labels, ways, scale, solver)
    else:
        coordinates = minimise(head, design.factor.float(), y, scale.float(), solver)
    return design.weights(coordinates)


def _first_scale(head: Head, design: Design, y: Tensor, solver: Solver) -> Tensor:
    """The sum of magnitudes of the gradient at zero, by all D + 1 weights of a class: (E,)."""
    kl = torch.full((1, 1), head.ramp(solver.rounds)[0], device=y.device)
    with torch.no_grad():
        _, slopes = head.evaluate(torch.zeros_like(y)[None], y, kl)
    return (design.support.mT @ slopes).abs().sum((-2, -1)) / len(y)


def products(features: Tensor, index: NDArray[np.int64], weights: Tensor) -> Tensor:
    """Logits of chosen samples: features (N, D), index (E, M), weights (E, D + 1, K) -> (E, M, K).

    >>> features, weights = torch.eye(2), torch.tensor([[[1.0, 2.0], [3.0, 4.0], [10.0, 20.0]]])
    >>> products(features, np.array([[1, 0, 1]]), weights)
    tensor([[[13., 24.], [11., 22.], [13., 24.]]])
    """
    compiled = _compiled("products") if features.is_cpu and switched_on() else None
    if compiled is None:
        flat = torch.from_numpy(index.reshape(-1)).to(features.device)
        rows = features.index_select(0, flat).unflatten(0, index.shape)
        return torch.baddbmm(weights[:, -1:], rows, weights[:, :-1])
    by_class = weights.mT.contiguous().numpy()
    result = np.empty((*index.shape, by_class.shape[1]), np.float32)
    _in_threads(compiled, (features.numpy(), np.ascontiguousarray(index), by_class), result)
    return torch.from_numpy(result)


# --- the compiled solver -------------------------------------------------------------------------


@cache
def _compiled(module: str) -> Callable[..., None] | None:
    """A module's function, or None without numba or where it fails to compile."""
    try:
        compiled = import_module(f"dubito.fewshot.{module}").compiled
    except ModuleNotFoundError as error:
        if error.name == "numba":
            return None
        raise
    try:
        return cast(Callable[..., None], compiled(cache=True))
    except Exception:  # no folder to keep it in, or a full or broken one: for this process, then
        try:
            return cast(Callable[..., None], compiled(cache=False))
        except Exception as error:  # whatever numba or its compiler may raise
            warnings.warn(
                f"episodes are solved by plain torch, because numba failed with "
                f"{type(error).__name__}: {error}. DUBITO_KERNELS=off avoids this warning",
                RuntimeWarning,
                stacklevel=2,
            )
    return None


def _by_numba(
    compiled: Callable[..., None],
    head: Evidential | SoftmaxHead,
    design: Design,
    labels: Tensor,
    ways: int,
    scale: Tensor,
    solver: Solver,
) -> Tensor:
    from dubito.fewshot._numba_loss import Weights  # here: numba is optional

    weights, smoothing = np.zeros((solver.rounds, len(Weights._fields))), -1.0
    if isinstance(head, Evidential):
        for i, kl in enumerate(head.ramp(solver.rounds)):
            weights[i] = Weights(**head.terms(), label_removed_kl=kl)
    else:
        smoothing = head.share
    factor, lower = design.factor, design.is_triangular
    count, _, width = factor.shape
    result = np.empty((count, ways * width))
    given = (factor.contiguous().numpy(), lower, labels.numpy(), ways, smoothing, weights)
    first = scale.double().reciprocal().clamp(max=1).numpy()
    rules = (solver.iterations, solver.evaluations, solver.tolerance_grad, solver.tolerance_change)
    _in_threads(compiled, (*given, first, solver.history, *rules), result)
    return torch.from_numpy(result).view(count, ways, width).mT


def _in_threads(compiled: Callable[..., None], given: tuple[Any, ...], result: Any) -> None:
    """All episodes, in as many threads as torch has; the result does not depend on their number."""
    threads = min(torch.get_num_threads(), len(result))
    if threads <= 1:
        compiled(*given, 0, len(result), result)
        return
    parts = min(_PARTS * threads, len(result))
    cuts = [len(result) * i // parts for i in range(parts + 1)]
    with ThreadPoolExecutor(threads, "dubito") as pool:
        tasks = [
            pool.submit(compiled, *given, start, stop, result) for start, stop in pairwise(cuts)
        ]
        for task in tasks:
            task.result()
