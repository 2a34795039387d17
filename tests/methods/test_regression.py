"""Losses of methods for numbers against their papers, and on hard outputs."""

import math

import pytest
import torch
from torch.nn.functional import softplus

from dubito import DERLoss, IDERLoss
from dubito.methods import METHODS, MethodLoss
from dubito.targets import Target

REGRESSION = [name for name in METHODS if METHODS[name].tasks == ("regression",)]


def summed(name, outputs, target, **options):
    method = METHODS.build(name, **options)
    return method.loss(method.distribution(outputs), target, method.weight_tensor(0, 1))[0]


def drawn(count, columns):
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(count, columns, generator=generator, dtype=torch.float64)
    return outputs.requires_grad_(), torch.randn(count, 1, generator=generator).double()


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_gaussian_is_the_likelihood_with_weights_without_gradient(beta):
    outputs, target = drawn(50, 2)
    mean, variance = outputs[:, :1], softplus(outputs[:, 1:])
    each = torch.nn.functional.gaussian_nll_loss(
        mean, target, variance, full=True, eps=0, reduction="none"
    )
    expected = (variance.detach() ** beta * each).sum()
    result = summed("gaussian", outputs, target, beta=beta)
    torch.testing.assert_close(result, expected)
    gradients = (torch.autograd.grad(loss, outputs)[0] for loss in (result, expected))
    torch.testing.assert_close(*gradients)


def test_sder_is_half_of_the_loss_of_its_paper():
    outputs, target = drawn(50, 3)
    gamma, nu, beta = outputs[:, :1], softplus(outputs[:, 1:2]), softplus(outputs[:, 2:])
    variance = beta / nu
    paper = variance.log() + (1 + 0.1 * nu) * (gamma - target) ** 2 / variance
    result = summed("sder", outputs, target, evidence_weight=0.1)
    torch.testing.assert_close(result, 0.5 * (paper + math.log(2 * math.pi)).sum())


def test_sder_has_the_measures_of_its_paper():
    outputs, _ = drawn(50, 3)
    dist = METHODS.build("sder").distribution(outputs)
    width = (dist.beta * (1 + dist.nu) / (dist.alpha * dist.nu)).sqrt()
    torch.testing.assert_close(dist.predictive.scale, width)
    torch.testing.assert_close(dist.aleatoric, width.square().sum(-1))
    torch.testing.assert_close(dist.inverse_nu.sqrt(), dist.nu.rsqrt()[:, 0])


def test_ider_expects_the_likelihood_over_samples():
    """The textbook loss, by samples of mean and variance and by scipy's trigamma."""
    outputs, target = drawn(4, 4)
    dist = METHODS.build("ider").distribution(outputs.detach())
    noise = torch.distributions.InverseGamma(dist.alpha, dist.beta).sample((200_000,))
    mean = dist.gamma + (noise / dist.nu).sqrt() * torch.randn_like(noise)
    expected = -torch.distributions.Normal(mean, noise.sqrt()).log_prob(target).mean(0)
    torch.testing.assert_close(dist.expected_nll(target), expected, rtol=0.02, atol=0.02)
    information = (torch.polygamma(1, dist.alpha) - 1 / dist.alpha) / (2 * dist.nu**2)
    weight = dist.predictive.scale**0.6
    each = weight * (dist.expected_nll(target) - 0.1 * information.log())
    result = summed("ider", outputs, target, fisher_weight=0.1, beta=0.3)
    torch.testing.assert_close(result, each.sum())


@pytest.mark.parametrize(("weight", "cost"), [(0.02, 0.013), (0.08, 0.098)])
def test_ider_has_the_evidence_of_so_many_observations(weight, cost):
    """As docs/theory-regression.md says, which also says what the tails cost for normal targets."""
    outputs, target = drawn(1, 4)
    target = torch.tensor([[-1.0], [1.0]]).double()  # noise 1
    method = METHODS.build("ider", fisher_weight=weight, beta=0)
    optimizer = torch.optim.LBFGS(
        [outputs], max_iter=500, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        dist = method.distribution(outputs.expand(2, 4))
        loss = method.loss(dist, target, method.weight_tensor(0, 1))[0]
        loss.backward()
        return loss

    optimizer.step(closure)
    dist = method.distribution(outputs)
    observations = 1 / (4 * weight)
    assert dist.nu.item() == pytest.approx(observations, rel=1e-3)
    assert dist.alpha.item() == pytest.approx(observations / 2, abs=0.2)
    assert (dist.beta / dist.alpha).item() == pytest.approx(1, rel=1e-3)
    y = torch.linspace(-8, 8, 2001).double().unsqueeze(-1)
    normal = torch.distributions.Normal(dist.gamma, 1).log_prob(y)
    excess = torch.trapezoid(((dist.nll(y) + normal) * normal.exp())[:, 0], y[:, 0])
    assert excess.item() == pytest.approx(cost, abs=5e-4)


@pytest.mark.parametrize(("loss", "name"), [(DERLoss, "der"), (IDERLoss, "ider")])
def test_modules_are_the_losses_of_the_methods(loss, name):
    outputs, values = drawn(6, 8)
    values = values.expand(6, 2)
    lower, upper = values.clone(), torch.full_like(values, torch.inf)
    lower[1:] = -torch.inf
    target = Target(values, torch.linspace(0, 1, 6), lower, upper)
    for given in (values, target):
        expected = MethodLoss(METHODS.build(name))(outputs, given)
        torch.testing.assert_close(loss()(outputs, given), expected)
    each = loss(reduction="none", class_dim=1)(outputs.mT[None], values.mT[None])
    torch.testing.assert_close(each.mean(), loss()(outputs, values))


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", REGRESSION)
def test_hard_outputs_stay_finite(name, dtype, targets):
    generator = torch.Generator().manual_seed(0)
    shape = (10_000, METHODS.build(name).outputs(type("Task", (), {"size": targets})))
    exponent = 6 * torch.rand(shape, generator=generator) - 3
    outputs = (2 * torch.rand(shape, generator=generator) - 1) * 10**exponent
    outputs = outputs.to(dtype).requires_grad_()
    target = 1e3 * torch.randn(len(outputs), targets, generator=generator)
    method = METHODS.build(name)
    dist = method.distribution(outputs)
    assert all(term(dist, target).isfinite().all() for term in method.terms.values())
    loss = summed(name, outputs, target)
    assert torch.autograd.grad(loss, outputs)[0].isfinite().all()
