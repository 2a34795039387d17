"""Posterior Networks: evidence from densities and counts, its bound, and far inputs."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributions import Dirichlet

from dubito.methods import PosteriorNetwork
from dubito.methods.posterior_network import DensityHead, RadialFlows
from tests.methods.digits import digits, predict, trained, untrained

METHOD = PosteriorNetwork()


def test_alpha_is_one_plus_count_times_density():
    network = untrained(METHOD).eval()
    x, y, _, _ = digits()
    dist = predict(METHOD, network, x[:8])
    with torch.no_grad():
        head = network.head
        density = head.flows(head.norm(head.latent(network.backbone(x[:8])))).exp()
    torch.testing.assert_close(dist.alpha, 1 + torch.bincount(y) * density)


def test_loss_is_the_textbook_one():
    log_evidence, target = torch.randn(16, 4, dtype=torch.float64), torch.arange(16) % 4
    alpha = 1 + log_evidence.exp()
    uce = torch.digamma(alpha.sum(-1)) - torch.digamma(alpha[torch.arange(16), target])
    dist = METHOD.distribution(log_evidence)
    torch.testing.assert_close(METHOD.terms["expected_cross_entropy"](dist, target), uce)
    entropy = METHOD.terms["differential_entropy"](dist, target)
    torch.testing.assert_close(entropy, Dirichlet(alpha).entropy())


def test_a_huge_density_neither_overflows_nor_spoils_the_gradient():
    log_evidence = torch.tensor([[1e4, -1e4, 500.0], [0.0, 2.0, -1e30]], requires_grad=True)
    dist = METHOD.distribution(log_evidence)
    total, _ = METHOD.loss(dist, torch.tensor([1, 1]), METHOD.weight_tensor(0, 1))
    total.backward()
    assert log_evidence.grad.isfinite().all()
    assert log_evidence.grad[1, 1] != 0
    for score in dist.scores:
        assert dist.score(score).isfinite().all(), score


def test_far_from_the_data_there_is_no_evidence():
    network = trained(METHOD)
    _, _, x, _ = digits()
    near, far = (predict(METHOD, network, inputs).vacuity for inputs in (x, 1000 * x))
    assert near.median() < 0.9
    assert (far > 0.999).all()


def test_half_precision_is_left_before_the_densities():
    head = DensityHead(nn.Identity(), RadialFlows(3, 6), [5, 5, 5]).eval()
    latent = torch.randn(8, 6).bfloat16()
    with torch.no_grad():
        head.norm.running_var.fill_(0.3)
        assert torch.equal(head(latent), head(latent.float()))


def test_a_batch_of_one_uses_the_running_averages():
    torch.manual_seed(0)
    head = METHOD.head(3, SimpleNamespace(size=4, counts=[5, 5, 5, 5]))
    head(torch.randn(50, 3))  # fills the running averages
    x = torch.randn(1, 3)
    trained = head(x)
    trained.sum().backward()
    assert torch.equal(trained, head.eval()(x))
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())


def test_wrong_counts():
    with pytest.raises(ValueError, match=r"needs the number of training samples of each class"):
        METHOD.head(3, SimpleNamespace(size=4, counts=None))
    with pytest.raises(ValueError, match=r"classes \[1\] have none"):
        METHOD.head(3, SimpleNamespace(size=2, counts=[3, 0]))
