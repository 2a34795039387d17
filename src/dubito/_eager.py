"""Whether operations run now, on plain values: what code with its own gradients must ask."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar, TypeVarTuple

import torch
from torch import Tensor

__all__ = ["eager_cache", "plain", "plainly", "untransformed"]

T = TypeVar("T")
Args = TypeVarTuple("Args")


def eager_cache(function: Callable[[*Args], T]) -> Callable[[*Args], T]:
    """Cache a function, but not under torch.compile, which ignores caches with a warning.

    >>> eager_cache(lambda x: [x])(1) is eager_cache(lambda x: [x])(1)
    False
    """
    cached = lru_cache(maxsize=1024)(function)

    @wraps(function)
    def call(*args: *Args) -> T:
        return function(*args) if torch.compiler.is_compiling() else cached(*args)

    return call


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
