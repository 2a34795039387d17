"""Checks of arguments: what was seen, what is expected, and what to do about it.

Shapes and types are always checked. Values are looked at where that is cheap and allowed: on the
CPU, outside of torch.compile, torch.export and torch.func. On an accelerator a look would stop the
stream, so there a bad value shows as a non-finite result, which nothing in dubito hides.
"""

from __future__ import annotations

import math
from collections import UserDict
from collections.abc import Iterable, Mapping
from importlib import import_module
from operator import index
from typing import Any, TypeVar

import torch
from torch import Tensor

from dubito._plugins import load_plugins
from dubito.errors import DubitoError

V = TypeVar("V")


def visible(values: Tensor) -> bool:
    """Whether the values may be looked at."""
    return (
        not torch.compiler.is_compiling()
        and values.device.type == "cpu"
        and not torch._C._functorch.is_functorch_wrapped_tensor(values)
        and values.numel() > 0
    )


class Registry(UserDict[str, V]):
    """Entries by name. A built-in one is the name of its module until it is first read.

    The module registers the entry when it is imported.
    """

    def __getitem__(self, name: str) -> V:
        if isinstance(self.data[name], str):
            import_module(str(self.data[name]))
        return self.data[name]


def entry(table: Mapping[str, V], name: str, what: str) -> V:
    """Return table[name]; an installed plug-in may still add it. Else list the known names."""
    if name not in table:
        load_plugins()
    one_of(table, name, what)
    return table[name]


def listed(names: Iterable[str]) -> str:
    """Names for a message."""
    return ", ".join(repr(name) for name in names)


def one_of(names: Iterable[str], name: str, what: str) -> None:
    """An error that lists the known names, unless `name` is one of them."""
    if name not in names:
        raise DubitoError(f"unknown {what} {name!r}; known: {listed(names)}")


def tensor(values: object, name: str) -> Tensor:
    """A tensor, or an error that says what came instead."""
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, not {type(values).__name__}")
    return values


def shaped(values: object, name: str) -> Tensor:
    """Check for a floating-point tensor (..., K), K >= 2; its values are not read."""
    checked = tensor(values, name)
    if not checked.is_floating_point():
        raise TypeError(f"{name} must be floating point, not {checked.dtype}; call .float() on it")
    if checked.ndim == 0 or checked.shape[-1] < 2:
        raise DubitoError(
            f"{name} has shape {tuple(checked.shape)}: expected (..., K), K >= 2 classes last"
        )
    return checked


