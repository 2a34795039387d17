"""Every gradient by formula against differences, in float64, backwards and forwards."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from dubito import dirichlet, losses

# torch's own rules for going forwards are scripted, which it warns of itself
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
first = partial(gradcheck, check_forward_ad=True)
second = partial(gradgradcheck, check_fwd_over_rev=True)

CLASSES = (2, 3, 5)
OF_ALPHA = (
    "mean",
    "variance",
    "covariance",
    "entropy_of_mean",
    "expected_entropy",
    "mutual_information",
    "differential_entropy",
    "kl_to_uniform",
    "fisher_information",
    "fisher_logdet",
    "vacuity",
)
OF_EVIDENCE = ("belief", "dissonance")  # defined for alpha >= 1
TERMS_OF_ALPHA = ("mse_variance", "fisher_variance", "fisher_penalty")
TERMS_OF_TARGET = (
    "mse_bias",
    "fisher_bias",
    "label_removed_kl",
    "marginal_nll",
    "expected_cross_entropy",
)
TERMS_OF_TWO = ("reverse_kl", "forward_kl")


def alphas(classes: int, least: float = 0.2, seed: int = 0) -> Tensor:
    """(2, 2, K) from `least` to 50, log-uniform: entries differ, so that dissonance has no ties."""
    generator = torch.Generator().manual_seed(100 * classes + seed)
    share = torch.rand(2, 2, classes, generator=generator, dtype=torch.float64)
    return (least * (50 / least) ** share).requires_grad_()


def labels(classes: int) -> Tensor:
    return torch.arange(4).reshape(2, 2) % classes


def soft(classes: int) -> Tensor:
    generator = torch.Generator().manual_seed(classes)
    draws = torch.rand(2, 2, classes, generator=generator, dtype=torch.float64)
    return draws / draws.sum(-1, keepdim=True)


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("name", OF_ALPHA)
def test_distribution(name: str, classes: int) -> None:
    assert first(getattr(dirichlet, name), alphas(classes))


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("name", OF_EVIDENCE)
def test_of_evidence(name: str, classes: int) -> None:
    assert first(getattr(dirichlet, name), alphas(classes, least=1.01))


@pytest.mark.parametrize("classes", CLASSES)
def test_kl_divergence_in_both_arguments(classes: int) -> None:
    assert first(dirichlet.kl_divergence, (alphas(classes), alphas(classes, seed=1)))


@pytest.mark.parametrize("classes", CLASSES)
def test_kl_divergence_of_neighbours(classes: int) -> None:
    alpha = alphas(classes)
    beta = (alpha.detach() * (1 + 0.01 * soft(classes))).requires_grad_()
    assert first(dirichlet.kl_divergence, (alpha, beta))


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("name", TERMS_OF_ALPHA)
def test_terms_of_alpha(name: str, classes: int) -> None:
    assert first(getattr(losses, name), alphas(classes))


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("target", [labels, soft], ids=["labels", "soft"])
@pytest.mark.parametrize("name", TERMS_OF_TARGET)
def test_terms_of_target(name: str, target: object, classes: int) -> None:
    assert callable(target)
    assert first(getattr(losses, name), (alphas(classes), target(classes)))


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("name", TERMS_OF_TWO)
def test_terms_of_two_dirichlets(name: str, classes: int) -> None:
    assert first(getattr(losses, name), (alphas(classes), alphas(classes, seed=1).detach()))


def test_every_public_function_is_checked() -> None:
    checked = {*OF_ALPHA, *OF_EVIDENCE, "kl_divergence"}
    assert checked == {name for name in dirichlet.__all__ if name[0].islower()}
    assert {*TERMS_OF_ALPHA, *TERMS_OF_TARGET, *TERMS_OF_TWO} <= set(losses.__all__)


@pytest.mark.parametrize("name", OF_ALPHA)
def test_second_derivatives_of_the_distribution(name: str) -> None:
    assert second(getattr(dirichlet, name), alphas(3))


@pytest.mark.parametrize("name", TERMS_OF_TARGET)
def test_second_derivatives_of_terms(name: str) -> None:
    assert second(getattr(losses, name), (alphas(3), soft(3)))


@pytest.mark.parametrize("name", ["iedl", "edl", "uce"])
def test_hessians_of_losses(name: str) -> None:
    """torch.func.hessian goes forwards over backwards."""

    def loss(alpha: Tensor) -> Tensor:
        value: Tensor = getattr(losses, name)(alpha, labels(3))
        return value

    alpha = alphas(3).detach()
    twice = torch.func.jacrev(torch.func.jacrev(loss))(alpha)
    torch.testing.assert_close(torch.func.hessian(loss)(alpha), twice)
