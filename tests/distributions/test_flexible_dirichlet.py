import numpy as np
import pytest
import torch

from dubito.distributions import FlexibleDirichlet
from tests.accuracy import TINY
from tests.reference import MP, exact

SCORES = ("gini_of_mean", "expected_gini", "variance")
TERMS = ("squared_error", "allocation_error")


def evaluate(dist, name, target):
    return getattr(dist, name)(target) if name in TERMS else dist.score(name)


def others(values):
    """Return for each class the sum over all other classes."""
    return MP.fsum(values) - values


class Exact:
    """Values and slopes in mpmath, by the textbook formulas.

    A slope comes with its scale, the sum of the magnitudes of its terms. 1 - mu and 1 - p are one
    term; y - mu is two, y (1 - mu) and (1 - y) mu, of which a label leaves one.
    """

    def __init__(self, log_alpha, logits, raw_tau, y):
        exp = np.vectorize(MP.exp, otypes=[object])
        self.alpha, powers, self.y = exp(exact(log_alpha)), exp(exact(logits)), exact(y)
        self.p = powers / MP.fsum(powers)
        raw = MP.mpf(float(raw_tau))
        self.tau, self.tau_slope = MP.log(1 + MP.exp(raw)), 1 / (1 + MP.exp(-raw))
        self.sum = MP.fsum(self.alpha)
        self.alpha0 = self.sum + self.tau
        self.mu = (self.alpha + self.tau * self.p) / self.alpha0
        self.not_mu, self.not_p = others(self.mu), others(self.p)
        self.share, self.unknown = self.tau / self.alpha0, 1 / (self.alpha0 + 1)
        self.zero = 0 * self.mu

    def values(self):
        mu, p, tau, alpha0 = self.mu, self.p, self.tau, self.alpha0
        variance = mu * (1 - mu) / (alpha0 + 1) + tau**2 * p * (1 - p) / (alpha0 * (alpha0 + 1))
        total, epistemic = 1 - MP.fsum(mu**2), MP.fsum(variance)
        return {
            "gini_of_mean": total,
            "expected_gini": total - epistemic,
            "variance": epistemic,
            "squared_error": MP.fsum((self.y - mu) ** 2) + epistemic,
            "allocation_error": MP.fsum((self.y - p) ** 2),
        }

    def slopes(self):
        """Return name -> (slopes by the outputs, their scales), each (2K + 1,)."""
        mu, p, y, unknown = self.mu, self.p, self.y, self.unknown
        bias, bias_scale = 2 * (mu - y), 2 * (y * self.not_mu + (1 - y) * mu)
        split, split_scale = 2 * (p - y), 2 * (y * self.not_p + (1 - y) * p)
        own, between = 2 * unknown * mu, 2 * (1 - unknown) * self.share**2 * p
        spread = self._variance_scalars()
        return {
            "gini_of_mean": self._chain((-2 * mu, 2 * mu)),
            "expected_gini": self._expected_gini(),
            "variance": self._chain((-own, own), (-between, between), spread),
            "squared_error": self._chain(
                (bias - own, bias_scale + own), (-between, between), spread
            ),
            "allocation_error": self._chain((self.zero, self.zero), (split, split_scale)),
        }

    def _variance_scalars(self):
        """Return terms of the slopes of the variance at fixed mu and p, by alpha and by tau."""
        share, unknown, alpha0 = self.share, self.unknown, self.alpha0
        gini, gini_p = MP.fsum(self.mu * self.not_mu), MP.fsum(self.p * self.not_p)
        both = [-(unknown**2) * gini, unknown**2 * share**2 * gini_p]
        moved = 2 * (1 - unknown) * share / alpha0 * gini_p
        return [*both, -moved * share], [*both, moved * (1 - share)]

    def _chain(self, by_mu, by_p=None, scalars=((), ())):
        by_p = (self.zero, self.zero) if by_p is None else by_p
        parts = []
        for sign, mu_part, p_part in zip((-1, 1), by_mu, by_p, strict=True):
            size = (lambda v: v) if sign == -1 else abs
            alpha = (mu_part * self.not_mu + sign * others(mu_part * self.mu)) / self.alpha0
            alpha = self.alpha * (alpha + MP.fsum(map(size, scalars[0])))
            inner = self.share * mu_part + p_part
            logits = self.p * (inner * self.not_p + sign * others(inner * self.p))
            moved = mu_part * (self.p + sign * self.alpha / self.sum)
            tau = (1 - self.share) / self.alpha0 * MP.fsum(moved) + MP.fsum(map(size, scalars[1]))
            parts.append(np.array([*alpha, *logits, self.tau_slope * tau], dtype=object))
        return parts

    def _expected_gini(self):
        """Differentiate (sum_j alpha_j (others + 2 tau (1 - p_j)))/(alpha0 (alpha0 + 1))."""
        scale = self.alpha0 * (self.alpha0 + 1)
        cross, rest = MP.fsum(self.alpha * self.not_p), others(self.alpha)
        value = (MP.fsum(self.alpha * rest) + 2 * self.tau * cross) / scale
        parts = []
        for sign in (-1, 1):
            fall = sign * value * (1 / self.alpha0 + self.unknown)
            alpha = self.alpha * (2 * (rest + self.tau * self.not_p) / scale + fall)
            inner = 2 * self.tau * self.alpha / scale
            logits = self.p * (sign * inner * self.not_p + others(inner * self.p))
            tau = self.tau_slope * (2 * cross / scale + fall)
            parts.append(np.array([*alpha, *logits, tau], dtype=object))
        return parts


