r"""F-EDL: evidential deep learning with a flexible Dirichlet (NeurIPS 2025).

.. math::
    L = \sum_j (y_j - \mu_j)^2 + \sum_j \mathrm{Var}[\pi_j] + \sum_j (y_j - p_j)^2

with mu and Var the moments of the flexible Dirichlet of alpha = exp(g1), p = softmax(g2) and
tau = softplus(g3), three heads of the same features.
"""

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from dubito.distributions import FlexibleDirichlet
from dubito.losses import Term
from dubito.methods.base import METHODS, Method, TaskLike

__all__: list[str] = []


@METHODS.register("fedl")
class FEDL(Method):
    """F-EDL.

    >>> FEDL().outputs(type("Task", (), {"size": 10}))
    21
    """

    hidden: Annotated[int, Field(ge=0)] = 64
    """Units of the hidden layer of the heads for p and tau; 0 makes all heads linear."""

    def outputs(self, task: TaskLike) -> int:
        """Return 2K + 1: alpha, p and tau."""
        return 2 * task.size + 1

    def head(self, in_features: int, task: TaskLike) -> nn.Module:
        """Build three heads side by side."""
        return FlexibleHead(in_features, task.size, self.hidden)

    def distribution(self, outputs: Tensor) -> FlexibleDirichlet:
        """Flexible Dirichlet of outputs (..., 2K + 1)."""
        return FlexibleDirichlet.from_outputs(outputs)

    @property
    def terms(self) -> Mapping[str, Term]:
        """The expected squared error and the squared error of p."""
        return {
            "squared_error": FlexibleDirichlet.squared_error,
            "allocation_error": FlexibleDirichlet.allocation_error,
        }


class FlexibleHead(nn.Module):
    """Outputs for alpha, p and T values of tau: (N, D) -> (N, 2K + T)."""

    def __init__(self, in_features: int, num_classes: int, hidden: int, taus: int = 1) -> None:
        super().__init__()
        self.alpha = spectral_norm(nn.Linear(in_features, num_classes))
        self.p = _mlp(in_features, hidden, num_classes)
        self.tau = _mlp(in_features, hidden, taus)

    def forward(self, features: Tensor) -> Tensor:
        """Concatenate the outputs of the heads."""
        return torch.cat([self.alpha(features), self.p(features), self.tau(features)], -1)


def _mlp(in_features: int, hidden: int, outputs: int) -> nn.Module:
    if not hidden:
        return nn.Linear(in_features, outputs)
    return nn.Sequential(nn.Linear(in_features, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
