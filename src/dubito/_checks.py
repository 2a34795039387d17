"""Checks of arguments: messages name the argument, its value and what is expected.

Shapes and types are always checked. Values are read where that is cheap and allowed: on the CPU,
outside of torch.compile, torch.export and torch.func. On an accelerator reading would stop the
stream, so there a bad value shows as a non-finite result, which nothing in dubito hides.
"""

import math
from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any, TypeVar

import torch
from torch import Tensor

from dubito.errors import DubitoError

V = TypeVar("V")


# --- names ----------------------------------------------------------------------------------------


def entry(table: Mapping[str, V], name: str, what: str) -> V:
    """Return table[name]; raise if the name is unknown."""
    one_of(table, name, what)
    return table[name]


def listed(names: Iterable[str]) -> str:
    """Join names for a message."""
    return ", ".join(repr(name) for name in names)


def one_of(names: Iterable[str], name: str, what: str, hint: str = "") -> None:
    """Raise unless `name` is one of the names."""
    if name not in names:
        raise DubitoError(f"unknown {what} {name!r}; known: {listed(names)}{hint}")


# --- numbers --------------------------------------------------------------------------------------


def non_negative(value: float | Tensor, name: str) -> float | Tensor:
    """Check for a finite number >= 0, or a tensor of such."""
    if isinstance(value, Tensor):
        if visible(value) and not bool(((value >= 0) & value.isfinite()).all()):
            span = f"[{value.min():g}, {value.max():g}]"
            raise DubitoError(f"{name} must be >= 0 and finite, but spans {span}")
        return value
    if type(value) not in (int, float) and not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not 0 <= value < math.inf:
        raise DubitoError(f"{name} must be a finite number >= 0, not {value!r}")
    return value


def prior(value: float) -> float:
    """Check the prior of a Dirichlet: a finite number >= 0."""
    return float(non_negative(value, "prior"))


def positive(value: float, name: str) -> float:
    """Check for a finite number > 0."""
    if not 0 < value < math.inf:
        raise DubitoError(f"{name} must be a finite number > 0, not {value!r}")
    return value


