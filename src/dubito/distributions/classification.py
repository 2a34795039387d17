"""Distributions over class probabilities."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor
from torch import distributions as td

from dubito.distributions.base import Distribution, cached_tensor, confidence_score
from dubito.distributions.mixture import Mixture
from dubito.numerics.gamma import log_gap

__all__ = ["ClassDistribution"]

#: power and number of classes of the generalized entropy, as published
GEN_POWER, GEN_CLASSES = 0.1, 100
_LOG_TINY = math.log(torch.finfo(torch.float32).tiny)


class CategoricalPredictive(td.Categorical):
    """`torch.distributions.Categorical` with exact log probabilities.

    torch derives logits from probabilities and clamps small ones.

    Args:
        log_probs: Log probabilities of the classes, (..., K).
        probs: Probabilities, if known already, (..., K).
    """

    def __init__(self, log_probs: Tensor, probs: Tensor | None = None) -> None:
        self.logits, self._probs = log_probs, probs
        self._num_events = log_probs.shape[-1]
        td.Distribution.__init__(self, log_probs.shape[:-1], validate_args=False)

    @property
    def probs(self) -> Tensor:
        """Class probabilities: (..., K)."""
        if self._probs is None:
            self._probs = self.logits.exp()
        return self._probs

    @property
    def _param(self) -> Tensor:  # type: ignore[override]
        return self.logits


def _with_top(logits: Tensor, probs: Tensor) -> Tensor:
    """Normalize log probabilities; the class that is most probable before calibration stays it.

    Rounding may have tied it with classes that calibration tells apart, and the mean of calibrated
    members may prefer another one. It is raised above that, by what float32 still tells apart.
    """
    classes = torch.arange(probs.shape[-1], device=probs.device)
    top = classes == probs.argmax(-1, keepdim=True)
    others = logits.masked_fill(top, -torch.inf).amax(-1, keepdim=True)
    least = others + 4 * torch.finfo(torch.float32).eps
    return torch.where(top, torch.maximum(logits, least), logits).log_softmax(-1)


class ClassDistribution(Distribution):
    """Distribution over the probabilities of K classes; by default uncertainties are entropies."""

    decomposition: ClassVar[tuple[str, str, str]] = (
        "entropy_of_mean",
        "expected_entropy",
        "mutual_information",
    )
    unit: ClassVar[str] = "nats"

    @property
    @abstractmethod
    def probs(self) -> Tensor:
        """Expected class probabilities: (..., K)."""

    @property
    def log_probs(self) -> Tensor:
        """Logarithms of the expected class probabilities: (..., K)."""
        return self.probs.log()

    @property
    def log_evidence(self) -> Tensor:
        """What speaks for each class, up to a term that all classes share: (..., K)."""
        return self.log_probs

    @property
    def distances(self) -> Tensor:
        """How much less speaks for each class than for the predicted one: >= 0, (..., K).

        Calibration scales these differences of `log_evidence`, or nearly so: it hardly reorders
        them, neither within a sample nor between samples.
        """
        logs, predicted = self.log_evidence, self.probs.argmax(-1, keepdim=True)
        return (logs.amax(-1, keepdim=True) - logs).scatter(-1, predicted, 0)

    def one_hot(self, target: Tensor) -> Tensor:
        """Return targets as class probabilities, which soft ones are already: (..., K).

        Args:
            target: Labels (...) or class probabilities (..., K).
        """
        probs = self.probs
        if target.is_floating_point():
            return target.to(probs.dtype)
        classes = torch.arange(probs.shape[-1], device=target.device)
        return (target.unsqueeze(-1) == classes).to(probs.dtype)

    @property
    def predictive(self) -> CategoricalPredictive:
        """Distribution of the class, batch shape (...)."""
        return CategoricalPredictive(self.log_probs, self.probs)

    @confidence_score("Max.P")
    def max_prob(self) -> Tensor:
        """Largest expected probability: (...)."""
        return self.probs.amax(-1)

    @confidence_score("GEN")
    def gen(self) -> Tensor:
        """Negative generalized entropy -sum p^0.1 (1 - p)^0.1 of the 100 largest p: (...).

        GEN (Liu et al., CVPR 2023), https://openaccess.thecvf.com/CVPR2023. From logarithms, so
        that confident samples do not tie where p rounds to 0 or 1.
        """
        logs = self.log_probs
        first = torch.arange(logs.shape[-1], device=logs.device) == logs.argmax(-1, keepdim=True)
        rest_of_first = logs.masked_fill(first, -torch.inf).logsumexp(-1, keepdim=True)
        rests = torch.where(first, rest_of_first, torch.log1p(-self.probs.masked_fill(first, 0)))
        terms = (GEN_POWER * (logs + rests)).exp()
        if terms.shape[-1] > GEN_CLASSES:
            terms = terms.gather(-1, logs.topk(GEN_CLASSES, -1).indices)
        return -terms.sum(-1)

    def mixture(self) -> ClassMixture:
        """Mix the last batch axis with equal weights: (..., S) -> (...)."""
        return ClassMixture(self)

    @staticmethod
    def divergence(p: Tensor, q: Tensor) -> Tensor:
        """Divergence of probabilities p from their mean q that matches the unit: (...).

        KL(p || q), for entropies. Its terms p ln(p/q) - p + q are never negative, so that nothing
        cancels; where p is far below q the ratio could underflow and the logarithms are separate.

        Args:
            p: Class probabilities, (..., K).
            q: Their mean, (..., K).
        """
        positive = (p > 0) & (q > 0)
        p_safe, q_safe = torch.where(positive, p, 1), torch.where(positive, q, 1)
        far = q_safe > 2 * p_safe
        ratio = torch.where(far, 1, q_safe) / torch.where(far, 1, p_safe)
        apart = q_safe - p_safe + p_safe * (p_safe.log() - q_safe.log())
        terms = torch.where(far, apart, p_safe * log_gap(ratio - 1, ratio))
        return torch.where(positive, terms, q).sum(-1)

    def calibrated(self, theta: Tensor) -> CategoricalPredictive:
        """Predictive under calibration parameters; the most probable class never changes.

        Args:
            theta: One value per entry of `calibration_bounds`.
        """
        return CategoricalPredictive(_with_top(self._calibrated_logits(theta), self.probs))

    def _calibrated_logits(self, theta: Tensor) -> Tensor:
        """Temperature scaling of the expected probabilities."""
        # A temperature could not move a probability of zero: count it as the least of float32.
        log_probs = self.log_probs.to(theta.dtype).clamp_min(_LOG_TINY)
        return log_probs * theta.exp()


class ClassMixture(Mixture, ClassDistribution):  # type: ignore[override]
    """Equal mixture of distributions over class probabilities."""

    members: ClassDistribution

    @cached_tensor
    def probs(self) -> Tensor:
        """Mean of the members' expected probabilities: (..., K)."""
        return self.members.probs.mean(-2)

    @cached_tensor
    def log_probs(self) -> Tensor:
        """Logarithms of `probs`, also where these underflow: (..., K)."""
        logs = self.members.log_probs
        return logs.logsumexp(-2) - math.log(logs.shape[-2])

    @property
    def log_evidence(self) -> Tensor:
        """Logarithm of the mean of the members' shares: (..., K)."""
        return self.members.log_evidence.log_softmax(-1).logsumexp(-2)

    @cached_tensor
    def disagreement(self) -> Tensor:
        """Mean divergence of the members' probabilities from their mean, >= 0: (...)."""
        value = self.members.divergence(self.members.probs, self.probs.unsqueeze(-2))
        return value.mean(-1)

    def with_calibrated_members(self, theta: Tensor) -> CategoricalPredictive:
        """Mix the members' calibrated predictives; the most probable class never changes."""
        logits = self.members.calibrated(theta).logits.logsumexp(-2)
        return CategoricalPredictive(_with_top(logits, self.probs))

    def divergence(self, p: Tensor, q: Tensor) -> Tensor:  # type: ignore[override]
        """Divergence of the members' kind."""
        return self.members.divergence(p, q)
