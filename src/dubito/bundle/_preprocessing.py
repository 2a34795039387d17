"""From what a file holds to what a network takes: stored as plain values in a bundle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dubito import _checks
from dubito.bundle._columns import Columns
from dubito.data import as_floats
from dubito.data.folder import MODES

__all__ = ["Preprocessing"]

#: a deviation below this share of the mean is rounding
CONSTANT = 1e-7


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How inputs are made: decoding, columns, standardisation.

    Bytes are divided by 255 always. `pixels` says that the network knows inputs in [0, 1]: bytes,
    or floats in that range. `mode` ("L", "RGB") is that of decoded images, whose size is the
    bundle's shape. `columns` are a table's. `mean` and `scale` standardise features, or channels.

    >>> made = Preprocessing(mean=(1.0, 2.0), scale=(1.0, 0.5))
    >>> made.standardised(torch.tensor([[2.0, 1.0]]))
    tensor([[ 1., -2.]])
    >>> Preprocessing.from_dict(made.as_dict()) == made
    True
    """

    pixels: bool = False
    mode: str | None = None
    columns: Columns | None = None
    mean: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.mode is not None:
            _checks.one_of(MODES, self.mode, "mode")
        if (self.mean is None) is not (self.scale is None):
            raise ValueError("mean and scale go together, but one of them is missing")
        if self.mean is not None and self.scale is not None:
            if len(self.mean) != len(self.scale):
                raise ValueError(f"{len(self.mean)} means and {len(self.scale)} scales")
            if not all(math.isfinite(value) for value in (*self.mean, *self.scale)):
                raise ValueError("mean and scale must be finite")
            if min(self.scale, default=1.0) <= 0:
                raise ValueError(f"scale must be > 0, but one is {min(self.scale)!r}")

    @classmethod
    def of(cls, inputs: Tensor, columns: Columns | None = None) -> Preprocessing:
        """What suits inputs (N, *shape) as training has them: images, or a table's."""
        image = inputs.ndim == 4 and columns is None
        unit = inputs.dtype == torch.uint8 or (
            image and bool(inputs.min() >= 0) and bool(inputs.max() <= 1)
        )
        mode = next((m for m, n in MODES.items() if image and unit and n == inputs.shape[1]), None)
        return cls(pixels=unit, mode=mode, columns=columns)

    def fitted(self, inputs: Tensor) -> Preprocessing:
        """With the mean and deviation of each feature, or channel, of training inputs.

        One-hot columns keep 0 and 1; a feature that never varies is only shifted.
        """
        x = as_floats(inputs).double().movedim(1, 0).flatten(1)  # (features, samples)
        mean, scale = x.mean(1), x.std(1, correction=0)
        held = self._one_hot(len(mean))
        scale = torch.where(held | (scale <= CONSTANT * mean.abs()), 1.0, scale)
        mean = torch.where(held, 0.0, mean)
        return replace(self, mean=tuple(mean.tolist()), scale=tuple(scale.tolist()))

    def standardised(self, x: Tensor) -> Tensor:
        """Inputs (N, *shape), bytes or floats, as float32 for the network."""
        x = as_floats(x)
        if self.mean is None or self.scale is None:
            return x
        further = (1,) * (x.ndim - 2)
        mean, scale = (
            torch.tensor(v, dtype=torch.float64, device=x.device).view(-1, *further)
            for v in (self.mean, self.scale)
        )
        return ((x.double() - mean) / scale).float()

    def held(self, x: Tensor) -> Tensor:
        """Inputs to keep for a training: bytes stay bytes where nothing is standardised."""
        return x if self.mean is None else self.standardised(x)

    def check(self, shape: Sequence[int]) -> None:
        """An error unless this makes inputs of that shape."""
        if self.mode is not None and (len(shape) != 3 or MODES[self.mode] != shape[0]):
            raise ValueError(f"images of mode {self.mode!r} do not have the shape {tuple(shape)}")
        if self.mean is not None and len(self.mean) != shape[0]:
            raise ValueError(f"{len(self.mean)} means do not suit the shape {tuple(shape)}")
        if self.columns is not None and (self.columns.width,) != tuple(shape):
            raise ValueError(
                f"the columns make {self.columns.width} inputs, not the shape {tuple(shape)}"
            )

    def _one_hot(self, features: int) -> Tensor:
        if self.columns is None:
            return torch.zeros(features, dtype=torch.bool)
        flags = [c.categories is not None for c in self.columns.columns for _ in range(c.width)]
        return torch.tensor(flags)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a file; `from_dict` makes it again."""
        return {
            "pixels": self.pixels,
            "mode": self.mode,
            "columns": None if self.columns is None else self.columns.as_dict(),
            "mean": None if self.mean is None else list(self.mean),
            "scale": None if self.scale is None else list(self.scale),
        }

    @classmethod
    def from_dict(cls, values: Any) -> Preprocessing:
        """What `as_dict` described."""
        known = cls().as_dict()
        if not isinstance(values, Mapping) or set(values) != set(known):
            raise ValueError(f"preprocessing has the keys {_checks.listed(known)}: {values!r:.80}")
        if not isinstance(values["pixels"], bool):
            raise ValueError(f"'pixels' must be true or false, not {values['pixels']!r}")
        columns = values["columns"]
        return cls(
            pixels=values["pixels"],
            mode=values["mode"],
            columns=None if columns is None else Columns.from_dict(columns),
            mean=_numbers(values["mean"], "mean"),
            scale=_numbers(values["scale"], "scale"),
        )


def _numbers(values: Any, name: str) -> tuple[float, ...] | None:
    if values is None:
        return None
    plain = isinstance(values, list) and all(
        isinstance(v, int | float) and not isinstance(v, bool) for v in values
    )
    if not plain:
        raise ValueError(f"{name!r} must be a list of numbers")
    return tuple(float(value) for value in values)
