"""Whether operations run now, on plain values: what code with its own gradients must ask."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["plain", "plainly", "untransformed"]


def untransformed() -> bool:
    """Whether nobody maps, and nobody differentiates forwards."""
    return (
        torch._C._functorch.peek_interpreter_stack() is None
        and torch.autograd.forward_ad._current_level < 0
    )


def plainly() -> bool:
    """Whether nobody compiles, traces, fakes, maps or differentiates forwards."""
    return (
        not torch.compiler.is_compiling()
        and untransformed()
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._get_tracing_state() is None
    )


def plain(values: Tensor) -> bool:
    """Whether a tensor is one of torch's own, in plain operation.

    >>> plain(torch.ones(2))
    True
    """
    return type(values) in (Tensor, torch.nn.Parameter) and plainly()
