"""Calibration: it improves the likelihood, keeps the point, and its intervals cover."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import optimize, stats
from torch import Tensor

from dubito import calibration
from dubito.calibration import EXPONENTS, Calibration, conformal_quantiles, interval_exponent
from dubito.distributions import Categorical, Dirichlet, Distribution, NormalInverseGamma
from dubito.distributions.normal import Normal
from dubito.distributions.quantiles import Quantiles
from dubito.errors import DubitoError
from dubito.targets import Target
from dubito.tasks import Classification, Regression
from tests.distributions.examples import EXAMPLES, build, outputs_of

N, K = 4000, 10
CLASSES = Classification(classes=tuple("0123456789"))


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scaled_evidence(factor: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Alpha whose labels are drawn from its own probabilities, then evidence times a factor."""
    g = generator(seed)
    evidence = 0.3 * torch.rand(N, K, generator=g, dtype=torch.float64)
    top = torch.randint(K, (N, 1), generator=g)
    amount = 60 * torch.rand(N, 1, generator=g, dtype=torch.float64)
    alpha = 1 + evidence.scatter_add(1, top, amount)
    labels = torch.multinomial(alpha / alpha.sum(-1, keepdim=True), 1, generator=g)[:, 0]
    return 1 + factor * (alpha - 1), labels


def scaled_numbers(factor: float, count: int, seed: int = 0) -> tuple[NormalInverseGamma, Tensor]:
    """Two numbers drawn from their own predictive, whose scale is then multiplied by a factor."""
    rng = np.random.default_rng(seed)
    gamma = rng.normal(size=(count, 2))
    nu, excess, beta = rng.gamma(3.0, 1.0, size=(3, count, 2)) + 0.1
    alpha = excess + 1
    scale = np.sqrt(beta * (1 + nu) / (nu * alpha))
    target = gamma + scale * rng.standard_t(2 * alpha)
    parts = map(torch.as_tensor, (gamma, nu, excess, beta * factor**2))
    return NormalInverseGamma(*parts), torch.as_tensor(target)


# --- classes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.05, 20.0], ids=["underconfident", "overconfident"])
def test_fit_undoes_a_factor_of_the_evidence(factor):
    alpha, labels = scaled_evidence(factor)
    other, truth = scaled_evidence(factor, seed=1)
    calibration = Calibration.fit(Dirichlet(alpha), labels)
    assert calibration.theta[1] == pytest.approx(0, abs=0.1)
    before = CLASSES.metrics(Dirichlet(other).predictive, truth)
    after = CLASSES.metrics(calibration(Dirichlet(other)), truth)
    assert before["ece"] > 0.1
    assert after["ece"] < 0.03
    assert after["nll"] < before["nll"]
    assert after["brier"] < before["brier"]


@pytest.mark.parametrize(
    ("factor", "theta"),
    [
        (0.05, (3.0646703240344717, -0.07951491112196073)),
        (1.0, (0.29908568936236657, -0.07979611812646834)),
        (20.0, (-2.4678599607610923, -0.07965105667302438)),
    ],
)
def test_fit_equals_the_first_edition(factor, theta):
    calibration = Calibration.fit(Dirichlet(scaled_evidence(factor)[0]), scaled_evidence(factor)[1])
    assert calibration.theta == pytest.approx(theta, abs=1e-6)


Case = tuple[Distribution, Tensor, Callable[[float], np.ndarray]]