def whole_number(value: object, name: str) -> None:
    """Raise unless a value is an integer; True and False are not."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, not {value!r}")


def in_open_unit_interval(**values: float) -> None:
    """Raise if a number is not in (0, 1)."""
    for name, value in values.items():
        if not 0 < value < 1:
            raise DubitoError(f"{name} must be in (0, 1), not {value!r}")


# --- tensors --------------------------------------------------------------------------------------


def visible(values: Tensor) -> bool:
    """Return whether values may be read."""
    return (
        not torch.compiler.is_compiling()
        and values.device.type == "cpu"
        and not torch._C._functorch.is_functorch_wrapped_tensor(values)
        and values.numel() > 0
    )


def tensor(values: object, name: str) -> Tensor:
    """Check for a tensor."""
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
    """Check for a floating-point tensor (..., K); half precision becomes float32."""
    return at_least_float32(shaped(values, name))


def classes_last(values: object, class_dim: int, name: str) -> Tensor:
    """Return a tensor with the axis `class_dim` moved to the end."""
    checked = tensor(values, name)
    if not -checked.ndim <= class_dim < checked.ndim:
        raise DubitoError(
            f"class_dim={class_dim} is not an axis of {name} with shape {tuple(checked.shape)}"
        )
    # A view that changes nothing would still be a node of the autograd graph.
    return checked if class_dim == -1 else checked.movedim(class_dim, -1)


def concentration(alpha: Tensor) -> None:
    """Raise if a value of alpha is not positive, infinite or NaN."""
    finite(alpha, "alpha", 0, "; for logits use Dirichlet.from_logits")


def finite(values: Tensor, name: str, bound: float = -math.inf, hint: str = "") -> None:
    """Raise if a value is infinite, NaN, or not above a bound."""
    if not visible(values):
        return
    low, high = (value.item() for value in values.detach().aminmax())
    if not (low > bound and high < math.inf):
        expected = "finite" if bound == -math.inf else f"> {bound:g} and finite"
        bad = (~((values > bound) & (values < math.inf))).nonzero()
        raise DubitoError(
            f"{name} must be {expected}, but its values span [{low:g}, {high:g}] "
            f"({len(bad)} bad, the first at {bad[0].tolist()}){hint}"
        )


# --- targets --------------------------------------------------------------------------------------


def targets(target: object, values: Tensor, ignore_index: int) -> None:
    """Check class indices (...) or probabilities (..., K) against predictions (..., K)."""
    checked = tensor(target, "target")
    if values.numel() == 0:
        raise DubitoError(f"the batch is empty: predictions of shape {tuple(values.shape)}")
    if checked.dtype == torch.bool:
        raise TypeError("target must have integer labels or probabilities, not torch.bool")
    if checked.is_floating_point():
        _soft_targets(checked, values)
        return
    if checked.shape != values.shape[:-1]:
        raise DubitoError(
            f"target has shape {tuple(checked.shape)}, but the predictions {tuple(values.shape)} "
            f"need labels of shape {tuple(values.shape[:-1])} or probabilities of their own shape"
        )
    if visible(checked):
        last = values.shape[-1] - 1
        labels = checked.long()
        low, high = (value.item() for value in labels.aminmax())
        if low >= 0 and high <= last:
            return
        wrong = ((labels < 0) | (labels > last)) & (labels != ignore_index)
        if bool(wrong.any()):
            raise DubitoError(
                f"target must have labels from 0 to {last} or ignore_index={ignore_index}, "
                f"but has {labels[wrong].unique()[:5].tolist()}"
            )


def _soft_targets(target: Tensor, values: Tensor) -> None:
    if target.shape != values.shape:
        raise TypeError(
            f"target is {target.dtype} of shape {tuple(target.shape)}: labels must be integers "
            f"(call .long()), and probabilities need the predictions' shape {tuple(values.shape)}"
        )
    if target.requires_grad:
        raise DubitoError("target requires grad, but is taken as a constant; call .detach() on it")
    probabilities(target, "target")


def probabilities(probs: Tensor, name: str) -> None:
    """Raise unless values (..., K) are >= 0 and sum to 1."""
    if not visible(probs):
        return
    tolerance = 1e-2 if probs.element_size() == 2 else 1e-4
    least = probs.min().item()
    worst = (probs.sum(-1, dtype=torch.float64) - 1).abs().max().item()
    if not (least >= 0 and worst <= tolerance):
        raise DubitoError(
            f"probabilities in {name} must be >= 0 and sum to 1 over the classes, "
            f"but the least is {least:g} and a sum is off by {worst:g}"
        )


def labels(target: Tensor, shape: torch.Size, classes: int, predictions: str) -> Tensor:
    """Check labels and return them as int64.

    Args:
        target: Labels.
        shape: Expected shape.
        classes: Number of classes.
        predictions: Description of the predictions and the expected shape.
    """
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise TypeError(f"labels must be integers, not {target.dtype}")
    if target.shape != shape:
        raise DubitoError(f"labels have shape {tuple(target.shape)}, but {predictions}")
    target = target.long()  # torch compares no uint16, uint32 or uint64
    low, high = (int(value) for value in target.aminmax()) if target.numel() else (0, 0)
    if not 0 <= low <= high < classes:
        raise DubitoError(f"labels must be from 0 to {classes - 1}, but span [{low}, {high}]")
    return target


def class_weight(weight: object, values: Tensor) -> Tensor:
    """Check class weights (K,) >= 0 against predictions (..., K); move them to their device."""
    checked = tensor(weight, "weight")
    if checked.shape != values.shape[-1:]:
        raise DubitoError(
            f"weight has shape {tuple(checked.shape)}; expected one per class, "
            f"({values.shape[-1]},)"
        )
    non_negative(checked, "weight")
    return checked.to(values.device)


# --- distributions --------------------------------------------------------------------------------


def one_batch_axis(dist: Any) -> None:
    """Raise unless a distribution has the batch shape (N,), N >= 1."""
    if len(dist.batch_shape) != 1 or not len(dist):
        raise DubitoError(f"expected a distribution of batch shape (N,), N >= 1, not {dist!r}")


def errors(values: object, shape: torch.Size) -> Tensor:
    """Check flags of wrong predictions: bool, of the batch shape."""
    checked = torch.as_tensor(values)
    if checked.dtype != torch.bool:
        raise TypeError(f"errors must be bool, as Task.errors returns them, not {checked.dtype}")
    if checked.shape != shape:
        raise DubitoError(f"errors have shape {tuple(checked.shape)}, expected {tuple(shape)}")
    return checked
