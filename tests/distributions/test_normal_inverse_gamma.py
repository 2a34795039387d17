import numpy as np
import pytest
import torch

from dubito.distributions import NormalInverseGamma
from dubito.targets import Target
from tests.accuracy import TINY
from tests.reference import MP

NAMES = ("gamma", "nu", "alpha_minus_one", "beta")
HALF = MP.mpf(1) / 2


def nll(gamma, nu, alpha_minus_one, beta, y):
    """Return the value and the terms of each slope, by the textbook formula."""
    alpha, d, w = 1 + alpha_minus_one, y - gamma, 2 * beta * (1 + nu)
    far = nu * d * d + w
    value = MP.log(MP.pi / nu) / 2 - alpha * MP.log(w) + (alpha + HALF) * MP.log(far)
    value += MP.loggamma(alpha) - MP.loggamma(alpha + HALF)
    pull = (alpha + HALF) * nu * d * d / far
    return value, (
        [-(2 * alpha + 1) * nu * d / far],
        [-HALF / (nu * (1 + nu)), pull / (nu * (1 + nu))],
        [MP.log(far / w), MP.psi(0, alpha) - MP.psi(0, alpha + HALF)],
        [HALF / beta, -pull / beta],
    )


def evidence_penalty(gamma, nu, alpha_minus_one, beta, y):
    d, evidence = y - gamma, 2 * nu + 1 + alpha_minus_one
    return abs(d) * evidence, ([-MP.sign(d) * evidence], [2 * abs(d)], [abs(d)], [MP.mpf(0)])


def expected_nll(gamma, nu, alpha_minus_one, beta, y):
    alpha, d = 1 + alpha_minus_one, y - gamma
    error = alpha / beta * d * d / 2
    value = (MP.log(2 * MP.pi * beta) - MP.psi(0, alpha) + 1 / nu) / 2 + error
    slope = [-MP.psi(1, alpha) / 2, d * d / beta / 2]
    return value, ([-alpha / beta * d], [-HALF / nu**2], slope, [HALF / beta, -error / beta])


TERMS = {"nll": nll, "evidence_penalty": evidence_penalty}


def entropy(gamma, nu, alpha_minus_one, beta, y):
    alpha = 1 + alpha_minus_one
    value = alpha + HALF + MP.log(2 * MP.pi) / 2 + 3 * MP.log(beta) / 2 - MP.log(nu) / 2
    value += MP.loggamma(alpha) - (alpha + 3 * HALF) * MP.psi(0, alpha)
    slope = [MP.mpf(1), -(alpha + 3 * HALF) * MP.psi(1, alpha)]
    return value, ([MP.mpf(0)], [-HALF / nu], slope, [3 * HALF / beta])


def fisher_log_det(gamma, nu, alpha_minus_one, beta, y):
    alpha = 1 + alpha_minus_one
    excess = MP.psi(1, alpha) - 1 / alpha
    slope = [MP.psi(2, alpha) / excess, 1 / (alpha**2 * excess)]
    return MP.log(excess / (2 * nu**2)), ([MP.mpf(0)], [-2 / nu], slope, [MP.mpf(0)])


OTHER = (0.25, 1.5, 2.0, 0.75)


def kl(gamma, nu, alpha_minus_one, beta, y):
    """E ln p - E ln q, of ln sigma^2 and 1/sigma^2."""
    gamma_0, nu_0, alpha_0, beta_0 = MP.mpf(OTHER[0]), *(MP.mpf(v) for v in OTHER[1:])
    alpha, alpha_0 = 1 + alpha_minus_one, 1 + alpha_0
    d, r = gamma - gamma_0, beta_0 / beta
    value = (MP.log(nu / nu_0) + nu_0 / nu - 1 + nu_0 * d * d * alpha / beta) / 2
    value += (alpha - alpha_0) * MP.psi(0, alpha) - MP.loggamma(alpha) + MP.loggamma(alpha_0)
    value += -alpha_0 * MP.log(r) + alpha * (r - 1)
    return value, (
        [nu_0 * d * alpha / beta],
        [HALF / nu, -HALF * nu_0 / nu**2],
        [(alpha - alpha_0) * MP.psi(1, alpha), r, MP.mpf(-1), HALF * nu_0 * d * d / beta],
        [alpha_0 / beta, -alpha * r / beta, -HALF * nu_0 * d * d * alpha / beta**2],
    )


def variance(gamma, nu, alpha_minus_one, beta, y):
    noise = beta / alpha_minus_one
    value = noise * (1 + 1 / nu)
    return value, ([MP.mpf(0)], [-noise / nu**2], [-value / alpha_minus_one], [value / beta])


