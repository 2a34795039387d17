r"""Deep ensembles: networks from several initial weights (Lakshminarayanan et al., NeurIPS 2017).

The loss is the mean of the members' losses on the same batches, and the prediction is the equal
mixture of the members' distributions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from dubito.distributions import Distribution
from dubito.losses import Term
from dubito.methods.base import CONFIG, AnyMethod, Batches, Count, Method, TaskLike, register

__all__ = ["Ensemble"]


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class MixtureMethod(Method):
    """Base of methods whose outputs (N, S, M) are S outputs of another method."""

    member: AnyMethod = "softmax"  # type: ignore[assignment]
    """Method of each member: a method, its name, or a dict with its name."""

    @property
    def tasks(self) -> tuple[str, ...]:  # type: ignore[override]
        """Tasks of the member."""
        return self.member.tasks

    @property
    def error_score(self) -> str:  # type: ignore[override]
        """Score of the member."""
        return self.member.error_score

    @property
    def per_class(self) -> bool:
        """Scale of the member."""
        return self.member.per_class

    def outputs(self, task: TaskLike) -> int:
        """Outputs of the member."""
        return self.member.outputs(task)

    def head(self, in_features: int, task: TaskLike) -> nn.Module:
        """Head of the member."""
        return self.member.head(in_features, task)

    def distribution(self, outputs: Tensor) -> Distribution:
        """Equal mixture over the second to last axis."""
        return self.member.distribution(outputs).mixture()

    @property
    def terms(self) -> Mapping[str, Term]:
        """Terms of the member."""
        return self.member.terms

    @property
    def ood_terms(self) -> Mapping[str, Term]:
        """OOD terms of the member."""
        return self.member.ood_terms

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """Weights of the member."""
        return self.member.weights(epoch, epochs)

    def warning(self, task: TaskLike) -> str | None:
        """Warning of the member."""
        return self.member.warning(task)


@register("ensemble")
class Ensemble(MixtureMethod):
    """Deep ensemble of any method.

    >>> Ensemble(member="edl", size=3).member.likelihood
    'mse'
    """

    size: Count = 5
    """Number of members."""

    def network(self, make_backbone: Callable[[], nn.Module], task: TaskLike) -> nn.Module:
        """Build a network per member, each from a new backbone."""
        return Members([self.member.network(make_backbone, task) for _ in range(self.size)])

    def finish(self, network: Any, batches: Batches) -> None:
        """Finish each member."""
        for member in network:
            self.member.finish(member, batches)


class Members(nn.ModuleList):
    """Networks side by side: (N, ...) -> (N, S, M)."""

    def forward(self, x: Tensor) -> Tensor:
        """Stack the outputs of the members."""
        return torch.stack([member(x) for member in self], 1)

    def features(self, x: Tensor) -> Tensor:
        """Join the features of the members: (N, S D)."""
        return torch.cat([member.features(x) for member in self], 1)  # type: ignore[operator]
