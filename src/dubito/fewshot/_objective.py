"""Loss of the support samples of many episodes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from dubito.errors import DubitoError
from dubito.losses import value_and_gradient
from dubito.methods import Method

__all__ = ["Objective"]


class Objective:
    """Mean loss of a method over the support samples of each episode.

    Outputs are linear in the features, whatever head the method builds for a network: an episode
    has too few samples for hidden layers. Terms for out-of-distribution inputs do not count, since
    an episode has none to train on.

    Args:
        method: Method of classification, without members.
        labels: Labels of the support samples, (N,), the same for all episodes.
        ways: Number of classes.
        rounds: Number of rounds of the solver, which determine the weights of the terms.
    """

    def __init__(self, method: Method, labels: Tensor, ways: int, rounds: int) -> None:
        task: Any = SimpleNamespace(size=ways)
        self.method, self.labels, self.outputs = method, labels, int(method.outputs(task))
        self._example = method.distribution(torch.zeros(1, 1, self.outputs))
        if "classification" not in method.tasks or tuple(self._example.batch_shape) != (1, 1):
            raise DubitoError(
                f"episodes need a method of classification without members, not {method}"
            )
        tables = [method.weights(i, rounds) for i in range(rounds)]
        columns = [[table[name] for table in tables] for name in method.terms]
        tensors = [torch.tensor(c, dtype=torch.float64, device=labels.device) for c in columns]
        # Constant weights are scalars, which are faster.
        self.weights = [w if bool((w != w[0]).any()) else w[0] for w in tensors]
        self.last = rounds - 1

    def score_name(self, name: str) -> str:
        """Return the own name of a score of the method: "epistemic" is one of several."""
        own = self._example.decomposition
        return dict(zip(("total", "aleatoric", "epistemic"), own, strict=True)).get(name, name)

    def __call__(self, outputs: Tensor, rounds: Tensor) -> tuple[Tensor, Tensor]:
        """Compute loss and gradient.

        Args:
            outputs: (E, M, N).
            rounds: Round of each episode, (E,).

        Returns:
            Loss (E,) and its gradient (E, M, N).
        """
        count, size, samples = outputs.shape
        now = rounds.clamp(max=self.last).long().repeat_interleave(samples)
        weights = [w[now].unsqueeze(-1) if w.ndim else w for w in self.weights]
        # With the outputs first in memory, operations on a class run along it.
        flat = outputs.transpose(0, 1).reshape(size, -1).T
        values, gradient = value_and_gradient(
            self.method.terms, self.method.distribution, flat, self.labels.repeat(count), weights,
            per_class=self.method.per_class,
        )  # fmt: skip
        slopes = (gradient.T / samples).reshape(size, count, samples).transpose(0, 1)
        return values.view(count, samples).mean(-1), slopes