def fisher_entry(entry):
    """Return the truth of one entry of the diagonal, with the slopes of its logarithm."""

    def truth(gamma, nu, alpha_minus_one, beta, y):
        alpha = 1 + alpha_minus_one
        values = (nu * alpha / beta, HALF / nu**2, MP.psi(1, alpha), alpha / beta**2)
        alphas = (1 / alpha, 0, MP.psi(2, alpha) / MP.psi(1, alpha), 1 / alpha)
        logs = (1 / nu, -2 / nu, 0, 0)[entry], alphas[entry], (-1 / beta, 0, 0, -2 / beta)[entry]
        value = values[entry]
        return value, ([MP.mpf(0)], *([value * slope] for slope in logs))

    return truth


#: target, of which the squared error in units of the noise is within the range of float32
NEAR = torch.tensor([0.5])
REFERENCE = NormalInverseGamma(*(torch.tensor([v]) for v in OTHER))
#: function of a distribution, its truth, and the least nu that float32 can hold in the result
QUANTITIES = {
    "entropy": (NormalInverseGamma.entropy, entropy, 1e-30),
    "fisher_log_det": (NormalInverseGamma.fisher_log_det, fisher_log_det, 1e-30),
    "kl": (lambda dist: dist.kl(REFERENCE), kl, 1e-10),
    "expected_nll": (lambda dist: dist.expected_nll(NEAR), expected_nll, 1e-10),
    "variance": (lambda dist: dist.variance, variance, 1e-10),
    **{
        f"fisher_{name}": (lambda dist, i=i: dist.fisher_diagonal()[i], fisher_entry(i), 1e-10)
        for i, name in enumerate(NAMES)
    },
}


