"""Prior Networks: their divergences, their OOD inputs, and what they learn of them."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Dirichlet, kl_divergence

from dubito import metrics
from dubito.methods import KLPriorNetwork, ReverseKLPriorNetwork, method
from methods.digits import digits, predict, trained

BOTH = pytest.mark.parametrize("name", ["kl_pn", "rkl_pn"])


@BOTH
def test_divergences_are_those_of_torch(name: str) -> None:
    logits = torch.randn(12, 4, dtype=torch.float64)
    target = torch.arange(6) % 4
    alpha = Dirichlet(logits.exp())
    beta = torch.ones(12, 4, dtype=torch.float64)
    beta[torch.arange(6), target] = 100.0
    order = (Dirichlet(beta), alpha) if name == "kl_pn" else (alpha, Dirichlet(beta))
    expected = kl_divergence(*order)
    terms = method(name).terms_of(logits, target)
    torch.testing.assert_close(terms["id_kl"], expected[:6])
    torch.testing.assert_close(terms["ood_kl"], expected[6:])


def least(name: str, odds: tuple[float, ...]) -> torch.Tensor:
    """The alpha whose expected loss is least for labels with these odds."""
    logits = torch.zeros(len(odds), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        outputs = logits.expand(2 * len(odds), -1)  # the second half are OOD inputs
        each = method(name).terms_of(outputs, torch.arange(len(odds)))["id_kl"]
        total = each @ torch.tensor(odds, dtype=torch.float64)
        total.backward()
        return total

    optimizer.step(loss)
    return logits.detach().exp()


def test_with_the_reverse_divergence_doubt_costs_no_evidence() -> None:
    odds = (0.5, 0.3, 0.2, 0.0)
    torch.testing.assert_close(
        least("rkl_pn", odds), 1 + 99 * torch.tensor(odds, dtype=torch.float64), rtol=1e-4, atol=0.0
    )
    assert least("kl_pn", odds).sum() < 4 < 102 < least("kl_pn", (1.0, 0, 0, 0)).sum()


def test_with_the_reverse_divergence_too_little_evidence_costs_more_than_too_much() -> None:
    """About (K - 1)(u - 1 + exp(-u)) with u = ln(alpha / beta): a line and an exponential."""
    u = torch.linspace(-1.5, 1.5, 7, dtype=torch.float64)
    logits = torch.zeros(2 * len(u), 10, dtype=torch.float64)
    logits[: len(u), 0] = u + torch.tensor(100.0).log()
    cost = method("rkl_pn").terms_of(logits, torch.zeros(len(u), dtype=torch.long))["id_kl"]
    torch.testing.assert_close(cost, 9 * (u - 1 + (-u).exp()), rtol=0.25, atol=1e-6)
    assert cost[0] > 2 * cost[-1]


@BOTH
def test_noise_is_uniform_new_and_repeatable(name: str) -> None:
    x = torch.zeros(512, 1, 8, 8)
    generator = torch.Generator().manual_seed(3)
    first, second = (method(name).inputs(x, generator) for _ in range(2))
    again = method(name).inputs(x, torch.Generator().manual_seed(3))
    assert first.shape == (1024, 1, 8, 8)
    assert torch.equal(first[:512], x)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    noise = first[512:].flatten()
    assert 0 <= noise.min() < 0.001
    assert 0.999 < noise.max() < 1
    spread = noise.sort().values - torch.linspace(0, 1, noise.numel())
    assert spread.abs().max() < 0.01  # Kolmogorov-Smirnov: 1.63/sqrt(n) = 0.009 at 1 %


@BOTH
def test_a_bank_takes_the_place_of_noise(name: str) -> None:
    x = torch.zeros(64, 2, 2)
    bank = torch.arange(1.0, 4.0)[:, None, None].expand(3, 2, 2)
    outside = method(name, ood=bank).inputs(x, torch.Generator().manual_seed(0))[64:]
    assert outside.flatten(1).std(1).max() == 0  # whole inputs, not pixels
    assert outside[:, 0, 0].unique().tolist() == [1.0, 2.0, 3.0]


def test_a_bank_of_images_is_scaled() -> None:
    bank = torch.full((2, 3), 51, dtype=torch.uint8)
    outside = KLPriorNetwork(ood=bank).inputs(torch.zeros(4, 3))[4:]
    torch.testing.assert_close(outside, torch.full((4, 3), 0.2))


def test_a_bank_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ood holds inputs of shape \(3,\), .* shape \(2,\)"):
        KLPriorNetwork(ood=torch.zeros(5, 3)).inputs(torch.zeros(4, 2))
    with pytest.raises(ValueError, match=r"ood has shape \(0, 3\); expected \(M, \*shape\)"):
        KLPriorNetwork(ood=torch.zeros(0, 3))


def test_a_bank_is_no_hyperparameter() -> None:
    one = KLPriorNetwork(ood=torch.zeros(5, 3))
    assert one.hyperparameters() == {"beta": 100.0, "ood_weight": 1.0}
    assert repr(one) == "KLPriorNetwork(beta=100.0, ood_weight=1.0)"


# After so short a training KL-PN's alpha0 is lower on many digits than on noise, perhaps because
# the forward KL covers the labels that fit an ambiguous digit by alpha < 1; max_prob tells them.
@pytest.mark.parametrize(("name", "measure"), [("kl_pn", "max_prob"), ("rkl_pn", "alpha0")])
def test_noise_is_told_from_digits(name: str, measure: str) -> None:
    one = method(name)
    _, _, x, _ = digits()
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(5))
    inside, outside = (predict(one, trained(one, "mlp"), inputs) for inputs in (x, noise))
    scores = torch.cat([inside.confidence(measure), outside.confidence(measure)])
    assert metrics.auroc(scores, torch.arange(2 * len(x)) < len(x)) > 0.95
    assert 8 < outside.alpha0.median() < 15  # the flat target has 10


@BOTH
def test_alpha_below_one_leaves_every_measure_finite(name: str) -> None:
    said = method(name).prediction(torch.tensor([[-5.0, -4.0, -9.0], [3.0, -1.0, 0.0]]))
    assert said.alpha.min() < 0.01
    for measure in said.available:
        assert said.measure(measure).isfinite().all(), measure
    torch.testing.assert_close(said.belief, said.probs)


def test_wrong_hyperparameters() -> None:
    with pytest.raises(ValueError, match=r"beta must be a finite number > 1, not 1\.0"):
        KLPriorNetwork(beta=1.0)
    with pytest.raises(ValueError, match="ood_weight must be a finite number >= 0"):
        ReverseKLPriorNetwork(ood_weight=-1.0)
