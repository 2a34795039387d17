"""The error of a torch function against the reference, on many alpha vectors at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tests.accuracy_grid import SETTINGS, Beside, Case, Float64, point
from tests.reference import Point, Truth

LARGEST, MEDIAN = 1e-5, 1e-6
# Below the smallest normal float32 the spacing of numbers no longer shrinks with them, and hardware
# may flush them to zero: no relative accuracy is to be had there, only an absolute one.
TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Quantity:
    """A torch function, its truth, what it takes, and the scales its errors are relative to."""

    name: str
    call: Callable[..., Tensor]
    truth: Callable[[Point], Truth]
    takes: str = "alpha"
    value: Literal["plain", "inputs"] = "plain"
    gradient: Literal["plain", "terms"] = "plain"
    most_classes: int = 10000

    def evaluate(self, alpha: Tensor, beside: list[Beside]) -> Tensor:
        """The values (N,) at alpha (N, K)."""
        tensors = {n: torch.from_numpy(np.stack([b[n] for b in beside])) for n in beside[0]}
        if self.takes == "entry":
            return self.call(alpha)[tensors["row"] == 1]
        if self.takes == "entries":
            rows = torch.arange(len(alpha))
            return self.call(alpha)[rows, tensors["row"].argmax(-1), tensors["column"].argmax(-1)]
        if "target" in tensors and bool((tensors["target"] == 1).any(-1).all()):
            return self.call(alpha, tensors["target"].argmax(-1))
        return self.call(alpha, *tensors.values())


@dataclass
class Errors:
    """Relative errors, nan where none is defined; `worst` describes the largest."""

    value: Float64
    gradient: Float64
    finite: bool
    worst: str

    def figures(self) -> dict[str, float]:
        return {
            f"{name} {what}": float(f(errors)) if np.isfinite(errors).any() else 0.0
            for name, errors in (("value", self.value), ("gradient", self.gradient))
            for what, f in (("max", np.nanmax), ("median", np.nanmedian))
        }

    def badness(self) -> tuple[bool, float]:
        return not self.finite, max(self.figures().values())

    def passes(self, largest: float = LARGEST, median: float = MEDIAN) -> bool:
        figures = self.figures().items()
        return self.finite and all(v <= (largest if "max" in n else median) for n, v in figures)


def relative(result: Float64, exact: Float64, scale: Float64) -> Float64:
    """|result - exact|/scale; nan where exact is nan, or both are below float32's range."""
    difference = abs(result - exact)
    forgiven = np.isnan(exact) | ((abs(exact) < TINY) & (difference <= TINY))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(forgiven, np.nan, difference / scale)


def measure(quantity: Quantity, grid: tuple[Case, ...]) -> Errors:
    """The errors of a quantity on vectors of one length in all settings."""
    parts = [
        _measure(quantity, grid, setting, inputs)
        for setting, (inputs, most) in SETTINGS[quantity.takes].items()
        if len(grid[0].alpha) <= most
    ]
    return Errors(
        value=np.concatenate([p.value for p in parts]),
        gradient=np.concatenate([p.gradient for p in parts]),
        finite=all(p.finite for p in parts),
        worst=max(parts, key=Errors.badness).worst,
    )


def _measure(
    quantity: Quantity, grid: tuple[Case, ...], setting: str, inputs: Callable[[Case], Beside]
) -> Errors:
    beside = [inputs(case) for case in grid]
    alpha = torch.from_numpy(np.stack([case.alpha for case in grid])).requires_grad_()
    value = quantity.evaluate(alpha, beside)
    (gradient,) = torch.autograd.grad(value.sum(), alpha)
    truths = [quantity.truth(point(c, setting, b)) for c, b in zip(grid, beside, strict=True)]
    return compare(quantity, grid, setting, value.detach(), gradient, truths)


def compare(
    quantity: Quantity,
    grid: tuple[Case, ...],
    setting: str,
    value: Tensor,
    gradient: Tensor,
    truths: list[Truth],
) -> Errors:
    names = ("value", "gradient")
    result: list[Any] = [t.double().numpy() for t in (value, gradient)]
    exact = [np.stack([getattr(t, name) for t in truths]) for name in names]
    scale = [np.stack([getattr(t, f"{name}_scale") for t in truths]) for name in names]
    value_error, gradient_error = (
        relative(s, e, abs(e) if getattr(quantity, name) == "plain" else c)
        for name, s, e, c in zip(names, result, exact, scale, strict=True)
    )
    finite = all(bool(np.isfinite(s).all()) for s in result)
    worst = _worst(quantity, grid, setting, result, exact, [value_error, gradient_error])
    return Errors(value_error, gradient_error.ravel(), finite, worst)


def _worst(
    quantity: Quantity,
    grid: tuple[Case, ...],
    setting: str,
    result: list[Float64],
    exact: list[Float64],
    errors: list[Float64],
) -> str:
    """Where the largest error is, for the message of a failure."""
    value_error, gradient_error = (
        np.where(np.isfinite(s), np.nan_to_num(e, nan=0.0, posinf=np.inf), np.inf)
        for s, e in zip(result, errors, strict=True)
    )
    of_gradient = bool(gradient_error.max() > value_error.max())
    error = gradient_error if of_gradient else value_error
    where = tuple(int(v) for v in np.unravel_index(error.argmax(), error.shape))
    i, j = where[0], where[-1]
    what = f"gradient[{j}] at {grid[i].alpha[j]!r}" if of_gradient else "value"
    expected, got = exact[of_gradient][where], result[of_gradient][where]
    return (
        f"{quantity.name}, K = {len(grid[i].alpha)}, {grid[i].name}, {setting}, {what}:"
        f" expected {expected:.9e}, got {got:.9e}, error {error[where]:.2e}"
        f"; alpha = {grid[i].alpha}"
    )
