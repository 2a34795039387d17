"""Weights, missing values and bounds of targets, from losses to a trained model."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import optimize, stats
from sklearn import metrics as sklearn_metrics
from torch import Tensor

import dubito
from dubito import evaluation, metrics
from dubito.calibration import Calibration
from dubito.distributions import Dirichlet, NormalInverseGamma
from dubito.errors import DubitoError
from dubito.losses import weighted_sums
from dubito.methods import METHODS
from dubito.model import Model
from dubito.sklearn import EvidentialRegressor
from dubito.targets import Target
from dubito.tasks import Classification, Regression
from dubito.training import TrainConfig, Trainer
from dubito.training.run import loss_function
from tests.training.helpers import TRAIN, VALIDATION, regression, small_model, weights

CLASSES = Classification(classes=("a", "b", "c"))
TWO = Regression(names=("x", "y"), mean=(0.0, 1.0), std=(1.0, 2.0), tolerance=(1.0, 1.0))
LABELS = torch.tensor([0, 1, 2, 0, 1])
NUMBERS = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
#: each sample as often as its weight says
REPEATED, WEIGHT = torch.tensor([0, 1, 1, 3, 4, 4, 4]), torch.tensor([1.0, 2, 0, 1, 3])


def outputs(method: Any, task: Any) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    count, members = method.outputs(task), getattr(method, "size", getattr(method, "samples", 0))
    shape = (5, members, count) if members else (5, count)
    return torch.randn(shape, generator=generator).requires_grad_()


def loss_and_gradient(
    method: Any, values: Tensor, target: Tensor | Target, rows: Tensor | None = None, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    dist = method.distribution(values if rows is None else values[rows])
    term_weights = method.weight_tensor(5, 10)[: len(method.terms)]
    loss, sums = weighted_sums(method.terms, dist, target, term_weights, **options)
    return loss, sums, torch.autograd.grad(loss, values)[0]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("name", ["iedl", "edl", "redl", "softmax", "der", "ensemble", "kl_pn"])
def test_a_weight_counts_as_repetition(name: str, reduction: str) -> None:
    method = METHODS.build(name)
    task, target = (TWO, NUMBERS) if name == "der" else (CLASSES, LABELS)
    values = outputs(method, task)
    weighted = loss_and_gradient(method, values, Target(target, WEIGHT), reduction=reduction)
    repeated = loss_and_gradient(method, values, target[REPEATED], REPEATED, reduction=reduction)
    for one, other in zip(weighted, repeated, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_weights_of_classes_and_of_samples_multiply() -> None:
    method, class_weight = METHODS.build("softmax"), torch.tensor([1.0, 0.5, 2.0])
    values = outputs(method, CLASSES)
    each = torch.nn.functional.cross_entropy(values, LABELS, reduction="none")
    both = WEIGHT * class_weight[LABELS]
    options: dict[str, Any] = {"reduction": "mean", "class_weight": class_weight}
    loss, _, _ = loss_and_gradient(method, values, Target(LABELS, WEIGHT), **options)
    torch.testing.assert_close(loss, (both * each).sum() / both.sum())


def test_the_loss_of_a_missing_number_is_that_of_the_other_alone() -> None:
    method, cells = METHODS.build("der"), torch.tensor([1.0, 0.0]).expand(5, 2)
    values = outputs(method, TWO)
    loss, sums, gradient = loss_and_gradient(method, values, Target(NUMBERS, cells))
    alone = values.detach().view(5, 4, 2)[..., 0].requires_grad_()
    own, own_sums, own_gradient = loss_and_gradient(method, alone, NUMBERS[:, :1])
    torch.testing.assert_close(loss, own)
    torch.testing.assert_close(sums, own_sums)
    torch.testing.assert_close(gradient.view(5, 4, 2)[..., 0], own_gradient)
    assert not gradient.view(5, 4, 2)[..., 1].any()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_loss_takes_weights() -> None:
    method = METHODS.build("iedl")
    values, term_weights = outputs(method, CLASSES), method.weight_tensor(5, 10)
    loss = loss_function(method, torch.tensor([1.0, 2.0, 3.0]))
    compiled = torch.compile(loss, dynamic=False, backend="aot_eager", fullgraph=True)
    for weight in (WEIGHT, WEIGHT.flip(0)):
        results = [f(values, Target(LABELS, weight), term_weights)[0] for f in (compiled, loss)]
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*[torch.autograd.grad(r, values)[0] for r in results])


def test_bounds_reach_the_terms_that_take_them() -> None:
    dist = METHODS.build("der").distribution(torch.randn(5, 3, 8)).mixture()
    low, high = NUMBERS - 1, torch.full((5, 2), math.inf)
    target = TWO.to_training_units(Target(NUMBERS, lower=low, upper=high))

    def width(dist: NormalInverseGamma, target: Target) -> Tensor:
        assert target.lower is not None
        return (target.values - target.lower).expand_as(dist.mean)

    one = torch.ones(1)
    with pytest.raises(DubitoError, match="term 'width' does not take censored targets"):
        weighted_sums({"width": width}, dist, target, one)
    width.takes_bounds = True  # type: ignore[attr-defined]
    loss, _ = weighted_sums({"width": width}, dist, target, one)
    torch.testing.assert_close(loss, torch.tensor(5 * (1 + 0.5)))


def test_a_term_of_whole_samples_takes_no_weights_of_numbers() -> None:
    dist = METHODS.build("der").distribution(torch.randn(5, 8))
    cells = torch.tensor([1.0, 0.0]).expand(5, 2)
    terms = {"sum": lambda dist, target: (target - dist.mean).sum(-1)}
    with pytest.raises(DubitoError, match="term 'sum' returns one value per sample"):
        weighted_sums(terms, dist, Target(NUMBERS, cells), torch.ones(1))
    iedl = METHODS.build("iedl")
    soft = Target(torch.rand(5, 3), torch.ones(5, 3))
    with pytest.raises(DubitoError, match="'fisher_bias' returns one value per sample"):
        loss_and_gradient(iedl, outputs(iedl, CLASSES), soft)


# --- tasks ---


def test_missing_targets_have_weight_zero() -> None:
    assert isinstance(CLASSES.target(["a", "c"]), Tensor)
    classes = CLASSES.target(["a", None, float("nan"), "c"])
    assert isinstance(classes, Target)
    assert classes.weight is not None
    assert classes.weight.tolist() == [1, 0, 0, 1]
    table = pd.DataFrame({"x": [1, None, 3], "y": [1.0, 2.0, np.nan]})
    numbers = TWO.target(table, weight=[1.0, 2.0, 3.0])
    assert isinstance(numbers, Target)
    assert numbers.weight is not None
    assert numbers.weight.tolist() == [[1, 1], [0, 2], [3, 0]]
    assert numbers.values.tolist() == [[1, 1], [0, 2], [3, 1]]  # the mean where it is missing
    assert numbers.known.tolist() == [True, False, False]
    task = Regression.from_target(table)
    assert (task.mean, task.std) == ((2.0, 1.5), (1.0, 0.5))


def test_cells_of_text_are_numbers_or_bounds() -> None:
    cells = ["3.5", ">1000", " <= .1", "≥5", "-2..3e1", None]
    task = Regression.from_target(cells)
    assert task.mean == pytest.approx([np.mean([3.5, 1000, 0.1, 5, 14])])
    target = task.target(cells, weight=[1, 1, 1, 1, 2, 1])
    assert isinstance(target, Target)
    assert target.bounds is not None
    lower, upper = (bound.flatten().tolist() for bound in target.bounds)
    assert lower == pytest.approx([-math.inf, 1000, -math.inf, 5, -2, -math.inf])
    assert upper == pytest.approx([math.inf, math.inf, 0.1, math.inf, 30, math.inf])
    assert target.exact is not None
    assert target.exact.flatten().tolist() == [1, 0, 0, 0, 0, 0]
    assert isinstance(task.target(["1", "2"]), Tensor)
    with pytest.raises(DubitoError, match="the first number of an interval must"):
        task.target(["3..1", "5"])
    with pytest.raises(DubitoError, match="row 1 of target 'target' is inf, not a finite number"):
        Regression.from_target([1, ">1e999"])
    bound = torch.ones(1, 1)
    with pytest.raises(DubitoError, match=r"row 0 must be lower < upper, not \[1.0\] and \[0.5\]"):
        Target(bound, lower=bound, upper=bound / 2)


@pytest.mark.parametrize(
    ("values", "weight", "message"),
    [
        ([[1, 2]], [1.0, 1.0], "2 weights for 1 targets"),
        ([[1, 2]], [-1.0], "weight must be >= 0 and finite"),
        ([[1, 2], [3, None]], [0.0, 0.0], "no target counts"),
        ([[1, math.inf]], None, "row 0 of target 'y' is inf"),
    ],
)
def test_bad_weights_are_refused(values: Any, weight: Any, message: str) -> None:
    with pytest.raises(DubitoError, match=message):
        TWO.target(values, weight)


def test_weighted_metrics_equal_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    probs, labels = rng.dirichlet(np.ones(3), 200), rng.integers(3, size=200)
    weight = rng.random(200) * rng.integers(2, size=200)
    dist = Dirichlet(torch.from_numpy(probs * 9))
    result = CLASSES.metrics(
        dist.predictive, Target(torch.from_numpy(labels), torch.from_numpy(weight))
    )
    options = {"sample_weight": weight}
    point, hot = probs.argmax(1), np.eye(3)[labels]
    brier = ((probs - hot) ** 2).sum(1)
    assert result["accuracy"] == pytest.approx(
        sklearn_metrics.accuracy_score(labels, point, **options)
    )
    assert result["nll"] == pytest.approx(sklearn_metrics.log_loss(labels, probs, **options))
    assert result["brier"] == pytest.approx(np.average(brier, weights=weight))
    bins = np.ceil(probs.max(1) * 15)
    gaps = [
        abs((weight * (point == labels) - weight * probs.max(1))[bins == b].sum())
        for b in range(16)
    ]
    assert result["ece"] == pytest.approx(sum(gaps) / weight.sum())

    mean, values = rng.normal(size=(2, 200, 2))
    cells = rng.random((200, 2)) * rng.integers(2, size=(200, 2))
    ones = torch.ones(200, 2)
    numbers = NormalInverseGamma(torch.from_numpy(mean), ones, ones, ones)
    result = TWO.metrics(
        numbers.predictive, Target(torch.from_numpy(values), torch.from_numpy(cells))
    )
    columns = list(zip(values.T, mean.T, cells.T, strict=True))
    for name, function in {
        "rmse": sklearn_metrics.root_mean_squared_error,
        "mae": sklearn_metrics.mean_absolute_error,
    }.items():
        expected = np.mean([function(y, m, sample_weight=w) for y, m, w in columns])
        assert result[name] == pytest.approx(expected)


def test_a_weight_of_no_sample_is_refused_by_a_metric() -> None:
    with pytest.raises(DubitoError, match="weight: got no positive value"):
        metrics.mae(torch.ones(2), torch.ones(2), torch.zeros(2))


# --- calibration and evaluation ---


def test_missing_targets_are_left_out_of_a_calibration() -> None:
    rows = torch.rand(300, generator=torch.Generator().manual_seed(0)) < 0.5
    alpha = 1 + 9 * torch.rand(300, 3, generator=torch.Generator().manual_seed(1))
    labels = alpha.argmax(-1)
    labels[::5] = 0
    expected = Calibration.fit(Dirichlet(alpha[rows]), labels[rows])
    assert Calibration.fit(Dirichlet(alpha), Target(labels, 3.0 * rows)) == expected


def test_intervals_of_each_number_are_fitted_to_its_known_values() -> None:
    generator = torch.Generator().manual_seed(0)
    parts, values = torch.rand(4, 200, 2, generator=generator), torch.randn(200, 2)
    known = torch.rand(200, 2, generator=generator) < 0.7
    fitted = Calibration.fit(NormalInverseGamma(*parts), Target(values, known.float()))
    for column in range(2):
        rows = known[:, column]
        own = NormalInverseGamma(*parts[:, rows, column : column + 1])
        expected = Calibration.fit(own, values[rows, column : column + 1])
        assert fitted.quantiles[0][column] == pytest.approx(expected.quantiles[0][0])


def test_errors_are_those_of_samples_without_missing_targets() -> None:
    ones = torch.ones(5, 2)
    dist = NormalInverseGamma(NUMBERS + torch.tensor([[0.0], [2], [0], [2], [0]]), ones, ones, ones)
    cells = torch.tensor([[1.0, 1], [1, 1], [1, 0], [0, 1], [1, 1]])
    result = evaluation.evaluate(TWO, dist, Target(NUMBERS, cells))
    assert result["error_rate"] == pytest.approx(1 / 3)


# --- training ---


def trained(train: Any, validation: Any = VALIDATION, **values: Any) -> Model:
    config = TrainConfig(
        epochs=2, batch_size=512, optimizer="sgd", lr=0.1, patience=0, validate_every=1, **values
    )
    model = small_model()
    Trainer(config).fit(model, train, validation)
    return model


def test_training_with_a_weight_equals_training_with_repeated_samples() -> None:
    (x, y), count = TRAIN, torch.arange(128) % 3
    rows = torch.arange(128).repeat_interleave(count)
    weighted, repeated = trained((x, Target(y, count.float()))), trained((x[rows], y[rows]))
    torch.testing.assert_close(weights(weighted), weights(repeated))
    assert not torch.allclose(weights(weighted), weights(trained(TRAIN)))


def test_a_target_without_weights_trains_as_its_tensor() -> None:
    x, y = TRAIN
    assert torch.equal(weights(trained((x, Target(y)))), weights(trained(TRAIN)))


def test_a_regression_trains_with_missing_numbers() -> None:
    task, (x, y), validation = regression()
    cells = torch.ones_like(y)
    cells[::2] = 0
    model = small_model("der", task=task)
    config = TrainConfig(epochs=3, batch_size=32, lr=0.01, patience=0)
    history = Trainer(config).fit(model, (x, Target(y, cells)), validation)
    assert math.isfinite(history.best["validation"]["nll"])


@pytest.mark.filterwarnings("ignore:.*policy.*")
def test_a_table_with_weights_and_missing_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = rng.normal(size=400)
    table = pd.DataFrame({"n": n, "w": rng.integers(1, 4, 400), "a": n, "b": 3 - 2 * n})
    table.loc[::3, "b"] = np.nan
    table.loc[1, ["a", "b"]] = np.nan
    table.to_csv(tmp_path / "data.csv", index=False)
    options: dict[str, Any] = {"target": ("a", "b"), "weight": "w", "tolerance": 1.0, "lr": 0.01}
    with pytest.warns(UserWarning, match=r"1 of 400 samples have no target .* data\.csv:3"):
        model = dubito.train(
            tmp_path / "data.csv", method="der", out=tmp_path / "run", epochs=40, device="cpu",
            **options,
        )  # fmt: skip
    assert model.preprocessing.shape == (1,)
    assert model.record is not None
    assert model.record.metrics["rmse"] < 0.5
    test = pd.DataFrame({"n": n, "a": n, "b": np.where(n > 0, 3 - 2 * n, np.nan)})
    result = dubito.evaluate(tmp_path / "run", test, device="cpu")
    assert result["samples"] == 400
    assert result["metrics"]["rmse"] < 0.5


def linear(count: int, seed: int) -> tuple[Any, Any]:
    """Draw inputs and numbers with normal noise of deviation 0.7."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 4))
    return x, x @ [1, -1, 0.5, 0] + 0.7 * rng.normal(size=count)