def temperature_case() -> Case:
    """Log-likelihoods by the definition: p^(exp theta), normalized, with one imagined error."""
    alpha, labels = scaled_evidence(0.3)
    probs = (alpha / alpha.sum(-1, keepdim=True)).numpy()
    median = probs.max(-1).argsort()[N // 2]
    probs = np.append(probs, probs[median : median + 1], 0)
    target = np.append(labels.numpy(), probs[-1].argsort()[-2])

    def log_likelihood(theta: float) -> np.ndarray:
        scaled = probs ** math.exp(theta)
        return np.log(scaled[np.arange(N + 1), target] / scaled.sum(-1))

    return Categorical.from_probs(torch.as_tensor(probs[:-1])), labels, log_likelihood


def scale_case() -> Case:
    """Student-t densities of SciPy, and a standard normal prior of theta."""
    dist, target = scaled_numbers(3.0, 300)
    alpha = dist.alpha_minus_one + 1
    scale = (dist.beta * (1 + dist.nu) / (dist.nu * alpha)).sqrt()

    def log_likelihood(theta: float) -> np.ndarray:
        student = stats.t(2 * alpha, dist.gamma, scale * math.exp(theta))
        return np.append(student.logpdf(target).sum(-1), -0.5 * theta**2)

    return dist, target, log_likelihood


@pytest.mark.parametrize("case", [temperature_case, scale_case])
def test_fit_is_the_maximum_that_scipy_finds(case):
    dist, target, log_likelihood = case()
    optimum = optimize.minimize_scalar(
        lambda theta: -log_likelihood(theta).sum(), bounds=(-12, 12), method="bounded",
        options={"xatol": 1e-10},
    )  # fmt: skip
    assert Calibration.fit(dist, target).theta == pytest.approx([optimum.x], abs=1e-5)


def test_a_grid_on_some_rows_finds_the_same(monkeypatch):
    alpha, labels = scaled_evidence(0.3)
    expected = Calibration.fit(Dirichlet(alpha), labels).theta
    monkeypatch.setattr(calibration, "ENTRIES", N * K // 8)
    assert Calibration.fit(Dirichlet(alpha), labels).theta == pytest.approx(expected, abs=1e-6)


SINGLE = [
    "dirichlet_from_logits",
    "dirichlet_without_prior",
    "categorical",
    "normal_inverse_gamma",
    "regression_quantiles",
]
DISTRIBUTIONS = [*SINGLE, *(f"mixture_of_{name}" for name in SINGLE)]
CLASSIFIERS = [n for n in DISTRIBUTIONS if "normal" not in n and "regression" not in n]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_every_distribution_is_calibrated(name):
    dist: Any = build(name, 2 * outputs_of(name, 200))
    if hasattr(dist, "probs"):
        target = torch.multinomial(dist.probs.sqrt(), 1, generator=generator(1))[:, 0]
    else:
        target = dist.mean + 0.01 * torch.randn(dist.mean.shape, generator=generator(1))
    calibration = Calibration.fit(dist, target)
    before, after = (p.log_prob(target).mean() for p in (dist.predictive, calibration(dist)))
    assert after > before
    assert Calibration.fit(dist, target) == calibration  # deterministic
    assert Calibration.model_validate_json(calibration.model_dump_json()) == calibration
    if hasattr(dist, "probs"):
        assert torch.equal(calibration(dist).probs.argmax(-1), dist.probs.argmax(-1))
    else:
        torch.testing.assert_close(calibration(dist).mean.to(dist.mean), dist.mean)


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_point_changes_where_rounding_ties(classes, dtype):
    """A model that is always wrong asks for as little of its evidence as possible."""
    alpha = 1 + 5 * torch.rand(200, classes, generator=generator(0)).to(dtype)
    for dist in (Dirichlet(alpha), Categorical.from_probs(Dirichlet(alpha).probs)):
        label = dist.probs.argmax(-1)
        calibration = Calibration.fit(dist, (label + 1) % classes)
        assert torch.equal(calibration(dist).probs.argmax(-1), label)
    little = Dirichlet(1 + 1e-4 * (alpha - 1))
    calibrated = Calibration(theta=(0.0, 3.0))(little)
    assert torch.equal(calibrated.probs.argmax(-1), little.probs.argmax(-1))


@given(
    theta=st.tuples(st.floats(-9, 9), st.floats(-1.6, 1.6)), seed=st.integers(0, 100),
    prior=st.sampled_from([0.1, 0.7, 1.0]),
)  # fmt: skip
def test_the_order_of_classes_stays(theta, seed, prior):
    evidence = 100 * torch.rand(20, 5, generator=generator(seed), dtype=torch.float64)
    dist = Dirichlet(prior + evidence, prior=prior)
    probs = Calibration(theta=theta)(dist).probs
    first, second = evidence[:, 0], evidence[:, 1]
    assert bool(((probs[:, 0] <= probs[:, 1]) | (first > second)).all())


@pytest.mark.parametrize(
    "name", [name for name in EXAMPLES if "normal" not in name and "regression" not in name]
)
@given(
    data=st.data(), shift=st.floats(-45, 30), spread=st.sampled_from([1e-7, 1e-3, 0.3, 3.0]),
    seed=st.integers(0, 1000), of_members=st.booleans(),
)  # fmt: skip
def test_probabilities_sum_to_one_and_the_point_stays(name, data, shift, spread, seed, of_members):
    """From almost no evidence, whose alpha ties in float32, to almost nothing else."""
    shape, _ = EXAMPLES[name]
    dist: Any = build(name, shift + spread * torch.randn(20, *shape, generator=generator(seed)))
    bounds = getattr(dist, "members", dist) if of_members else dist
    theta = tuple(data.draw(st.floats(-b, b)) for b in bounds.calibration_bounds)
    predictive: Any = Calibration(theta=theta, of_members=of_members)(dist)
    probs = predictive.probs.float()
    torch.testing.assert_close(probs.sum(-1), torch.ones(20), rtol=0, atol=1e-6)
    assert torch.equal(probs.argmax(-1), dist.probs.argmax(-1))
    classes = torch.arange(probs.shape[-1]).unsqueeze(-1).expand(-1, 20)
    torch.testing.assert_close(predictive.log_prob(classes).exp().mT, predictive.probs)


def test_classes_whose_alpha_ties_share_what_calibration_finds():
    dist = Dirichlet.from_logits(torch.tensor([[-40.0, -17.0, -40.0]]))
    assert torch.equal(dist.alpha, torch.ones(1, 3))
    probs = Calibration(theta=(12.0, -2.0))(dist).probs[0]
    evidence = math.exp(12) * math.exp(-17) ** math.exp(-2)
    least = math.exp(12) * math.exp(-40) ** math.exp(-2)
    parts = torch.tensor([1 + evidence, 1 + evidence, 1 + least], dtype=torch.float64)
    torch.testing.assert_close(probs, parts / parts.sum(), rtol=1e-6, atol=0)


def test_a_calibration_of_members_is_applied_to_each_before_mixing():
    members = Dirichlet.from_logits(3 * torch.randn(200, 5, 3, generator=generator(0)).double())
    label = torch.multinomial(members[:, 0].probs.sqrt(), 1, generator=generator(1))[:, 0]
    calibration = Calibration.fit(members[:, 0], label, of_members=True)
    assert Calibration.model_validate_json(calibration.model_dump_json()) == calibration
    mixed = calibration(members.mixture())
    each = torch.stack([calibration(members[:, m]).probs for m in range(5)])
    point = members.mixture().probs.argmax(-1)
    assert torch.equal(mixed.probs.argmax(-1), point)
    same = each.mean(0).argmax(-1) == point
    torch.testing.assert_close(mixed.probs[same], each.mean(0)[same])
    assert 0.5 < same.double().mean() < 1  # elsewhere the mean of the probabilities has another
    with pytest.raises(DubitoError, match=r"has 2 parameters, but .* needs 1"):
        Calibration.fit(members[:, 0], label)(members.mixture())


def test_a_calibration_of_members_applies_to_a_mixture_of_numbers():
    g = generator(0)
    members = NormalInverseGamma(*(torch.rand(4, 200, 5, 2, generator=g) + 0.1).double())
    target = members.mean[:, 0] + torch.randn(200, 2, generator=g)
    calibration = Calibration.fit(members[:, 0], target, of_members=True)
    mixed = calibration(members.mixture())
    each = [calibration(members[:, m]).log_prob(target) for m in range(5)]
    expected = torch.stack(each).logsumexp(0) - math.log(5)
    torch.testing.assert_close(mixed.log_prob(target), expected)
    lower, upper = calibration.interval(members.mixture())
    torch.testing.assert_close((lower + upper) / 2, members.mixture().mean)
    one = calibration.interval(members[:, 0])
    alike = NormalInverseGamma(
        members.mean, *(part[:, :1] for part in (members.nu, members.alpha - 1, members.beta))
    )
    lower, upper = calibration.interval(alike.mixture())
    torch.testing.assert_close(upper - lower, one[1] - one[0])  # however far apart the means are


def test_all_correct_or_extreme_inputs_stay_finite():
    alpha = torch.full((30, 3), 1.5)
    alpha[:, 0] = 4
    cases = [(Dirichlet(alpha), torch.zeros(30, dtype=torch.long))]
    certain = Categorical.from_probs(torch.tensor([[1.0, 0.0]]).repeat(4, 1))
    cases += [(certain, torch.tensor([0, 0, 0, 1]))]
    evidence = torch.tensor([[1e26, 1e25, 0.0], [1e3, 0.0, 1e-3], [0.0, 0.0, 0.0]])
    cases += [(Dirichlet(1 + evidence.repeat(20, 1)), torch.tensor([0, 0, 1]).repeat(20))]
    for dist, target in cases:
        predictive = Calibration.fit(dist, target)(dist)
        assert bool(predictive.log_prob(target).isfinite().all())


# --- prediction sets -----------------------------------------------------------------------------


def drawn_classes(*shape: int) -> tuple[Categorical, Tensor]:
    """Return predictions that are sharper than the labels are, and these."""
    g = generator(0)
    logits = 2 * torch.randn(*shape, 4, generator=g, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(-1).reshape(-1, 4), 1, generator=g).reshape(shape)
    return Categorical(2 * logits), labels


@pytest.mark.parametrize("count", [40, 200])
@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95])
def test_sets_cover_the_class_in_a_thousand_repetitions(level, count):
    dist, label = drawn_classes(1000, count + 50)
    distances = dist.distances.gather(-1, label.unsqueeze(-1)).squeeze(-1)
    quantiles = conformal_quantiles(distances[:, :count].mT, level)
    shares = []
    for row, quantile in enumerate(quantiles):
        calibration = Calibration(theta=(0.0,), levels=(level,), quantiles=((quantile,),))
        classes = calibration.prediction_set(dist[row, count:])
        shares.append(classes.gather(-1, label[row, count:, None]).double().mean().item())
    mean, error = np.mean(shares), np.std(shares) / math.sqrt(1000)
    accuracy = (dist.probs.argmax(-1) == label).double().mean().item()
    assert mean > level - 3 * error
    assert mean < max(level + 1 / (count + 1), accuracy + 0.02) + 3 * error


