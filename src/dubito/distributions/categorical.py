"""Categorical distribution: a point mass on the class probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from dubito import _checks
from dubito.distributions.base import cached_tensor, confidence_score, uncertainty_score
from dubito.distributions.classification import ClassDistribution

__all__ = ["Categorical"]


class Categorical(ClassDistribution):
    """Class probabilities without uncertainty about them, as a softmax gives them.

    All uncertainty is aleatoric and in nats. A mixture of these, as of an ensemble or of MC
    Dropout samples, has an epistemic part: the disagreement of its members.

    Args:
        logits: Unnormalized log probabilities, (..., K).

    >>> dist = Categorical(torch.tensor([[2.0, 0.0]]))
    >>> dist.probs, dist.aleatoric, dist.epistemic
    (tensor([[0.8808, 0.1192]]), tensor([0.3653]), tensor([0.]))
    >>> Categorical(torch.tensor([[[2.0, 0.0], [0.0, 2.0]]])).mixture().epistemic
    tensor([0.3278])
    """

    tensors: ClassVar[Mapping[str, int]] = {"logits": 1}

    def __init__(self, logits: Tensor) -> None:
        self.logits = _checks.shaped(logits, "logits")

    @classmethod
    def from_logits(cls, logits: Tensor, class_dim: int = -1) -> Categorical:
        """Create from a network's logits.

        Args:
            logits: Unnormalized log probabilities.
            class_dim: Axis of the classes; 1 for images (N, K, H, W).
        """
        return cls(_checks.classes_last(logits, class_dim, "logits"))

    @classmethod
    def from_probs(cls, probs: Tensor) -> Categorical:
        """Create from class probabilities; a probability of zero has the logit -inf.

        Args:
            probs: Class probabilities, (..., K).
        """
        return cls(_checks.shaped(probs, "probs").log())

    @cached_tensor
    def log_probs(self) -> Tensor:
        """Log probabilities in float32 at least: (..., K)."""
        return _checks.at_least_float32(self.logits).log_softmax(-1)

    @cached_tensor
    def probs(self) -> Tensor:
        """Class probabilities in float32 at least: (..., K)."""
        return _checks.at_least_float32(self.logits).softmax(-1)

    @uncertainty_score("Ent.")
    def entropy_of_mean(self) -> Tensor:
        """Entropy of the class, in nats: (...)."""
        logs = self.log_probs
        return -(self.probs * torch.where(logs > -torch.inf, logs, 0)).sum(-1)

    # The two parts are listed for mixtures only: here they rank nothing that the entropy does not.

    @uncertainty_score("E.Ent.", when=lambda dist: False)
    def expected_entropy(self) -> Tensor:
        """Equal to the entropy: the probabilities are certain. (...)."""
        return self.entropy_of_mean

    @uncertainty_score("M.I.", when=lambda dist: False)
    def mutual_information(self) -> Tensor:
        """Zero: (...)."""
        return torch.zeros_like(self.entropy_of_mean)

    @confidence_score("Energy")
    def energy(self) -> Tensor:
        r"""Negative free energy ln sum_k exp(logit_k): (...).

        Liu et al., NeurIPS 2020, https://arxiv.org/abs/2010.03759
        """
        return _checks.at_least_float32(self.logits).logsumexp(-1)

    @confidence_score("Max.logit")
    def max_logit(self) -> Tensor:
        """Largest logit: (...)."""
        return _checks.at_least_float32(self.logits).amax(-1)
