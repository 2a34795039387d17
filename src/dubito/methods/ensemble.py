r"""Deep ensembles: networks from several initial weights (Lakshminarayanan et al., NeurIPS 2017).

The loss is the mean of the members' losses on the same batches, and the prediction is the equal
mixture of the members' distributions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from dubito.distributions import Distribution
from dubito.losses import Term
from dubito.methods.base import (
    CONFIG,
    AnyMethod,
    Batches,
    Count,
    Method,
    TaskLike,
    register,
)


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class MixtureMethod(Method):
    """Base of methods whose outputs (N, S, M) are S outputs of another method."""

    # pydantic does not pass attribute docstrings on to subclasses.
    member: AnyMethod = Field(
        default="softmax",
        description="Method of each member: a method, its name, or a dict with its name.",
    )

    @property
    def tasks(self) -> tuple[str, ...]:  # type: ignore[override]
        """Tasks of the member."""
        return tuple(self.member.tasks)

    @property
    def error_score(self) -> str:  # type: ignore[override]
        """Score of the member."""
        return str(self.member.error_score)

    @property
    def per_class(self) -> bool:
        """Scale of the member."""
        return bool(self.member.per_class)

    def outputs(self, task: TaskLike) -> int:
        """Outputs of the member."""
        return int(self.member.outputs(task))

    def head(self, in_features: int, task: TaskLike) -> nn.Module:
        """Head of the member."""
        head: nn.Module = self.member.head(in_features, task)
        return head

    def distribution(self, outputs: Tensor) -> Distribution:
        """Equal mixture over the second to last axis."""
        members: Distribution = self.member.distribution(outputs)
        return members.mixture()

    @property
    def terms(self) -> Mapping[str, Term]:
        """Terms of the member."""
        terms: Mapping[str, Term] = self.member.terms
        return terms

    @property
    def ood_terms(self) -> Mapping[str, Term]:
        """OOD terms of the member."""
        terms: Mapping[str, Term] = self.member.ood_terms
        return terms

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """Weights of the member."""
        weights: dict[str, float] = self.member.weights(epoch, epochs)
        return weights

    def warning(self, task: TaskLike) -> str | None:
        """Warning of the member."""
        warning: str | None = self.member.warning(task)
        return warning


@register("ensemble")
@dataclass(frozen=True, kw_only=True, config=CONFIG)
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
