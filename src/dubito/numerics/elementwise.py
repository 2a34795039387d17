"""Functions of float32 on a CPU, element by element, with their slopes from the same pass.

A training step of a small network takes as long as calling its operations. NumPy calls them twice
as fast as torch, and a formula for the slopes needs none of autograd's; float64 makes the textbook
form of both exact.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dubito.numerics.gamma import Array
from dubito.numerics.tracing import is_eager

__all__: list[str] = []

#: returns the slope of a function in each of its arguments
Slopes = Callable[[], tuple[Array, ...]]
Fast = Callable[..., tuple[Array, Slopes]]


def elementwise(fast: Fast, exact: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Compute a function of tensors (...) of one shape: (...).

    Args:
        fast: The function and its slopes, of float64 arrays; used for plain float32 on a CPU.
        exact: The same function of tensors of any kind; its gradients are those of `create_graph`.
        *tensors: Arguments.
    """
    if not all(map(_is_plain, tensors)):
        return exact(*tensors)
    return _Elementwise.apply(fast, exact, *tensors)  # type: ignore[no-any-return, no-untyped-call]


def _is_plain(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.is_cpu and is_eager(tensor)


class _Elementwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, fast: Fast, exact: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        arrays = (tensor.detach().numpy().astype(np.float64) for tensor in tensors)
        with np.errstate(all="ignore"):  # as in torch
            values, slopes = fast(*arrays)
            if any(ctx.needs_input_grad):
                ctx.exact = exact
                ctx.save_for_backward(*tensors, *map(_single, slopes()))
            return _single(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[2:]
        tensors, slopes = ctx.saved_tensors[: len(needed)], ctx.saved_tensors[len(needed) :]
        if torch.is_grad_enabled():  # create_graph
            wanted = [tensor for tensor, need in zip(tensors, needed, strict=True) if need]
            found = iter(torch.autograd.grad(ctx.exact(*tensors), wanted, grad, create_graph=True))
            return None, None, *(next(found) if need else None for need in needed)
        return None, None, *(
            slope * grad if need else None for slope, need in zip(slopes, needed, strict=True)
        )  # fmt: skip


def _single(values: Array) -> Tensor:
    return torch.from_numpy(np.asarray(values, np.float32))
