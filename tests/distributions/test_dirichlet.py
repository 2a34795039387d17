"""The Dirichlet against torch's, and relations between its quantities."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dubito.distributions import Dirichlet

ALPHA = 1 + 10 * torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(0))
QUANTITIES = (
    "probs", "log_probs", "variance", "covariance", "belief", "fisher_information",
    "fisher_logdet", "max_prob", "max_alpha", "alpha0", "differential_entropy",
    "mutual_information", "expected_entropy", "entropy_of_mean", "vacuity", "dissonance",
)  # fmt: skip


def test_moments_entropy_and_kl_are_those_of_torch():
    theirs, ours = torch.distributions.Dirichlet(ALPHA.double()), Dirichlet(ALPHA.double())
    torch.testing.assert_close(ours.probs, theirs.mean)
    torch.testing.assert_close(ours.variance, theirs.variance)
    torch.testing.assert_close(ours.differential_entropy, theirs.entropy())
    assert ours.differential_entropy is ours.differential_entropy  # computed once
    other = 1 + torch.rand(2, 3, 5, dtype=torch.float64)
    torch.testing.assert_close(
        ours.kl_divergence(Dirichlet(other)),
        torch.distributions.kl_divergence(theirs, torch.distributions.Dirichlet(other)),
    )


def test_samples_and_densities_come_from_torch():
    theirs = Dirichlet(ALPHA).to_torch()
    assert isinstance(theirs, torch.distributions.Dirichlet)
    assert theirs.rsample((7,)).shape == (7, 2, 3, 5)


def test_covariance_has_the_variance_on_its_diagonal():
    dist = Dirichlet(ALPHA.double())
    torch.testing.assert_close(dist.covariance.diagonal(dim1=-2, dim2=-1), dist.variance)
    torch.testing.assert_close(dist.covariance.sum(-1), torch.zeros(2, 3, 5).double())


def test_fisher_information_is_the_negative_hessian_and_has_its_determinant():
    dist, p = Dirichlet(ALPHA[0].double()), torch.full((5,), 0.2).double()
    torch.testing.assert_close(torch.logdet(dist.fisher_information), dist.fisher_logdet)
    for alpha, information in zip(dist.alpha, dist.fisher_information, strict=True):
        hessian = torch.autograd.functional.hessian(
            lambda a: torch.distributions.Dirichlet(a, validate_args=False).log_prob(p), alpha
        )
        torch.testing.assert_close(information, -hessian)


def test_belief_and_vacuity_share_the_mean():
    for prior in (1.0, 0.25):
        dist = Dirichlet(ALPHA, prior=prior)
        torch.testing.assert_close(dist.belief * dist.alpha0[..., None], ALPHA - prior)
        torch.testing.assert_close(dist.probs, dist.belief + dist.vacuity[..., None] / 5)


@pytest.mark.parametrize("name", QUANTITIES)
def test_leading_axes_layout_and_dtype_do_not_matter(name):
    expected = getattr(Dirichlet(ALPHA), name)
    flat = getattr(Dirichlet(ALPHA.reshape(6, 5)), name).reshape(expected.shape)
    torch.testing.assert_close(flat, expected)
    strided = ALPHA.transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(getattr(Dirichlet(strided), name), expected)
    assert getattr(Dirichlet(ALPHA[:0]), name).shape == (0, *expected.shape[1:])
    exact = getattr(Dirichlet(ALPHA.double()), name)
    torch.testing.assert_close(expected.double(), exact, rtol=2e-6, atol=1e-6)
    half = ALPHA.bfloat16()
    torch.testing.assert_close(
        getattr(Dirichlet(half), name), getattr(Dirichlet(half.float()), name)
    )


@given(st.lists(st.floats(1, 2.0**99, width=32), min_size=2, max_size=8))
def test_relations_between_the_quantities(values):
    dist = Dirichlet(torch.tensor(values))
    parts = dist.expected_entropy + dist.mutual_information
    torch.testing.assert_close(dist.entropy_of_mean, parts, rtol=1e-5, atol=1e-37)
    torch.testing.assert_close(dist.belief.sum() + dist.vacuity, torch.tensor(1.0))
    assert dist.mutual_information >= 0
    assert 0 <= dist.dissonance <= 1 + 1e-6


def test_log_probs_are_exact_near_one_and_below_the_least_number():
    alpha = torch.tensor([1e26, 2.7e-35, 1.3e11])
    logs = Dirichlet(alpha).log_probs
    assert logs[0].item() == pytest.approx(-1.3e-15, rel=1e-5)
    assert logs[1].item() == pytest.approx(math.log(2.7e-35) - math.log(1e26), rel=1e-6)
    logs = Dirichlet(torch.tensor([1e200, 1e-200], dtype=torch.float64)).log_probs
    assert logs[1].item() == pytest.approx(-400 * math.log(10), rel=1e-12)
    for name in ("entropy_of_mean", "expected_entropy"):
        exact = Dirichlet(alpha.double()).score(name)
        torch.testing.assert_close(Dirichlet(alpha).score(name).double(), exact, rtol=1e-5, atol=0)


def test_from_logits_adds_evidence_and_prior():
    logits = torch.tensor([[-1.0, 0.0, 100.0]])
    for evidence, expected in (
        ("softplus", torch.nn.functional.softplus(logits)),
        ("relu", logits.clamp_min(0)),
        ("exp", logits.clamp_max(60).exp()),
    ):
        dist = Dirichlet.from_logits(logits, evidence, prior=0.5)
        torch.testing.assert_close(dist.evidence, expected)
        torch.testing.assert_close(dist.alpha, expected + 0.5)


def test_class_axis_of_images():
    logits = torch.randn(2, 3, 4, 4)
    dist = Dirichlet.from_logits(logits, class_dim=1)
    assert dist.batch_shape == (2, 4, 4)
    assert dist.kernel_input()[0].data_ptr() == logits.data_ptr()  # no copy
    with pytest.raises(ValueError, match="class_dim=4 is not an axis"):
        Dirichlet.from_logits(logits, class_dim=4)


def test_belief_scores_need_a_prior():
    dist = Dirichlet(ALPHA, prior=0.0)
    assert not {"vacuity", "dissonance"} & set(dist.scores)
    with pytest.raises(ValueError, match="no score 'vacuity'"):
        dist.score("vacuity")


def test_wrong_arguments():
    with pytest.raises(ValueError, match="prior must be a finite number >= 0"):
        Dirichlet(ALPHA, prior=-1.0)
    with pytest.raises(ValueError, match="known: 'softplus', 'relu', 'exp'"):
        Dirichlet.from_logits(ALPHA, "tanh")
    with pytest.raises(ValueError, match="use prior > 0"):
        Dirichlet.from_logits(ALPHA, "relu", prior=0.0)
    with pytest.raises(ValueError, match="numbers of classes differ: 5 and 2"):
        Dirichlet(ALPHA).kl_divergence(Dirichlet(torch.ones(2)))
    with pytest.raises(ValueError, match=r"alpha must be > 0 and finite.*\[0, 0, 1\]"):
        Dirichlet(torch.tensor([[[1.0, -1.0]]])).validate()
