"""Prior Networks: divergences, optima, and detection of noise."""

import pytest
import torch
from torch.distributions import Dirichlet, kl_divergence

from dubito import metrics
from dubito.methods import METHODS
from tests.methods.digits import digits, predict, trained


@pytest.mark.parametrize("name", ["kl_pn", "rkl_pn"])
def test_divergences_are_those_of_torch(name):
    logits, target = torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 4
    method, alpha = METHODS.build(name), Dirichlet(logits.exp())
    beta = torch.ones(6, 4, dtype=torch.float64)
    uniform = Dirichlet(beta.clone())
    beta[torch.arange(6), target] = 100.0
    for terms, other in ((method.terms, Dirichlet(beta)), (method.ood_terms, uniform)):
        order = (other, alpha) if name == "kl_pn" else (alpha, other)
        (term,) = terms.values()
        ours = term(method.distribution(logits), target)
        torch.testing.assert_close(ours, kl_divergence(*order))


def minimizer(name: str, odds: tuple[float, ...]) -> torch.Tensor:
    """Alpha with the least expected loss for labels with these odds."""
    method = METHODS.build(name)
    logits = torch.zeros(len(odds), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        dist = method.distribution(logits.expand(len(odds), -1))
        each = method.terms["id_kl"](dist, torch.arange(len(odds)))
        total = each @ torch.tensor(odds, dtype=torch.float64)
        total.backward()
        return total

    optimizer.step(loss)
    return logits.detach().exp()


def test_ambiguous_labels_cost_evidence_with_the_forward_kl_only():
    odds = (0.5, 0.3, 0.2, 0.0)
    expected = 1 + 99 * torch.tensor(odds, dtype=torch.float64)
    torch.testing.assert_close(minimizer("rkl_pn", odds), expected, rtol=1e-4, atol=0.0)
    assert minimizer("kl_pn", odds).sum() < 4 < 102 < minimizer("kl_pn", (1.0, 0, 0, 0)).sum()


# After so short a training the alpha0 of KL-PN is lower on many digits than on noise.
@pytest.mark.parametrize(("name", "score"), [("kl_pn", "max_prob"), ("rkl_pn", "alpha0")])
def test_noise_is_detected(name, score):
    method = METHODS.build(name)
    _, _, x, _ = digits()
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(5))
    dist, ood = (predict(method, trained(method), inputs) for inputs in (x, noise))
    scores = torch.cat([dist.confidence(score), ood.confidence(score)])
    assert metrics.auroc(scores, torch.arange(2 * len(x)) < len(x)) > 0.95
    assert 8 < ood.alpha0.median() < 15  # the flat target has 10


def test_alpha_below_one_leaves_every_score_finite():
    dist = METHODS.build("kl_pn").distribution(torch.tensor([[-5.0, -4.0, -9.0], [3.0, -1.0, 0.0]]))
    assert dist.alpha.min() < 0.01
    assert "vacuity" not in dist.scores
    for score in dist.scores:
        assert dist.score(score).isfinite().all(), score


def test_loss_needs_ood_inputs():
    method = METHODS.build("kl_pn")
    with pytest.raises(ValueError, match="needs out-of-distribution inputs"):
        method.loss(
            method.distribution(torch.zeros(2, 3)), torch.tensor([0, 1]), method.weight_tensor(0, 1)
        )
