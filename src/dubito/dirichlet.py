r"""The Dirichlet distribution Dir(alpha): moments, entropies, divergences, Fisher information.

Functions of `alpha` (..., K) > 0 with the class axis last, and a `Dirichlet` that has them as
methods.
Values and gradients hold their relative accuracy in float32 from alpha0 = K to 1e30, where the
textbook
forms cancel. Half precision is computed, and answered, in float32.

Notation: alpha0 = sum_j alpha_j, p = alpha/alpha0, and psi_n the polygamma functions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dubito import _checks
from dubito._dissonance import dissonance_of
from dubito._divergence import divergence
from dubito._forms import evaluate
from dubito._moments import Moments

__all__ = [
    "Dirichlet",
    "belief",
    "covariance",
    "differential_entropy",
    "dissonance",
    "entropy_of_mean",
    "expected_entropy",
    "fisher_information",
    "fisher_logdet",
    "kl_divergence",
    "kl_to_uniform",
    "mean",
    "mutual_information",
    "vacuity",
    "variance",
]


def _form(name: str, alpha: Tensor) -> Tensor:
    return evaluate((name,), _checks.concentration(alpha))[0]


def _share(m: Moments, amount: Tensor, remainder: Tensor) -> Tensor:
    """amount/alpha0; near one, 1 - remainder/alpha0, whose gradient does not cancel."""
    dominant = m.top & (remainder < 0.5 * m.alpha0)
    return torch.where(dominant, 1 - remainder / m.alpha0, amount / m.alpha0)


def mean(alpha: Tensor) -> Tensor:
    r"""E[p] = alpha/alpha0: (..., K) -> (..., K).

    >>> mean(torch.tensor([1.0, 1.0, 2.0]))
    tensor([0.2500, 0.2500, 0.5000])
    """
    m = Moments(_checks.concentration(alpha))
    return _share(m, m.alpha, m.rest)


def variance(alpha: Tensor) -> Tensor:
    r"""Var[p_j] = p_j (1 - p_j)/(alpha0 + 1): (..., K) -> (..., K).

    >>> variance(torch.tensor([1.0, 1.0, 2.0]))
    tensor([0.0375, 0.0375, 0.0500])
    """
    m = Moments(_checks.concentration(alpha))
    return _share(m, m.alpha, m.rest) * m.complement / (m.alpha0 + 1)


def covariance(alpha: Tensor) -> Tensor:
    r"""Cov[p_i, p_j] = (delta_ij p_i - p_i p_j)/(alpha0 + 1): (..., K) -> (..., K, K).

    >>> covariance(torch.tensor([1.0, 1.0]))
    tensor([[ 0.0833, -0.0833],
            [-0.0833,  0.0833]])
    """
    alpha = _checks.concentration(alpha)
    p, total = mean(alpha), alpha.sum(-1)[..., None, None]
    products = -(p.unsqueeze(-1) * p.unsqueeze(-2)) / (total + 1)
    diagonal = torch.eye(alpha.shape[-1], dtype=torch.bool, device=alpha.device)
    return torch.where(diagonal, variance(alpha).unsqueeze(-1), products)


def entropy_of_mean(alpha: Tensor) -> Tensor:
    r"""Total uncertainty H[E[p]] = -sum_j p_j ln p_j, in nats: (..., K) -> (...).

    >>> entropy_of_mean(torch.tensor([1.0, 1.0]))
    tensor(0.6931)
    """
    return _form("entropy_of_mean", alpha)


def expected_entropy(alpha: Tensor) -> Tensor:
    r"""Data uncertainty E[H[p]] (eq_exp_ent): (..., K) -> (...).

    .. math:: \sum_j p_j (\psi(\alpha_0 + 1) - \psi(\alpha_j + 1))

    >>> expected_entropy(torch.tensor([1.0, 1.0]))
    tensor(0.5000)
    """
    return _form("expected_entropy", alpha)


def mutual_information(alpha: Tensor) -> Tensor:
    r"""Distributional uncertainty I[y, p] = H[E[p]] - E[H[p]] (eq_mi): (..., K) -> (...).

    .. math:: \sum_j p_j (h(\alpha_j) - h(\alpha_0)), \quad h(x) = \psi(x + 1) - \ln x

    >>> mutual_information(torch.tensor([1e5, 1.0, 1.0]))
    tensor(8.4555e-06)
    """
    return _form("mutual_information", alpha)


def differential_entropy(alpha: Tensor) -> Tensor:
    r"""H[Dir(alpha)] = -KL(Dir(alpha) || Dir(1)) - ln Gamma(K) (eq_diff_ent): (..., K) -> (...).

    >>> differential_entropy(torch.tensor([1.0, 1.0, 1.0]))
    tensor(-0.6931)
    """
    return _form("differential_entropy", alpha)


def kl_divergence(alpha: Tensor, beta: Tensor) -> Tensor:
    r"""KL(Dir(alpha) || Dir(beta)), differentiable in both: (..., K), (..., K) -> (...).

    >>> kl_divergence(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 1.0]))
    tensor(0.1931)
    """
    alpha, beta = _checks.concentration(alpha), _checks.concentration(beta, "beta")
    if alpha.shape[-1] != beta.shape[-1]:
        raise ValueError(
            f"alpha {tuple(alpha.shape)} and beta {tuple(beta.shape)} differ in their classes"
        )
    alpha, beta = torch.broadcast_tensors(alpha, beta)
    return divergence(alpha, beta)


def kl_to_uniform(alpha: Tensor) -> Tensor:
    r"""KL(Dir(alpha) || Dir(1)) (app_exp_kl): (..., K) -> (...).

    >>> kl_to_uniform(torch.tensor([[1.0, 1.0], [2.0, 1.0]]))
    tensor([0.0000, 0.1931])
    """
    return _form("kl_to_uniform", alpha)


def fisher_information(alpha: Tensor) -> Tensor:
    r"""diag(psi_1(alpha_1), ..., psi_1(alpha_K)) - psi_1(alpha0) 1 1^T (fisher_matrix).

    Shapes: (..., K) -> (..., K, K).

    >>> fisher_information(torch.tensor([1.0, 1.0]))
    tensor([[ 1.0000, -0.6449],
            [-0.6449,  1.0000]])
    """
    m = Moments(_checks.concentration(alpha))
    diagonal = torch.eye(m.classes, dtype=torch.bool, device=m.alpha.device)
    off = -m.total.trigamma.unsqueeze(-1)
    return torch.where(diagonal, m.trigamma_differences.unsqueeze(-1), off)


def fisher_logdet(alpha: Tensor) -> Tensor:
    r"""ln |I(alpha)|, the log-determinant of the Fisher information (log_det_fisher).

    .. math:: \sum_j \ln\psi_1(\alpha_j) + \ln\psi_1(\alpha_0)
              + \ln[(K - 1)/2 + r(\alpha_0) - \sum_j r(\alpha_j)],
              \quad r(x) = 1/\psi_1(x) - x + 1/2

    Shapes: (..., K) -> (...).

    >>> fisher_logdet(torch.tensor([1e8, 1.0, 1.0]))  # the textbook form gives -inf here
    tensor(-36.0891)
    """
    return _form("fisher_logdet", alpha)


def belief(alpha: Tensor, prior: float = 1.0) -> Tensor:
    r"""Belief masses b_j = (alpha_j - prior)/alpha0; with `vacuity` they sum to one.

    `prior` is what alpha holds before any evidence. Shapes: (..., K) -> (..., K).

    >>> belief(torch.tensor([3.0, 1.0]))
    tensor([0.5000, 0.0000])
    """
    m = Moments(_checks.concentration(alpha, least=prior))
    return _share(m, m.alpha - prior, m.rest + prior)


def vacuity(alpha: Tensor, prior: float = 1.0) -> Tensor:
    r"""Uncertainty mass u = prior K/alpha0, one before any evidence: (..., K) -> (...).

    >>> vacuity(torch.tensor([3.0, 1.0]))
    tensor(0.5000)
    """
    alpha = _checks.concentration(alpha)
    return prior * alpha.shape[-1] / alpha.sum(-1)


def dissonance(alpha: Tensor, prior: float = 1.0) -> Tensor:
    r"""Conflict among the belief masses: large where two or more classes share much belief.

    .. math:: \sum_k b_k \frac{\sum_{j \ne k} b_j \mathrm{Bal}(b_j, b_k)}{\sum_{j \ne k} b_j},
              \quad \mathrm{Bal}(x, y) = \frac{2\min(x, y)}{x + y}

    Shapes: (..., K) -> (...). It visits all pairs of classes.

    >>> dissonance(torch.tensor([[11.0, 11.0], [21.0, 1.0]]))
    tensor([0.9091, 0.0000])
    """
    return dissonance_of(belief(alpha, prior))


class Dirichlet(torch.distributions.Dirichlet):
    """`torch.distributions.Dirichlet` with exact entropies and this module's functions as methods.

    >>> d = Dirichlet(torch.tensor([2.0, 1.0]))
    >>> d.mean, d.mutual_information()
    (tensor([0.6667, 0.3333]), tensor(0.1365))
    >>> torch.distributions.kl_divergence(d, Dirichlet(torch.ones(2)))
    tensor(0.1931)
    """

    concentration: Tensor

    @property
    def mean(self) -> Tensor:
        """E[p]."""
        return mean(self.concentration)

    @property
    def variance(self) -> Tensor:
        """Var[p]."""
        return variance(self.concentration)

    def entropy(self) -> Tensor:
        """The differential entropy, by its torch name."""
        return differential_entropy(self.concentration)

    def covariance(self) -> Tensor:
        """See `covariance`."""
        return covariance(self.concentration)

    def entropy_of_mean(self) -> Tensor:
        """See `entropy_of_mean`."""
        return entropy_of_mean(self.concentration)

    def expected_entropy(self) -> Tensor:
        """See `expected_entropy`."""
        return expected_entropy(self.concentration)

    def mutual_information(self) -> Tensor:
        """See `mutual_information`."""
        return mutual_information(self.concentration)

    def differential_entropy(self) -> Tensor:
        """See `differential_entropy`."""
        return differential_entropy(self.concentration)

    def kl_divergence(self, other: torch.distributions.Dirichlet) -> Tensor:
        """See `kl_divergence`."""
        return kl_divergence(self.concentration, other.concentration)

    def kl_to_uniform(self) -> Tensor:
        """See `kl_to_uniform`."""
        return kl_to_uniform(self.concentration)

    def fisher_information(self) -> Tensor:
        """See `fisher_information`."""
        return fisher_information(self.concentration)

    def fisher_logdet(self) -> Tensor:
        """See `fisher_logdet`."""
        return fisher_logdet(self.concentration)

    def belief(self, prior: float = 1.0) -> Tensor:
        """See `belief`."""
        return belief(self.concentration, prior)

    def vacuity(self, prior: float = 1.0) -> Tensor:
        """See `vacuity`."""
        return vacuity(self.concentration, prior)

    def dissonance(self, prior: float = 1.0) -> Tensor:
        """See `dissonance`."""
        return dissonance(self.concentration, prior)


def _kl(p: Dirichlet, q: Dirichlet) -> Tensor:
    return kl_divergence(p.concentration, q.concentration)


torch.distributions.register_kl(Dirichlet, Dirichlet)(_kl)
