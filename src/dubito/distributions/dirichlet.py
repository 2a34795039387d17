"""Dirichlet distribution over class probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch import distributions as td

from dubito import _checks, kernels
from dubito.distributions.base import cached_tensor, confidence_score, uncertainty_score
from dubito.distributions.classification import ClassDistribution
from dubito.errors import DubitoError
from dubito.numerics import functions
from dubito.numerics.forms import EVIDENCE

__all__ = ["Dirichlet"]


def _has_prior(dist: Dirichlet) -> bool:
    return dist.prior > 0


class Dirichlet(ClassDistribution):
    r"""Dirichlet distribution Dir(alpha) over class probabilities.

    Values and gradients are accurate in float32 for alpha from 1e-6 to 1e30; the usual formulas
    lose digits to cancellation at both ends. Half precision is computed in float32. Entropies are
    in nats.

    Notation: alpha0 is the sum of alpha, p = alpha/alpha0, psi the digamma function.

    Args:
        alpha: Concentrations > 0, (..., K). Values are not checked here: see `validate`.
        prior: Concentration of each class without evidence, so that evidence = alpha - prior; at
            most alpha. Use 0 if alpha does not come from evidence: then there is no vacuity and no
            dissonance.

    >>> dist = Dirichlet(torch.tensor([[9.0, 1.0, 1.0], [1.0, 1.0, 1.0]]))
    >>> dist.probs[0]
    tensor([0.8182, 0.0909, 0.0909])
    >>> dist.epistemic, dist.vacuity
    (tensor([0.0767, 0.2653]), tensor([0.2727, 1.0000]))
    """

    tensors: ClassVar[Mapping[str, int]] = {"_values": 1}
    static: ClassVar[tuple[str, ...]] = ("_evidence", "prior")

    def __init__(self, alpha: Tensor, prior: float = 1.0) -> None:
        self._values = _checks.shaped(alpha, "alpha")
        self._evidence: str | None = None
        self.prior = float(_checks.non_negative(prior, "prior"))

    @classmethod
    def from_logits(
        cls, logits: Tensor, evidence: str = "softplus", prior: float = 1.0, class_dim: int = -1
    ) -> Dirichlet:
        """Create from a network's logits: alpha = evidence(logits) + prior.

        The logits are not copied, since fused kernels read them: do not modify them in place.

        Args:
            logits: Outputs of a network.
            evidence: "softplus"; "relu", whose gradient is zero for a sample with only negative
                logits; or "exp" of min(logit, 60), whose gradient is zero above 60.
            prior: Constant added to the evidence.
            class_dim: Axis of the classes; 1 for images (N, K, H, W).

        >>> Dirichlet.from_logits(torch.tensor([0.0, 100.0])).alpha
        tensor([  1.6931, 101.0000])
        """
        _checks.one_of(EVIDENCE, evidence, "evidence function")
        dist = cls(_checks.classes_last(logits, class_dim, "logits"), prior)
        if evidence == "relu" and dist.prior == 0:
            raise DubitoError("evidence 'relu' without a prior gives alpha = 0; use prior > 0")
        dist._evidence = evidence
        return dist

    def kernel_input(self) -> tuple[Tensor, str | None, float]:
        """Logits or alpha, the evidence function and the prior."""
        return self._values, self._evidence, self.prior

    def validate(self) -> None:
        """Raise a ValueError if a logit is not finite, or alpha not positive and finite."""
        if self._evidence is None:
            _checks.finite(self._values, "alpha", 0, "; for logits use Dirichlet.from_logits")
        else:
            _checks.finite(self._values, "logits")

    def to_torch(self) -> td.Dirichlet:
        """Convert to `torch.distributions.Dirichlet`, for samples and densities."""
        return td.Dirichlet(self.alpha, validate_args=False)

    # --- parameters and moments ---

    @cached_tensor
    def evidence(self) -> Tensor:
        """Evidence alpha - prior, in float32 at least: (..., K)."""
        values = _checks.at_least_float32(self._values)
        if self._evidence is None:
            return values - self.prior
        function, _ = EVIDENCE[self._evidence]
        return function(values)

    @property
    def log_evidence(self) -> Tensor:
        """Logarithm of the evidence, at least that of the least normal float32: (..., K)."""
        return self.evidence.clamp_min(torch.finfo(torch.float32).tiny).log()

    @cached_tensor
    def alpha(self) -> Tensor:
        """Concentrations in float32 at least: (..., K)."""
        if self._evidence is None:
            return _checks.at_least_float32(self._values)
        return self.evidence + self.prior

    @cached_tensor
    def probs(self) -> Tensor:
        """Expected class probabilities alpha/alpha0: (..., K)."""
        return functions.mean(self.alpha)

    @cached_tensor
    def log_probs(self) -> Tensor:
        """Logarithms of `probs`, accurate near 0 and near 1: (..., K)."""
        return functions.log_mean(self.alpha)

    @cached_tensor
    def variance(self) -> Tensor:
        """Variance of each probability, p (1 - p)/(alpha0 + 1): (..., K)."""
        return functions.variance(self.alpha)

    @property
    def covariance(self) -> Tensor:
        """Covariance of the probabilities: (..., K, K)."""
        p, total = self.probs, self.alpha.sum(-1)[..., None, None]
        products = -(p.unsqueeze(-1) * p.unsqueeze(-2)) / (total + 1)
        diagonal = torch.eye(p.shape[-1], dtype=torch.bool, device=p.device)
        return torch.where(diagonal, self.variance.unsqueeze(-1), products)

    @cached_tensor
    def belief(self) -> Tensor:
        """Belief masses evidence/alpha0, which sum to 1 - vacuity: (..., K)."""
        return self.evidence / self.alpha.sum(-1, keepdim=True)

    # --- information ---

    @property
    def fisher_information(self) -> Tensor:
        """Fisher information diag(psi'(alpha)) - psi'(alpha0): (..., K, K)."""
        return functions.fisher_information(self.alpha)

    @property
    def fisher_logdet(self) -> Tensor:
        """Log-determinant of the Fisher information: (...)."""
        return -self._form("fisher_penalty")

    def kl_divergence(self, other: Dirichlet) -> Tensor:
        """Kullback-Leibler divergence KL(self || other): (...).

        Args:
            other: Dirichlet over the same classes; batch shapes broadcast.

        >>> Dirichlet(torch.tensor([2.0, 1.0])).kl_divergence(Dirichlet(torch.ones(2)))
        tensor(0.1931)
        """
        if self.alpha.shape[-1] != other.alpha.shape[-1]:
            raise DubitoError(
                f"numbers of classes differ: {self.alpha.shape[-1]} and {other.alpha.shape[-1]}"
            )
        return functions.kl_divergence(*torch.broadcast_tensors(self.alpha, other.alpha))

    def log_density(self, logs: Tensor) -> Tensor:
        """Log density at class probabilities: (...).

        Args:
            logs: Logarithms of the probabilities, (..., K); batch shapes broadcast.

        >>> Dirichlet(torch.ones(3)).log_density(torch.full((3,), 1 / 3).log())
        tensor(0.6931)
        """
        return functions.log_density(self.alpha, logs).to(self.alpha.dtype)

    # --- scores ---

    @confidence_score("Max.α")
    def max_alpha(self) -> Tensor:
        """Largest concentration: (...)."""
        return self._fused["max_alpha"] if self._fused else self.alpha.amax(-1)

    @confidence_score("α₀")
    def alpha0(self) -> Tensor:
        """Sum of the concentrations: (...)."""
        return self._fused["alpha0"] if self._fused else self.alpha.sum(-1)

    @uncertainty_score("D.Ent.")
    def differential_entropy(self) -> Tensor:
        """Differential entropy of Dir(alpha): (...)."""
        fused = self._fused.get("differential_entropy")
        return self._form("differential_entropy") if fused is None else fused

    @uncertainty_score("M.I.")
    def mutual_information(self) -> Tensor:
        """Mutual information of class and probabilities, the epistemic uncertainty: (...)."""
        return self._fused["mutual_information"] if self._fused else self._entropies[2]

    @uncertainty_score("E.Ent.")
    def expected_entropy(self) -> Tensor:
        """Expected entropy of the class, the aleatoric uncertainty: (...)."""
        return self._fused["expected_entropy"] if self._fused else self._entropies[1]

    @uncertainty_score("Ent.")
    def entropy_of_mean(self) -> Tensor:
        """Entropy of the expected probabilities, the total uncertainty: (...)."""
        return self._fused["entropy_of_mean"] if self._fused else self._entropies[0]

    @uncertainty_score("Vacuity", when=_has_prior)
    def vacuity(self) -> Tensor:
        """Vacuity prior K/alpha0, 1 without evidence: (...)."""
        return self.prior * self.alpha.shape[-1] / self.alpha0

    @uncertainty_score("Dissonance", when=_has_prior, expensive=True)
    def dissonance(self) -> Tensor:
        r"""Conflict among the belief masses b, large if several classes share much belief: (...).

        .. math:: \sum_k b_k \frac{\sum_{j \ne k} b_j \mathrm{Bal}(b_j, b_k)}{\sum_{j \ne k} b_j},
                  \quad \mathrm{Bal}(x, y) = \frac{2\min(x, y)}{x + y}

        The cost is quadratic in the number of classes.
        """
        return functions.dissonance(self.belief)

    @cached_tensor
    def _entropies(self) -> tuple[Tensor, ...]:
        return functions.uncertainty(self.alpha)

    def _form(self, name: str) -> Tensor:
        return functions.evaluate((name,), self.alpha)[0]

    @cached_tensor
    def _fused(self) -> Mapping[str, Tensor]:
        """Scores from one fused kernel, which has no gradient; empty where it does not apply."""
        return kernels.uncertainty(self._values, self._evidence, self.prior) or {}

    # --- calibration ---

    @property
    def calibration_bounds(self) -> tuple[float, ...]:
        """Bounds on theta in the map evidence -> exp(theta_0) evidence^exp(theta_1).

        Without a prior the factor cancels and the exponent is a temperature, so the family is that
        of the base class.
        """
        return (12.0, 3.0) if self.prior > 0 else super().calibration_bounds

    def _calibrated_logits(self, theta: Tensor) -> Tensor:
        """Scale the evidence: log(prior + exp(theta_0) evidence^exp(theta_1))."""
        if self.prior == 0:
            return super()._calibrated_logits(theta)
        evidence = self.evidence.to(theta.dtype).clamp_min(0)  # alpha - prior may round below 0
        positive = evidence > 0  # log(0) would give NaN gradients: replaced here, masked below
        log_evidence = torch.where(positive, evidence, 1).log()
        log_prior = torch.full_like(evidence, math.log(self.prior))
        scaled = torch.logaddexp(log_prior, theta[0] + theta[1].exp() * log_evidence)
        return torch.where(positive, scaled, log_prior)
