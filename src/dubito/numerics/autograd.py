"""Functions of tensors whose gradients are formulas, evaluated in chunks of rows.

They are differentiable twice, forwards and backwards, and work under torch.func, torch.compile and
torch.export.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__: list[str] = []

Tensors = tuple[Tensor, ...]
_Values = Callable[..., Tensors]
_Gradients = Callable[..., tuple[Tensor | None, ...]]


class _ByFormula(torch.autograd.Function):
    """Values by one formula, gradients by another, which is differentiable too.

    `values(*tensors)` are (...) each, and `gradients(grads, *tensors)` one for each tensor.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(values: _Values, gradients: _Gradients, *tensors: Tensor) -> Tensors:
        outputs = values(*tensors)
        if not torch.compiler.is_compiling():
            return outputs
        # Compiled by torch 2.11, an output that is a view would get no gradient.
        return tuple(output.clone() for output in outputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        _, ctx.gradients, *tensors = inputs
        ctx.count = len(output)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.gradients(grads, *ctx.saved_tensors))


class _ByFormulaForward(_ByFormula):
    """With forward-mode AD, which torch.compile does not accept in a function."""

    @staticmethod
    def jvp(ctx: Any, _values: None, _gradients: None, *tangents: Tensor | None) -> Tensors:
        tensors, count = ctx.saved_tensors, ctx.count
        ones, zeros = (f(tensors[0][..., 0]) for f in (torch.ones_like, torch.zeros_like))
        outputs = []
        for i in range(count):
            grads = tuple(ones if j == i else zeros for j in range(count))
            slopes = ctx.gradients(grads, *tensors)
            parts = [
                (slope * tangent).sum(-1)
                for slope, tangent in zip(slopes, tangents, strict=True)
                if slope is not None and tangent is not None
            ]
            outputs.append(sum(parts[1:], parts[0]))
        return tuple(outputs)


def by_formula(values: _Values, gradients: _Gradients, *tensors: Tensor) -> Tensors:
    """Compute `values(*tensors)`, whose derivatives are `gradients(grads, *tensors)`."""
    if torch.compiler.is_compiling() and not any(tensor.requires_grad for tensor in tensors):
        return values(*tensors)  # Dynamo counts arguments, and miscounts *tensors
    function = _ByFormula if torch.compiler.is_compiling() else _ByFormulaForward
    return function.apply(values, gradients, *tensors)  # type: ignore[no-any-return, no-untyped-call]


#: entries evaluated at once: a CPU's cache, or a small part of an accelerator's memory
CHUNK_CPU, CHUNK = 1 << 16, 1 << 22


def by_rows(function: Callable[..., Tensors], alpha: Tensor, *more: Tensor) -> Tensors:
    """Apply a function of rows in chunks, so that its temporary tensors take little memory."""
    limit, lead = CHUNK_CPU if alpha.is_cpu else CHUNK, alpha.shape[:-1]
    if torch.compiler.is_compiling() or alpha.ndim < 2 or alpha.numel() <= limit:
        return function(alpha, *more)
    rows = max(limit // alpha.shape[-1], 1)
    flat = [part.reshape(-1, *part.shape[len(lead) :]).split(rows) for part in (alpha, *more)]
    outputs = [function(*parts) for parts in zip(*flat, strict=True)]
    whole = (torch.cat(parts) for parts in zip(*outputs, strict=True))
    return tuple(part.reshape(*lead, *part.shape[1:]) for part in whole)


#: torch 2.6 cannot tell
is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)


def is_wide(alpha: Tensor) -> bool:
    """Return whether to compute float32 in float64, which not every device or file supports."""
    has_float64 = alpha.device.type in ("cpu", "cuda")
    return alpha.dtype == torch.float32 and has_float64 and not is_exporting()
