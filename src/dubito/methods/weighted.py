"""A method whose samples count by the rarity of their class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dubito.methods.base import Delegate, Method

__all__ = ["Weighted", "balanced"]


def balanced(counts: Sequence[int]) -> list[float]:
    """Weights (K,) that let all classes count alike; 1 on the mean of the samples.

    >>> balanced([30, 10])
    [0.666..., 2.0]
    """
    held = sum(count > 0 for count in counts)
    return [sum(counts) / (held * count) if count else 0.0 for count in counts]


@dataclass(frozen=True, kw_only=True, eq=False)
class Weighted(Delegate):
    """Another method, each sample's terms times the weight of its class; predictions are its own.

    A captured step can't fetch weights from elsewhere: give them on the device of the training.
    """

    method: Method
    class_weight: Tensor | None = None

    def terms_of(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The method's terms, weighted: {name: (..., N)}."""
        terms = self.method.terms_of(outputs, target)
        if self.class_weight is None:
            return terms
        weight = self.class_weight.to(outputs.device)[target]
        return {name: weight * term for name, term in terms.items()}

    def loss_of(self, outputs: Tensor, target: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The method's own, which may be faster, where nothing is weighted."""
        if self.class_weight is None:
            return self.method.loss_of(outputs, target, weights)
        return super().loss_of(outputs, target, weights)

    def hyperparameters(self) -> dict[str, Any]:
        """The method's and the weights, by which a checkpoint knows its run."""
        held = None if self.class_weight is None else self.class_weight.tolist()
        return {**self.method.hyperparameters(), "class_weight": held}
