"""What a network says of many inputs, batch by batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from dubito.bundle._preprocessing import Preprocessing
from dubito.methods import Method
from dubito.prediction import Prediction

__all__ = ["SEED", "joined", "says"]

SEED = 0  # of what a method draws when it predicts


def says(
    method: Method,
    model: nn.Module,
    preprocessing: Preprocessing,
    x: Tensor,
    batch_size: int,
    seed: int = SEED,
) -> Prediction:
    """What the network says of inputs (N, *shape), bytes or floats, as tensors on the CPU.

    What a method draws when it predicts follows from `seed` alone, so that another call says the
    same, whatever the batches are.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size!r}")
    place = next(model.parameters()).device
    parts = []
    with torch.no_grad(), _full_precision():
        for batch in x.split(batch_size):
            with method.seeded(seed):
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


def joined(parts: Sequence[Prediction]) -> Prediction:
    """Predictions of one kind, one after the other, on the CPU.

    >>> one = Prediction.from_alpha(torch.tensor([[3.0, 1.0]]))
    >>> joined([one, one]).vacuity
    tensor([0.5000, 0.5000])
    """
    first = parts[0]
    if hasattr(first, "alpha"):
        alpha = torch.cat([said.alpha.cpu() for said in parts])
        return Prediction.from_alpha(alpha, prior=first.prior)
    if hasattr(first, "samples"):
        return Prediction.from_samples(torch.cat([said.samples.cpu() for said in parts], dim=1))
    return Prediction.from_probs(torch.cat([said.probs.cpu() for said in parts]))
