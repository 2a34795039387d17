r"""MC Dropout: dropout kept on at test time samples networks (Gal and Ghahramani, ICML 2016).

.. math::
    L = -\ln \mathrm{softmax}(f(x))_y, \quad p = \tfrac1S \sum_s \mathrm{softmax}(f_s(x))

with f_s the network under the s-th draw of its dropout; mutual information is their disagreement.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from threading import RLock

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from dubito import _checks
from dubito.losses import cross_entropy
from dubito.methods.base import Counts, Method
from dubito.prediction import Prediction

# threads share the modes of a model's layers, and torch's random state
_ALONE = RLock()
_WHOLE_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
#: torch's own layers -> the axes of what they take for one input without its batch, if any
_KINDS = {nn.Dropout: 0, nn.Dropout1d: 2, nn.Dropout2d: 0, nn.Dropout3d: 4, nn.AlphaDropout: 0,
          nn.FeatureAlphaDropout: 0}  # fmt: skip
_DROPPED = -1.7580993408473766  # what alpha dropout puts in place of a unit: SELU far below zero
_STEP = 0x9E3779B97F4A7C15 - 2**64  # SplitMix64's
_AT_ONCE = 1 << 20  # units whose hashes are in memory, eight bytes each, a few times over


@dataclass(frozen=True, kw_only=True)
class MCDropout(Method):
    """MC Dropout with `passes` draws, from torch's own generator: seed it to repeat a prediction.

    Layers of dropout are drawn; what `nn.MultiheadAttention` and `nn.LSTM` have inside stays off.

    >>> MCDropout(dropout=0.5).weights(epoch=0, epochs=1)
    {'cross_entropy': 1.0}
    """

    dropout: float = 0.25
    passes: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.dropout < 1:
            raise ValueError(f"dropout must be in (0, 1), not {self.dropout!r}")
        if self.passes < 1:
            raise ValueError(f"passes must be at least 1, not {self.passes!r}")

    def model(
        self, backbone: nn.Module, classes: int, class_counts: Counts | None = None
    ) -> nn.Module:
        """The backbone, which must have dropout."""
        if not any(module.p > 0 for module in _dropouts(backbone)):
            raise ValueError(
                f"MC Dropout needs dropout modules with p > 0, but {type(backbone).__name__} has "
                "none; build the backbone with dropout, or give it torch.nn.Dropout layers"
            )
        return backbone

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """The weight of each term."""
        return {"cross_entropy": 1.0}

    def terms_of(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The cross entropy: {name: (..., N)}."""
        return {"cross_entropy": cross_entropy(outputs, target, reduction="none")}

    def outputs_for(self, model: nn.Module, x: Tensor) -> Tensor:
        """`passes` draws, with dropout on and all else as it is: (S, N, K)."""
        with networks_drawn(model, x):
            return torch.stack([model(x) for _ in range(self.passes)])

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Draws that follow from the seed; torch's random state is left as it was."""
        used = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        with _ALONE, torch.random.fork_rng(used):
            torch.default_generator.manual_seed(seed)
            if used:
                torch.cuda.manual_seed_all(seed)
            yield

    def prediction(self, outputs: Tensor) -> Prediction:
        """The samples softmax(f_s(x)), of stacked outputs (S, ..., N, K)."""
        return Prediction.from_samples(_checks.logits(outputs).softmax(-1))


@contextmanager
def networks_drawn(model: nn.Module, x: Tensor) -> Iterator[None]:
    """Each pass of x through the model draws its dropout, and nothing but dropout.

    The masks of an input follow from what it is and from one number of torch's generator, not from
    its place: what is said of it does not hang on the inputs beside it, nor on the device. That is
    so of torch's own layers that see the inputs along their first axis.
    """
    layers = _dropouts(model)
    with _ALONE, _as_written():
        modes, masks = [layer.training for layer in layers], _Masks(x)
        ours = [layer for layer in layers if type(layer) in _KINDS and "forward" not in vars(layer)]
        try:
            for layer in layers:
                layer.train()
            for layer in ours:
                layer.forward = partial(masks, layer)
            yield
        finally:
            for layer, mode in zip(layers, modes, strict=True):
                layer.train(mode)
            for layer in ours:
                vars(layer).pop("forward", None)


class _Masks:
    """What dropout layers do in place of their own: they drop units by a hash.

    torch's generators draw by place. Here a unit's number is a hash (SplitMix64) of the input's
    bits, the count of masks so far, and the unit.
    """

    def __init__(self, x: Tensor) -> None:
        drawn = torch.randint(2**62, (1,)).to(x.device)
        bits = x.detach().unsqueeze(-1).flatten(1)
        if x.is_floating_point():
            bits = (bits.float() + 0.0).view(torch.int32)  # -0.0 is 0.0
        places = torch.arange(1, bits.shape[1] + 1, device=x.device)
        self.rows = _hash((bits.long() * _hash(places)).sum(1) + drawn)  # (N,)
        self.all = _hash(drawn)
        self.count = 0

    def __deepcopy__(self, memo: dict[int, object]) -> _Masks:
        return self  # a copy of a layer goes on counting

    def __call__(self, layer: _DropoutNd, x: Tensor) -> Tensor:
        if not layer.training or not layer.p:
            return x
        if layer.p == 1:
            dropped = torch.zeros_like(x)
        elif isinstance(layer, nn.AlphaDropout | nn.FeatureAlphaDropout):
            squared = (1 - layer.p) * (1 + layer.p * _DROPPED**2)  # so that mean and variance stay
            low = torch.where(self._kept(layer, x), x, _DROPPED)
            dropped = (low - layer.p * _DROPPED) / math.sqrt(squared)
        else:
            dropped = torch.where(self._kept(layer, x), x / (1 - layer.p), 0)
        return x.copy_(dropped) if layer.inplace else dropped

    def _kept(self, layer: _DropoutNd, x: Tensor) -> Tensor:
        """A mask, along the first axis by input, or by nothing where that is no axis of inputs."""
        shape = _drawn_for(layer, x)
        rows = self.rows if shape[0] % max(len(self.rows), 1) == 0 else self.all
        self.count += 1
        rows = _hash(rows.to(x.device) + self.count)
        units = torch.arange(math.prod(shape) // max(len(rows), 1), device=rows.device) * _STEP
        some = rows.split(max(1, _AT_ONCE // max(len(units), 1)))
        bound = layer.p * 2**24
        parts = [(_hash(part[:, None] + units) >> 40 & 0xFFFFFF) >= bound for part in some]
        return torch.cat(parts).view(shape)


def _drawn_for(layer: _DropoutNd, x: Tensor) -> tuple[int, ...]:
    """The shape of a layer's mask: a number a unit, or a channel where it takes whole ones."""
    ones = [1] * x.ndim
    if x.ndim == _KINDS[type(layer)]:
        return (*x.shape[:1], *ones[1:])  # torch takes this for one input: channels come first
    return (*x.shape[:2], *ones[2:]) if isinstance(layer, _WHOLE_CHANNELS) else tuple(x.shape)


def _hash(x: Tensor) -> Tensor:
    """SplitMix64's finish: int64 -> int64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> shift) & (1 << 64 - shift) - 1) * (factor - 2**64)
    return x ^ (x >> 31) & (1 << 33) - 1


@contextmanager
def _as_written() -> Iterator[None]:
    """No code in which dropout is not called: fused attention, and what was compiled before."""
    compiled = "torch._dynamo" in sys.modules  # if anything was
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def _dropouts(model: nn.Module) -> list[_DropoutNd]:
    return [module for module in model.modules() if isinstance(module, _DropoutNd)]
