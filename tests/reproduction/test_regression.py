"""The experiments on tables: networks side by side, metrics, runs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from dubito.distributions import NormalInverseGamma
from dubito.errors import DubitoError
from dubito.formats import ArrayFormat, Preprocessing
from dubito.model import Model
from dubito.tasks import Regression
from dubito.training import TrainConfig, Trainer
from reproduction import regression, regression_page
from reproduction.__main__ import main
from reproduction.regression_networks import Networks, Plan, Setting
from reproduction.regression_rivals import boosting, conformal, of_distribution, scores
from reproduction.store import comparable

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("method", [{"name": "der"}, {"name": "gaussian", "beta": 0.5}])
def test_networks_side_by_side_train_as_the_trainer_does(method: dict[str, object]) -> None:
    """In batches of all samples, so that their order does not matter."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 30, 3, generator=generator), torch.randn(2, 30, 1, generator=generator)
    y = (y - y.mean(1, keepdim=True)) / y.std(1, correction=0, keepdim=True)
    settings = [Setting(method, rate) for rate in (0.003, 0.01)]
    task = torch.tensor([0, 1, 0, 1])
    networks = Networks([s for s in settings for _ in range(2)], task, 3, 5, generator)
    model = Model.build(
        method,
        Regression.from_target(y[1].numpy()),
        Preprocessing(inputs=ArrayFormat(shape=(3,))),
        {"name": "mlp", "hidden": (5,)},
    )
    with torch.no_grad():
        for own, weight in zip(model.network.parameters(), networks.weights, strict=True):
            own.copy_(weight[3].T.reshape(own.shape))
    config = TrainConfig(
        epochs=6, batch_size=30, lr=0.01, keep="last", ema_decay=0.99, average_epochs=0
    )
    Trainer(config).fit(model, (x[1], y[1]))
    assert list(networks.train(x, y, Plan(5, 6, 30, looks=2))) == [3, 6]
    ((own, dist),) = networks.predict(x)
    with torch.no_grad():
        expected = model.network(x[1])
    actual = networks.outputs(x[task], networks.averages)[3]
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
    assert dist.batch_shape == (4, 30)
    assert own.tolist() == [0, 1, 2, 3]