def tobit(x: Any, y: Any, limit: float) -> Any:
    """Fit the model of the data by the exact likelihood, and return its coefficients."""
    known, columns = y < limit, np.c_[x, np.ones(len(x))]

    def nll(parameters: Any) -> float:
        mean, std = columns @ parameters[:-1], np.exp(parameters[-1])
        exact, above = stats.norm.logpdf(y, mean, std), stats.norm.logsf(limit, mean, std)
        return -np.where(known, exact, above).sum()

    return optimize.minimize(nll, np.zeros(6)).x


def test_censored_targets_are_worth_nearly_their_exact_likelihood() -> None:
    (x, y), (fresh, truth) = linear(2000, 0), linear(5000, 1)
    limit = np.quantile(y, 0.7)
    parameters = tobit(x, np.minimum(y, limit), limit)
    mean = np.c_[fresh, np.ones(5000)] @ parameters[:-1]
    best = {
        "rmse": sklearn_metrics.root_mean_squared_error(truth, mean),
        "nll": -stats.norm.logpdf(truth, mean, np.exp(parameters[-1])).mean(),
    }
    cells, known = y.astype(object), y <= limit
    cells[~known] = f">{limit}"

    def fitted(x: Any, y: Any) -> dict[str, float]:
        options: Any = {
            "method": "gaussian", "backbone": "mlp", "epochs": 15, "weight_decay": 0.5,
        }  # fmt: skip
        model = EvidentialRegressor(random_state=0, **options).fit(x, y).model_
        return model.evaluate(torch.tensor(fresh).float(), truth)["calibrated"]

    censored, dropped, clamped = (
        fitted(x, cells), fitted(x[known], y[known]), fitted(x, np.minimum(y, limit))
    )  # fmt: skip
    for metric, value in best.items():
        assert censored[metric] < 1.05 * value < dropped[metric]
        assert 1.05 * value < clamped[metric]


def test_rows_with_missing_numbers_are_worth_training_on(tmp_path: Path) -> None:
    (x, a), rng = linear(600, 0), np.random.default_rng(2)
    table = pd.DataFrame(x, columns=list("stuv")).assign(
        a=a, b=x[:, 3] - 0.5 * rng.normal(size=600)
    )
    fresh, _ = linear(5000, 1)
    expected = np.stack([fresh @ [1, -1, 0.5, 0], fresh[:, 3]], 1)
    for column in "ab":
        table.loc[rng.random(600) < 0.5, column] = np.nan
    table = table.dropna(how="all", subset=["a", "b"])
    errors = []
    for number, rows in enumerate((table, table.dropna())):
        model = dubito.train(
            rows, target=("a", "b"), method="gaussian", out=tmp_path / str(number), device="cpu",
            epochs=15, selection=0.0, optimizer_options={"weight_decay": 0.5},
        )  # fmt: skip
        prediction = model.predict(pd.DataFrame(fresh, columns=list("stuv")))
        errors.append(np.square(prediction.labels - expected).mean() ** 0.5)
    assert errors[0] < 0.9 * errors[1]
