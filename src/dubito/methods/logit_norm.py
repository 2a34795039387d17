r"""LogitNorm: training on logits of one length (Wei et al., ICML 2022).

.. math:: z' = \frac{z}{\tau\,\|z\|}

replaces the outputs z in training. Predictions and scores read z itself, whose length then says how
familiar an input is; their probabilities need a calibration.
https://arxiv.org/abs/2205.09310
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, ClassVar

import torch
from pydantic import AfterValidator
from torch import Tensor, nn

from dubito import _checks
from dubito.methods.base import METHODS, AnyMethod, Method, Network, Positive, TaskLike
from dubito.methods.ensemble import MemberMethod

__all__: list[str] = []

#: as published: keeps the length positive
LEAST = 1e-7


def _of_classes(method: Method) -> Method:
    if "classification" not in method.tasks:
        raise ValueError(f"the member must be a method for classes, not {method!r}")
    return method


class NormMethod(MemberMethod):
    """Base of methods that change the head of a method for classes in training."""

    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    ood_score: ClassVar[str] = "max_prob"

    member: Annotated[AnyMethod, AfterValidator(_of_classes)] = "softmax"  # type: ignore[assignment]
    """Method to train: a method, its name, or a dict with its name."""

    def network(self, make_backbone: Callable[[], nn.Module], task: TaskLike) -> nn.Module:
        """Build the network of the member, with another head."""
        network: nn.Module = self.member.network(make_backbone, task)
        for part in [*network.modules()]:
            if isinstance(part, Network):
                part.head = self.normalized(part.head)
        return network

    @abstractmethod
    def normalized(self, head: nn.Module) -> nn.Module:
        """Return the head that a network gets.

        Args:
            head: Head of the member.
        """


@METHODS.register("logit_norm")
class LogitNorm(NormMethod):
    """A method whose outputs have one length in training."""

    temperature: Positive = 0.04
    """Temperature tau; the length of the outputs in training is 1/tau."""

    def normalized(self, head: nn.Module) -> nn.Module:
        """Normalize the outputs."""
        return nn.Sequential(head, OneLength(self.temperature))


class OneLength(nn.Module):
    """Vectors of length 1/temperature in training, as they are in evaluation: (..., M).

    Args:
        temperature: Inverse of the length.
    """

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, x: Tensor) -> Tensor:
        """Normalize."""
        if not self.training:
            return x
        x = _checks.at_least_float32(x)
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / (self.temperature * (length + LEAST))
