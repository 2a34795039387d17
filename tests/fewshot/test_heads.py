"""Heads: their gradients, their losses against the methods', and how they read logits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dubito import _legacy, losses
from dubito.distributions import Dirichlet
from dubito.fewshot import HEADS, Head, head

ALL = [head(name) for name in HEADS]
BY_NAME = pytest.mark.parametrize("one", ALL, ids=list(HEADS))


def given() -> tuple[Tensor, Tensor, Tensor]:
    logits = 4 * torch.randn(3, 6, 4, dtype=torch.float64)
    target = torch.tensor([0, 0, 1, 2, 3, 3])
    return logits, torch.eye(4, dtype=torch.float64)[target], torch.tensor([[0.0], [0.4], [1.0]])


@BY_NAME
def test_the_gradient_is_that_of_the_value(one: Head) -> None:
    logits, y, kl = given()
    _, gradient = one.evaluate(logits, y, kl.double())
    step = 1e-6
    for index in [(0, 0, 0), (1, 3, 2), (2, 5, 3), (2, 1, 0)]:
        moved = torch.zeros_like(logits)
        moved[index] = step
        up, down = (one.evaluate(logits + sign * moved, y, kl.double())[0] for sign in (1, -1))
        slope = (up - down)[index[:2]] / (2 * step)
        assert gradient[index].item() == pytest.approx(slope.item(), rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("name", ["iedl", "edl", "redl", "softmax", "label_smoothing"])
def test_the_loss_is_the_methods(name: str) -> None:
    logits, y, kl = given()
    values, _ = head(name).evaluate(logits, y, kl.double())
    method = _legacy.method(name)
    dist, target = method.core.distribution(logits), y.argmax(-1).expand(3, -1)
    terms = {key: term(dist, target) for key, term in method.core.terms.items()}
    weights = method.weights(0, 1) | ({"fisher_penalty": 0.01} if name == "iedl" else {})
    wanted = sum(
        (kl if term == "label_removed_kl" else weights[term]) * terms[term] for term in terms
    )
    torch.testing.assert_close(values, wanted, rtol=1e-9, atol=1e-12)


def test_the_ablations_halves_are_sums_of_terms() -> None:
    logits, y, kl = given()
    dist, target = Dirichlet.from_logits(logits), y.argmax(-1).expand(3, -1)
    cases = {
        "i_mse": {"fisher_bias": 1.0, "fisher_variance": 1.0},
        "mse_logdet": {"mse_bias": 1.0, "mse_variance": 1.0, "fisher_penalty": 0.2},
    }
    for name, terms in cases.items():
        hyperparameters = {"fisher_weight": 0.2} if "logdet" in name else {}
        values, _ = head(name, **hyperparameters).evaluate(logits, y, kl.double())
        wanted = kl * losses.label_removed_kl(dist, target)
        for form, weight in terms.items():
            wanted = wanted + weight * losses.ClosedForm(form)(dist, target)
        torch.testing.assert_close(values, wanted)


@pytest.mark.parametrize(("name", "reverse"), [("kl_pn", False), ("rkl_pn", True)])
def test_prior_networks_go_to_the_labels_dirichlet(name: str, reverse: bool) -> None:
    y = torch.eye(3, dtype=torch.float64)[:1]
    at = torch.tensor([[[100.0, 1.0, 1.0]]], dtype=torch.float64).log()
    values, gradient = head(name).evaluate(at, y, torch.zeros(1, 1))
    assert values.item() == pytest.approx(0, abs=1e-12)
    assert gradient.abs().max().item() < 1e-9
    p, q = (torch.distributions.Dirichlet(a) for a in (at[0, 0].exp(), torch.ones(3).double()))
    wanted = torch.distributions.kl_divergence(*((q, p) if reverse else (p, q)))
    found, _ = head(name).evaluate(torch.zeros_like(at), y, torch.zeros(1, 1))
    assert found.item() == pytest.approx(wanted.item(), rel=1e-9)


@BY_NAME
def test_predictions_and_names(one: Head) -> None:
    said = one.prediction(torch.randn(2, 5, 3))
    assert said.probs.shape == (2, 5, 3)
    name = next(name for name, kind in HEADS.items() if kind is type(one))
    assert head(name, **one.hyperparameters()) == one


def test_the_kl_weight_rises_by_rounds() -> None:
    assert head("edl").ramp(10) == tuple(i / 10 for i in range(10))
    assert head("iedl", kl_weight=0.5, kl_ramp=0).ramp(2) == (0.5, 0.5)
    assert head("softmax").ramp(3) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("bayes", {}, r"unknown head 'bayes'; known: 'iedl', 'edl'"),
        ("iedl", {"prior": 1.0}, r"hyperparameter of the head 'iedl': 'prior'; known: "),
        ("iedl", {"fisher_weight": -1.0}, "fisher_weight must be a finite number >= 0"),
        ("redl", {"prior": 0.0}, "prior must be a finite number > 0"),
        ("kl_pn", {"beta": 1.0}, "beta must be a finite number > 1"),
        ("label_smoothing", {"smoothing": 1.0}, r"smoothing must be in \[0, 1\)"),
    ],
)
def test_wrong_hyperparameters(name: str, given: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        head(name, **given)
