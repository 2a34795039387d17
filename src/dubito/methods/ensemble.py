r"""Deep ensembles: networks from several initial weights (Lakshminarayanan et al., NeurIPS 2017).

The loss is the mean of the members' losses on the same batches, and the prediction is the equal
mixture of the members' distributions.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dubito.distributions import Distribution
from dubito.methods.base import METHODS, AnyMethod, Batches, Count, Method, TaskLike
from dubito.methods.features import Pass, forward_with_features, stacked

__all__ = ["Ensemble"]


def _of_member(name: str) -> Any:
    """Return a property that reads an attribute or a method of the member."""
    return property(lambda method: getattr(method.member, name))


class MemberMethod(Method):
    """Base of methods that change the network of another method."""

    member: AnyMethod = "softmax"  # type: ignore[assignment]
    """Method of each member: a method, its name, or a dict with its name."""

    tasks = _of_member("tasks")
    error_score = _of_member("error_score")
    ood_score = _of_member("ood_score")
    outputs = _of_member("outputs")
    head = _of_member("head")
    finish = _of_member("finish")
    distribution = _of_member("distribution")
    teachers = _of_member("teachers")
    terms = _of_member("terms")
    ood_terms = _of_member("ood_terms")
    per_class = _of_member("per_class")
    weights = _of_member("weights")
    warning = _of_member("warning")


class MixtureMethod(MemberMethod):
    """Base of methods whose outputs (N, S, M) are S outputs of another method."""

    ood_score = "epistemic"

    def distribution(self, outputs: Tensor) -> Distribution:
        """Equal mixture over the second to last axis."""
        return self.member.distribution(outputs).mixture()


@METHODS.register("ensemble")
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

    def forward_with_features(self, x: Tensor) -> Pass:
        """Return the features of the members side by side, (N, S D), and the outputs."""
        features, outputs = stacked([forward_with_features(member, x) for member in self])
        return None if features is None else torch.cat(features, 1), outputs
