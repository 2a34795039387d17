"""Mixture of Dirichlets: moments by mpmath's textbook formulas and by samples."""

import numpy as np
import pytest
import torch

from dubito.distributions import FlexibleDirichlet
from dubito.distributions.dirichlet_mixture import DirichletMixture
from tests.accuracy import TINY
from tests.distributions.test_flexible_dirichlet import others
from tests.reference import MP, exact

SCORES = ("gini_of_mean", "expected_gini", "variance")
TERMS = ("mean_error", "allocation_error")
exp = np.vectorize(MP.exp, otypes=[object])


def moments(log_alpha, logits, log_tau):
    """Return p, the mean and name -> score, from the first two moments of the components."""
    alpha, tau, powers = exp(exact(log_alpha)), exp(exact(log_tau)), exp(exact(logits))
    p, size = powers / MP.fsum(powers), MP.fsum(alpha) + tau
    means = [(alpha + t * unit) / s for t, s, unit in zip(tau, size, np.eye(len(p)), strict=True)]
    mean = sum(weight * row for weight, row in zip(p, means, strict=True))
    ginis = np.array([MP.fsum(row * others(row)) for row in means], dtype=object)
    apart = np.array([MP.fsum((row - mean) ** 2) for row in means], dtype=object)
    variance = MP.fsum(p * (ginis / (size + 1) + apart))
    total = MP.fsum(mean * others(mean))
    return p, mean, dict(zip(SCORES, (total, total - variance, variance), strict=True))


def hard_case(rng, classes):
    """Draw outputs (3K,) in float32, over the range of the accuracy bar."""
    log_alpha, logits = rng.uniform(-13.8, 60, classes), rng.uniform(-69, 0, classes)
    log_tau = rng.uniform(-18, 23, classes)
    kind = rng.choice(["wide", "usual", "one-hot", "equal"])
    if kind in ("usual", "one-hot"):
        log_alpha, logits, log_tau = rng.normal(size=(3, classes))
    if kind == "one-hot":
        log_alpha[0], logits[0], log_tau[1] = rng.uniform(0, 50, 3)
    if kind == "equal":
        log_tau = np.full(classes, log_tau[0])
    return np.float32([*log_alpha, *logits, *log_tau])


@pytest.mark.parametrize(("classes", "count"), [(2, 150), (3, 150), (10, 40)])
def test_moments_are_exact_in_float32(classes, count):
    rng = np.random.default_rng(classes)
    raw = np.stack([hard_case(rng, classes) for _ in range(count)])
    outputs = torch.tensor(raw)
    dist, double = (DirichletMixture.from_outputs(x) for x in (outputs, outputs.double()))
    for i, row in enumerate(raw):
        p, mean, scores = moments(*np.split(row, 3))
        for name, expected in scores.items():
            assert abs(dist.score(name)[i].item() - expected) <= 1e-5 * expected + TINY
            assert abs(double.score(name)[i].item() - expected) <= 1e-12 * expected + TINY
        logs = np.array([MP.log(m) for m in mean], dtype=object)
        assert (abs(dist.probs[i].numpy() - mean) <= 1e-5 * mean + TINY).all()
        assert (abs(dist.log_probs[i].numpy() - logs) <= 1e-5 * abs(logs) + TINY).all()
        error = float(MP.fsum((np.eye(classes)[0] - mean) ** 2))
        assert double.mean_error(torch.zeros(count).long())[i].item() == pytest.approx(error)
        error = float(MP.fsum((np.eye(classes)[0] - p) ** 2))
        assert double.allocation_error(torch.zeros(count).long())[i].item() == pytest.approx(error)


def test_gradients_of_float32_are_those_of_float64():
    rng = np.random.default_rng(0)
    raw = torch.tensor(np.stack([hard_case(rng, 4) for _ in range(300)]))
    target = torch.arange(300) % 4
    for name in (*SCORES, *TERMS):
        slopes = []
        for dtype in (torch.float32, torch.float64):
            leaf = raw.to(dtype).requires_grad_()
            dist = DirichletMixture.from_outputs(leaf)
            value = dist.score(name) if name in SCORES else getattr(dist, name)(target)
            slopes.append(torch.autograd.grad(value.sum(), leaf)[0].double())
        single, double = slopes
        # Parts of a slope may cancel by nature: compare with the largest of a sample.
        scale = double.abs().amax(-1, keepdim=True).clamp_min(TINY)
        assert ((single - double).abs() / scale).max() < 1e-4, name


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("name", [*SCORES, *TERMS])
def test_gradcheck(name):
    outputs = torch.randn(3, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def function(outputs):
        dist = DirichletMixture.from_outputs(2 * outputs)
        return dist.score(name) if name in SCORES else getattr(dist, name)(torch.arange(3))

    assert torch.autograd.gradcheck(function, outputs.requires_grad_())


def test_moments_match_samples():
    alpha, p, tau = np.array([0.5, 2.0, 1.0]), np.array([0.2, 0.7, 0.1]), np.array([6.0, 0.3, 2.0])
    rng = np.random.default_rng(0)
    rows = alpha + np.diag(tau)[rng.choice(3, p=p, size=200_000)]
    samples = rng.gamma(rows)
    samples /= samples.sum(-1, keepdims=True)
    dist = DirichletMixture(*(torch.tensor(v).log() for v in (alpha, p, tau)))
    np.testing.assert_allclose(dist.probs, samples.mean(0), atol=3e-3)
    assert dist.epistemic.item() == pytest.approx(samples.var(0).sum(), rel=0.01)
    assert dist.aleatoric.item() == pytest.approx((1 - (samples**2).sum(-1)).mean(), rel=0.01)
    error = ((np.eye(3)[1] - samples) ** 2).sum(-1).mean()
    assert dist.squared_error(torch.tensor(1)).item() == pytest.approx(error, rel=0.01)
    assert dist.alpha0.item() == pytest.approx(rows.sum(-1).mean(), rel=0.01)


def test_one_tau_gives_the_flexible_dirichlet():
    log_alpha, logits = torch.randn(2, 50, 4, dtype=torch.float64)
    log_tau = torch.randn(50, 1, dtype=torch.float64)
    ours = DirichletMixture(log_alpha, logits, log_tau.expand(50, 4))
    other = FlexibleDirichlet(log_alpha.exp(), logits.softmax(-1), log_tau[:, 0].exp())
    for name in (*SCORES, "alpha0"):
        torch.testing.assert_close(ours.score(name), other.score(name))
    torch.testing.assert_close(ours.log_probs, other.log_probs)


def test_outputs_of_another_size_raise():
    with pytest.raises(ValueError, match="7 values per sample: expected 3K"):
        DirichletMixture.from_outputs(torch.zeros(3, 7))


def test_density_is_that_of_the_components():
    torch.manual_seed(0)
    dist = DirichletMixture(*torch.randn(3, 5, 4, dtype=torch.float64))
    pi = torch.rand(5, 4, dtype=torch.float64).softmax(-1)
    components = dist.alpha.unsqueeze(-2) + torch.diag_embed(dist.tau)
    each = torch.distributions.Dirichlet(components).log_prob(pi.unsqueeze(-2))
    expected = (dist.p.log() + each).logsumexp(-1)
    torch.testing.assert_close(dist.log_density(pi.log()), expected)
