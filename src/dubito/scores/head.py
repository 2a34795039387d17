"""Base of the scores that read the last layer."""

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dubito import _checks
from dubito.scores.base import Head, Score

__all__: list[str] = []

#: buffers of a member by name
State = dict[str, Tensor]


class HeadScore(Score):
    """A score of features and of the logits that a linear layer makes of them.

    The score of an ensemble is the mean of those of its members. MC Dropout has one member, the
    mean of its samples.
    """

    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    needs_head: ClassVar[bool] = True

    def fit(self, features: Tensor, outputs: Tensor, target: Tensor, head: Head) -> None:
        self.check_head(head)
        layers = list[Any](head if isinstance(head, nn.ModuleList) else [head])
        weights = torch.stack([layer.weight.detach().float() for layer in layers])
        zeros = weights.new_zeros(weights.shape[1])
        biases = [zeros if layer.bias is None else layer.bias.detach().float() for layer in layers]
        self.register_buffer("weight", weights)
        self.register_buffer("bias", torch.stack(biases))
        parts = zip(*self._parts(features), self.weight, self.bias, strict=True)
        states = [self.state(*part) for part in parts]
        for name in states[0]:
            values = torch.stack([state[name] for state in states])
            self.register_buffer(name, values.float())

    def forward(self, features: Tensor, outputs: Tensor) -> Tensor:
        """Return the mean score of the members: (N,)."""
        return self.values(*self._parts(features)).mean(0)

    def _parts(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and logits of each member, (S, N, D) and (S, N, K)."""
        members, _, size = self.weight.shape
        each = _checks.at_least_float32(features).unflatten(1, (members, size)).transpose(0, 1)
        return each, torch.baddbmm(self.bias.unsqueeze(1), each, self.weight.mT)

    def state(self, features: Tensor, logits: Tensor, weight: Tensor, bias: Tensor) -> State:
        """Return the buffers of one member; default: none.

        Args:
            features: Features of the training samples, (N, D).
            logits: Their logits, (N, K).
            weight: Weight of the last layer, (K, D).
            bias: Its bias, (K,).
        """
        return {}

    @abstractmethod
    def values(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return the score for each member: (S, N).

        Args:
            features: Features, (S, N, D).
            logits: Logits, (S, N, K).
        """