def hard_parameters(n, seed=0, least_nu=1e-30):
    """Return float32 gamma, nu, alpha - 1, beta over the range of the accuracy bar, and targets."""
    rng = np.random.default_rng(seed)
    spans = ((np.log10(least_nu), 10), (-7, 8), (-10, 10))
    nu, alpha, beta = (10 ** rng.uniform(*span, n) for span in spans)
    error = rng.choice([-1, 1], n) * 10 ** rng.uniform(-8, 6, n)
    error[: n // 20] = 0
    gamma = rng.normal(size=n) * rng.choice([0.0, 1.0, 100.0], n)
    return [torch.tensor(v, dtype=torch.float32) for v in (gamma, nu, alpha, beta, gamma + error)]


def errors(inputs, value, gradient, function, outer):
    """Return the errors of values and gradients against mpmath.

    The scale of a value is its size plus how far each input moves it per relative change; that of
    a slope is the sum of the magnitudes of its terms.
    """
    result = []
    for i, row in enumerate(zip(*(v.tolist() for v in inputs), strict=True)):
        point, chain = outer([MP.mpf(v) for v in row])
        exact, terms = function(*point)
        slopes = [c * MP.fsum(t) for c, t in zip(chain, terms, strict=True)]
        sizes = [abs(c) * MP.fsum(map(abs, t)) for c, t in zip(chain, terms, strict=True)]
        moved = MP.fsum(abs(x * MP.fsum(t)) for x, t in zip(point[1:4], terms[1:], strict=True))
        scale = abs(exact) + moved + abs((point[4] - point[0]) * slopes[0])
        computed = [value[i].item(), *gradient[i].tolist()]
        pairs = zip(computed, [exact, *slopes], [scale, *sizes], strict=True)
        result.append([float(abs(s - e) / max(c, TINY)) for s, e, c in pairs])
    return np.array(result)


def as_given(row):
    return row, [1, 1, 1, 1]


def through_softplus(row):
    raw = [max(v, -60) for v in row[1:4]]
    values = [MP.log1p(MP.exp(v)) for v in raw]
    return [row[0], *values, row[4]], [1, *(1 / (1 + MP.exp(-v)) for v in raw)]


@pytest.mark.parametrize("transformed", [False, True])
@pytest.mark.parametrize("term", TERMS)
def test_term_is_exact_in_float32(term, transformed):
    *parameters, y = inputs = hard_parameters(600)
    parameters = [v.unsqueeze(-1) for v in parameters]

    def function(*parameters):
        return getattr(NormalInverseGamma(*parameters), term)(y.unsqueeze(-1))

    if transformed:  # as on other devices and in compiled code: operations of torch
        value, gradient_of = torch.func.vjp(function, *parameters)
        gradient = gradient_of(torch.ones_like(value))
    else:
        value = function(*[v.requires_grad_() for v in parameters])
        gradient = torch.autograd.grad(value.sum(), parameters, materialize_grads=True)
    result = errors(inputs, value, torch.cat(gradient, -1), TERMS[term], as_given)
    assert result.max() <= 2e-6
    assert np.median(result) <= 1e-6


@pytest.mark.parametrize("name", QUANTITIES)
def test_quantity_is_exact_in_float32(name):
    function, truth, least_nu = QUANTITIES[name]
    inputs = hard_parameters(100, least_nu=least_nu)
    inputs[4] = NEAR.expand(100)
    parameters = [v.unsqueeze(-1).requires_grad_() for v in inputs[:4]]
    value = function(NormalInverseGamma(*parameters))
    gradient = torch.autograd.grad(value.sum(), parameters, materialize_grads=True)
    result = errors(inputs, value, torch.cat(gradient, -1), truth, as_given)
    assert result.max() <= 4e-6
    assert np.median(result) <= 1e-6


def test_information_matches_samples():
    """Entropy, divergence and Fisher information are expectations of the log density."""
    own, other = (
        [torch.tensor(v, dtype=torch.float64) for v in values]
        for values in ((0.3, 2.0, 3.0, 1.2), (0.0, 1.5, 2.0, 2.0))
    )
    rng = np.random.default_rng(0)
    variance = torch.tensor(1.2 / rng.gamma(4.0, size=20_000))
    mean = torch.tensor(rng.normal(0.3, (variance / 2).sqrt().numpy()))

    def log_density(gamma, nu, alpha_minus_one, beta):
        noise = torch.distributions.InverseGamma(alpha_minus_one + 1, beta)
        spread = torch.distributions.Normal(gamma, (variance / nu).sqrt())
        return noise.log_prob(variance) + spread.log_prob(mean)

    dist = NormalInverseGamma(*(v.unsqueeze(0) for v in own))
    rival = NormalInverseGamma(*(v.unsqueeze(0) for v in other))
    logs = log_density(*own)
    assert dist.entropy().item() == pytest.approx(-logs.mean().item(), abs=0.03)
    expected = (logs - log_density(*other)).mean().item()
    assert dist.kl(rival).item() == pytest.approx(expected, abs=0.03)
    hessian = torch.autograd.functional.hessian(lambda *p: -log_density(*p).mean(), tuple(own))
    fisher = torch.tensor(hessian)
    torch.testing.assert_close(torch.cat(dist.fisher_diagonal()), fisher.diag(), rtol=0.03, atol=0)
    # At a constant noise beta/alpha, beta changes with alpha.
    gamma, nu, alpha_minus_one, beta = own
    noise = beta / (alpha_minus_one + 1)

    def of_evidence(nu, excess):
        return -log_density(gamma, nu, excess, noise * (excess + 1)).mean()

    parts = torch.autograd.functional.hessian(of_evidence, (nu, alpha_minus_one))
    expected = torch.tensor(parts).logdet().item()
    assert dist.fisher_log_det().item() == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("term", TERMS)
def test_term_is_exact_through_the_outputs_of_a_network(term):
    rng = np.random.default_rng(1)
    raw = rng.uniform(-100, 100, (300, 3))
    columns = np.column_stack([rng.normal(size=300), raw, 30 * rng.normal(size=300)])
    columns = torch.tensor(columns, dtype=torch.float32)
    outputs = columns[:, :4].clone().requires_grad_()
    value = getattr(NormalInverseGamma.from_outputs(outputs), term)(columns[:, 4:])
    (gradient,) = torch.autograd.grad(value.sum(), outputs)
    result = errors(columns.unbind(-1), value, gradient, TERMS[term], through_softplus)
    assert result.max() <= 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("known", ["exact", "above", "below", "between"])
def test_hard_outputs_stay_finite(known, dtype):
    rng = np.random.default_rng(2)
    outputs = rng.uniform(-1, 1, (10000, 4)) * 10 ** rng.uniform(-3, 6, (10000, 4))
    outputs = torch.tensor(outputs, dtype=dtype).requires_grad_()
    values = rng.normal(size=(10000, 1)) * 10 ** rng.uniform(-3, 12, (10000, 1))
    values = torch.tensor(values, dtype=torch.float32)
    width, infinite = 0.1 * values.abs(), torch.full_like(values, torch.inf)
    bounds = {
        "exact": (-infinite, infinite),
        "above": (values, infinite),
        "below": (-infinite, values),
        "between": (values - width, values + width),
    }[known]
    target = values if known == "exact" else Target(values, None, *bounds)
    dist = NormalInverseGamma.from_outputs(outputs)
    for value in (dist.nll(target), dist.evidence_penalty(target)):
        (gradient,) = torch.autograd.grad(value.sum(), outputs, retain_graph=True)
        assert value.isfinite().all()
        assert gradient.isfinite().all()
    assert (dist.expected_variance > 0).all()
    assert not dist.variance_of_mean.isnan().any()  # may exceed the range of float32


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("term", TERMS)
def test_term_passes_gradcheck(term):
    outputs = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    target = torch.randn(3, 2, dtype=torch.float64)

    def function(outputs):
        return getattr(NormalInverseGamma.from_outputs(outputs), term)(target)

    assert torch.autograd.gradcheck(function, outputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, outputs)


@pytest.mark.parametrize("term", TERMS)
def test_gradients_of_float32_are_differentiable(term):
    outputs, target = torch.randn(50, 4), torch.randn(50, 1)

    def curvature(dtype):
        leaf = outputs.to(dtype).requires_grad_()
        value = getattr(NormalInverseGamma.from_outputs(leaf), term)(target.to(dtype))
        (gradient,) = torch.autograd.grad(value.sum(), leaf, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), leaf)[0].double()

    torch.testing.assert_close(
        curvature(torch.float32), curvature(torch.float64), rtol=1e-4, atol=1e-5
    )


