"""What a network says of many inputs, batch by batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from dubito._legacy import Method, Prediction, joined
from dubito.bundle._preprocessing import Preprocessing

__all__ = ["joined", "says"]


def says(
    method: Method,
    model: nn.Module,
    preprocessing: Preprocessing,
    x: Tensor,
    batch_size: int,
) -> Prediction:
    """What the network says of inputs (N, *shape), bytes or floats, as tensors on the CPU."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size!r}")
    place = next(model.parameters()).device
    parts = []
    with torch.no_grad(), _full_precision():
        for batch in x.split(batch_size):
            parts.append(method.predict(model, preprocessing.standardised(batch.to(place))))
    return joined(parts)


@contextlib.contextmanager
def _full_precision() -> Iterator[None]:
    """Convolutions on a GPU in float32, so that all devices say the same."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