def test_rates_and_decays_of_networks_are_their_own() -> None:
    """Each network ends where AdamW takes it alone."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(1, 40, 2, generator=generator), torch.randn(1, 40, 1, generator=generator)
    settings = [Setting({"name": "gaussian"}, 0.01, 0.1), Setting({"name": "gaussian"}, 0.03)]
    networks = Networks(settings, torch.tensor([0, 0]), 2, 4, generator)
    starts = [weight.clone() for weight in networks.weights]
    for _ in networks.train(x, y, Plan(4, 5, 40)):
        pass
    for i, setting in enumerate(settings):
        own = [start[i : i + 1].clone().requires_grad_() for start in starts]
        optimizer = torch.optim.AdamW(own, lr=setting.rate, weight_decay=setting.decay)
        for _ in range(5):
            optimizer.zero_grad()
            mean, raw = networks.outputs(x, own).unbind(-1)
            variance = torch.nn.functional.softplus(raw)
            loss = torch.nn.functional.gaussian_nll_loss(mean, y[..., 0], variance, eps=1e-12)
            loss.backward()
            optimizer.step()
        for actual, expected in zip(networks.weights, own, strict=True):
            torch.testing.assert_close(actual[i : i + 1], expected.detach())


def test_scores_of_a_distribution_equal_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    loc, y = rng.normal(size=300), rng.normal(size=300)
    beta = rng.uniform(0.3, 2, size=300)
    parameters = (loc, np.full(300, 2.0), np.full(300, 1.5), beta)
    dist = NormalInverseGamma(*(torch.as_tensor(part)[:, None] for part in parameters))
    truth = stats.t(5, loc, np.sqrt(beta * 3 / (2 * 2.5)))
    found = scores(of_distribution(dist, y), y)
    lower, upper = truth.interval(0.9)
    expected = {
        "nll": -truth.logpdf(y).mean(),
        "rmse": np.sqrt(np.mean((loc - y) ** 2)),
        "coverage/0.9": np.mean((lower < y) & (y < upper)),
        "width/0.9": np.mean(upper - lower),
        "crps": dist.predictive.crps(torch.as_tensor(y)[:, None]).mean().item(),
        "spearman": stats.spearmanr(truth.std(), np.abs(loc - y)).statistic,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=2e-3)
    below = [np.mean(truth.cdf(y) <= p) - p for p in np.arange(0.05, 0.96, 0.05)]
    assert found["calibration"] == pytest.approx(np.abs(below).mean(), abs=1e-3)
    ranked = np.abs(loc - y)[np.argsort(truth.std())]
    assert found["aurc"] == pytest.approx(np.mean([ranked[: k + 1].mean() for k in range(300)]))


def test_scores_of_an_ensemble_are_those_of_the_mixture() -> None:
    rng = np.random.default_rng(1)
    parts = rng.normal(size=(100, 4)), *np.exp(rng.normal(size=(3, 100, 4)))
    dist = NormalInverseGamma(*(torch.as_tensor(part)[..., None] for part in parts)).mixture()
    y = rng.normal(size=100)
    found = scores(of_distribution(dist, y), y)
    target = torch.as_tensor(y)[:, None]
    assert found["crps"] == pytest.approx(dist.predictive.crps(target).mean().item(), rel=5e-3)
    assert found["nll"] == pytest.approx(-dist.predictive.log_prob(target).mean().item())


def test_conformal_bound_covers_a_further_error() -> None:
    assert conformal(np.arange(1.0, 20.0), 0.9) == 18  # ceil(0.9 * 20) of 19
    assert conformal(np.arange(1.0, 5.0), 0.95) == 4  # too few: the largest


def test_boosting_predicts_a_mean_and_quantiles() -> None:
    rng = np.random.default_rng(2)
    x = rng.uniform(-1, 1, size=(500, 2))
    y = 3 * x[:, 0] + rng.normal(size=500) * np.exp(x[:, 1])
    found = scores(boosting(x[:300], y[:300], x[300:], y[300:], rng), y[300:])
    assert found["coverage/0.9"] == pytest.approx(0.9, abs=0.08)
    assert found["width/0.5"] < found["width/0.8"] < found["width/0.95"]
    assert found["rmse"] < 0.8 * np.std(y)
    assert found["crps"] < 0.8 * found["mae"]
    assert found["spearman"] > 0.2


QUICK = ["regression", "*-der", "*-gaussian*", "*-mlp", "--quick"]


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
def test_a_killed_run_ends_with_the_same_records(tmp_path: Path) -> None:
    known = regression.quick()
    assert main([*QUICK, "--results", str(tmp_path)]) == 0
    first = regression.store(tmp_path, known).current()
    assert len(first) == 2 * 5
    assert all(record["result"]["rmse"] > 30 for record in first)
    half = regression.store(tmp_path / "half", known)
    for record in first[::2]:
        half.add(record)
    main([*QUICK, "--results", str(half.folder)])
    again = regression.store(half.folder, known).current()
    assert [*map(comparable, again)] == [*map(comparable, first)]
    assert not half.journal.exists()


def test_missing_data_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUBITO_DATA", str(tmp_path))
    with pytest.raises(DubitoError, match=r"set DUBITO_DATA to a folder with uci/yacht\.npz"):
        regression.load("yacht")


def test_page_is_up_to_date() -> None:
    data = regression_page.frame(regression.store(RESULTS, regression.experiments()))
    path = regression_page.DOCS / regression_page.PAGE
    assert regression_page.page(data) == path.read_text("utf-8"), (
        "run: python -m reproduction regression --pages"
    )
    single = regression_page.ranks(data, "crps", regression_page.SINGLE)
    assert single.shape == (9, len(regression_page.SINGLE))
    assert single.sum(axis=1).to_numpy() == pytest.approx(sum(range(1, single.shape[1] + 1)))
