"""Targets with sample weights, missing values or bounds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

from dubito import _checks
from dubito.errors import DubitoError

__all__ = ["Target"]


@dataclass(frozen=True, eq=False)
class Target:
    """Targets of N samples that are more than a tensor; a tensor says the same of plain ones.

    Args:
        values: Class indices (N,), class probabilities (N, K) or numbers (N, T). Where the weight
            is 0 any valid value will do.
        weight: Weight of each sample (N,) or, for numbers, of each value (N, T); 0 where the target
            is missing.
        lower: Lower bounds of censored numbers (N, T), -inf where there are none.
        upper: Upper bounds (N, T), inf where there are none.

    >>> Target(torch.tensor([0, 1, 1]), torch.tensor([1.0, 0.0, 2.0]))[:2].known
    tensor([ True, False])
    """

    values: Tensor
    weight: Tensor | None = None
    lower: Tensor | None = None
    upper: Tensor | None = None

    def __post_init__(self) -> None:
        shape, weight = self.values.shape, self.weight
        if weight is not None and weight.shape not in (shape[:1], shape):
            raise DubitoError(
                f"weight has shape {tuple(weight.shape)}, but the targets {tuple(shape)} need one "
                f"per sample, ({shape[0]},), or one per number"
            )
        if (self.lower is None) != (self.upper is None):
            raise DubitoError("bounds need both lower and upper, infinite where there are none")
        for name, bound in (("lower", self.lower), ("upper", self.upper)):
            if bound is not None and bound.shape != shape:
                raise DubitoError(f"{name} has shape {tuple(bound.shape)}, not {tuple(shape)}")
        if self.bounds is not None:
            for row, *_ in (~(self.bounds[0] < self.bounds[1])).nonzero().tolist()[:1]:
                low, high = (bound[row].tolist() for bound in self.bounds)
                raise DubitoError(
                    f"bounds of row {row} must be lower < upper, not {low} and {high}"
                )

    @property
    def is_censored(self) -> bool:
        """Whether there are bounds."""
        return self.lower is not None

    @property
    def bounds(self) -> tuple[Tensor, Tensor] | None:
        """Lower and upper bounds, (N, T) each; None without."""
        return None if self.lower is None or self.upper is None else (self.lower, self.upper)

    @property
    def censored(self) -> Tensor:
        """Values with a finite bound: bool (N, T)."""
        if self.bounds is None:
            return torch.zeros_like(self.values, dtype=torch.bool)
        lower, upper = self.bounds
        return lower.isfinite() | upper.isfinite()

    @property
    def exact(self) -> Tensor | None:
        """Weight of each number, 0 where it is missing or censored: (N, T); None: all weigh 1."""
        if self.weight is None and not self.is_censored:
            return None
        weight = self.values.new_ones(()) if self.weight is None else self.weight
        columns = weight.reshape(len(weight), -1) if weight.ndim else weight
        columns = columns.expand_as(self.values)
        return torch.where(self.censored, 0, columns) if self.is_censored else columns

    @property
    def known(self) -> Tensor:
        """Samples of which no value is missing or censored: bool (N,)."""
        weight = self.exact if self.is_censored else self.weight
        if weight is None:
            return torch.ones(len(self), dtype=torch.bool, device=self.device)
        return (weight > 0).reshape(len(self), -1).all(-1)

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self.values.device

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> Target:
        return self.map(lambda part: part[rows])

    def index_select(self, dim: int, index: Tensor) -> Target:
        """Return some of the samples, as `Tensor.index_select` does.

        Args:
            dim: 0.
            index: Positions of the samples.
        """
        return self.map(lambda part: part.index_select(dim, index))

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Target:
        """Move to a device.

        Args:
            device: Device.
            non_blocking: As for `torch.Tensor.to`.
        """
        return self.map(lambda part: part.to(device, non_blocking=non_blocking))

    def map(self, function: Callable[[Tensor], Tensor], weight: bool = True) -> Target:
        """Apply a function to the tensors.

        Args:
            function: Function of a tensor whose first axis has the samples.
            weight: Whether it applies to the weights.
        """
        parts = [None if p is None else function(p) for p in (self.values, self.lower, self.upper)]
        weights = function(self.weight) if weight and self.weight is not None else self.weight
        values, lower, upper = parts
        assert values is not None
        return _built((values, weights, lower, upper), NAMES)


Mask = np.ndarray[Any, np.dtype[np.bool_]]
NAMES = ("values", "weight", "lower", "upper")
_NUMBER = r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
#: a bound, or a number and perhaps the end of an interval
BOUNDS = re.compile(rf"([<>≤≥])=?\s*{_NUMBER}|{_NUMBER}(?:\s*\.\.\s*{_NUMBER})?")


def _flatten(target: Target) -> tuple[list[Tensor], tuple[str, ...]]:
    names = tuple(name for name in NAMES if getattr(target, name) is not None)
    return [getattr(target, name) for name in names], names


def _built(parts: Any, names: tuple[str, ...]) -> Target:
    # Bypass the checks: batch axes may differ, and transforms pass placeholders.
    target = object.__new__(Target)
    target.__dict__.update({**dict.fromkeys(NAMES), **dict(zip(names, parts, strict=True))})
    return target


_pytree.register_pytree_node(Target, _flatten, _built)


def values_and_weight(target: Tensor | Target) -> tuple[Tensor, Tensor | None]:
    """Return the values of targets, and their weights if they do not count alike."""
    return (target.values, target.weight) if isinstance(target, Target) else (target, None)


def scaled(target: Tensor | Target) -> Tensor | Target:
    """Return targets whose weights have mean 1; a tensor if they say no more than one.

    Args:
        target: Targets.
    """
    if not isinstance(target, Target) or (target.weight is None and not target.is_censored):
        return target.values if isinstance(target, Target) else target
    if target.weight is None:
        return target
    weight = target.weight.double()
    return replace(target, weight=(weight / weight.mean()).float())


def exact_weight(target: Tensor | Target) -> Tensor | None:
    """Return the weight of each number that is known exactly, (N, T); None: all weigh 1."""
    return target.exact if isinstance(target, Target) else None


def known_rows(target: Tensor | Target) -> Tensor:
    """Return the positions of the samples of which no value is missing or censored."""
    if isinstance(target, Target):
        return target.known.nonzero().flatten()
    return torch.arange(len(target), device=target.device)


def weighted(values: Tensor, known: Tensor, weight: object = None) -> Tensor | Target:
    """Return targets with the weights that they need; a tensor if they need none.

    Args:
        values: Encoded targets, of any value where they are missing.
        known: Which of them are not missing: bool (N,) or (N, T).
        weight: Weight of each sample, (N,), or of each number, (N, T).
    """
    if weight is None and bool(known.all()):
        return values
    columns = known.reshape(len(known), -1)
    alike = bool((columns == columns[:, :1]).all())
    weights = (columns[:, 0] if alike else columns).float()
    if weight is not None:
        given = torch.as_tensor(np.asarray(weight)).float()
        _checks.non_negative(given, "weight")
        if weights.ndim != given.ndim and given.ndim in (1, 2):
            weights, given = (w.unsqueeze(-1) if w.ndim == 1 else w for w in (weights, given))
        if len(given) != len(values):
            raise DubitoError(f"{len(given)} weights for {len(values)} targets")
        weights = weights * given
    if not bool(weights.any()):
        raise DubitoError("no target counts: all are missing or have weight 0")
    return Target(values, weights)


def cell_bounds(cell: object) -> tuple[float, float] | None:
    """Return the bounds of a number that is text, as in a table; None for any other cell.

    Args:
        cell: Text such as ">1000", "<=0.1", "0.1..0.5" or "3.5", or anything else.

    >>> cell_bounds(">1000"), cell_bounds("0.1..0.5"), cell_bounds("3.5"), cell_bounds("many")
    ((1000.0, inf), (0.1, 0.5), (3.5, 3.5), None)
    """
    found = BOUNDS.fullmatch(cell.strip()) if isinstance(cell, str) else None
    if found is None:
        return None
    sign, number, low, high = found.groups()
    if sign is None:
        return float(low), float(high or low)
    return (float(number), math.inf) if sign in ">≥" else (-math.inf, float(number))


def is_censored(values: Any) -> bool:
    """Return whether some targets are text with bounds; see `cell_bounds`.

    Args:
        values: List, array, or columns of a table.
    """
    cells = np.asarray(values)
    ends = map(cell_bounds, cells.flat) if cells.dtype.kind in "OU" else ()
    return any(pair is not None and pair[0] != pair[1] for pair in ends)


def missing(values: Any) -> Mask:
    """Return which targets are missing, None or NaN: (N,) or (N, T).

    Args:
        values: List, array, tensor, or columns of a table.
    """
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    array: np.ndarray[Any, Any] = (
        np.asarray(values) if hasattr(values, "dtype") else np.array(values, dtype=object)
    )
    if array.dtype.kind != "O":
        mask: Mask = array != array  # NaN
        return mask
    # pandas has missing values of its own.
    cells = [not isinstance(c, str) and str(c) in ("None", "nan", "<NA>") for c in array.flat]
    return np.reshape(np.array(cells, bool), array.shape)
