"""Eager mode: whether code with its own gradients may run, and caches for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar, TypeVarTuple

import torch
from torch import Tensor

__all__ = ["PLAIN", "eager_cache", "is_eager", "is_transformed"]

#: types of tensors whose memory a kernel can read; subclasses may have none
PLAIN = (Tensor, torch.nn.Parameter)

T = TypeVar("T")
Args = TypeVarTuple("Args")


def eager_cache(function: Callable[[*Args], T]) -> Callable[[*Args], T]:
    """Cache a function, but not under torch.compile, which ignores caches with a warning.

    >>> wrap = eager_cache(lambda x: [x])
    >>> wrap(1) is wrap(1)
    True
    """
    cached = lru_cache(maxsize=1024)(function)

    @wraps(function)
    def call(*args: *Args) -> T:
        return function(*args) if torch.compiler.is_compiling() else cached(*args)

    return call


def is_transformed() -> bool:
    """Whether a functorch transform, forward-mode AD, a dispatch mode or the tracer is active."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
    )


def is_eager(values: Tensor) -> bool:
    """Whether an operation on a tensor runs now: no compilation, transform or tensor subclass.

    >>> is_eager(torch.ones(2))
    True
    """
    return type(values) in PLAIN and not torch.compiler.is_compiling() and not is_transformed()
