"""The solver against `torch.optim.LBFGS` and SciPy."""

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor
from torch.nn.functional import pad

from dubito.fewshot._engine import Engine, factorize, to_weights
from dubito.fewshot._episodes import Setting
from dubito.fewshot._lbfgs import Solver, minimize
from dubito.losses import weighted_sums
from dubito.methods import METHODS
from tests.fewshot.samples import draw_features

WAYS = 4
NAMES = ["iedl", "edl", "redl", "softmax", "fedl"]


def build_engine(name: str, shots: int, solver: Solver | None = None, **options: float) -> Engine:
    method, setting = METHODS.build(name, **options), Setting(WAYS, shots)
    return Engine(method, draw_features(), setting=setting, solver=solver or Solver())


def supports(engine: Engine, episodes: int = 2) -> Tensor:
    """Return support features with ones (E, N, D + 1) in float64."""
    index = torch.from_numpy(engine.sampler.draw(0, episodes).support)
    return pad(engine.features.values[index].double(), (0, 1), value=1.0)


def evaluate(engine: Engine, x: Tensor, weights: Tensor, turn: int) -> tuple[Tensor, Tensor]:
    """Return the loss of an episode and its gradient in the weights (M, D + 1)."""
    loss, slopes = engine.loss((weights @ x.mT)[None], torch.tensor([turn]))
    return loss[0], slopes[0] @ x


def by_torch(engine: Engine, x: Tensor) -> Tensor:
    """Fit all weights of one episode with the optimizer whose rules the solver follows."""
    solver = engine.solver
    weights = torch.zeros(engine.size, x.shape[1], dtype=x.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weights], lr=1, max_iter=solver.iterations, max_eval=solver.evaluations,
        history_size=solver.history, tolerance_grad=0, tolerance_change=solver.tolerance_change,
        line_search_fn="strong_wolfe",
    )  # fmt: skip
    for turn in range(solver.rounds):

        def closure(turn: int = turn) -> float:
            with torch.no_grad():
                value, weights.grad = evaluate(engine, x, weights, turn)
            return value.item()

        optimizer.step(closure)
    return weights.detach()


def fit(engine: Engine, x: Tensor) -> Tensor:
    """Return the weights of all episodes, (E, M, D + 1)."""
    factor, size = factorize(x), engine.size
    zero = torch.zeros(size, x.shape[-1], dtype=x.dtype)
    scale = torch.stack([evaluate(engine, each, zero, 0)[1].abs().sum() for each in x])
    return to_weights(minimize(engine.loss, factor, size, scale, engine.solver), factor, x)


@pytest.mark.parametrize(
    ("name", "shots", "iterations"),
    [("iedl", 1, 5), ("iedl", 5, 2), *((name, 5, 5) for name in NAMES)],
)
def test_iterates_are_those_of_torch_in_all_weights(name, shots, iterations):
    solver = Solver(rounds=3, iterations=iterations, evaluations=6, tolerance_grad=0)
    engine = build_engine(name, shots, solver)
    x = supports(engine)
    for one, weights in zip(x, fit(engine, x), strict=True):
        expected = by_torch(engine, one) @ one.mT
        torch.testing.assert_close(
            weights @ one.mT, expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item()
        )


def test_solution_is_the_optimum_that_scipy_finds():
    solver = Solver(rounds=3, iterations=100, evaluations=125, tolerance_grad=1e-6)
    engine = build_engine("iedl", 3, solver, fisher_weight=0.05)
    x = supports(engine)
    for one, weights in zip(x, fit(engine, x), strict=True):

        def loss(flat: np.ndarray, one: Tensor = one) -> tuple[float, np.ndarray]:
            value, slope = evaluate(engine, one, torch.from_numpy(flat).view(WAYS, -1), 2)
            return value.item(), slope.flatten().numpy()

        best = scipy.optimize.minimize(
            loss, np.zeros(weights.numel()), jac=True, method="L-BFGS-B",
            options={"maxiter": 5000, "maxfun": 10_000, "gtol": 1e-8, "ftol": 1e-15},
        )  # fmt: skip
        assert evaluate(engine, one, weights, 2)[0].item() == pytest.approx(best.fun, abs=1e-6)


def test_defaults_are_those_of_the_published_code():
    assert Solver() == (10, 10, 12, 20, 1e-3, 1e-9)


def test_batch_does_not_matter():
    engine = build_engine("softmax", 3)
    x = supports(engine, 8)
    alone = torch.cat([fit(engine, one[None]) for one in x])
    torch.testing.assert_close(fit(engine, x), alone, rtol=1e-6, atol=1e-6)


def test_value_and_gradient_is_that_of_the_loss():
    """The weights of the terms belong to the round of each episode."""
    drawn = torch.Generator().manual_seed(0)
    rounds = torch.tensor([0, 3, 9, 0, 5, 12])  # beyond the last round for finished episodes
    for name in [*NAMES, "kl_pn", "rkl_pn", "label_smoothing"]:
        engine = build_engine(name, 5)
        method, labels = engine.method, engine.labels
        inputs = torch.randn(6, engine.size, len(labels), generator=drawn)
        result, slopes = engine.loss(inputs, rounds)
        for i, turn in enumerate(rounds.clamp(max=9).tolist()):
            leaf = inputs[i].mT.double().clone().requires_grad_()
            weights = method.weight_tensor(turn, 10)[: len(method.terms)].double()
            loss, _ = weighted_sums(
                method.terms, method.distribution(leaf), labels, weights, reduction="mean",
                per_class=method.per_class,
            )  # fmt: skip
            (gradient,) = torch.autograd.grad(loss, leaf)
            assert result[i].item() == pytest.approx(loss.item(), rel=1e-5)
            torch.testing.assert_close(slopes[i].mT.double(), gradient, rtol=1e-4, atol=1e-6)
