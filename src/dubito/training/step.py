"""What a step does besides the network: functions of tensors, compiled once for all runs."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from dubito.data.arrays import as_floats
from dubito.data.augment import Augment

__all__ = ["Functions", "compiled", "gather", "note", "prepare"]


def prepare(x: Tensor, changes: Tensor, augment: Augment | None, channels_last: bool) -> Tensor:
    """Inputs augmented and as floats."""
    x = as_floats(x if augment is None else augment.apply(x, changes))
    if channels_last and x.ndim == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    return x


def gather(
    inputs: Tensor,
    labels: Tensor,
    order: Tensor,
    changes: Tensor,
    places: Tensor,
    augment: Augment | None,
    channels_last: bool,
) -> tuple[Tensor, Tensor]:
    """The inputs, prepared, and the labels at places of the order."""
    indices = order.index_select(0, places)
    x = inputs.index_select(0, indices)
    ready = prepare(x, changes.index_select(0, places), augment, channels_last)
    return ready, labels.index_select(0, indices)


def note(
    total: Tensor,
    bad: Tensor,
    position: Tensor,
    loss: Tensor,
    sums: Tensor,
    outputs: Tensor,
    whole: int,
    share: float,
) -> None:
    """Add a batch's sums to the total, step on, and fill `bad` where this loss is the first one.

    `bad` holds the position, the range of the outputs, and the terms times `share`.
    """
    total += sums
    seen = torch.cat([
        torch.stack([position, outputs.min(), outputs.max()]).double(), sums.double() * share,
    ])  # fmt: skip
    first = ~loss.isfinite() & bad[0].isnan()
    bad.copy_(torch.where(first, seen, bad))
    position += whole


def compiled(
    models: Sequence[nn.Module], backend: str = "inductor"
) -> list[Callable[[Tensor], Tensor]]:
    """What each of several networks of one architecture does, compiled once for all of them.

    Their weights and buffers are arguments of the compiled function: compiled by itself each would
    be code of its own, and torch gives up after eight. Any other tensor is the first network's.
    """
    without = copy.deepcopy(models[0]).to("meta").train()  # code alone; one with weights of its own
    # would be compiled twice, for these and for others

    def forward(tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        outputs: Tensor = torch.func.functional_call(without, tensors, (x,))
        return outputs

    fast = torch.compile(forward, dynamic=False, backend=backend)
    tensors = [dict([*one.named_parameters(), *one.named_buffers()]) for one in models]
    return [functools.partial(fast, held) for held in tensors]


@dataclass(frozen=True)
class Functions:
    """What a step does besides the network; the same for all runs of a method."""

    loss: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    gather: Callable[..., tuple[Tensor, Tensor]] = gather
    note: Callable[..., None] = note

    compiled: bool = False

    def fused(self) -> Functions:
        """As few kernels: at these sizes a step's time on a GPU is their number."""
        if self.compiled:
            return self
        loss, gather, note = (
            torch.compile(one, dynamic=False) for one in (self.loss, self.gather, self.note)
        )
        return Functions(cast("Any", loss), cast("Any", gather), cast("Any", note), compiled=True)