@pytest.mark.parametrize("count", [200, 1000])
@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95])
def test_intervals_cover_in_a_thousand_repetitions(level, count):
    """Skewed, and of a spread that the predicted one does not follow; one column for each."""
    rng = np.random.default_rng(0)
    variance = torch.as_tensor(rng.lognormal(0, 1, size=(count + 50, 1000)))
    target = variance.sqrt().cos() + torch.as_tensor(rng.exponential(1, variance.shape))
    beta = 2 * variance / 3
    dist = NormalInverseGamma(0 * beta, 0 * beta + 0.5, 0 * beta + 2, beta)
    scores = target.abs() / variance**0.25
    quantiles = conformal_quantiles(scores[:count], level)
    calibration = Calibration(theta=(0.0,), levels=(level,), quantiles=(quantiles,))
    lower, upper = calibration.interval(dist[count:])
    shares = ((lower <= target[count:]) & (target[count:] <= upper)).double().mean(0)
    assert shares.mean() == pytest.approx(level + 0.5 / (count + 1), abs=0.5 / count + 0.006)


def test_the_set_of_a_level_has_the_classes_with_enough_evidence():
    """By the definition: a share of the largest evidence, at the rank of a conformal quantile."""
    alpha, labels = scaled_evidence(0.3)
    evidence = (alpha - 1).numpy()
    ratio = evidence / evidence.max(-1, keepdims=True)
    calibration = Calibration.fit(Dirichlet(alpha), labels, (0.9, 0.99))
    assert Calibration.model_validate_json(calibration.model_dump_json()) == calibration
    sets = [calibration.prediction_set(Dirichlet(alpha), level) for level in (0.9, 0.99)]
    for classes, rank in zip(sets, (3601, 3961), strict=True):
        least = np.sort(ratio[np.arange(N), labels])[N - rank]
        np.testing.assert_array_equal(classes, ratio >= least * (1 - 1e-9))
    assert bool((sets[0] <= sets[1]).all())
    assert torch.equal(calibration.prediction_set(Dirichlet(alpha)), sets[0])
    half = calibration.prediction_set(Dirichlet(alpha.float()))
    assert (half != sets[0]).double().mean() < 1e-3


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_sets_have_the_predicted_class(name):
    dist: Any = build(name, 2 * outputs_of(name, 200))
    label = torch.multinomial(dist.probs.sqrt(), 1, generator=generator(1))[:, 0]
    few, most = (
        Calibration.fit(dist, label, (level,)).prediction_set(dist) for level in (0.1, 0.9)
    )
    predicted = dist.probs.argmax(-1, keepdim=True)
    assert few.gather(-1, predicted).all()
    assert few.sum() < most.sum() < most.numel()


