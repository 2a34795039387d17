"""Fused kernels of the losses, and the choice between them and plain torch.

| device | compiled by | takes | comes with | first use on a machine |
| --- | --- | --- | --- | --- |
| cpu | numba | alpha | the extra `fast` | compiles for some seconds, and keeps the result on disk |
| cuda | Triton 3.6 on | logits | torch's CUDA builds | the same, for each number of classes |

A kernel gives what plain torch gives, within the accuracy of float32, in one pass over the rows. It
takes labels and soft targets, class weights and reductions, for the terms of I-EDL and EDL and
alpha >= 1 in float32 or less. All else is left to plain torch: other terms and types, input that is
not valid (so that the errors are the same), torch.func, tracing, and second derivatives; and on the
CPU torch.compile. `DUBITO_KERNELS=off` in the environment leaves everything to plain torch.

On a GPU the losses that are given alpha stay with plain torch too: only of evidence is it known,
without a look that would stop the stream, that alpha >= 1. The kernels are the torch operators
`dubito::evidential_loss` and `dubito::evidential_gradient`: torch.compile and CUDA graphs take them
as they are, and weights that are tensors may move between replays.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from dubito import _checks, _eager

__all__ = [
    "MODES",
    "Weights",
    "available",
    "fused_from_logits",
    "fused_loss",
    "fused_measures",
    "fused_terms",
    "lacks_numba",
    "measurable",
    "switched_on",
]

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


def lacks_numba(device: torch.device, terms: Iterable[str]) -> bool:
    """Whether a loss of these terms would have a kernel there, were numba installed."""
    served = device.type == "cpu" and _KNOWN.issuperset(terms) and switched_on()
    return served and find_spec("numba") is None


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


# --- from logits, on a GPU -----------------------------------------------------------------------

_DEVICE = "cuda"
_TRITON = (3, 6)  # the oldest release that the kernels were run with
_MOST_ROWS = 1 << 30  # rows are counted in 32 bits
_HALVES_AND_SINGLE = (torch.float32, torch.bfloat16, torch.float16)


@cache
def _gpu() -> bool:
    """Whether the operators are there; they are registered when this is first asked."""
    if torch.version.hip is not None:  # they hold single instructions of NVIDIA's
        return False
    try:
        release = import_module("triton").__version__.split(".")[:2]
        if tuple(map(int, release)) < _TRITON:
            return False
        import_module("dubito.kernels.triton_once_ops")  # and with it triton_ops
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "triton":
            return False
        raise
    return True


def _on_gpu() -> bool:
    return switched_on() and _gpu()


# torch.compile then asks while it traces, and takes the answer for good
_on_gpu.__dict__["_dynamo_marked_constant"] = True


def fused_from_logits(
    weights: Mapping[str, float | Tensor],
    logits: Tensor,
    target: Tensor,
    *,
    evidence: str,
    growth: float,
    class_weight: Tensor | None,
    ignore_index: int,
    reduction: str,
) -> Tensor | None:
    """The loss of logits by a kernel, or None where none applies.

    `growth` multiplies the terms that grow with the number of classes. Shapes: logits (..., K);
    target (...) or (..., K) -> scalar, or (...) unreduced.
    """
    if not weights or not weights.keys() <= _KNOWN:
        return None
    if any(isinstance(w, Tensor) and (w.ndim > 0 or w.requires_grad) for w in weights.values()):
        return None
    if not _takes(logits, target, class_weight, evidence):
        return None
    numbers, places, moving = _split(weights, logits)
    found = _operator(logits, target, reduction)(
        logits, target, class_weight, moving, numbers, places, _columns(tuple(weights)),
        growth, evidence, ignore_index, reduction,
    )  # fmt: skip
    return found[0]


def fused_terms(
    names: Sequence[str],
    weights: Tensor,
    logits: Tensor,
    target: Tensor,
    *,
    evidence: str,
    growth: float,
) -> tuple[Tensor, Tensor] | None:
    """The summed loss and the summed terms (T,) for weights (T,), or None where none applies."""
    if not set(names) <= _KNOWN or weights.requires_grad or weights.device != logits.device:
        return None
    if not _takes(logits, target, None, evidence):
        return None
    columns = _columns(names)
    numbers = [float(name in names) for name in Weights._fields]
    places = [column if column >= 0 else -2 for column in columns]
    loss, sums, *_ = _operator(logits, target, "sum")(
        logits, target, None, weights, numbers, places, columns, growth, evidence, -100, "sum"
    )
    return loss, sums


def _operator(logits: Tensor, target: Tensor, reduction: str) -> Callable[..., tuple[Tensor, ...]]:
    """The loss alone, or with its gradient in the same pass."""
    if not torch.compiler.is_compiling():
        from dubito.kernels.triton_once_ops import in_one_pass

        if in_one_pass(logits, target, reduction):
            return torch.ops.dubito.evidential_loss_once
    return torch.ops.dubito.evidential_loss


def _columns(names: Sequence[str]) -> list[int]:
    """Each term's place in the names, or -1."""
    return [list(names).index(name) if name in names else -1 for name in Weights._fields]


