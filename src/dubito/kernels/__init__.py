"""Fused kernels of the losses, and the choice between them and plain torch.

Losses and scores of tensors on a CUDA device run in Triton kernels (Triton 3.6 or later, part of
torch's CUDA builds). A kernel is compiled on first use, per loss and number of classes.

A kernel computes what the torch forms compute, within the accuracy of float32, in one pass over the
rows. Everything else is left to the torch forms: other devices, types and forms, vmap and
forward-mode differentiation, and second derivatives. `DUBITO_KERNELS=off` in the environment leaves
everything to them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import cache
from importlib import import_module

import torch
from torch import Tensor

from dubito.kernels.spec import LossSpec

__all__ = [
    "MODES",
    "calls",
    "switched_on",
    "uncertainty",
    "weighted_sums",
]

#: values of DUBITO_KERNELS
MODES = ("auto", "off")
#: eager calls that a kernel has answered, by its name: "triton", "triton uncertainty"
calls: Counter[str] = Counter()

_Backend = Callable[[LossSpec, Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor] | None]
_DEVICE = "cuda"  # of the Triton kernels; tests interpret them elsewhere
_PLAIN = (Tensor, torch.nn.Parameter)  # subclasses may have no memory that a kernel can read
_TRITON = (3, 6)  # the oldest release that the kernels were run with


def switched_on() -> bool:
    """Whether DUBITO_KERNELS leaves the kernels on.

    Raises:
        ValueError: If it is not one of `MODES`.
    """
    mode = os.environ.get("DUBITO_KERNELS") or "auto"
    if mode not in MODES:
        known = ", ".join(map(repr, MODES))
        raise ValueError(f"unknown DUBITO_KERNELS {mode!r}; known: {known}")
    return mode != "off"


def weighted_sums(
    spec: LossSpec, values: Tensor, target: Tensor, weights: Tensor, class_weight: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """Compute a loss and the sums of its terms by a kernel.

    Args:
        spec: The loss.
        values: Logits or alpha ``(..., K)``.
        target: Labels ``(...)`` or soft targets ``(..., K)``.
        weights: Weights of the terms ``(T,)``.
        class_weight: Weights of the classes ``(K,)``, or None.

    Returns:
        The reduced loss and the sum of each term over rows ``(T,)``, or None where no kernel
        applies: then the torch forms do.
    """
    if torch.compiler.is_compiling():
        if values.device.type != _DEVICE or not _compiles():
            return None
        return _operator()(spec, values, target, weights, class_weight)
    if type(values) not in _PLAIN or _is_transformed():
        return None
    if values.device.type != _DEVICE or not switched_on() or not _triton():
        return None
    found = _loss()(spec, values, target, weights, class_weight)
    if found is not None:
        calls["triton"] += 1
    return found


def uncertainty(values: Tensor, evidence: str | None, prior: float) -> dict[str, Tensor] | None:
    """Compute scores of a Dirichlet by a kernel, without gradients.

    Args:
        values: Logits ``(..., K)``.
        evidence: Evidence function, or None if the values are alpha.
        prior: The constant in alpha = evidence + prior.

    Returns:
        Scores ``(...)`` by name, or None where no kernel applies: with gradients, where alpha may
        be below 1, and off the GPU.
    """
    if evidence is None or prior != 1 or values.device.type != _DEVICE:
        return None
    if values.requires_grad and torch.is_grad_enabled():
        return None
    if torch.compiler.is_compiling():
        return _scores()(values, evidence) if _compiles() else None
    if type(values) not in _PLAIN or _is_transformed() or not switched_on() or not _triton():
        return None
    found = _scores()(values, evidence)
    if found is not None:
        calls["triton uncertainty"] += 1
    return found


def _is_transformed() -> bool:
    """Whether a functorch transform, forward-mode AD, a dispatch mode or the tracer is active."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
    )


@cache
def _triton() -> bool:
    """Whether the Triton kernels can be used."""
    if torch.version.hip is not None:  # they contain single instructions of NVIDIA's
        return False
    try:
        release = import_module("triton").__version__.split(".")[:2]
    except ModuleNotFoundError:
        return False
    return tuple(map(int, release)) >= _TRITON


def _compiles() -> bool:
    if not (switched_on() and _triton()):
        return False
    _operator()
    return True


# torch.compile then asks while it traces, and treats the answer as a constant
_compiles.__dict__["_dynamo_marked_constant"] = True


@cache
def _loss() -> _Backend:
    from dubito.kernels.triton_backend import weighted_sums

    return weighted_sums


@cache
def _operator() -> _Backend:
    from dubito.kernels.triton_backend import compiled_weighted_sums

    return compiled_weighted_sums


@cache
def _scores() -> Callable[[Tensor, str], dict[str, Tensor] | None]:
    from dubito.kernels.triton_scores import uncertainty

    return uncertainty
