"""Posterior Networks: alpha from densities and budgets, its bound, and far inputs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributions import Dirichlet

from dubito.evidence import EXP_BOUND
from dubito.methods import PosteriorNetwork
from dubito.methods.posterior_network import PosteriorModel
from methods.digits import CLASSES, counts, digits, predict, trained, untrained

METHOD = PosteriorNetwork()


def test_alpha_is_one_and_budget_times_density() -> None:
    model = untrained(METHOD).eval()
    assert isinstance(model, PosteriorModel)
    x, _, _, _ = digits()
    said = predict(METHOD, model, x[:8])
    with torch.no_grad():
        density = model.flows(model.norm(model.backbone(x[:8]))).exp()
    torch.testing.assert_close(said.alpha, 1 + counts() * density)


def test_loss_is_the_textbook_one() -> None:
    log_evidence = torch.randn(16, 4, dtype=torch.float64)
    target = torch.arange(16) % 4
    alpha = 1 + log_evidence.exp()
    uce = torch.digamma(alpha.sum(-1)) - torch.digamma(alpha[torch.arange(16), target])
    terms = METHOD.terms_of(log_evidence, target)
    torch.testing.assert_close(terms["expected_cross_entropy"], uce)
    torch.testing.assert_close(terms["differential_entropy"], Dirichlet(alpha).entropy())
    assert METHOD.weights(0, 1) == {"expected_cross_entropy": 1.0, "differential_entropy": -1e-5}


def test_a_huge_density_neither_overflows_nor_spoils_the_gradient() -> None:
    log_evidence = torch.tensor([[1e4, -1e4, 500.0], [0.0, 2.0, -1e30]], requires_grad=True)
    terms = METHOD.terms_of(log_evidence, torch.tensor([1, 1]))
    assert all(term.isfinite().all() for term in terms.values())
    sum(term.sum() for term in terms.values()).backward()  # type: ignore[union-attr]
    assert log_evidence.grad is not None
    assert log_evidence.grad.isfinite().all()
    assert log_evidence.grad[1, 1] != 0
    said = METHOD.prediction(log_evidence.detach())
    assert said.alpha.max() == torch.tensor(EXP_BOUND).exp() + 1
    for measure in said.available:
        assert said.measure(measure).isfinite().all(), measure


def test_far_from_the_data_nothing_is_known() -> None:
    model = trained(METHOD, "mlp")
    _, _, x, _ = digits()
    near, far = (predict(METHOD, model, inputs).vacuity for inputs in (x, 1000 * x))
    assert near.median() < 0.9
    assert (far > 0.999).all()


def test_a_larger_class_has_a_larger_budget() -> None:
    torch.manual_seed(0)
    network = nn.Linear(4, 6)
    few = METHOD.model(network, 2, [10, 10]).eval()
    many = METHOD.model(network, 2, [10, 30]).eval()
    many.flows.load_state_dict(few.flows.state_dict())  # type: ignore[union-attr]
    x = torch.randn(5, 4)
    evidence = [predict(METHOD, model, x).alpha - 1 for model in (few, many)]
    ratio = torch.tensor([1.0, 3.0]).expand(5, 2)
    torch.testing.assert_close(evidence[1] / evidence[0], ratio, rtol=1e-2, atol=0)


def test_half_precision_ends_before_the_densities() -> None:
    model = METHOD.model(nn.Identity(), 3, [5, 5, 5]).eval()
    latent = torch.randn(8, 6).bfloat16()
    with torch.no_grad():
        model.norm.running_var.fill_(0.3)  # type: ignore[union-attr]
        assert torch.equal(model(latent), model(latent.float()))


def test_budgets_are_saved() -> None:
    assert "log_counts" in untrained(METHOD).state_dict()


@pytest.mark.parametrize(
    ("class_counts", "message"),
    [
        (None, "needs class_counts, the number of training samples of each class"),
        ([5] * 9, r"class_counts has shape \(9,\); expected one a class, \(10,\)"),
        ([5] * 8 + [0, 0], r"must be at least 1, but is not for the classes \[8, 9\]"),
    ],
)
def test_wrong_class_counts(class_counts: list[int] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        METHOD.model(nn.Linear(4, 6), CLASSES, class_counts)


def test_wrong_hyperparameters() -> None:
    with pytest.raises(ValueError, match="latent_dim must be at least 1, not 0"):
        PosteriorNetwork(latent_dim=0)
    with pytest.raises(ValueError, match="flow_length must be at least 1, not 0"):
        PosteriorNetwork(flow_length=0)
    with pytest.raises(ValueError, match="entropy_weight must be a finite number >= 0"):
        PosteriorNetwork(entropy_weight=-1e-5)


def test_a_batch_of_one_is_normed_as_before() -> None:
    torch.manual_seed(0)
    method = PosteriorNetwork(latent_dim=2)
    model = method.model(torch.nn.Linear(3, 2), 4, [5, 5, 5, 5])
    model(torch.randn(50, 3))  # batch norm has seen something
    x = torch.randn(1, 3)
    trained = model(x)
    trained.sum().backward()
    assert torch.equal(trained, model.eval()(x))
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
