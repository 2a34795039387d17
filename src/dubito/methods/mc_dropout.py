r"""MC Dropout: dropout at test time samples networks (Gal and Ghahramani, ICML 2016).

.. math:: p = \tfrac1S \sum_s \mathrm{softmax}(f_s(x))

with f_s the network under the s-th dropout mask. Masks are a hash of the input, so that the
prediction of an input depends neither on its batch nor on the device.
"""

import math
import threading
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from dubito.errors import DubitoError
from dubito.methods.base import METHODS, Batches, Count, TaskLike
from dubito.methods.ensemble import MixtureMethod
from dubito.methods.features import Pass, forward_with_features, stacked

__all__ = ["MCDropout"]

T = TypeVar("T")


@METHODS.register("mc_dropout")
class MCDropout(MixtureMethod):
    """MC Dropout.

    `nn.Dropout`, 1d, 2d and 3d are sampled; the dropout inside of `nn.MultiheadAttention` and of
    `nn.LSTM` stays off.
    """

    dropout: Annotated[float, Field(gt=0, lt=1)] = 0.25
    """Dropout rate of backbones that are built for this method."""
    samples: Count = 10
    """Number of masks per input."""

    def network(self, make_backbone: Callable[[], nn.Module], task: TaskLike) -> nn.Module:
        """Build a network with dropout layers that are active in evaluation too."""
        return Sampled(self.member.network(make_backbone, task), self.samples)

    def finish(self, network: Any, batches: Batches) -> None:
        """Finish the member."""
        self.member.finish(network.network, batches)


class Sampled(nn.Module):
    """Network with sampled dropout: (N, ...) -> (N, S, M) in evaluation, (N, 1, M) in training.

    Args:
        network: Network with `torch.nn` dropout layers that see the inputs along their first axis.
        samples: Number of samples S in evaluation.
        seed: Seed of the masks.
    """

    def __init__(self, network: nn.Module, samples: int, seed: int = 0) -> None:
        super().__init__()
        layers = [layer for layer in network.modules() if isinstance(layer, _DropoutNd)]
        if not any(layer.p > 0 for layer in layers):
            raise DubitoError(
                f"MC Dropout needs dropout layers with p > 0, but {type(network).__name__} has "
                "none: build the backbone with dropout, or add torch.nn.Dropout layers"
            )
        for layer in layers:
            if type(layer) not in _LAYERS:
                raise DubitoError(
                    "MC Dropout samples nn.Dropout, nn.Dropout1d, nn.Dropout2d and nn.Dropout3d, "
                    f"not {type(layer).__name__}"
                )
            layer.register_forward_hook(_drop)
        self.network, self.samples, self.seed = network, samples, seed

    def forward(self, x: Tensor) -> Tensor:
        """Return one output per mask."""
        if self.training:
            outputs: Tensor = self.network(x)
            return outputs.unsqueeze(1)
        return torch.stack(self._sample(self.network, x), 1)

    def forward_with_features(self, x: Tensor) -> Pass:
        """Return the mean of the features over the masks, (N, D), and the outputs."""
        run = partial(forward_with_features, self.network)
        features, outputs = stacked([run(x)] if self.training else self._sample(run, x))
        return None if features is None else torch.stack(features).mean(0), outputs

    def _sample(self, run: Callable[[Tensor], T], x: Tensor) -> list[T]:
        """Run the network once per mask."""
        outer = getattr(_active, "masks", None)
        _active.masks = _Masks(x, self.seed)
        try:
            return [run(x) for _ in range(self.samples)]
        finally:
            _active.masks = outer


#: masks of the forward pass that runs in this thread
_active = threading.local()

#: layers that are sampled
_LAYERS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_CHUNK = 1 << 20  # hashes in memory at once
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # increment of SplitMix64


def _drop(layer: _DropoutNd, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Replace the output of a dropout layer in evaluation mode by a sampled one."""
    masks = getattr(_active, "masks", None)
    if masks is None or layer.training or layer.p == 0:
        return output
    dropped: Tensor = masks.drop(layer, output)
    return output.copy_(dropped) if layer.inplace else dropped


class _Masks:
    """Dropout masks that are a hash (SplitMix64) of the input's bits, the layer call and the unit.

    torch's generators draw by position in the batch.
    """

    def __init__(self, x: Tensor, seed: int) -> None:
        bits = x.detach().unsqueeze(-1).flatten(1)
        if x.is_floating_point():
            bits = (bits.float() + 0.0).view(torch.int32)  # -0.0 becomes 0.0
        positions = torch.arange(1, bits.shape[1] + 1, device=x.device)
        start = _hash(torch.tensor([seed], device=x.device))
        self.rows = _hash((bits.long() * _hash(positions)).sum(1) + start)  # (N,)
        self.calls = 0

    def drop(self, layer: _DropoutNd, x: Tensor) -> Tensor:
        if x.shape[0] % max(len(self.rows), 1):
            raise DubitoError(
                f"{type(layer).__name__} sees a tensor of shape {tuple(x.shape)}, whose first axis "
                f"does not count the {len(self.rows)} inputs: MC Dropout cannot sample it"
            )
        whole_channels = not isinstance(layer, nn.Dropout)
        shape = (*x.shape[:2], *[1] * (x.ndim - 2)) if whole_channels else tuple(x.shape)
        self.calls += 1
        rows = _hash(self.rows.to(x.device) + self.calls)
        units = torch.arange(math.prod(shape) // max(len(rows), 1), device=x.device) * _GOLDEN
        bound = layer.p * 2**24
        chunks = rows.split(max(1, _CHUNK // max(len(units), 1)))
        keep = [(_hash(chunk[:, None] + units) >> 40 & 0xFFFFFF) >= bound for chunk in chunks]
        return torch.where(torch.cat(keep).view(shape), x / (1 - layer.p), 0)


def _hash(x: Tensor) -> Tensor:
    """Finalizer of SplitMix64 on int64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> shift) & (1 << 64 - shift) - 1) * (factor - 2**64)
    return x ^ (x >> 31) & (1 << 33) - 1