def test_sets_do_not_depend_on_the_temperature_or_the_factor_of_the_evidence():
    dist, label = drawn_classes(300)
    sharp = Categorical(3 * dist.log_probs)
    alpha, labels = (part[:300] for part in scaled_evidence(0.3))
    for first, second, truth in (
        (dist, sharp, label),
        (Dirichlet(alpha), Dirichlet(1 + 50 * (alpha - 1)), labels),
    ):
        sets = [Calibration.fit(d, truth, (0.9,)).prediction_set(d) for d in (first, second)]
        assert torch.equal(*sets)


def test_sets_of_too_few_samples_have_every_class():
    dist, label = drawn_classes(8)
    calibration = Calibration.fit(dist, label, levels=(0.5, 0.9))
    assert calibration.prediction_set(dist, 0.9).all()
    assert not calibration.prediction_set(dist, 0.5).all()


def test_no_evidence_at_all_leaves_every_class_in_the_set():
    logits = torch.tensor([[9.0, -1.0, -1.0], [-1.0, -1.0, -1.0], [-200.0, -200.0, 5.0]])
    for evidence in ("relu", "softplus", "exp"):
        dist = Dirichlet.from_logits(logits.repeat(40, 1), evidence)
        calibration = Calibration.fit(dist, dist.probs.argmax(-1), (0.9,))
        expected = torch.tensor([[1, 0, 0], [1, 1, 1], [0, 0, 1]]).bool()
        assert torch.equal(calibration.prediction_set(dist)[:3], expected)


