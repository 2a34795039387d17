"""Fused CUDA kernels of the losses, and the choice between them and plain torch.

The kernels need Triton 3.6 or later, which torch's CUDA builds include. The first use on a machine
compiles for some seconds, per loss and number of classes, and caches the result on disk.

A kernel computes the same values as the torch forms, within the accuracy of float32, in one pass
over the rows. The torch forms compute everything else: other devices, types and forms, vmap,
forward-mode differentiation and second derivatives. With `DUBITO_KERNELS=off` in the environment
they compute everything.

The kernels use names of Triton and torch that are not public. If a later release lacks one, a
warning says so, and the torch forms compute everything.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module

import torch
from torch import Tensor

from dubito import _checks
from dubito.errors import DubitoError
from dubito.numerics.spec import LossSpec
from dubito.numerics.tracing import is_eager

__all__: list[str] = []

#: values of DUBITO_KERNELS
MODES = ("auto", "off")
_disabled = ContextVar("disabled", default=False)
_DEVICE = "cuda"  # of the kernels; tests interpret them elsewhere
_TRITON = (3, 6)  # the oldest release that the kernels were run with
_fits = True  # until a private name turns out to be missing


class Incompatible(DubitoError):
    """Raised if Triton or torch lacks a private name that the kernels use.

    Args:
        reason: The error that tells what is missing.
    """

    def __init__(self, reason: Exception) -> None:
        release = import_module("triton").__version__
        super().__init__(
            f"Triton {release} does not fit the fused kernels ({reason}); without them losses are "
            "slower; DUBITO_KERNELS=off switches them off"
        )


@contextmanager
def disabled() -> Iterator[None]:
    """Compute with the torch forms, where loading the kernels takes longer than they save."""
    token = _disabled.set(True)
    try:
        yield
    finally:
        _disabled.reset(token)


def fused_loss(
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
    if not _applies(values):
        return None
    from dubito.kernels import triton_backend

    try:
        return triton_backend.fused_loss(spec, values, target, weights, class_weight)
    except Incompatible as error:
        _give_up(error)
        return None


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
    differentiated = values.requires_grad and torch.is_grad_enabled()
    if evidence is None or prior != 1 or differentiated or not _applies(values):
        return None
    from dubito.kernels import triton_scores

    try:
        return triton_scores.uncertainty(values, evidence)
    except Incompatible as error:
        _give_up(error)
        return None


def _applies(values: Tensor) -> bool:
    """Return whether the kernels may compute functions of a tensor."""
    if values.device.type != _DEVICE or not _available():
        return False
    return torch.compiler.is_compiling() or is_eager(values)


def _give_up(error: Incompatible) -> None:
    """Warn, and leave everything to the torch forms from now on."""
    global _fits
    _fits = False
    warnings.warn(str(error), RuntimeWarning, stacklevel=2)


@cache
def _triton() -> bool:
    """Return whether Triton can compile the kernels; then load them."""
    if torch.version.hip is not None:  # they contain single instructions of NVIDIA's
        return False
    try:
        release = import_module("triton").__version__.split(".")[:2]
    except ModuleNotFoundError:
        return False
    if tuple(map(int, release)) < _TRITON:
        return False
    try:
        import_module("dubito.kernels.triton_scores")  # torch.compile needs its operators
    except (ImportError, AttributeError) as error:
        _give_up(Incompatible(error))
    return _fits


def _available() -> bool:
    """Return whether the kernels are switched on and can be compiled."""
    mode = os.environ.get("DUBITO_KERNELS") or "auto"
    _checks.one_of(MODES, mode, "DUBITO_KERNELS")
    return _fits and not _disabled.get() and mode != "off" and _triton()


# torch.compile calls this while it traces, and treats the result as a constant
_available.__dict__["_dynamo_marked_constant"] = True
