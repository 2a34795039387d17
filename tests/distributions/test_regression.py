import numpy as np
import pytest
import torch
from scipy import stats

from dubito.distributions import NormalInverseGamma
from dubito.distributions.regression import StudentT
from dubito.targets import Target
from tests.reference import MP

DF_MINUS_TWO = np.array([1e-7, 1e-3, 0.5, 8.0, 1e3, 1e6, 1e10])
RATIOS = np.array([0.0, 1e-6, 1e-2, 1.0, 30.0, 1e4, 1e9])


def student(df_minus_two, loc=0.0, scale=1.0, dtype=torch.float64):
    values = np.broadcast_arrays(df_minus_two, loc, scale)
    return StudentT(*(torch.tensor(v, dtype=dtype).reshape(-1, 1) for v in values))


def random_dist(*batch, targets=2, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(*batch, 4 * targets, generator=generator, dtype=dtype)
    return NormalInverseGamma.from_outputs(outputs)


def test_student_log_prob_is_exact_in_float32():
    df, ratio = (v.ravel() for v in np.meshgrid(DF_MINUS_TWO, RATIOS))
    scale = np.resize([1e-6, 1.0, 1e6], df.shape)
    dist = student(df, 0.0, scale, torch.float32)
    value = torch.tensor(ratio * scale, dtype=torch.float32).unsqueeze(-1)
    result = dist.log_prob(value)
    for i in range(len(df)):
        nu, s, y = (MP.mpf(v[i, 0].item()) for v in (dist.df_minus_two, dist.scale, value))
        nu += 2
        tail = (nu + 1) / 2 * MP.log(1 + (y / s) ** 2 / nu)
        ends = MP.loggamma((nu + 1) / 2) - MP.loggamma(nu / 2) - MP.log(nu * MP.pi) / 2
        exact = ends - MP.log(s) - tail
        # The scale of a sum of logarithms of either sign: its own size plus that of its slopes.
        assert abs(result[i].item() - exact) <= 1e-6 * (1 + abs(exact)), (df[i], ratio[i])


@pytest.mark.parametrize("sign", [-1, 1])
def test_student_cdf_matches_scipy(sign):
    df, ratio = (v.ravel() for v in np.meshgrid(DF_MINUS_TWO, sign * RATIOS))
    result = student(df, 3.0, 2.0).cdf(torch.tensor(3.0 + 2.0 * ratio).unsqueeze(-1))
    np.testing.assert_allclose(result[:, 0], stats.t.cdf(ratio, df + 2), rtol=0, atol=1e-8)


def test_density_of_a_censored_value_is_the_probability_of_its_bounds():
    dist = student(np.array([1e-7, 3.0, 1e30]), 1.0, 2.0, torch.float32)
    values = torch.tensor([[1.5], [1.0], [0.0]])
    lower, upper = torch.tensor([[1.0], [-torch.inf], [-torch.inf]]), torch.full((3, 1), torch.inf)
    upper[1] = -4.0
    result = dist.log_prob(Target(values, lower=lower, upper=upper))
    expected = [np.log(0.5), stats.t.logcdf(-2.5, 5), stats.norm.logpdf(0.0, 1.0, 2.0)]
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_a_missing_value_leaves_the_density_of_a_mixture():
    dist, value = random_dist(5, 3).mixture(), torch.randn(5, 2, dtype=torch.float64)
    weight = torch.tensor([1.0, 0.0]).expand(5, 2)
    first = NormalInverseGamma(*(getattr(dist.members, n)[..., :1] for n in dist.members.tensors))
    expected = first.mixture().predictive.log_prob(value[:, :1])
    torch.testing.assert_close(dist.predictive.log_prob(Target(value, weight)), expected)


def test_score_of_a_mixture_is_that_of_its_samples():
    dist = random_dist(4, 3, targets=1, seed=3)
    mixture, value = (
        dist.mixture().predictive,
        torch.tensor([[0.0], [1.0], [-4.0], [30.0]]).double(),
    )
    same = dist[:, :1].mixture().predictive
    torch.testing.assert_close(
        same.crps(value), dist[:, 0].predictive.crps(value), rtol=1e-5, atol=0
    )
    draws = mixture.components.icdf(torch.linspace(0, 1, 2001).double()[1:-1, None, None, None])
    draws = draws.permute(1, 0, 2, 3).flatten(1).sort(1).values
    count = draws.shape[1]
    rank = torch.arange(1, count + 1) * 2 - count - 1
    spread = (draws * rank).sum(1) / count**2
    expected = (draws - value).abs().mean(1) - spread
    torch.testing.assert_close(mixture.crps(value)[:, 0], expected, rtol=5e-3, atol=0)


def test_student_variance_near_two_degrees_of_freedom():
    dist = student(np.array([1e-9]), 0.0, 3.0, torch.float32)
    assert dist.variance.item() == pytest.approx(9 * (1 + 2e9), rel=1e-6)


def test_mixture_follows_the_law_of_total_variance():
    members = random_dist(5, 3)
    mixture = members.mixture()
    second = members.variance + members.mean.square()
    expected = second.mean(-2) - members.mean.mean(-2).square()
    torch.testing.assert_close(mixture.variance, expected)
    torch.testing.assert_close(mixture.total, expected.sum(-1))
    torch.testing.assert_close(mixture.aleatoric, members.aleatoric.mean(-1))


def test_mixture_of_mixtures_is_the_mixture_of_all():
    members = random_dist(5, 2, 3)
    nested = members.mixture().mixture()
    flat = NormalInverseGamma(*(getattr(members, n).flatten(1, 2) for n in members.tensors))
    flat = flat.mixture()
    target = torch.randn(5, 2, dtype=torch.float64)
    for name in ("total", "aleatoric", "epistemic", "evidence"):
        torch.testing.assert_close(nested.score(name), flat.score(name))
    torch.testing.assert_close(nested.mean, flat.mean)
    for function in ("log_prob", "cdf"):
        result, expected = (getattr(d.predictive, function)(target) for d in (nested, flat))
        torch.testing.assert_close(result, expected)


def test_disagreement_of_close_members_does_not_cancel():
    mean = torch.tensor([1e6, 1e6 + 0.25, 1e6 + 0.5])[:, None]
    one = torch.ones_like(mean)
    mixture = NormalInverseGamma(mean, one, one, one).mixture()
    assert mixture.disagreement.item() == pytest.approx(0.125 / 3, rel=1e-6)


@pytest.mark.parametrize("mixed", [False, True])
def test_affine_changes_the_density_by_the_scale(mixed):
    dist = random_dist(5, 3).mixture() if mixed else random_dist(5)
    scale, shift = torch.tensor([2.0, 0.1]).double(), torch.tensor([-1.0, 50.0]).double()
    target = torch.randn(5, 2, dtype=torch.float64)
    result = dist.affine(scale, shift).predictive.log_prob(target * scale + shift)
    torch.testing.assert_close(result, dist.predictive.log_prob(target) - scale.log().sum())
    torch.testing.assert_close(dist.affine(scale, shift).variance, dist.variance * scale.square())


@pytest.mark.parametrize("mixed", [False, True])
def test_calibration_multiplies_the_scale_and_keeps_the_mean(mixed):
    dist = random_dist(5, 3)
    members = dist.calibrated(torch.tensor([0.7], dtype=torch.float64))
    torch.testing.assert_close(members.scale, dist.predictive.scale * np.exp(0.7))
    dist = dist.mixture() if mixed else dist
    torch.testing.assert_close(dist.calibrated(torch.tensor([0.7])).mean, dist.mean.float())