# --- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.03, 1.0, 30.0, 1000.0])
def test_fit_undoes_a_factor_of_the_scale(factor):
    """The prior does not count among thousands of samples."""
    dist, target = scaled_numbers(factor, 4000)
    calibration = Calibration.fit(dist, target)
    assert calibration.theta[0] == pytest.approx(-math.log(factor), abs=0.05)
    other, truth = scaled_numbers(factor, 4000, seed=1)
    task = Regression.from_target(target)
    assert task.metrics(calibration(other), truth)["coverage90"] == pytest.approx(0.9, abs=0.02)


def test_few_samples_without_an_error_do_not_ask_for_certainty():
    dist, target = scaled_numbers(1.0, 1)
    theta = Calibration.fit(dist, dist.mean + 1e-6 * (target - dist.mean)).theta
    assert -2.1 < theta[0] < -1.5  # without the prior: the bound of -12
    classes = Dirichlet(1 + 4 * torch.eye(3).repeat(10, 1))
    probs = Calibration.fit(classes, torch.arange(30) % 3)(classes).probs
    assert 0.9 < probs.max() < 0.98  # 30 of 31


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_interval_quantiles_are_conformal(exponent):
    dist, target = scaled_numbers(1.0, 99)
    calibration = Calibration.fit(dist, target, levels=(0.5, 0.9), exponent=exponent)
    assert calibration.exponent == exponent
    assert Calibration.model_validate_json(calibration.model_dump_json()) == calibration
    power = dist.variance.sqrt() ** exponent
    deviations = ((target - dist.mean).abs() / power).sort(0).values
    assert calibration.levels == (0.5, 0.9)
    assert calibration.quantiles[0] == tuple(deviations[49].tolist())  # the 50th of 100 places
    assert calibration.quantiles[1] == tuple(deviations[89].tolist())
    lower, upper = calibration.interval(dist, 0.9)
    inside = ((lower <= target) & (target <= upper)).double().mean(0)
    assert inside.min() >= 89 / 99 - 1e-9  # the sample at the end of its interval may round out
    torch.testing.assert_close(upper - lower, 2 * power * torch.tensor(calibration.quantiles[1]))


