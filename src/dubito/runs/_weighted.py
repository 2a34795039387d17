"""A method whose samples count by the rarity of their class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dubito.methods import Method
from dubito.methods.base import Counts
from dubito.prediction import Prediction

__all__ = ["Weighted", "balanced"]


def balanced(counts: Sequence[int]) -> list[float]:
    """Weights (K,) that let all classes count alike; 1 on the mean of the samples.

    >>> balanced([30, 10])
    [0.666..., 2.0]
    """
    held = sum(count > 0 for count in counts)
    return [sum(counts) / (held * count) if count else 0.0 for count in counts]


@dataclass(frozen=True, kw_only=True, eq=False)
class Weighted(Method):
    """Another method, each sample's terms times the weight of its class; predictions are its own.

    The weights are a tensor on the device of the training: a captured step can't fetch them.
    """

    method: Method
    class_weight: Tensor

    @property
    def dropout(self) -> float | None:
        """The method's."""
        return self.method.dropout

    def outputs(self, classes: int) -> int:
        """The method's."""
        return self.method.outputs(classes)

    def model(
        self, backbone: nn.Module, classes: int, class_counts: Counts | None = None
    ) -> nn.Module:
        """The method's."""
        return self.method.model(backbone, classes, class_counts)

    def inputs(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The method's."""
        return self.method.inputs(x, generator)

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """The method's."""
        return self.method.weights(epoch, epochs)

    def terms_of(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The method's terms, weighted: {name: (..., N)}."""
        weight = self.class_weight[target]
        terms = self.method.terms_of(outputs, target)
        return {name: weight * term for name, term in terms.items()}

    def outputs_for(self, model: nn.Module, x: Tensor) -> Tensor:
        """The method's."""
        return self.method.outputs_for(model, x)

    def prediction(self, outputs: Tensor) -> Prediction:
        """The method's."""
        return self.method.prediction(outputs)

    def hyperparameters(self) -> dict[str, Any]:
        """The method's and the weights, by which a checkpoint knows its run."""
        return {**self.method.hyperparameters(), "class_weight": self.class_weight.tolist()}
