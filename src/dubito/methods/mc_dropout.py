r"""MC Dropout: dropout kept on at test time samples networks (Gal and Ghahramani, ICML 2016).

.. math::
    L = -\ln \mathrm{softmax}(f(x))_y, \quad p = \tfrac1S \sum_s \mathrm{softmax}(f_s(x))

with f_s the network under the s-th draw of its dropout; mutual information is their disagreement.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class MCDropout(Method):
    """MC Dropout with `passes` draws, from torch's own generator: seed it to repeat a prediction.

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
        with dropout_on(model):
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
def dropout_on(model: nn.Module) -> Iterator[None]:
    """Dropout drawn, and nothing but dropout, whatever mode the model is in."""
    with _ALONE:
        before = [(module, module.training) for module in _dropouts(model)]
        try:
            for module, _ in before:
                module.train()
            yield
        finally:
            for module, training in before:
                module.train(training)


def _dropouts(model: nn.Module) -> list[_DropoutNd]:
    return [module for module in model.modules() if isinstance(module, _DropoutNd)]