@pytest.mark.parametrize("exponent", [0.25, 1.0])
def test_intervals_do_not_depend_on_the_unit(exponent):
    dist, target = scaled_numbers(1.0, 99)
    scale, shift = torch.tensor([1000.0, 0.01]).double(), torch.tensor([5.0, -3.0]).double()
    other = dist.affine(scale, shift)
    lower, upper = Calibration.fit(dist, target, exponent=exponent).interval(dist)
    fitted = Calibration.fit(other, target * scale + shift, exponent=exponent)
    expected = lower * scale + shift, upper * scale + shift
    torch.testing.assert_close(fitted.interval(other), expected)


@pytest.mark.parametrize(("truth", "expected"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)])
def test_exponent_is_that_of_the_errors(truth, expected):
    """Errors are as large as a power of the predicted deviation, whatever the units."""
    rng = np.random.default_rng(0)
    variance = torch.as_tensor(rng.lognormal(0, 2, size=(3000, 2)))
    beta = 2 * variance / 3  # the variance is beta/2 (1 + 1/2)
    dist = NormalInverseGamma(0 * beta, 0 * beta + 0.5, 0 * beta + 2, beta)
    torch.testing.assert_close(dist.variance, variance)
    target = variance ** (truth / 2) * torch.as_tensor(rng.normal(size=(3000, 2)))
    assert interval_exponent(dist, target) == expected
    scale, shift = torch.tensor([1e4, 1e-3]).double(), torch.zeros(2).double()
    assert interval_exponent(dist.affine(scale, shift), target * scale) == expected
    assert interval_exponent(dist[:8], target[:8]) == 0.5  # too few for 90 %
    assert interval_exponent(dist, 0 * target) in EXPONENTS


def test_too_few_samples_have_infinite_intervals():
    dist, target = scaled_numbers(1.0, 5)
    calibration = Calibration.fit(dist, target, levels=(0.5, 0.9))
    assert calibration.quantiles[1] == (math.inf, math.inf)
    assert math.isfinite(calibration.quantiles[0][0])
    assert Calibration.model_validate_json(calibration.model_dump_json()) == calibration
    assert calibration.interval(dist, 0.9)[0].eq(-math.inf).all()


# --- quantiles -----------------------------------------------------------------------------------

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)


