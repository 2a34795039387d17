r"""Ensemble distribution distillation (Malinin et al., ICLR 2020).

.. math:: L = -\sum_k \bar\pi_k \ln p_k - \frac{\lambda}{S} \sum_s \ln q(\pi_s)

with pi_s the class probabilities that teacher s of S predicts for the input, and their mean; and q
the distribution of one network, a Dirichlet or a flexible one, with mean p. The paper has the
likelihood alone, which costs accuracy where teachers are confident. https://arxiv.org/abs/1905.00076
"""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from dubito.distributions import ClassDistribution, Dirichlet, FlexibleDirichlet
from dubito.losses import Term
from dubito.methods.base import METHODS, Method, NonNegative, TaskLike
from dubito.methods.fedl import FlexibleHead

__all__: list[str] = []

#: keeps the concentrations in the range where uncertainty is exact
PRIOR = 1e-6


@METHODS.register("distill")
class Distill(Method):
    """One network that learns what an ensemble predicts, and where its members disagree."""

    teachers: tuple[str, ...] = ()
    """Folders of trained models, of several seeds, or of an ensemble; a student needs them for its
    training only. Without any it learns from the labels."""
    family: Literal["dirichlet", "flexible_dirichlet"] = "dirichlet"
    """Distribution of the student."""
    likelihood_weight: NonNegative = 0.03
    """Weight lambda of the likelihood, from which the student learns where teachers disagree."""

    def outputs(self, task: TaskLike) -> int:
        """Return K for a Dirichlet, 2K + 1 for a flexible one."""
        return task.size if self.family == "dirichlet" else 2 * task.size + 1

    def head(self, in_features: int, task: TaskLike) -> nn.Module:
        """Build a linear layer, or the heads of F-EDL."""
        if self.family == "dirichlet":
            return super().head(in_features, task)
        return FlexibleHead(in_features, task.size, hidden=64)

    def distribution(self, outputs: Tensor) -> Dirichlet | FlexibleDirichlet:
        """Dir(exp(outputs) + 1e-6), or a flexible Dirichlet."""
        if self.family == "dirichlet":
            return Dirichlet.from_logits(outputs, "exp", prior=PRIOR)
        return FlexibleDirichlet.from_outputs(outputs)

    @property
    def terms(self) -> Mapping[str, Term]:
        """The cross entropy of the teachers' mean, and the likelihood of each."""
        return {"cross_entropy": cross_entropy, "likelihood": likelihood}

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """Return the weight of each term."""
        return {"cross_entropy": 1.0, "likelihood": self.likelihood_weight}


def cross_entropy(dist: ClassDistribution, target: Tensor) -> Tensor:
    """Cross entropy of the mean of the teachers: (...).

    Args:
        dist: Distribution of the student, batch shape (...).
        target: Log probabilities of S teachers, (..., S, K); or labels (...) or class
            probabilities (..., K), as of validation samples.
    """
    y = target.exp().mean(-2) if has_teachers(dist, target) else dist.one_hot(target)
    return -(y * dist.log_probs).sum(-1)


def likelihood(dist: Dirichlet | FlexibleDirichlet, target: Tensor) -> Tensor:
    """Negative log density of the student at the teachers' probabilities: (...).

    Args:
        dist: Distribution of the student, batch shape (...).
        target: As for `cross_entropy`; without teachers the value is 0.
    """
    if not has_teachers(dist, target):
        return torch.zeros_like(dist.alpha0)
    return -dist[..., None].log_density(target).mean(-1)


def has_teachers(dist: ClassDistribution, target: Tensor) -> bool:
    """Return whether targets are log probabilities of teachers."""
    return target.ndim > len(dist.batch_shape) + 1
