"""Losses of methods for numbers against their papers, and on hard outputs."""

import math

import pytest
import torch
from torch.nn.functional import softplus

from dubito.methods import METHODS

ONE = type("Task", (), {"size": 1})()


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["gaussian", "sder"])
def test_hard_outputs_stay_finite(name, dtype):
    generator = torch.Generator().manual_seed(0)
    shape = (10_000, METHODS.build(name).outputs(ONE))
    exponent = 6 * torch.rand(shape, generator=generator) - 3
    outputs = (2 * torch.rand(shape, generator=generator) - 1) * 10**exponent
    outputs = outputs.to(dtype).requires_grad_()
    target = 1e3 * torch.randn(len(outputs), 1, generator=generator)
    loss = summed(name, outputs, target)
    assert loss.isfinite()
    assert torch.autograd.grad(loss, outputs)[0].isfinite().all()
