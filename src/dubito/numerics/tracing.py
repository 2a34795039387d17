"""Eager mode and torch.compile: whether code with its own gradients may run, and caches."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Generic, Self, TypeVar, TypeVarTuple, overload

import torch
from torch import Tensor

__all__: list[str] = []

T = TypeVar("T")
Args = TypeVarTuple("Args")


class lazy(Generic[T]):
    """Property that is computed once.

    `functools.cached_property` has a lock, which torch.compile cannot trace in Python 3.11.

    >>> class Circle:
    ...     radius = 2
    ...
    ...     @lazy
    ...     def area(self):
    ...         print("once")
    ...         return 3.14 * self.radius**2
    >>> circle = Circle()
    >>> circle.area, circle.area
    once
    (12.56, 12.56)
    """

    #: whether later reads may use the value; None: always
    may_store: Callable[[Any], bool] | None = None

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function, self.name = function, function.__name__
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        value = self.function(instance)
        if self.may_store is None or self.may_store(instance):
            instance.__dict__[self.name] = value  # later reads skip this descriptor
        return value


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


def is_eager(values: Tensor) -> bool:
    """Return whether operations run now: no compilation, transform or tensor subclass.

    Transforms are those of functorch, forward-mode AD, dispatch modes and tracers.

    >>> is_eager(torch.ones(2))
    True
    """
    # A subclass may have no memory that a kernel can read.
    if torch.compiler.is_compiling() or type(values) not in (Tensor, torch.nn.Parameter):
        return False
    return (
        torch._C._functorch.peek_interpreter_stack() is None
        and torch.autograd.forward_ad._current_level < 0
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._get_tracing_state() is None
    )


@eager_cache
def constant(values: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return numbers as a tensor, the same one for each call."""
    if torch.compiler.is_compiling():
        return torch.tensor(values, dtype=dtype, device=device)
    # Cached: an inference tensor could not be used in a later training step.
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)
