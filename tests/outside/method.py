"""MoDEX (ICML 2026) from outside the package: a distribution, a head, a loss and a score.

The density is sum_k w_k Dir(alpha + tau_k e_k), a mixture of K Dirichlets with learned weights.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot
from torch.nn.utils.parametrizations import spectral_norm

from dubito.distributions import ClassDistribution, confidence_score, uncertainty_score
from dubito.losses import Term
from dubito.methods import METHODS, Method, NonNegative, TaskLike


class DirichletMixture(ClassDistribution):
    """Weighted mixture of K Dirichlets; uncertainties are variances of the probabilities."""

    tensors: ClassVar[Mapping[str, int]] = {"outputs": 1}
    decomposition: ClassVar[tuple[str, str, str]] = ("gini_of_mean", "expected_gini", "variance")
    unit: ClassVar[str] = "variance of the probabilities"

    def __init__(self, outputs: Tensor) -> None:
        self.outputs = outputs

    def _components(self) -> tuple[Tensor, Tensor, Tensor]:
        """Weights (..., K), sizes (..., K) and means (..., K, K) of the components."""
        log_alpha, weight_logits, log_tau = self.outputs.float().chunk(3, -1)
        alpha, tau = log_alpha.clamp(max=60).exp(), log_tau.clamp(max=60).exp()
        sizes = alpha.sum(-1, keepdim=True) + tau
        means = (alpha.unsqueeze(-2) + torch.diag_embed(tau)) / sizes.unsqueeze(-1)
        return weight_logits.softmax(-1), sizes, means

    @property
    def probs(self) -> Tensor:
        weights, _, means = self._components()
        return (weights.unsqueeze(-1) * means).sum(-2)

    @uncertainty_score()
    def gini_of_mean(self) -> Tensor:
        return self.expected_gini + self.variance

    @uncertainty_score()
    def expected_gini(self) -> Tensor:
        weights, sizes, means = self._components()
        return (weights * sizes / (sizes + 1) * (means * (1 - means)).sum(-1)).sum(-1)

    @uncertainty_score()
    def variance(self) -> Tensor:
        """Trace of the covariance: within the components plus between them."""
        weights, sizes, means = self._components()
        within = (means * (1 - means)).sum(-1) / (sizes + 1)
        between = (means - self.probs.unsqueeze(-2)).square().sum(-1)
        return (weights * (within + between)).sum(-1)

    @confidence_score("Max.tau")
    def largest_tau(self) -> Tensor:
        return self.outputs.float().chunk(3, -1)[2].amax(-1)

    @staticmethod
    def divergence(p: Tensor, q: Tensor) -> Tensor:
        return (p - q).square().sum(-1)


def mean_error(dist: DirichletMixture, target: Tensor) -> Tensor:
    return (one_hot(target, dist.probs.shape[-1]) - dist.probs).square().sum(-1)


def weight_error(dist: DirichletMixture, target: Tensor) -> Tensor:
    weights = dist.outputs.float().chunk(3, -1)[1].softmax(-1)
    return (one_hot(target, weights.shape[-1]) - weights).square().sum(-1)


def tau_error(dist: DirichletMixture, target: Tensor) -> Tensor:
    logits = dist.outputs.float().chunk(3, -1)[2].movedim(-1, 1)
    return cross_entropy(logits, target, label_smoothing=0.1, reduction="none")


@METHODS.register("my_modex")
class MyMoDEX(Method):
    ood_score: ClassVar[str] = "variance"

    tau_weight: NonNegative = 0.1
    """Weight of the term that trains tau."""

    def outputs(self, task: TaskLike) -> int:
        return 3 * task.size

    def head(self, in_features: int, task: TaskLike) -> nn.Module:
        return spectral_norm(nn.Linear(in_features, self.outputs(task)))

    def distribution(self, outputs: Tensor) -> DirichletMixture:
        return DirichletMixture(outputs)

    @property
    def terms(self) -> Mapping[str, Term]:
        return {"mean_error": mean_error, "weight_error": weight_error, "tau_error": tau_error}

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        return {"mean_error": 1.0, "weight_error": 1.0, "tau_error": self.tau_weight}
