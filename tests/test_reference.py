"""The reference against differences of itself, and against independent float64 code."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest
import scipy.special
import torch
from torch.distributions import Dirichlet, kl_divergence

from tests import reference_dirichlet as reference
from tests import reference_losses
from tests.accuracy_grid import CLASSES, SETTINGS, Case, Grid, cases
from tests.quantities import QUANTITIES, SCALES
from tests.reference import MP, Point, Real, Truth, Vector, exact
from tests.reference_dissonance import dissonance_parts

Float64 = npt.NDArray[np.float64]

ALPHAS = ([1.5, 2.25, 7.0], [40.0, 1.125, 3.0], [1e4, 1.0625, 2.5], [1e12, 1e9, 1.5])
BELOW_ONE = ([0.25, 0.5, 3.0],)
STEP = MP.mpf(10) ** -40


def settings(takes: str, alpha: list[float]) -> Iterator[dict[str, npt.NDArray[np.float32]]]:
    case = Case("", np.array(alpha, np.float32), (0,))
    return (inputs(case) for inputs, _ in SETTINGS[takes].values())


@pytest.mark.parametrize("name", QUANTITIES)
def test_gradients_are_those_of_differences(name: str) -> None:
    quantity = QUANTITIES[name]
    needs_evidence = name in ("belief", "dissonance")
    for alpha in ALPHAS + (() if needs_evidence else BELOW_ONE):
        for beside in settings(quantity.takes, alpha):
            beside_exact = {key: exact(column) for key, column in beside.items()}
            found = quantity.truth(Point(np.array(alpha), **beside))
            for j in range(3):
                slope = difference(quantity.truth, exact(np.array(alpha)), beside_exact, j)
                assert abs(found.gradient[j] - slope) <= 1e-14 * abs(slope)
            assert (found.gradient_scale >= abs(found.gradient) * (1 - 1e-15)).all()


def difference(
    truth: Callable[[Point], Truth],
    alpha: Vector,
    beside: dict[str, Vector],
    j: int,
) -> float:
    def shifted(by: Real) -> Real:
        moved = alpha.copy()
        moved[j] = moved[j] + by
        return truth(Point.exactly(moved, **beside)).unrounded

    step = STEP * alpha[j]
    return float((shifted(step) - shifted(-step)) / (2 * step))


FLOAT64_ALPHAS = (
    [1.5, 2.25, 7.0],
    [40.0, 1.125, 3.0],
    [0.25, 0.5, 3.0],
    [1.0] * 5,
    [30.0, 4, 4, 9],
)


def trigamma(x: Float64) -> Float64:
    return np.asarray(scipy.special.polygamma(1, x))


@pytest.mark.parametrize("values", FLOAT64_ALPHAS)
def test_values_are_those_of_torch_and_scipy(values: list[float]) -> None:
    alpha = np.array(values)
    classes, alpha0 = len(alpha), alpha.sum()
    dirichlet = Dirichlet(torch.tensor(alpha))
    probs = alpha / alpha0
    psi = scipy.special.digamma
    expected_entropy = -(probs * (psi(alpha + 1) - psi(alpha0 + 1))).sum()
    entropy_of_mean = scipy.special.entr(probs).sum()
    fisher = np.diag(trigamma(alpha)) - trigamma(alpha0)
    uniform = Dirichlet(torch.ones(classes, dtype=torch.float64))
    wanted = {
        "differential_entropy": float(dirichlet.entropy()),
        "kl_to_uniform": float(kl_divergence(dirichlet, uniform)),
        "entropy_of_mean": entropy_of_mean,
        "expected_entropy": expected_entropy,
        "mutual_information": entropy_of_mean - expected_entropy,
        "fisher_logdet": np.linalg.slogdet(fisher)[1],
        "fisher_penalty": -np.linalg.slogdet(fisher)[1],
        "vacuity": classes / alpha0,
        "mse_variance": float(dirichlet.variance.sum()),
        "fisher_variance": float((dirichlet.variance.numpy() * trigamma(alpha)).sum()),
    }
    for name, value in wanted.items():
        seen = QUANTITIES[name].truth(Point(alpha)).value
        assert seen == pytest.approx(value, rel=1e-12, abs=1e-13), name
    for k in range(classes):
        row = np.eye(classes)[k]
        seen = reference.mean(Point(alpha, row=row)).value
        assert seen == pytest.approx(probs[k], rel=1e-14)
        for j in range(classes):
            entry = Point(alpha, row=row, column=np.eye(classes)[j])
            assert reference.fisher_information(entry).value == pytest.approx(
                fisher[k, j], rel=1e-12
            )
            covariance = (probs[k] * (k == j) - probs[k] * probs[j]) / (alpha0 + 1)
            assert reference.covariance(entry).value == pytest.approx(covariance, rel=1e-12)


@pytest.mark.parametrize("values", FLOAT64_ALPHAS)
def test_loss_terms_are_those_of_torch_and_scipy(values: list[float]) -> None:
    alpha = np.array(values)
    alpha0, probs = alpha.sum(), alpha / alpha.sum()
    target = np.zeros(len(alpha))
    target[:3] = 0.5, 0.25, 0.25
    psi = scipy.special.digamma
    removed = Dirichlet(torch.tensor(alpha * (1 - target) + target))
    uniform = Dirichlet(torch.ones(len(alpha), dtype=torch.float64))
    wanted = {
        "mse_bias": ((target - probs) ** 2).sum(),
        "fisher_bias": ((target - probs) ** 2 * trigamma(alpha)).sum(),
        "marginal_nll": (target * (np.log(alpha0) - np.log(alpha))).sum(),
        "expected_cross_entropy": (target * (psi(alpha0) - psi(alpha))).sum(),
        "label_removed_kl": float(kl_divergence(removed, uniform)),
    }
    for name, value in wanted.items():
        seen = QUANTITIES[name].truth(Point(alpha, target=target)).value
        assert seen == pytest.approx(value, rel=1e-12, abs=1e-13), name
    beta = np.linspace(0.5, 9.0, len(alpha))
    point, prior = Point(alpha, beta=beta), Dirichlet(torch.tensor(beta))
    posterior = Dirichlet(torch.tensor(alpha))
    assert reference.kl_from(point).value == pytest.approx(float(kl_divergence(posterior, prior)))
    assert reference.kl_into(point).value == pytest.approx(float(kl_divergence(prior, posterior)))


def test_repeated_classes_are_counted() -> None:
    grouped = np.array([2.0, 3.5, 2.0, 2.0, 7.0, 3.5])
    for quantity in QUANTITIES.values():
        for beside in settings(quantity.takes, list(grouped)):
            found = quantity.truth(Point(grouped, **beside))
            columns = {key: exact(column) for key, column in beside.items()}
            alone = quantity.truth(Point.exactly(exact(grouped), **columns))
            assert found.value == pytest.approx(alone.value, rel=1e-15)
            assert found.value_scale == pytest.approx(alone.value_scale, rel=1e-15)
            assert found.gradient == pytest.approx(alone.gradient, rel=1e-15)
            assert found.gradient_scale == pytest.approx(alone.gradient_scale, rel=1e-15)


def brute_dissonance(evidence: Float64) -> float:
    """The definition, loop by loop."""
    belief = evidence / (evidence.sum() + len(evidence))
    total = 0.0
    for k, b in enumerate(belief):
        others = np.delete(belief, k)
        if others.sum() == 0:
            continue
        both = others + b
        balance = np.where(both > 0, 1 - abs(others - b) / np.where(both > 0, both, 1), 0)
        total += b * (others * balance).sum() / others.sum()
    return total


@pytest.mark.parametrize(
    "evidence",
    [
        [3.0, 1.0, 0.5],
        [4.0, 4.0, 4.0],
        [0.0, 2.0, 5.0],
        [9.0, 0.0, 0.0],
        [0.0, 0.0],
        [1e4, 1.0, 1.0],
    ],
)
def test_dissonance_is_its_definition(evidence: list[float]) -> None:
    seen = reference.dissonance(Point(np.array(evidence) + 1)).value
    assert seen == pytest.approx(brute_dissonance(np.array(evidence)), rel=1e-12)


def test_dissonance_in_long_doubles_is_that_in_mpmath(monkeypatch: pytest.MonkeyPatch) -> None:
    for case in cases(Grid(10)):
        evidence, count = exact(case.alpha) - 1, np.array([1] * 10, dtype=object)
        wanted = dissonance_parts(evidence, count)
        with monkeypatch.context() as patch:
            patch.setattr("tests.reference_dissonance.EXACT_UP_TO", 0)
            patch.setattr("tests.reference_dissonance.ROWS", 30)  # several blocks
            seen = dissonance_parts(evidence, count)
        sizes = (wanted[0], wanted[2], wanted[2])
        for a, b, size in zip(seen, wanted, sizes, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                error = abs(np.asarray(a, np.float64) - np.asarray(b, np.float64))
                assert (error <= 1e-14 * np.asarray(size, np.float64)).all(), case.name


def test_every_quantity_has_a_scale_and_a_place_in_the_grid() -> None:
    assert set(SCALES) == set(QUANTITIES)
    names = {q.truth.__name__ for q in QUANTITIES.values()}
    for module in (reference, reference_losses):
        for name, made in vars(module).items():
            public = callable(made) and getattr(made, "__module__", "") == module.__name__
            if public and made.__annotations__.get("return") == "Truth" and name != "truth":
                assert name.startswith("_") or name in names, name


@pytest.mark.parametrize("classes", CLASSES)
def test_the_grid_holds_what_it_says(classes: int) -> None:
    drawn = cases(Grid(classes))
    assert len(drawn) == 1 + 4 * 10
    for case in drawn:
        assert case.alpha.shape == (classes,)
        assert case.alpha.dtype == np.float32
        assert (case.alpha >= 1).all()
        assert case.dominant != case.other
    assert max(case.alpha.max() for case in drawn) == np.float32(1e30)