def at_least_float32(values: Tensor) -> Tensor:
    """Convert half precision to float32."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def floating(values: object, name: str) -> Tensor:
    """A floating tensor, two classes or more on its last axis; half precision becomes float32."""
    return at_least_float32(shaped(values, name))


def concentration(alpha: object, name: str = "alpha", least: float = 0.0) -> Tensor:
    """alpha (..., K): positive (or at least `least`) and finite."""
    checked = floating(alpha, name)
    if visible(checked):
        low, high = (value.item() for value in checked.detach().aminmax())
        bound = f">= {least:g}" if least else "> 0"
        # held as the type can hold it: 0.7 in float32 is less than 0.7
        rounded = torch.tensor(least, dtype=checked.dtype, device="cpu").item() if least else least
        if not ((low >= min(least, rounded) if least else low > 0) and high < math.inf):
            raise DubitoError(
                f"{name} must be {bound} and finite, but its values span [{low:g}, {high:g}]"
                f"{_first_bad(checked, least)}; were logits passed? See dubito.evidence"
            )
    return checked


def finite(values: Tensor, name: str) -> None:
    """Raise a ValueError if a value is infinite or NaN."""
    if visible(values):
        low, high = (value.item() for value in values.detach().aminmax())
        if not (low > -math.inf and high < math.inf):
            raise DubitoError(
                f"{name} must be finite, but span [{low:g}, {high:g}]{_first_bad(values)}"
            )


def logits(values: object, name: str = "logits") -> Tensor:
    """Finite logits (..., K)."""
    checked = floating(values, name)
    finite(checked, name)
    return checked


def probabilities(values: object, name: str = "probs") -> Tensor:
    """Probabilities (..., K) that sum to one."""
    given = tensor(values, name)
    checked = floating(given, name)
    if visible(given):
        _sum_to_one(given, name)  # as given: half precision may be further off
    return checked


def classes_last(values: object, class_dim: int, name: str) -> Tensor:
    """A tensor with the axis `class_dim` moved to the end."""
    checked = tensor(values, name)
    if not -checked.ndim <= class_dim < checked.ndim:
        raise DubitoError(
            f"class_dim={class_dim} is not an axis of {name} with shape {tuple(checked.shape)}"
        )
    return checked.movedim(class_dim, -1)


def _first_bad(values: Tensor, least: float | None = None) -> str:
    bad = ~values.isfinite()
    if least is not None:
        bad |= values < least if least else values <= 0
    where = bad.nonzero()
    return f" ({len(where)} bad, the first at {where[0].tolist()})" if len(where) else ""


def targets(target: object, values: Tensor, ignore_index: int) -> None:
    """Check class indices (...) or probabilities (..., K) against predictions (..., K)."""
    checked = tensor(target, "target")
    if values.numel() == 0:
        raise DubitoError(f"the batch is empty: predictions of shape {tuple(values.shape)}")
    if checked.dtype == torch.bool:
        raise TypeError("target must hold integer labels or probabilities, not torch.bool")
    if checked.is_floating_point():
        _soft(checked, values)
        return
    if checked.shape != values.shape[:-1]:
        raise DubitoError(
            f"target has shape {tuple(checked.shape)}, but the predictions {tuple(values.shape)} "
            f"need labels of shape {tuple(values.shape[:-1])} or probabilities of their own shape"
        )
    if visible(checked):
        _in_range(checked.long(), values.shape[-1], ignore_index)


def class_weight(weight: object, values: Tensor) -> Tensor:
    """Check class weights (K,) >= 0 against predictions (..., K); move them to their device."""
    checked = tensor(weight, "weight")
    if checked.shape != values.shape[-1:]:
        raise DubitoError(
            f"weight has shape {tuple(checked.shape)}; expected one per class, "
            f"({values.shape[-1]},)"
        )
    if visible(checked) and not bool(((checked >= 0) & checked.isfinite()).all()):
        raise DubitoError(
            f"weight must be >= 0 and finite, but spans [{checked.min():g}, {checked.max():g}]"
        )
    return checked.to(values.device)


def _in_range(labels: Tensor, classes: int, ignore_index: int | None) -> None:
    low, high = (value.item() for value in labels.aminmax())
    if low >= 0 and high < classes:
        return
    wrong = (labels < 0) | (labels >= classes)
    if ignore_index is not None:
        wrong &= labels != ignore_index
    if bool(wrong.any()):
        seen = sorted(set(labels[wrong].tolist()))[:5]
        extra = "" if ignore_index is None else f" or ignore_index={ignore_index}"
        raise DubitoError(f"target must hold labels from 0 to {classes - 1}{extra}, but has {seen}")


def labels(target: Tensor, shape: torch.Size, classes: int, predictions: str) -> Tensor:
    """Labels as int64; an error unless they are integers of a shape, which `predictions` words."""
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise TypeError(f"labels must be integers, not {target.dtype}")
    if target.shape != shape:
        raise DubitoError(f"labels have shape {tuple(target.shape)}, but {predictions}")
    target = target.long()  # torch compares no uint16, uint32 or uint64
    if target.numel() and not 0 <= int(target.min()) <= int(target.max()) < classes:
        raise DubitoError(
            f"labels must be from 0 to {classes - 1}, "
            f"but span [{int(target.min())}, {int(target.max())}]"
        )
    return target


def _soft(y: Tensor, alpha: Tensor) -> Tensor:
    if y.shape != alpha.shape:
        raise TypeError(
            f"target is {y.dtype} of shape {tuple(y.shape)}: labels must be integers "
            f"(call .long()), and probabilities need the predictions' shape {tuple(alpha.shape)}"
        )
    if y.requires_grad:
        raise DubitoError("target requires grad, but is taken as a constant; call .detach() on it")
    if visible(y):
        _sum_to_one(y, "target")
    return y.to(alpha.dtype)


def _sum_to_one(probs: Tensor, name: str) -> None:
    tolerance = 1e-2 if probs.element_size() == 2 else 1e-4
    least = probs.min().item()
    worst = (probs.sum(-1, dtype=torch.float64) - 1).abs().max().item()
    if not (least >= 0 and worst <= tolerance):
        raise DubitoError(
            f"{name} holds probabilities that must be >= 0 and sum to 1 over the classes, "
            f"but the least is {least:g} and a sum is off by {worst:g}"
        )


def non_negative(value: float | Tensor, name: str) -> float | Tensor:
    """A weight: a finite number >= 0, or a tensor of such."""
    if isinstance(value, Tensor):
        if visible(value) and not bool(((value >= 0) & value.isfinite()).all()):
            raise DubitoError(f"{name} must be finite and >= 0, not {value.tolist()!r}")
        return value
    if type(value) not in (int, float) and not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not 0 <= value < math.inf:
        raise DubitoError(f"{name} must be a finite number >= 0, not {value!r}")
    return value


def positive(value: float, name: str) -> float:
    """Check for a finite number > 0."""
    if not 0 < value < math.inf:
        raise DubitoError(f"{name} must be a finite number > 0, not {value!r}")
    return value


def prior(value: float) -> float:
    """Check the prior of a Dirichlet: a finite number >= 0."""
    if not 0 <= value < math.inf:
        raise DubitoError(f"prior must be a finite number >= 0, not {value!r}")
    return float(value)


def whole_number(value: object, name: str) -> None:
    """An error unless it is one; true and false are none."""
    if type(value) is int:
        return
    try:
        index(value)  # type: ignore[arg-type]
        whole = not isinstance(value, bool)
    except TypeError:
        whole = False
    if not whole:
        raise TypeError(f"{name} must be a whole number, not {value!r}")


def in_open_unit_interval(**values: float) -> None:
    """Raise a ValueError if a number is not in (0, 1)."""
    for name, value in values.items():
        if not 0 < value < 1:
            raise DubitoError(f"{name} must be in (0, 1), not {value!r}")


def one_batch_axis(dist: Any) -> None:
    """Raise a ValueError if a distribution is not about N >= 1 samples along one axis."""
    if len(dist.batch_shape) != 1 or not len(dist):
        raise DubitoError(f"expected a distribution of batch shape (N,), N >= 1, not {dist!r}")


def errors(values: object, shape: torch.Size) -> Tensor:
    """Check which predictions are errors: bool, of the batch shape."""
    checked = torch.as_tensor(values)
    if checked.dtype != torch.bool:
        raise TypeError(f"errors must be bool, as Task.errors returns them, not {checked.dtype}")
    if checked.shape != shape:
        raise DubitoError(f"errors have shape {tuple(checked.shape)}, expected {tuple(shape)}")
    return checked