def hard_case(rng, classes):
    """Draw outputs (2K + 1,) and a target (K,) in float32, over the range of the accuracy bar."""
    log_alpha, logits = rng.uniform(-13.8, 60, classes), rng.uniform(-69, 0, classes)
    tau = 10 ** rng.uniform(-8, 10)
    kind = rng.choice(["wide", "usual", "one-hot", "uniform", "small"])
    if kind in ("usual", "one-hot"):
        log_alpha, logits = rng.normal(size=(2, classes))
    if kind == "one-hot":
        log_alpha[0], logits[0] = rng.uniform(0, 50), rng.uniform(0, 60)
    if kind == "uniform":
        log_alpha, logits = np.full(classes, rng.uniform(-10, 10)), np.zeros(classes)
    if kind == "small":
        log_alpha = rng.uniform(-13.8, 0, classes)
    raw_tau = tau if tau > 30 else np.log(np.expm1(tau))
    target = rng.dirichlet(np.full(classes, 0.5))
    if rng.random() < 0.6:
        label = rng.choice([0, classes - 1, log_alpha.argmax(), logits.argmax()])
        target = np.eye(classes)[label]
    return np.float32([*log_alpha, *logits, raw_tau]), np.float32(target)


@pytest.mark.parametrize(("classes", "count"), [(2, 150), (3, 150), (10, 60), (100, 8)])
def test_scores_and_terms_are_exact_in_float32(classes, count):
    rng = np.random.default_rng(classes)
    cases = [hard_case(rng, classes) for _ in range(count)]
    outputs = torch.tensor(np.stack([c[0] for c in cases])).requires_grad_()
    target = torch.tensor(np.stack([c[1] for c in cases]))
    dist = FlexibleDirichlet.from_outputs(outputs)
    value = {name: evaluate(dist, name, target) for name in SCORES + TERMS}
    gradient = {
        name: torch.autograd.grad(v.sum(), outputs, retain_graph=True)[0].numpy()
        for name, v in value.items()
    }
    errors: dict[str, list[float]] = {"value": [], "gradient": []}
    for i, (raw, y) in enumerate(cases):
        truth = Exact(raw[:classes], raw[classes:-1], raw[-1], y)
        # Slopes by alpha itself, not by its logarithm, may leave the range of float32.
        floor = TINY * np.array([max(a, 1) for a in truth.alpha] + [1] * (classes + 1))
        slopes = truth.slopes()
        for name, expected in truth.values().items():
            slope, scale = slopes[name]
            # Errors of soft targets can be zero: add how far the outputs move them.
            size = expected + (MP.fsum(scale) if name in TERMS and y.max() < 1 else 0)
            errors["value"].append(float(abs(value[name][i].item() - expected) / max(size, TINY)))
            error = abs(gradient[name][i].astype(object) - slope)
            errors["gradient"].extend((error / np.maximum(scale, floor)).astype(float))
    for part in errors.values():
        assert max(part) <= 1e-5
        assert np.median(part) <= 1e-6


def test_probabilities_are_exact_in_float32():
    rng = np.random.default_rng(0)
    raw = np.stack([hard_case(rng, 5)[0] for _ in range(100)])
    dist = FlexibleDirichlet.from_outputs(torch.tensor(raw))
    for i, row in enumerate(raw):
        mu = Exact(row[:5], row[5:10], row[10], np.zeros(5)).mu
        logs = np.array([MP.log(m) for m in mu], dtype=object)
        assert (abs(dist.probs[i].numpy() - mu) <= 1e-5 * mu + TINY).all()
        assert (abs(dist.log_probs[i].numpy() - logs) <= 1e-5 * abs(logs) + TINY).all()


def test_hard_outputs_stay_finite():
    rng = np.random.default_rng(1)
    outputs = rng.uniform(-1, 1, (10000, 9)) * 10 ** rng.uniform(-3, 6, (10000, 9))
    outputs = torch.tensor(outputs, dtype=torch.float32).requires_grad_()
    target = torch.tensor(rng.integers(4, size=10000))
    dist = FlexibleDirichlet.from_outputs(outputs)
    values = [evaluate(dist, name, target) for name in SCORES + TERMS]
    for value in [*values, dist.predictive.log_prob(target)]:
        (gradient,) = torch.autograd.grad(value.sum(), outputs, retain_graph=True)
        assert value.isfinite().all()
        assert gradient.isfinite().all()


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("name", SCORES + TERMS)
def test_gradcheck(name):
    outputs = torch.randn(4, 7, dtype=torch.float64) * 2
    target = torch.tensor([0, 1, 2, 0])

    def function(outputs):
        return evaluate(FlexibleDirichlet.from_outputs(outputs), name, target)

    assert torch.autograd.gradcheck(function, outputs.requires_grad_(), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, outputs)


@pytest.mark.parametrize("nested", [False, True])
def test_mixture_adds_up_to_the_gini_index_of_its_mean(nested):
    members = FlexibleDirichlet.from_outputs(torch.randn(5, 2, 3, 9, dtype=torch.float64))
    mixture = members.mixture().mixture() if nested else members.mixture()
    torch.testing.assert_close(mixture.total, 1 - mixture.probs.square().sum(-1))
    torch.testing.assert_close(mixture.total, mixture.aleatoric + mixture.epistemic)


def test_labels_equal_one_hot_targets():
    dist = FlexibleDirichlet.from_outputs(torch.randn(6, 9))
    labels = torch.arange(6) % 4
    one_hot = torch.nn.functional.one_hot(labels, 4).float()
    for name in TERMS:
        torch.testing.assert_close(evaluate(dist, name, labels), evaluate(dist, name, one_hot))


def test_outputs_of_even_size_raise():
    with pytest.raises(ValueError, match="6 values per sample: expected 2K"):
        FlexibleDirichlet.from_outputs(torch.zeros(3, 6))
