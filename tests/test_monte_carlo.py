"""Closed forms against the means they stand for, over samples of the Dirichlet, in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.distributions import Dirichlet

from dubito import dirichlet, losses

SAMPLES = 200_000
ERRORS = 5  # standard errors: a right form fails once in two million comparisons

ALPHAS: dict[str, list[float]] = {
    "three": [1.5, 3.0, 0.8],
    "three, flat": [1.0, 1.0, 1.0],
    "three, one class": [80.0, 1.0, 1.2],
    "three, below one": [0.4, 0.7, 0.5],
    "ten": [1.0, 2.0, 0.6, 4.0, 1.5, 3.0, 0.9, 2.5, 1.1, 5.0],
    "ten, one class": [60.0] + [1.0 + 0.1 * i for i in range(9)],
    "ten, even": [20.0] * 10,
}
EACH = pytest.mark.parametrize("name", ALPHAS)


def alpha_of(name: str) -> Tensor:
    return torch.tensor(ALPHAS[name], dtype=torch.float64)


@cache
def samples(name: str) -> tuple[Tensor, Tensor]:
    """p (N, K) and ln p, the latter of a p kept off zero, which only alpha < 1 comes near."""
    torch.manual_seed(20230601)
    probs = Dirichlet(alpha_of(name)).sample((SAMPLES,))
    return probs, probs.clamp_min(torch.finfo(torch.float64).tiny).log()


def agrees(closed: Tensor, draws: Tensor) -> None:
    """The closed form (...) lies within some standard errors of the mean of draws (N, ...)."""
    error = draws.std(0) / len(draws) ** 0.5
    # where all draws are equal (a difference of equal densities) only rounding is left
    bound = ERRORS * error + 1e-12 * (1 + closed.abs())
    worst = ((closed - draws.mean(0)).abs() / bound).max()
    assert worst <= 1, f"{closed} is off the mean {draws.mean(0)} by {ERRORS * worst:.1f} errors"
    assert (error <= 0.05 * draws.abs().mean(0) + 1e-9).all(), "too few samples to tell"


def agrees_with_products(closed: Tensor, draws: Tensor) -> None:
    """The closed form (K, K) is the mean of the products of the columns of draws (N, K)."""
    mean = draws.T @ draws / len(draws)
    square = draws.square().T @ draws.square() / len(draws)
    error = ((square - mean.square()) / len(draws)).sqrt()
    worst = ((closed - mean).abs() / error).max()
    assert worst <= ERRORS, f"{closed} is off the mean {mean} by {worst:.1f} errors"


def targets(classes: int) -> list[Tensor]:
    """The first class, the last one, and a soft target."""
    soft = torch.arange(1, classes + 1, dtype=torch.float64)
    return [torch.tensor(0), torch.tensor(classes - 1), soft / soft.sum()]


def as_probs(target: Tensor, classes: int) -> Tensor:
    return target if target.ndim else torch.eye(classes, dtype=torch.float64)[target]


@EACH
def test_mean_and_second_moments(name: str) -> None:
    alpha, (probs, _) = alpha_of(name), samples(name)
    agrees(dirichlet.mean(alpha), probs)
    centred = probs - dirichlet.mean(alpha)
    agrees(dirichlet.variance(alpha), centred.square())
    agrees_with_products(dirichlet.covariance(alpha), centred)


@EACH
def test_expected_squared_error(name: str) -> None:
    alpha, (probs, _) = alpha_of(name), samples(name)
    for target in targets(len(alpha)):
        closed = losses.mse_bias(alpha, target) + losses.mse_variance(alpha)
        agrees(closed, (as_probs(target, len(alpha)) - probs).square().sum(-1))


@EACH
def test_expected_fisher_weighted_error(name: str) -> None:
    """(y - p)^T I (y - p): the psi1(alpha0) part of I meets sum_j (y_j - p_j) = 0."""
    alpha, (probs, _) = alpha_of(name), samples(name)
    information = dirichlet.fisher_information(alpha)
    for target in targets(len(alpha)):
        residual = as_probs(target, len(alpha)) - probs
        closed = losses.fisher_bias(alpha, target) + losses.fisher_variance(alpha)
        agrees(closed, (residual @ information * residual).sum(-1))


@EACH
def test_cross_entropies(name: str) -> None:
    alpha, (probs, logs) = alpha_of(name), samples(name)
    for target in targets(len(alpha)):
        y = as_probs(target, len(alpha))
        agrees(losses.expected_cross_entropy(alpha, target), -(y * logs).sum(-1))
        if target.ndim == 0:
            agrees(torch.exp(-losses.marginal_nll(alpha, target)), probs[:, target])


@EACH
def test_entropies(name: str) -> None:
    alpha, (probs, logs) = alpha_of(name), samples(name)
    agrees(dirichlet.expected_entropy(alpha), -(probs * logs).sum(-1))
    # mutual information is the mean divergence of p from its own mean
    surplus = (probs * (logs - dirichlet.mean(alpha).log())).sum(-1)
    agrees(dirichlet.mutual_information(alpha), surplus)
    total = dirichlet.mutual_information(alpha) + dirichlet.expected_entropy(alpha)
    assert dirichlet.entropy_of_mean(alpha) == pytest.approx(total.item(), rel=1e-12)


def log_density(alpha: Tensor, logs: Tensor) -> Tensor:
    constant = torch.lgamma(alpha.sum(-1)) - torch.lgamma(alpha).sum(-1)
    return constant + ((alpha - 1) * logs).sum(-1)


@EACH
def test_differential_entropy_and_kl_to_uniform(name: str) -> None:
    alpha, (_, logs) = alpha_of(name), samples(name)
    density = log_density(alpha, logs)
    flat = log_density(torch.ones_like(alpha), logs)
    for closed, draws in (
        (dirichlet.differential_entropy(alpha), -density),
        (dirichlet.kl_to_uniform(alpha), density - flat),
    ):
        error = draws.std() / SAMPLES**0.5
        assert (closed - draws.mean()).abs() <= ERRORS * error + 1e-10


@EACH
@pytest.mark.parametrize("divergence", [dirichlet.kl_divergence, losses.reverse_kl])
def test_kl_divergence(name: str, divergence: Callable[[Tensor, Tensor], Tensor]) -> None:
    alpha, (_, logs) = alpha_of(name), samples(name)
    beta = alpha.flip(-1) + 0.5
    draws = log_density(alpha, logs) - log_density(beta, logs)
    agrees(divergence(alpha, beta), draws)
    assert losses.forward_kl(beta, alpha) == pytest.approx(divergence(alpha, beta).item())


@pytest.mark.parametrize("classes", [3, 10])
def test_label_removed_kl(classes: int) -> None:
    """Samples of the Dirichlet that is left when the label's evidence is taken away."""
    alpha = torch.linspace(1.5, 12.0, classes, dtype=torch.float64)
    for target in targets(classes):
        y = as_probs(target, classes)
        removed = alpha * (1 - y) + y
        logs = Dirichlet(removed).sample((SAMPLES,)).log()
        draws = log_density(removed, logs) - log_density(torch.ones_like(alpha), logs)
        agrees(losses.label_removed_kl(alpha, target), draws)


@EACH
def test_fisher_information_is_the_covariance_of_the_score(name: str) -> None:
    alpha, (_, logs) = alpha_of(name), samples(name)
    leaf = alpha.clone().requires_grad_()
    (slope,) = torch.autograd.grad(torch.lgamma(leaf.sum()) - torch.lgamma(leaf).sum(), leaf)
    information = dirichlet.fisher_information(alpha)
    agrees_with_products(information, logs + slope)
    logdet = torch.linalg.slogdet(information).logabsdet.item()
    assert dirichlet.fisher_logdet(alpha).item() == pytest.approx(logdet, rel=1e-9, abs=1e-9)
    assert losses.fisher_penalty(alpha).item() == pytest.approx(-logdet, rel=1e-9, abs=1e-9)
