"""Quantiles against numerical integrals, and what float32 must not lose."""

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from dubito.distributions.quantiles import Quantiles
from dubito.errors import DubitoError
from dubito.targets import Target

P = (0.05, 0.25, 0.5, 0.75, 0.9)


def drawn(*batch, probabilities=P, dtype=torch.float64):
    outputs = torch.randn(*batch, len(probabilities), generator=torch.Generator().manual_seed(0))
    return Quantiles.from_outputs(outputs.to(dtype), probabilities)


def knots(dist):
    """The quantiles themselves, (K,), of a distribution with one sample and one value."""
    middle = len(dist.probabilities) // 2
    places = np.concatenate([[0], dist.gaps.numpy().ravel().cumsum()])
    return dist.center.item() + places - places[middle]


def function(method):
    return lambda y: method(torch.tensor([[y]], dtype=torch.float64)).item()


@pytest.mark.parametrize("probabilities", [P, (0.1, 0.9), (0.2, 0.3, 0.6, 0.99)])
def test_density_cdf_and_moments_are_integrals(probabilities):
    dist = drawn(1, probabilities=probabilities)
    predictive, places = dist.predictive, knots(dist)
    density = lambda y: np.exp(function(predictive.log_prob)(y))  # noqa: E731
    low, high = places[0] - 60, places[-1] + 60

    def integral(f, start=low, end=high):
        inner = [place for place in places if start < place < end]
        return quad(f, start, end, points=inner or None, limit=200, epsabs=1e-11, epsrel=1e-11)[0]

    assert integral(density) == pytest.approx(1, abs=1e-7)
    mean = integral(lambda y: y * density(y))
    assert dist.mean.item() == pytest.approx(mean, abs=1e-6)
    spread = integral(lambda y: (y - mean) ** 2 * density(y))
    assert dist.variance.item() == pytest.approx(spread, rel=1e-6)
    for place, share in zip(places, probabilities, strict=True):
        assert function(predictive.cdf)(place) == pytest.approx(share, abs=1e-12)
        assert function(predictive.icdf)(share) == pytest.approx(place, abs=1e-9)
        assert density(place - 1e-9) == pytest.approx(density(place + 1e-9)) or (
            place not in (places[0], places[-1])  # continuous where the tails begin
        )
    for y in (places[0] - 0.3, places[0] + 0.1, places[-1] - 0.1, places[-1] + 0.1):
        below = function(predictive.cdf)(y)
        assert below == pytest.approx(integral(density, end=y), abs=1e-7)
        assert function(predictive.icdf)(below) == pytest.approx(y, abs=1e-7)
        left = integral(lambda x: function(predictive.cdf)(x) ** 2, end=y)
        right = integral(lambda x: (1 - function(predictive.cdf)(x)) ** 2, start=y)
        assert function(predictive.crps)(y) == pytest.approx(left + right, rel=1e-6)


def test_bounds_have_their_probability():
    dist = drawn(1)
    predictive, places = dist.predictive, knots(dist)
    middle = float(places[2])
    ends = [(-0.3, 0.1), (middle, middle + 1e-6), (5.0, 5.5), (-9.0, -8.0), (-20.0, 20.0)]
    ends += [(-np.inf, -3.0), (3.0, np.inf), (-np.inf, np.inf)]
    for low, high in ends:
        value, *bounds = (torch.tensor([[v]], dtype=torch.double) for v in (0.0, low, high))
        target = Target(value, None, *bounds)
        if np.isinf(low) and np.isinf(high):  # not censored at all
            assert torch.equal(predictive.log_prob(target), predictive.log_prob(value))
            continue
        below, above = function(predictive.cdf)(low), function(predictive.cdf)(high)
        assert predictive.log_prob(target).exp().item() == pytest.approx(above - below, rel=1e-6)
    scale = dist.gaps[0, 0, -1] * (0.1 / 0.15)
    far = torch.full((1, 1), places[-1] + 1000 * scale.item()).double()
    target = Target(far, None, far, torch.full_like(far, torch.inf))
    assert predictive.log_prob(target).item() == pytest.approx(np.log(0.1) - 1000)


def test_narrow_quantiles_far_from_zero_keep_their_gaps():
    shift, scale = torch.tensor([1e6]), torch.tensor([1e-3])
    dist = drawn(50, dtype=torch.float32)
    far = dist.affine(scale, shift)
    torch.testing.assert_close(far.variance, dist.variance * 1e-6, rtol=1e-5, atol=0)
    torch.testing.assert_close(far.gaps, dist.gaps * 1e-3)
    torch.testing.assert_close(
        far.predictive.crps(far.center), dist.predictive.crps(dist.center) * 1e-3
    )


def test_hard_outputs_are_finite_everywhere():
    generator = torch.Generator().manual_seed(0)
    exponent = 6 * torch.rand(2000, 5, generator=generator) - 3
    outputs = (2 * torch.rand(2000, 5, generator=generator) - 1) * 10**exponent
    dist = Quantiles.from_outputs(outputs.requires_grad_(), P)
    y = 1e3 * torch.randn(2000, 1, generator=generator)
    lower = torch.where(y < 0, -torch.inf, y)
    upper = torch.where(y < 0, y, torch.where(y < 500, y + 1e-3, torch.inf))
    predictive = dist.predictive
    found = [dist.mean, dist.variance, *dist.ends(0.9), *dist.ends(0.9999)]
    found += [predictive.log_prob(y), predictive.log_prob(Target(y, None, lower, upper))]
    found += [predictive.cdf(y), predictive.crps(y), dist.pinball(Target(y, None, lower, upper))]
    assert all(value.isfinite().all() for value in found)
    assert all((value.dtype == torch.float32) for value in found)
    for value in found[6:8]:
        (gradient,) = torch.autograd.grad(value.sum(), outputs, retain_graph=True)
        assert gradient.isfinite().all()


def test_scaling_keeps_the_mean_and_multiplies_the_deviation():
    predictive = drawn(9, probabilities=(0.1, 0.2, 0.7)).predictive
    wide = predictive.scaled(torch.tensor(3.0).double())
    torch.testing.assert_close(wide.mean, predictive.mean)
    torch.testing.assert_close(wide.scale, 3 * predictive.scale)


def test_a_mixture_has_the_mean_ends_and_the_score_of_its_samples():
    members = drawn(3, 4)
    mixture = members.mixture()
    lower, upper = members.ends(0.5)
    torch.testing.assert_close(mixture.ends(0.5), (lower.mean(1), upper.mean(1)))
    y = torch.tensor([[-1.0], [0.2], [4.0]]).double()
    x = torch.linspace(-80, 80, 40_001).double()
    below = mixture.predictive.cdf(x[:, None, None].expand(-1, 3, 1))
    step = (below - (x[:, None, None] >= y).double()).square()
    expected = torch.trapezoid(step, x, dim=0)
    torch.testing.assert_close(mixture.predictive.crps(y), expected, rtol=3e-3, atol=3e-3)


def test_shapes_are_checked():
    with pytest.raises(DubitoError, match=r"gaps has shape \(2, 1, 3\), expected \(2, 1, 4\)"):
        Quantiles(torch.zeros(2, 1), torch.ones(2, 1, 3), P)
    with pytest.raises(DubitoError, match="outputs has 7 values per sample: expected 5 for each"):
        Quantiles.from_outputs(torch.zeros(2, 7), P)