def test_outputs_below_the_range_of_float32_keep_their_gradient():
    outputs = torch.tensor([[0.0, -500.0, 1.0, 1.0]]).requires_grad_()
    loss = NormalInverseGamma.from_outputs(outputs).nll(torch.ones(1, 1))
    (gradient,) = torch.autograd.grad(loss.sum(), outputs)
    assert gradient[0, 1].item() == pytest.approx(-0.5)  # as for any small nu


def test_scores_are_the_textbook_ratios():
    gamma, nu, alpha, beta = (
        v.double().unsqueeze(-1) for v in hard_parameters(1000, least_nu=1e-10)[:4]
    )
    exact = NormalInverseGamma(gamma, nu, alpha, beta)
    dist = exact.to(torch.float32)
    for name, value in {
        "aleatoric": beta / alpha,
        "epistemic": beta / (nu * alpha),
        "total": beta / alpha * (1 + 1 / nu),
        "evidence": 2 * nu + 1 + alpha,
    }.items():
        torch.testing.assert_close(dist.score(name).double(), value[:, 0], rtol=1e-6, atol=0)


def test_predictive_and_scores_match_samples():
    parameters = [torch.tensor([v], dtype=torch.float64) for v in (1.5, 2.0, 3.0, 1.2)]
    dist = NormalInverseGamma(*parameters)
    rng = np.random.default_rng(0)
    variance = 1.2 / rng.gamma(4.0, size=400_000)
    mean = rng.normal(1.5, np.sqrt(variance / 2.0))
    y = torch.tensor(rng.normal(mean, np.sqrt(variance)))
    assert dist.aleatoric.item() == pytest.approx(variance.mean(), rel=0.01)
    assert dist.epistemic.item() == pytest.approx(mean.var(), rel=0.01)
    assert dist.total.item() == pytest.approx(y.var().item(), rel=0.01)
    points = torch.tensor([[0.5], [1.0], [2.0], [3.0]], dtype=torch.float64)
    torch.testing.assert_close(
        dist.predictive.cdf(points),
        (y <= points).double().mean(-1, keepdim=True),
        rtol=0,
        atol=5e-3,
    )


def test_outputs_are_four_blocks():
    outputs = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]])
    dist = NormalInverseGamma.from_outputs(outputs)
    assert dist.gamma.tolist() == [[1.0, 2.0]]
    for block, name in enumerate(NAMES[1:], start=1):
        raw = outputs[:, 2 * block : 2 * block + 2]
        torch.testing.assert_close(getattr(dist, name), torch.nn.functional.softplus(raw))


def test_outputs_that_are_not_four_per_target_raise():
    with pytest.raises(ValueError, match="6 values per sample: expected 4 for each target"):
        NormalInverseGamma.from_outputs(torch.zeros(3, 6))


def test_half_precision_is_computed_in_float32():
    outputs = torch.tensor([[0.0, -12.0, -12.0, -12.0]])
    dist = NormalInverseGamma.from_outputs(outputs.bfloat16())
    torch.testing.assert_close(dist.nu, torch.nn.functional.softplus(outputs[:, 1:2]))
