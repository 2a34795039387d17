"""Preprocessing: from inputs as users have them to inputs of the network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

import torch
from pydantic import BaseModel, Field, FiniteFloat, ValidationError, model_validator
from torch import Tensor

from dubito.errors import DubitoError
from dubito.formats.base import AnyFormat, InputFormat
from dubito.numerics.tracing import eager_cache

__all__ = ["Preprocessing"]

#: A standard deviation below this share of the mean is rounding.
CONSTANT = 1e-7


class Preprocessing(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """Format of the inputs, and the normalization of encoded inputs.

    Pixels (uint8) are divided by 255. Then each feature or channel is standardized, if there are a
    mean and a standard deviation. Indices (int64) stay as they are.

    >>> from dubito.formats import ArrayFormat
    >>> prepare = Preprocessing(inputs=ArrayFormat(shape=(2,)), mean=(1, 2), std=(1, 0.5))
    >>> prepare.normalize(torch.tensor([[2.0, 1.0]]))
    tensor([[ 1., -2.]])
    """

    inputs: AnyFormat
    """How inputs become tensors."""
    mean: tuple[FiniteFloat, ...] | None = None
    """Mean of each feature or channel in the training data."""
    std: tuple[Annotated[FiniteFloat, Field(gt=0)], ...] | None = None
    """Standard deviation of each feature or channel in the training data."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.mean is None) is not (self.std is None):
            raise ValueError("mean and std go together")
        channels = self.inputs.shape[0]
        for values in (self.mean, self.std):
            if values is not None and len(values) != channels:
                raise ValueError(f"{len(values)} values of mean or std for {channels} channels")
        return self

    @classmethod
    def fit(
        cls,
        format: InputFormat,
        inputs: Tensor,
        standardize: bool | None = None,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> Preprocessing:
        """Create from training data.

        Features that are 0 or 1 only, such as one-hot columns, are left as they are, and features
        that never vary are only shifted.

        Args:
            format: Format of the inputs.
            inputs: Encoded inputs, (N, *shape).
            standardize: Whether to standardize; None: if inputs are flat and not pixels.
            mean: Mean of each feature or channel, such as pretrained weights expect; with `std`, in
                place of those of the data.
            std: Standard deviation of each feature or channel.
        """
        if mean is not None or std is not None:
            if standardize is False:
                raise DubitoError("standardize=False contradicts mean and std: drop one of them")
            try:
                return cls.model_validate({"inputs": format, "mean": mean, "std": std})
            except ValidationError as error:
                text = error.errors()[0]["msg"].removeprefix("Value error, ")
                raise DubitoError(text) from None
        if standardize is None:
            standardize = inputs.ndim == 2 and inputs.is_floating_point()
        if not standardize:
            return cls(inputs=format)
        x = unit_range(inputs).double().movedim(1, 0).flatten(1)  # (channels, values)
        center, spread = x.mean(1), x.std(1, correction=0)
        binary = ((x == 0) | (x == 1)).all(1)
        center = torch.where(binary, 0.0, center)
        spread = torch.where(binary | (spread <= CONSTANT * center.abs()), 1.0, spread)
        return cls(inputs=format, mean=tuple(center.tolist()), std=tuple(spread.tolist()))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one encoded input."""
        return self.inputs.shape

    def normalize(self, inputs: Tensor) -> Tensor:
        """Convert encoded inputs (N, *shape) to inputs of the network, float32 or int64.

        Args:
            inputs: Encoded inputs; floating-point pixels are in [0, 1]. Other integers than pixels
                are indices, such as those of tokens, and stay as they are.
        """
        if inputs.dtype == torch.int64:
            return inputs
        x = unit_range(inputs)
        if self.mean is None or self.std is None or not x.is_floating_point():
            return x
        mean, rest, std = _constants(self.mean, self.std, x.ndim, x.device)
        return ((x - mean) - rest) / std


def unit_range(inputs: Tensor) -> Tensor:
    """Convert to float32, pixels divided by 255; indices stay integers."""
    if inputs.dtype == torch.uint8:
        return inputs.float() / 255
    return inputs.float() if inputs.is_floating_point() else inputs


@eager_cache
def _constants(
    mean: tuple[float, ...], std: tuple[float, ...], ndim: int, device: torch.device
) -> tuple[Tensor, ...]:
    """Return the mean in float32, its rounding error, and the standard deviation.

    Values far from zero, such as years, would otherwise lose digits. Cached because a CUDA graph
    cannot capture a copy from the host.
    """
    with torch.inference_mode(False):
        shape = (-1, *[1] * (ndim - 2))
        exact = torch.tensor(mean, dtype=torch.float64)
        rest = (exact - exact.float().double()).float()
        parts = (exact.float(), rest, torch.tensor(std, dtype=torch.float32))
        return tuple(part.view(shape).to(device) for part in parts)