def wave(count: int, seed: int, factor: float = 1.0) -> tuple[Quantiles, torch.Tensor]:
    """Two values whose noise grows with x, and quantiles of a normal whose scale is off."""
    rng = np.random.default_rng(seed)
    noise = torch.as_tensor(np.exp(rng.uniform(-2, 2, (count, 2))))
    target = 5 + noise * torch.as_tensor(rng.normal(size=(count, 2)))
    z = torch.as_tensor(stats.norm.ppf(SHARES))
    gaps = factor * noise.unsqueeze(-1) * z.diff()
    return Quantiles(torch.full_like(target, 5), gaps, SHARES), target


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_quantiles_of_quantiles_are_those_of_the_paper(factor):
    """Too narrow, right, and too wide ones, whose q is negative; against NumPy."""
    dist, target = wave(199, 0, factor)
    calibration = Calibration.fit(dist, target, levels=(0.9, 0.5))
    other, _ = wave(50, 1, factor)
    halves = other.gaps.sum(-1).numpy() / 2  # of the ends of 90 %
    for level, share, rank in ((0.9, 0.95, 180), (0.5, 0.75, 100)):
        half = dist.gaps.sum(-1).numpy() / 2 * stats.norm.ppf(share) / stats.norm.ppf(0.95)
        scores = np.maximum(5 - half - target.numpy(), target.numpy() - 5 - half)
        expected = np.sort(scores, 0)[rank - 1]
        quantiles = calibration.quantiles[calibration.levels.index(level)]
        np.testing.assert_allclose(quantiles, expected)
        lower, upper = calibration.interval(other, level)
        ends = halves * stats.norm.ppf(share) / stats.norm.ppf(0.95)
        np.testing.assert_allclose(upper, 5 + (ends + expected).clip(0))
        np.testing.assert_allclose(lower, 5 - (ends + expected).clip(0))
    assert factor == 1 or (factor > 1) == (max(calibration.quantiles[0]) < 0)
    assert Calibration.model_validate_json(calibration.model_dump_json()) == calibration


@pytest.mark.parametrize("level", [0.5, 0.9])
@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_intervals_of_quantiles_cover_in_many_repetitions(level, factor):
    """400 calibrations of 60 samples, whatever the scale; ends never cross."""
    shares = []
    for repetition in range(400):
        dist, target = wave(160, repetition, factor)
        lower, upper = dist[:60].ends(level)
        scores = torch.maximum(lower - target[:60], target[:60] - upper)
        calibration = Calibration(
            theta=(0.0,), levels=(level,), quantiles=(conformal_quantiles(scores, level),)
        )
        lower, upper = calibration.interval(dist[60:])
        assert bool((lower <= upper).all())
        inside = (lower <= target[60:]) & (target[60:] <= upper)
        shares.append(inside.double().mean().item())
    error = np.std(shares) / math.sqrt(400)
    assert np.mean(shares) > level - 3 * error
    assert np.mean(shares) < level + (1 / 61 if factor < 1 else 0.08) + 3 * error


def test_intervals_of_quantiles_are_narrower_where_noise_varies():
    dist, target = wave(500, 0)
    fresh, truth = wave(5000, 1)
    intervals = {
        "own": Calibration.fit(dist, target).interval(fresh),
        "constant": Calibration.fit(
            Normal(dist.mean, dist.variance.sqrt()), target, exponent=0.0
        ).interval(Normal(fresh.mean, fresh.variance.sqrt())),
    }
    width = {}
    for name, (lower, upper) in intervals.items():
        inside = (lower <= truth) & (truth <= upper)
        assert inside.double().mean() == pytest.approx(0.9, abs=0.02)
        width[name] = (upper - lower).mean().item()
    assert width["own"] < 0.9 * width["constant"]


def test_missing_and_censored_targets_do_not_move_the_ends():
    dist, target = wave(99, 0)
    known = torch.arange(99) % 3 > 0
    lower = torch.full_like(target, -torch.inf)
    lower[::9, 0] = 7.0
    weight = known.float()[:, None].expand(-1, 2).contiguous()
    given = Target(target, weight, lower, torch.full_like(target, torch.inf))
    calibration = Calibration.fit(dist, given, (0.8,))
    for column in range(2):
        rows = known if column else known & (torch.arange(99) % 9 > 0)
        one = Quantiles(dist.center[rows], dist.gaps[rows], SHARES)
        expected = Calibration.fit(one, target[rows], (0.8,)).quantiles[0][column]
        assert calibration.quantiles[0][column] == pytest.approx(expected)


