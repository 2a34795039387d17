"""The solvers against `torch.optim.LBFGS`, SciPy and each other."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor

from dubito.fewshot import HEADS, Engine, Head, Sampler, Setting, Solver, head, solve
from dubito.fewshot.design import design_of
from dubito.fewshot.lbfgs import minimise
from dubito.fewshot.solve import fit, products
from fewshot.samples import pool

WAYS = 4
LONG = Solver(rounds=3, iterations=200, tolerance_grad=1e-6)


def supports(shots: int, episodes: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Support features, labels, and these as one-hot vectors."""
    data = pool()
    sampler = Sampler(data, None, Setting(WAYS, shots))
    features = data.features[torch.from_numpy(sampler.draw(0, episodes).support)]
    return features, sampler.labels, torch.eye(WAYS, dtype=torch.float64)[sampler.labels]


def with_ones(features: Tensor) -> Tensor:
    return torch.nn.functional.pad(features.double(), (0, 1), value=1.0)


def at(one: Head, x: Tensor, y: Tensor, weights: Tensor, kl: float) -> tuple[float, Tensor]:
    """The mean loss of one episode, and its gradient by the weights (D + 1, K)."""
    values, slopes = one.evaluate((x @ weights)[None], y, torch.full((1, 1), kl).double())
    return values.mean().item(), x.mT @ slopes[0] / len(x)


def by_torch(one: Head, x: Tensor, y: Tensor, solver: Solver) -> Tensor:
    """One episode with all its weights, by the optimiser whose rules are followed."""
    weights = torch.zeros(x.shape[1], y.shape[1], dtype=x.dtype, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weights], lr=1, max_iter=solver.iterations, history_size=solver.history,
        tolerance_grad=0, tolerance_change=solver.tolerance_change, line_search_fn="strong_wolfe",
    )  # fmt: skip
    for kl in one.ramp(solver.rounds):

        def closure(kl: float = kl) -> float:
            with torch.no_grad():
                value, weights.grad = at(one, x, y, weights, kl)
            return value

        optimiser.step(closure)
    return weights.detach()


def first_scale(one: Head, x: Tensor, y: Tensor, kl: float) -> Tensor:
    zero = torch.zeros(x.shape[-1], y.shape[1], dtype=x.dtype)
    return torch.stack([at(one, each, y, zero, kl)[1].abs().sum() for each in x])


@pytest.mark.parametrize("shots", [1, 5])
@pytest.mark.parametrize("name", ["iedl", "edl", "softmax"])
def test_iterates_are_those_of_torch_in_the_whole_space(name: str, shots: int) -> None:
    features, _, y = supports(shots)
    # of more iterations rounding makes different ones: compared is what has not grown yet
    solver = Solver(rounds=3, iterations=5, tolerance_grad=0)
    one, x = head(name), with_ones(features)
    design = design_of(features)
    scale = first_scale(one, x, y, one.ramp(3)[0])
    coordinates = minimise(one, design.factor, y, scale, solver)
    for i in range(len(x)):
        wanted = x[i] @ by_torch(one, x[i], y, solver)
        found = design.factor[i] @ coordinates[i]
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3 * wanted.abs().max().item())


def test_iterates_are_those_of_torch_to_the_last_digits() -> None:
    features, _, y = supports(5)
    solver = Solver(rounds=4, iterations=10, history=6, tolerance_grad=0)
    one, design = head("iedl"), design_of(features)
    scale = first_scale(one, design.factor, y, 0.0)
    coordinates = minimise(one, design.factor, y, scale, solver)
    for i in range(len(features)):
        wanted = by_torch(one, design.factor[i], y, solver)
        assert (coordinates[i] - wanted).norm() < 1e-5 * wanted.norm()


@pytest.mark.parametrize("shots", [1, 5])
@pytest.mark.parametrize("weight", [0.01, 0.1])
def test_iedl_ends_at_the_optimum_that_scipy_finds(shots: int, weight: float) -> None:
    features, labels, y = supports(shots)
    one, x = head("iedl", fisher_weight=weight), with_ones(features)
    found = fit(one, features, labels, WAYS, LONG).double()
    kl = one.ramp(LONG.rounds)[-1]
    for i in range(len(x)):
        ours, gradient = at(one, x[i], y, found[i], kl)
        assert gradient.norm().item() <= 1e-4

        def loss(flat: np.ndarray, i: int = i) -> tuple[float, np.ndarray]:
            weights = torch.from_numpy(flat).view(found.shape[1:])
            value, slope = at(one, x[i], y, weights, kl)
            return value, slope.flatten().numpy()

        theirs = scipy.optimize.minimize(
            loss, np.zeros(found[i].numel()), jac=True, method="L-BFGS-B",
            options={"maxiter": 5000, "maxfun": 10_000, "gtol": 1e-8, "ftol": 1e-15},
        )  # fmt: skip
        assert ours == pytest.approx(theirs.fun, abs=1e-6)
        # logits far below zero, without evidence, are free: compared is alpha
        best = x[i] @ torch.from_numpy(theirs.x).view(found.shape[1:])
        alpha = one.prediction(best).alpha
        torch.testing.assert_close(one.prediction(x[i] @ found[i]).alpha, alpha, rtol=0.02, atol=0)


