"""Fused kernels of the losses, and the choice between them and plain torch.

| device | compiled by | extra | first use on a machine |
| --- | --- | --- | --- |
| cpu | numba | `fast` | compiles for some seconds, and keeps the result on disk |

A kernel gives what plain torch gives, within the accuracy of float32, in one pass over the rows. It
takes labels and soft targets, class weights and reductions, for the terms of I-EDL and EDL and
alpha >= 1 in float32 or less. All else is left to plain torch: other terms and types, input that is
not valid (so that the errors are the same), torch.compile, torch.func, tracing, and second
derivatives. `DUBITO_KERNELS=off` in the environment leaves everything to plain torch.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from dubito import _checks

__all__ = ["MODES", "Weights", "available", "fused_loss", "switched_on"]

#: what DUBITO_KERNELS may be
MODES = ("auto", "off")
#: a weighted sum of terms, reduced, by plain torch: (weights, alpha, target) -> loss
Plain = Callable[[Mapping[str, float | Tensor], Tensor, Tensor], Tensor]


class Weights(NamedTuple):
    """The weights of the terms that the kernels know."""

    fisher_bias: float = 0.0
    fisher_variance: float = 0.0
    mse_bias: float = 0.0
    mse_variance: float = 0.0
    fisher_penalty: float = 0.0
    label_removed_kl: float = 0.0
    marginal_nll: float = 0.0
    expected_cross_entropy: float = 0.0


_KNOWN = frozenset(Weights._fields)


def switched_on() -> bool:
    """Whether DUBITO_KERNELS leaves the kernels on; an error where it is no mode."""
    mode = os.environ.get("DUBITO_KERNELS") or "auto"
    _checks.one_of(MODES, mode, "DUBITO_KERNELS")
    return mode != "off"


@cache
def _cpu() -> Callable[..., Tensor | None] | None:
    """The loss on the CPU, or None without numba or where it fails to compile."""
    try:
        from dubito.kernels.function import kernel_loss

        return kernel_loss()
    except ModuleNotFoundError as error:
        if error.name == "numba":
            return None
        _warn(error)
    except Exception as error:  # whatever numba, its compiler or the file system may raise
        _warn(error)
    return None


def available(alpha: Tensor) -> bool:
    """Whether there is a kernel for where alpha is, outside of torch.compile."""
    if torch.compiler.is_compiling() or not alpha.is_cpu:
        return False
    return switched_on() and _cpu() is not None


def _warn(error: Exception) -> None:
    warnings.warn(
        f"the CPU kernels are off and plain torch is used, because numba failed with "
        f"{type(error).__name__}: {error}. DUBITO_KERNELS=off avoids this warning",
        RuntimeWarning,
        stacklevel=2,
    )


def fused_loss(
    plain: Plain,
    weights: Mapping[str, float | Tensor],
    alpha: Tensor,
    target: Tensor,
    *,
    class_weight: Tensor | None,
    ignore_index: int,
    reduction: str,
) -> Tensor | None:
    """The loss `plain(weights, alpha, target)` by a kernel, or None where none applies.

    Shapes: alpha (..., K); target (...) or (..., K) -> scalar, or (...) unreduced.
    """
    if torch.compiler.is_compiling() or not (alpha.is_cpu and alpha.dtype == torch.float32):
        return None
    if not weights.keys() <= _KNOWN:
        return None
    loss = _cpu() if switched_on() else None
    if loss is None:
        return None
    return loss(plain, weights, alpha, target, class_weight, ignore_index, reduction)