def _split(
    weights: Mapping[str, float | Tensor], logits: Tensor
) -> tuple[list[float], list[int], Tensor | None]:
    """The weights' numbers, the places of those that are tensors, and these, on the device."""
    numbers: list[float] = []
    places: list[int] = []
    moving: list[Tensor] = []
    for name in Weights._fields:
        weight = weights.get(name)
        if isinstance(weight, Tensor):
            numbers.append(1.0)
            places.append(len(moving))
            moving.append(weight.to(logits.device, torch.float32))
        else:
            numbers.append(0.0 if weight is None else float(weight))
            places.append(-2 if weight is None else -1)
    if not moving:
        return numbers, places, None
    return numbers, places, moving[0].reshape(-1) if len(moving) == 1 else torch.stack(moving)


def measurable(logits: Tensor, evidence: str) -> bool:
    """Whether a kernel has the measures of these logits; it gives no gradient."""
    wanted = isinstance(logits, Tensor) and logits.requires_grad and torch.is_grad_enabled()
    return not wanted and _takes_logits(logits, evidence)


def fused_measures(logits: Tensor, evidence: str) -> dict[str, Tensor]:
    """Measures of `measurable` logits by name, all that a kernel has: (..., K) -> (...) each."""
    from dubito.kernels.triton_measures import NAMES

    values = torch.ops.dubito.evidential_measures(logits, evidence)
    return dict(zip(NAMES, values.unbind(), strict=False))  # for many classes the last is left out


def _takes(logits: Tensor, target: Tensor, class_weight: Tensor | None, evidence: str) -> bool:
    """Whether the operators are for this input; its values are not looked at."""
    if not _takes_logits(logits, evidence):
        return False
    return _fits(logits, target) and _fits_classes(logits, class_weight)


def _takes_logits(logits: Tensor, evidence: str) -> bool:
    if not (isinstance(logits, Tensor) and logits.device.type == _DEVICE and _on_gpu()):
        return False
    if not torch.compiler.is_compiling() and not _eager.untransformed():
        return False
    if logits.dtype not in _HALVES_AND_SINGLE or logits.ndim == 0 or logits.shape[-1] < 2:
        return False
    rows = logits.numel() // logits.shape[-1]
    return 0 < rows < _MOST_ROWS and evidence in ("softplus", "relu", "exp")


def _fits(logits: Tensor, target: Tensor) -> bool:
    if not isinstance(target, Tensor) or target.device != logits.device or target.requires_grad:
        return False
    if target.is_floating_point():
        return target.shape == logits.shape and target.dtype in _HALVES_AND_SINGLE
    integral = target.dtype != torch.bool and not target.is_complex()
    return integral and target.shape == logits.shape[:-1]


def _fits_classes(logits: Tensor, class_weight: Tensor | None) -> bool:
    if class_weight is None:
        return True
    here = isinstance(class_weight, Tensor) and class_weight.device == logits.device
    return here and class_weight.shape == logits.shape[-1:] and not class_weight.requires_grad
