"""Arrays of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import FiniteFloat, PositiveInt, model_validator
from torch import Tensor

from dubito.errors import DubitoError
from dubito.formats.base import FORMATS, Encoded, InputFormat, joined
from dubito.types import Array

__all__ = ["ArrayFormat"]

#: numbers of channels that an image may have
CHANNELS = (1, 3, 4)
#: smallest standard deviation, relative to the mean, that float32 resolves well
RESOLUTION = 1e-5


@FORMATS.register("array")
class ArrayFormat(InputFormat):
    """Arrays of numbers.

    >>> ArrayFormat(shape=(2,), low=(0, 0), high=(1, 5)).encode([[0.5, 2], [0.5, 900]]).notes
    {1: 'feature 1 is 900, far from [0, 5]'}
    """

    shape: tuple[PositiveInt, ...]
    """Shape of one input."""
    dtype: Literal["float32", "uint8", "int64"] = "float32"
    """Type of the values: numbers, pixels, or indices."""
    low: tuple[FiniteFloat, ...] | None = None
    """Smallest value of each feature in the training data."""
    high: tuple[FiniteFloat, ...] | None = None
    """Largest value of each feature in the training data."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        shapes = [values and (len(values),) for values in (self.low, self.high)]
        if shapes not in ([None, None], [self.shape, self.shape]):
            raise ValueError(f"low and high need a value for each input of {self.shape}")
        return self

    @classmethod
    def accepts(cls, items: object) -> bool:
        """Return whether the format reads such inputs: an array or a tensor."""
        return isinstance(items, Tensor | np.ndarray)

    @classmethod
    def fit(cls, items: Any, rows: Sequence[int] | None = None) -> Self:
        """Create from the training data.

        Args:
            items: Inputs (N, *shape); uint8 values are pixels, the range of flat inputs is kept.
            rows: Rows that determine the range; None: all.
        """
        values = as_array(items)
        shape = values.shape[1:]
        if values.dtype == np.uint8:
            return cls(shape=shape, dtype="uint8")
        if len(shape) != 1:
            return cls(shape=shape)
        values = values if rows is None else values[np.asarray(rows)]
        low, high = values.min(0), values.max(0)
        if not np.isfinite([low, high]).all():
            Encoded(*as_tensor(values), {}).checked()
        return cls(shape=shape, low=tuple(low.tolist()), high=tuple(high.tolist()))

    def encode(self, items: Any) -> Encoded:
        """Convert arrays; see `InputFormat.encode`.

        Args:
            items: Array, tensor or DataFrame (N, *shape), or a list of arrays. Images may have
                their channels last.
        """
        values = as_array(items)
        if tuple(values.shape[1:]) != self.shape:
            values = channels_first(values)
        if tuple(values.shape[1:]) != self.shape:
            raise DubitoError(
                f"inputs have shape {values.shape[1:]}, but the model takes {self.shape}"
            )
        if self.dtype == "int64" and values.dtype.kind in "iu":
            return Encoded(torch.from_numpy(values.astype(np.int64)), {}, {})
        if self.dtype == "int64" or (values.dtype == np.uint8) is not (self.dtype == "uint8"):
            raise DubitoError(
                f"inputs are {values.dtype}, but the model was trained on {self.dtype}: prepare "
                "them as the training data was"
            )
        inputs, errors = as_tensor(values)
        low, high = self.low or (), self.high or ()

        def note(row: int, place: int) -> str:
            span = f"[{low[place]:g}, {high[place]:g}]"
            return f"feature {place} is {inputs[row, place]:.6g}, far from {span}"

        return Encoded(inputs, errors, joined(~self._near(inputs), note))

    def _near(self, inputs: Tensor) -> Tensor:
        if self.low is None:
            return super()._near(inputs)
        low, high = self._bounds.to(inputs.device).unbind()
        return (inputs >= low) & (inputs <= high)

    @cached_property
    def _bounds(self) -> Tensor:
        return torch.from_numpy(margins(self.low, self.high))

    def __str__(self) -> str:
        return f"arrays of shape (N, {', '.join(map(str, self.shape))})"


def margins(low: Any, high: Any) -> Array:
    """Return bounds of values in range (2, ...): one width of the span beyond each end.

    Evidence may grow without bound where a network extrapolates further. Bounds are float32
    numbers, so that every comparison with them has the same result.
    """
    least, most = np.array(low, np.float64), np.array(high, np.float64)
    width = most - least
    width = np.where(width > 0, width, np.where(least == 0, 1, abs(least)))
    limit = np.finfo(np.float32).max
    return np.clip([least - width, most + width], -limit, limit).astype(np.float32)


def check_resolution(name: str, mean: float, std: float, low: float, high: float) -> None:
    """Raise if float32 cannot tell the values of a feature apart."""
    if std <= RESOLUTION * abs(mean) and high > low:
        raise DubitoError(
            f"{name} varies by {std:.3g} around {mean:.10g}, too little for float32: subtract an "
            "offset from it"
        )


def as_numpy(values: Any) -> Array:
    """Return an array, a tensor or a list as an array."""
    return np.asanyarray(values.detach().cpu() if isinstance(values, Tensor) else values)


def as_array(values: Any) -> Array:
    """Return numbers (N, *shape) as an array."""
    try:
        array = as_numpy(values)
    except ValueError as error:  # rows of different lengths
        raise DubitoError(f"inputs are not an array of numbers: {error}") from error
    if array.dtype.kind not in "biuf":
        raise DubitoError(f"inputs must be numbers, not {array.dtype}")
    if array.ndim < 2:
        raise DubitoError(f"inputs have shape {array.shape}; expected (N, *shape)")
    return array


def channels_first(values: Array) -> Array:
    """Give images (N, H, W) or (N, H, W, C) their channels in front."""
    if values.ndim == 3 and values.dtype == np.uint8:
        return values[:, None]
    if values.ndim == 4 and values.shape[-1] in CHANNELS and values.shape[1] not in CHANNELS:
        return np.moveaxis(values, -1, 1)
    return values


def as_tensor(values: Array) -> tuple[Tensor, dict[int, str]]:
    """Return uint8 or float32 inputs, and the errors of rows that are not finite."""
    if values.dtype == np.uint8:
        return torch.from_numpy(np.array(values, order="C")), {}
    with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite
        numbers = np.array(values, dtype=np.float32, order="C")
    bad = ~np.isfinite(numbers.reshape(len(numbers), -1))
    errors = {}
    for row in np.flatnonzero(bad.any(1)).tolist():
        place = np.unravel_index(bad[row].argmax(), values.shape[1:])
        shown = ", ".join(map(str, place))
        errors[row] = f"value [{shown}] is {values[row][place]}, not a finite float32 number"
        numbers[row] = 0
    return torch.from_numpy(numbers), errors
