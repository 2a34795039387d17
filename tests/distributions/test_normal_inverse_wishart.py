import math

import numpy as np
import pytest
import torch
from scipy import stats

from dubito.distributions import NormalInverseGamma, NormalInverseWishart
from dubito.targets import Target


def drawn(*batch, targets=3, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    size = (targets + 1) * (targets + 2) // 2
    outputs = torch.randn(*batch, size, generator=generator, dtype=dtype)
    return NormalInverseWishart.from_outputs(outputs)


def test_predictive_is_the_multivariate_student_of_scipy():
    dist, y = drawn(20), torch.randn(20, 3, dtype=torch.float64)
    logs = dist.predictive.log_prob(y)
    for i in range(20):
        df = dist.excess[i].item() + 2
        shape = (dist.covariance[i] * (df - 2) / df).numpy()
        expected = stats.multivariate_t.logpdf(y[i], dist.mean[i], shape, df)
        assert logs[i].item() == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(dist.covariance.diagonal(dim1=-2, dim2=-1), dist.variance)


def test_one_target_is_a_normal_inverse_gamma():
    dist, y = drawn(10, targets=1), torch.randn(10, 1, dtype=torch.float64)
    beta = dist.scale.square() / 2
    other = NormalInverseGamma(dist.gamma, dist.nu, dist.excess / 2, beta)
    torch.testing.assert_close(dist.nll(y), other.nll(y))
    for name in ("total", "aleatoric", "epistemic"):
        torch.testing.assert_close(dist.score(name), other.score(name))


def test_samples_have_the_variances_and_the_covariance():
    dist = NormalInverseWishart(
        torch.tensor([1.0, -2.0]), torch.tensor([2.0]), torch.tensor([4.0]),
        torch.tensor([1.5, 0.5]), torch.tensor([-0.8]),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    psi = (dist.covariance * 4 / (1 + 1 / 2)).double().numpy()
    noise = stats.invwishart(4 + 2 + 1, psi).rvs(100_000, random_state=rng)
    root = np.linalg.cholesky(noise)
    mean = np.einsum("nij,nj->ni", root, rng.normal(size=(100_000, 2))) / math.sqrt(2)
    y = mean + np.einsum("nij,nj->ni", root, rng.normal(size=(100_000, 2)))
    np.testing.assert_allclose(np.cov(y.T), dist.covariance, rtol=0.05)
    assert dist.aleatoric.item() == pytest.approx(np.trace(noise.mean(0)), rel=0.02)
    assert dist.epistemic.item() == pytest.approx(mean.var(0).sum(), rel=0.03)


def test_samples_that_are_not_complete_count_with_their_marginals():
    dist, y = drawn(4), torch.randn(4, 3, dtype=torch.float64)
    weight = torch.ones(4, 3)
    weight[1, 0] = 0
    lower, upper = torch.full_like(y, -torch.inf), torch.full_like(y, torch.inf)
    lower[2, 1] = y[2, 1]
    logs = dist.predictive.log_prob(Target(y, weight, lower, upper))
    torch.testing.assert_close(logs[::3], dist.predictive.log_prob(y)[::3])
    scale, df = dist.predictive.scale, dist.excess + 2
    density = stats.t.logpdf(y, df, dist.mean, scale)
    assert logs[1].item() == pytest.approx(density[1, 1:].sum())
    above = stats.t.logsf(y[2, 1], df[2, 0], dist.mean[2, 1], scale[2, 1])
    assert logs[2].item() == pytest.approx(density[2, [0, 2]].sum() + above)


def test_calibration_widens_the_joint_density():
    dist, y = drawn(5), torch.randn(5, 3, dtype=torch.float64)
    wide = dist.calibrated(torch.tensor([0.5], dtype=torch.float64))
    near = dist.mean + (y - dist.mean) * math.exp(-0.5)
    torch.testing.assert_close(wide.log_prob(y), dist.predictive.log_prob(near) - 1.5)


def test_gradients_pass_gradcheck():
    outputs = torch.randn(3, 10, dtype=torch.float64, requires_grad=True)
    y = torch.randn(3, 3, dtype=torch.float64)

    def loss(outputs):
        return NormalInverseWishart.from_outputs(outputs).nll(y)

    assert torch.autograd.gradcheck(loss, outputs)


def test_float32_is_as_exact_as_float64():
    generator = torch.Generator().manual_seed(0)
    outputs = 10 * torch.randn(500, 10, generator=generator)
    dist = NormalInverseWishart.from_outputs(outputs)
    y = 100 * torch.randn(500, 3, generator=generator)
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [getattr(dist, n).to(dtype, copy=True).requires_grad_() for n in dist.tensors]
        value = NormalInverseWishart(*leaves).nll(y.to(dtype)).sum(-1)
        gradient = torch.autograd.grad(value.sum(), leaves)
        results.append(torch.cat([value.unsqueeze(-1), *gradient], -1).double())
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


def test_outputs_of_no_number_of_targets_raise():
    with pytest.raises(ValueError, match="7 values per sample: expected 3, 6, 10"):
        NormalInverseWishart.from_outputs(torch.zeros(2, 7))
