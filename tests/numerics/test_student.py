import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from dubito.numerics import student
from tests.reference import MP

EXCESS = (1e-7, 0.5, 3.0, 50.0, 1e4)
POINTS = (0.0, 1e-6, 0.3, 0.999, 1.0, 2.5, 40.0, 1e3, 1e9)
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")


def upper(excess: float, z: float) -> object:
    """P(Z > z) as a regularized incomplete beta function, without cancellation for z >= 0."""
    df, z = MP.mpf(excess) + 2, MP.mpf(z)
    if z < 0:
        return 1 - upper(excess, -z)
    return MP.betainc(df / 2, MP.mpf(1) / 2, 0, df / (df + z * z), regularized=True) / 2


def double(*values: object) -> list[Tensor]:
    return [torch.tensor(value, dtype=torch.float64) for value in values]


def grid(*columns: object) -> list[np.ndarray]:
    return [part.ravel() for part in np.meshgrid(*columns)]


def test_tails_match_mpmath():
    excess, z = grid(EXCESS, [*POINTS, *(-p for p in POINTS)])
    keep = (excess < 1e4) | (abs(z) < 1e3)  # beyond, mpmath does not finish
    excess, z = excess[keep], z[keep]
    result = student.log_survival(*double(excess, z)).tolist()
    exact = [MP.log(upper(e, p)) for e, p in zip(excess, z, strict=True)]
    for value, expected in zip(result, exact, strict=True):
        assert abs(value - expected) <= 1e-9 * abs(expected)


def test_tails_are_those_of_a_normal_distribution():
    z = np.linspace(-35, 35, 200)
    result = student.log_survival(torch.tensor(student.NORMAL), torch.tensor(z))
    np.testing.assert_allclose(result, stats.norm.logsf(z), rtol=1e-9)


@pytest.mark.parametrize("width", [1e-9, 1e-3, 0.5, 3.0, 1e4])
def test_probabilities_of_intervals_match_mpmath(width):
    excess, low = grid((1e-7, 3.0, 50.0), (-1e4, -30.0, -0.6 * width, -0.1, 2.0, 300.0))
    result = student.log_probability(*double(excess, low, low + width)).tolist()
    for value, e, a in zip(result, excess, low, strict=True):
        ends = (-(a + width), -a) if a + width < -a else (a, a + width)  # in the upper tail
        exact = MP.log(upper(e, ends[0]) - upper(e, ends[1]))
        assert abs(value - exact) <= 1e-8 * max(1, abs(exact))


def test_open_intervals_are_tails():
    excess, z = double(3.0, [-2.0, 0.5, 7.0])
    far = torch.full_like(z, torch.inf)
    torch.testing.assert_close(
        student.log_probability(excess, z, far), student.log_survival(excess, z)
    )
    torch.testing.assert_close(
        student.log_probability(excess, -far, z), student.log_survival(excess, -z)
    )
    assert not student.log_probability(excess, -far, far).any()


def test_quantiles_match_scipy():
    excess, probability = grid(EXCESS, [1e-30, 1e-6, 0.1, 0.5, 0.9, 1 - 1e-9])
    result = student.quantile(*double(excess, probability))
    np.testing.assert_allclose(result, stats.t.ppf(probability, excess + 2), rtol=1e-7, atol=1e-8)


def test_crps_is_the_integral_of_the_squared_error_of_the_cdf():
    for excess in (0.5, 4.0, student.NORMAL):
        law = stats.norm if excess == student.NORMAL else stats.t(excess + 2)
        for z in (0.0, -1.3, 6.0):
            below, _ = integrate.quad(lambda x: law.cdf(x) ** 2, -np.inf, z)  # noqa: B023
            above, _ = integrate.quad(lambda x: law.sf(x) ** 2, z, np.inf)  # noqa: B023
            result = student.crps(*double(excess, z)).item()
            assert result == pytest.approx(below + above, rel=1e-6)


@pytest.mark.parametrize("name", ["log_survival", "log_probability", "quantile", "crps"])
def test_gradients(name):
    excess, z = double([0.01, 1.0, 30.0, 5.0], [-3.0, 0.4, 9.0, 1.5])
    ends = {"log_probability": (z, z + 0.7), "quantile": (torch.sigmoid(z),)}
    inputs = [excess, *ends.get(name, (z,))]
    inputs = [value.clone().requires_grad_() for value in inputs]
    assert torch.autograd.gradcheck(getattr(student, name), inputs)


def test_gradients_are_finite_everywhere():
    rng = np.random.default_rng(0)
    excess = torch.tensor(10 ** rng.uniform(-30, 30, 3000)).requires_grad_()
    low = torch.tensor(rng.choice([-1, 1], 3000) * 10 ** rng.uniform(-30, 40, 3000))
    low = low.requires_grad_()
    high = low + torch.tensor(10 ** rng.uniform(-30, 30, 3000))
    low_open = torch.where(torch.arange(3000) % 3 == 0, -torch.inf, low)
    high_open = torch.where(torch.arange(3000) % 3 == 1, torch.inf, high)
    value = student.log_probability(excess, low_open, high_open)
    assert not value.isnan().any()
    assert (value <= 1e-12).all()
    for gradient in torch.autograd.grad(value.sum(), (excess, low)):
        assert gradient.isfinite().all()