def forbidden(*args: object) -> None:
    raise AssertionError("the other path ran")


@pytest.mark.parametrize("name", ["iedl", "edl", "i_mse", "mse_logdet", "label_smoothing"])
def test_compiled_and_plain_solvers_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels, _ = supports(3, 6)
    # one is in float64 and one in float32: after few iterations they have not parted yet
    one, solver = head(name), Solver(rounds=2, iterations=3)
    pytest.importorskip("numba")
    with monkeypatch.context() as patch:
        patch.setattr(solve, "minimise", forbidden)
        compiled = fit(one, features, labels, WAYS, solver)
    monkeypatch.setenv("DUBITO_KERNELS", "off")
    monkeypatch.setattr(solve, "_compiled", forbidden)
    plain = fit(one, features, labels, WAYS, solver)
    x = with_ones(features)
    wanted = x @ plain.double()
    assert (x @ compiled.double() - wanted).norm() < 1e-3 * wanted.norm()


def test_the_compiled_solver_is_the_one_in_use() -> None:
    pytest.importorskip("numba")
    from dubito.fewshot.solve import _compiled

    assert _compiled("compiled") is not None
    assert _compiled("products") is not None


@pytest.mark.parametrize("name", HEADS)
def test_every_head_learns(name: str) -> None:
    data = pool()
    engine = Engine(data, None, Setting(WAYS, 5), head(name))
    found = engine.values(0, 30)
    assert found["accuracy"].mean() > 0.6
    assert found["ood/max_prob/auroc"].mean() > 0.55


def test_problems_that_end_early_leave_without_a_trace() -> None:
    """Episodes alone, and among others that take longer."""
    features, _, y = supports(5, 24)
    design, one = design_of(features), head("iedl", fisher_weight=0.1)
    y, factor = y.float(), design.factor.float()
    scale = torch.linspace(1, 50, 24)
    together = minimise(one, factor, y, scale)
    for i in (0, 7, 23):
        alone = minimise(one, factor[i : i + 1], y, scale[i : i + 1])
        assert torch.equal(alone[0].isfinite(), together[i].isfinite())
        logits = factor[i] @ together[i]
        torch.testing.assert_close(factor[i] @ alone[0], logits, rtol=0.05, atol=0.05)


def test_products_with_and_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    features, weights = torch.rand(50, 12), torch.randn(3, 13, 4)
    index = np.random.default_rng(0).integers(50, size=(3, 9))
    wanted = features[torch.from_numpy(index)] @ weights[:, :-1] + weights[:, -1:]
    pytest.importorskip("numba")
    with monkeypatch.context() as patch:
        patch.setattr(torch, "baddbmm", forbidden)
        torch.testing.assert_close(products(features, index, weights), wanted)
    monkeypatch.setenv("DUBITO_KERNELS", "off")
    monkeypatch.setattr(solve, "_compiled", forbidden)
    torch.testing.assert_close(products(features, index, weights), wanted)


def test_a_sample_twice_in_the_support() -> None:
    features, labels, y = supports(5)
    features[:, 1] = features[:, 0]
    x, one = with_ones(features), head("iedl", fisher_weight=0.05)
    found = fit(one, features, labels, WAYS, LONG).double()
    for i in range(len(x)):
        assert at(one, x[i], y, found[i], one.ramp(LONG.rounds)[-1])[1].norm().item() <= 1e-4


def test_more_samples_than_dimensions() -> None:
    data = pool(size=8)
    data.features.mul_(2)
    engine = Engine(data, None, Setting(WAYS, 10), head("iedl"))
    assert engine.values(0, 20)["accuracy"].mean() > 0.3


def test_logits_that_are_not_finite_are_told() -> None:
    data = pool()
    data.features.mul_(1e38)  # a logit of one sample overflows where another's does not
    with pytest.warns(RuntimeWarning, match=r"a mean length of 4\.3e\+38"):
        engine = Engine(data, None, Setting(WAYS, 1), head("softmax"))
    with pytest.raises(ValueError, match=r"logits of 2 episodes .* the first is episode 5 of"):
        engine.values(5, 7)


def test_solvers_are_checked() -> None:
    with pytest.raises(ValueError, match="rounds must be at least 1, not 0"):
        Solver(rounds=0)
