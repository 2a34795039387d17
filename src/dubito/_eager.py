"""Eager mode and torch.compile: whether code with its own gradients may run, and caches."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Generic, Self, TypeVar, TypeVarTuple, overload

import torch
from torch import Tensor

#: types of tensors whose memory a kernel can read; subclasses may have none
PLAIN = (Tensor, torch.nn.Parameter)

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


def is_transformed() -> bool:
    """Return whether a functorch transform, forward-mode AD, dispatch mode or tracer is active."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
    )


def is_eager(values: Tensor) -> bool:
    """Return whether operations run now: no compilation, transform or tensor subclass.

    >>> is_eager(torch.ones(2))
    True
    """
    return type(values) in PLAIN and not torch.compiler.is_compiling() and not is_transformed()
