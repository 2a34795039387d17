"""Mixtures: the laws of total entropy and variance, and exact disagreement."""

import pytest
import torch

from dubito.distributions import Categorical, Dirichlet


def entropy(probs: torch.Tensor) -> torch.Tensor:
    return -torch.xlogy(probs, probs).sum(-1)


def test_total_of_a_mixture_is_the_entropy_of_its_mean():
    members = Dirichlet.from_logits(torch.randn(6, 4, 3, 5, dtype=torch.float64))
    for dist in (members.mixture(), members.mixture().mixture()):
        torch.testing.assert_close(dist.total, entropy(dist.probs))


def test_epistemic_part_of_an_ensemble_of_softmaxes_is_their_disagreement():
    logits = torch.randn(6, 4, 5, dtype=torch.float64)
    dist = Categorical(logits).mixture()
    probs = logits.softmax(-1)
    torch.testing.assert_close(dist.aleatoric, entropy(probs).mean(-1))
    torch.testing.assert_close(dist.epistemic, entropy(probs.mean(1)) - entropy(probs).mean(-1))


def test_small_disagreement_does_not_cancel():
    logits = torch.tensor([[2.0, 0.0], [2.0 + 1e-3, 0.0]])
    dist = Categorical(logits).mixture()
    exact = Categorical(logits.double()).mixture()
    torch.testing.assert_close(dist.epistemic.double(), exact.epistemic, rtol=1e-3, atol=0)
    assert dist.epistemic > 0


def test_members_may_exclude_classes():
    probs = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    dist = Categorical.from_probs(probs).mixture()
    assert dist.epistemic.item() == pytest.approx(torch.tensor(2.0).log().item())
    assert dist.aleatoric.item() == 0


def test_other_scores_are_averaged_over_the_members():
    members = Dirichlet.from_logits(torch.randn(6, 4, 5))
    dist = members.mixture()
    torch.testing.assert_close(dist.score("alpha0"), members.alpha0.mean(-1))
    assert dist.higher("alpha0") == "confidence"
    assert dist.label("alpha0") == "α₀"
    assert "dissonance" in dist.scores
    assert "dissonance" not in dist.default_scores


def test_log_probs_do_not_underflow():
    logits = torch.tensor([[[0.0, -200.0], [0.0, -201.0]]])
    dist = Categorical(logits).mixture()
    expected = torch.tensor([-200.0, -201.0]).logsumexp(0) - torch.tensor(2.0).log()
    torch.testing.assert_close(dist.log_probs[0, 1], expected)


def test_loss_sees_each_member_with_the_target():
    dist = Dirichlet.from_logits(torch.randn(6, 4, 5)).mixture()
    members, target, count = dist.for_loss(torch.arange(6) % 5)
    assert count == 4
    assert members.batch_shape == target.shape == (6, 4)
    assert (target == target[:, :1]).all()
    _, soft, _ = dist.for_loss(torch.rand(6, 5))
    assert soft.shape == (6, 4, 5)


def test_a_mixture_needs_members():
    with pytest.raises(ValueError, match="batch axis of members"):
        Categorical(torch.zeros(3)).mixture()