def test_intervals_of_quantiles_do_not_depend_on_the_unit():
    dist, target = wave(99, 0, 2.0)
    scale, shift = torch.tensor([1000.0, 0.01]).double(), torch.tensor([5.0, -3.0]).double()
    lower, upper = Calibration.fit(dist, target).interval(dist)
    other = dist.affine(scale, shift)
    fitted = Calibration.fit(other, target * scale + shift)
    torch.testing.assert_close(
        fitted.interval(other), (lower * scale + shift, upper * scale + shift)
    )


def test_ends_of_members_are_averaged():
    dist, target = wave(120, 0)
    places = torch.randn(120, 3, 2, generator=generator(0)).double()
    members = Quantiles(5 + places, dist.gaps[:, None].expand(-1, 3, -1, -1), SHARES)
    calibration = Calibration.fit(members[:, 0], target, (0.9,), of_members=True)
    each = [calibration.interval(members[:, place]) for place in range(3)]
    expected = [torch.stack(ends).mean(0) for ends in zip(*each, strict=True)]
    torch.testing.assert_close(calibration.interval(members.mixture()), tuple(expected))


@pytest.mark.parametrize("factor", [0.1, 1.0, 10.0])
def test_a_likelihood_with_jumps_has_nearly_its_maximum(factor):
    dist, target = wave(300, 0, factor)

    def cost(theta: float) -> float:
        nll = -dist.calibrated(torch.tensor([theta]).double()).log_prob(target).mean()
        return nll.item() + 0.5 * theta**2 / 300

    best = min(map(cost, np.linspace(-4, 4, 2001)))
    assert cost(Calibration.fit(dist, target).theta[0]) < best + 0.005


# --- errors --------------------------------------------------------------------------------------

DIRICHLET, LABELS = Dirichlet(torch.full((4, 3), 2.0)), torch.tensor([0, 1, 2, 0])
NUMBERS, TARGET = scaled_numbers(1.0, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Calibration.fit(DIRICHLET, LABELS[:2]), r"shape \(2,\), but .* needs \(4,\)"),
        (lambda: Calibration.fit(DIRICHLET, LABELS + 2), r"from 0 to 2, but span \[2, 4\]"),
        (lambda: Calibration.fit(DIRICHLET, LABELS.float()), "be integers, not torch.float32"),
        (lambda: Calibration.fit(DIRICHLET[:0], LABELS[:0]), r"batch shape \(N,\)"),
        (lambda: Calibration.fit(NUMBERS, TARGET[:, 0]), r"shape \(4,\), expected \(4, 2\)"),
        (lambda: Calibration.fit(NUMBERS, TARGET * math.nan), "target must be finite"),
        (lambda: Calibration.fit(NUMBERS, TARGET, levels=(1.0,)), "levels must be in"),
        (lambda: Calibration.fit(NUMBERS, TARGET, exponent=2.0), "exponent must be from 0 to 1"),
        (lambda: interval_exponent(NUMBERS, TARGET, level=1.0), "level must be in"),
        (lambda: Calibration(theta=(0.0,))(DIRICHLET), "has 1 parameters, but .* needs 2"),
        (lambda: Calibration(theta=(0.0,)).interval(NUMBERS, 0.9), "level 0.9 .* levels: none"),
        (
            lambda: Calibration.fit(DIRICHLET, LABELS, (0.5,)).prediction_set(DIRICHLET, 0.9),
            "level 0.9 was not fitted; fitted levels: 0.5",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"theta": [math.nan]}, "finite number"),
        ({"levels": [0.9]}, "0 quantiles for 1 levels"),
        ({"levels": [0.9], "quantiles": [["nan"]]}, "not NaN"),
        ({"levels": (0.9, 0.9), "quantiles": ((1.0,), (1.0,))}, "levels must be distinct"),
        ({"temperature": 1.0}, "Extra inputs"),
    ],
)
def test_bad_files_are_errors(values, message):
    with pytest.raises(ValidationError, match=message):
        Calibration.model_validate({"theta": [0.0], **values})
