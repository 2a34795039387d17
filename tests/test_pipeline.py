"""The pipeline: which samples do what, folds, and what is promised then."""

import numpy as np
import pandas as pd
import pytest
import torch

import dubito
from dubito import data
from dubito.api import calibrate, evaluate, train
from dubito.config import RunConfig
from dubito.errors import DubitoError
from dubito.methods.ensemble import Members
from dubito.pipeline import Pipeline
from tests.training.helpers import StopIn, weights

SETTINGS = {"lr": 0.01, "batch_size": 16, "report": False, "backbone": {"hidden": [16]}}


@pytest.fixture(scope="module")
def house() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    area = draw.uniform(30, 200, 400)
    return pd.DataFrame({"area": area, "price": 3 * area + draw.normal(0, 10, 400)})


def prepared(source, **settings):
    pipeline = Pipeline(RunConfig.merge(None, settings))
    return pipeline, pipeline.prepare(source)


# --- parts ---


def test_target_statistics_come_from_training_samples(house):
    source = data.open(house, target="price")
    _, parts = prepared(source, method="der", calibration=0.3, selection=0.2)
    trained = np.asarray(parts.parts[0].train.target)
    assert len(trained) == 200
    assert parts.task.mean == pytest.approx([trained.mean()])
    assert parts.task.std == pytest.approx([trained.std()])


def test_calibration_samples_are_read_by_nothing_before_they_calibrate(monkeypatch):
    """Spoil their inputs and targets: the trained network stays the same."""
    source = data.open("digits")
    found = []
    for spoiled in (False, True):
        pipeline, parts = prepared(source, epochs=2, method="edl", **{"backbone.hidden": [8]})
        if spoiled:
            held_out = parts.parts[0].calibration
            monkeypatch.setattr(held_out, "encode", pytest.fail)
            held_out.target = ["spoiled"] * len(held_out)
        model = pipeline.build(parts, seed=0)
        pipeline.train([model], parts)
        found.append(weights(model))
    assert torch.equal(*found)


def test_without_calibration_samples_there_is_no_policy(tmp_path):
    model = train("digits", out=tmp_path, epochs=1, calibration=0, **SETTINGS)
    assert model.calibration is None
    assert model.policy is None
    assert model.record.samples == {"training": 1438}
    with pytest.raises(DubitoError, match="trained without calibration samples: pass data"):
        calibrate(tmp_path)


@pytest.mark.parametrize(("rare", "alike"), [(10, "balanced"), (60, "none")])
def test_rare_classes_weigh_more_by_default(rare, alike, tmp_path):
    """Three times as many samples of one class as of another are too many."""
    x = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    source = (x, np.repeat(["a", "b"], [200 - rare, rare]))
    networks = {}
    for weight in ("auto", "balanced", "none"):
        model = train(source, out=tmp_path / weight, epochs=1, class_weight=weight, **SETTINGS)
        networks[weight] = weights(model)
    assert torch.equal(networks["auto"], networks[alike])
    assert not torch.equal(networks["balanced"], networks["none"])


def test_the_exponent_of_intervals_is_chosen_on_selection_samples(house, tmp_path):
    draw = np.random.default_rng(1)
    noisy = house.assign(price=house["price"] + draw.normal(0, 1, 400) * house["area"])
    options = {"target": "price", "method": "der", "epochs": 30, **SETTINGS}
    model = train(noisy, out=tmp_path / "a", **options)
    assert model.record.samples["selection"] == 40
    assert model.calibration.exponent in (0, 0.25, 0.5, 0.75, 1)
    without = train(noisy, out=tmp_path / "b", selection=0, max_width=250.0, **options)
    assert without.calibration.exponent == 0.5
    prediction = without.predict(noisy)
    lower, upper = (end[:, 0] for end in prediction.interval())
    assert (upper - lower)[prediction.accepted].max() <= 250 < (upper - lower).median()


def test_quantiles_are_calibrated_again_without_training(house, tmp_path):
    options = {"target": "price", "method": "quantile", "epochs": 30, **SETTINGS}
    model = train(house, out=tmp_path, **options)
    assert model.calibration.exponent == 0.5  # not chosen
    width = (lambda ends: ends[1] - ends[0])(model.predict(house).interval()).median().item()
    narrow = dubito.calibrate(tmp_path, house, levels=(0.9, 0.5), max_width=width)
    prediction = narrow.predict(house)
    lower, upper = prediction.interval()
    assert 0 < prediction.accepted.sum() < len(house)
    assert (upper - lower)[prediction.accepted].max() <= width
    result = dubito.evaluate(tmp_path, house)
    assert result["interval_coverage"]["0.9"] > result["interval_coverage"]["0.5"] >= 0.5


# --- folds ---


@pytest.fixture(scope="module")
def folded(tmp_path_factory):
    """Return the folder of an ensemble of three folds."""
    out = tmp_path_factory.mktemp("folds")
    x = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    np.savez(out / "data.npz", inputs=x, labels=x[:, 0] + x[:, 1] ** 2 > 0.5)
    settings = {**SETTINGS, "report": True, "folds": 3, "epochs": 20, "error_rate": 0.2}
    train(out / "data.npz", out=out / "run", **settings)
    return out / "run"


def test_the_ensemble_of_the_folds_is_deployed(folded):
    model = dubito.load(folded)
    assert isinstance(model.network, Members)
    assert len(model.network) == 3
    assert model.record.samples == {"training": 300, "calibration": 300}
    assert not (folded / "fold-1").exists()
    prediction = model.predict(np.zeros((2, 4), np.float32))
    assert prediction.predictive.probs.sum(-1).tolist() == pytest.approx([1, 1])
    assert prediction.accepted is not None


def test_members_calibrate_on_the_fold_that_they_were_not_trained_on(folded):
    model = dubito.load(folded)
    source = data.open(folded.parent / "data.npz")
    pipeline, parts = prepared(source, **model.record.config)
    found = pipeline.held_out(model, parts)
    member = model.network[1]
    own = parts.parts[1].calibration
    start = len(parts.parts[0].calibration)
    outputs = member(model.preprocessing.normalize(own.load())).detach()
    expected = model.method.member.distribution(outputs)
    rows = torch.arange(start, start + len(own))
    torch.testing.assert_close(found.distribution[rows].probs, expected.probs)


def test_its_promise_is_called_approximate_wherever_it_is_printed(folded):
    model = dubito.load(folded)
    assert "approximate" in repr(model.policy)
    for name in ("card.md", "report.html"):
        text = (folded / name).read_text()
        assert "approximate" in text
        assert "It guarantees" not in text
        assert "Guaranteed error rate" not in text


def test_a_promise_on_samples_that_served_no_other_purpose_is_exact(tmp_path):
    train("digits", out=tmp_path, epochs=8, **{**SETTINGS, "report": True})
    for name in ("card.md", "report.html"):
        text = " ".join((tmp_path / name).read_text().split())
        assert "with confidence 95%, for inputs like the calibration samples, if these" in text
        assert "approximate" not in text


def test_folds_can_be_recalibrated_but_not_evaluated_on_their_samples(folded, tmp_path):
    model = calibrate(folded, error_rate=0.3, out=tmp_path)
    assert model.policy.guarantee.level == 0.3
    assert model.policy.guarantee.approximate
    with pytest.raises(DubitoError, match="every sample trained some networks"):
        evaluate(folded)


def test_interrupted_folds_resume_to_the_same_weights(folded, tmp_path):
    settings = {**SETTINGS, "folds": 3, "epochs": 20, "error_rate": 0.2}
    source = folded.parent / "data.npz"
    with pytest.raises(KeyboardInterrupt):
        train(source, out=tmp_path, callbacks=[StopIn(13)], **settings)
    model = train(source, out=tmp_path, **settings)
    assert torch.equal(weights(model), weights(dubito.load(folded)))


@pytest.mark.parametrize("method", ["der", "quantile"])
def test_folds_of_a_regression(method, house, tmp_path):
    settings = {"target": "price", "method": method, "folds": 3, "epochs": 30, **SETTINGS}
    model = train(house, out=tmp_path, **settings)
    assert model.calibration.of_members
    prediction = model.predict(house)
    lower, upper = prediction.interval()
    inside = (lower[:, 0] <= torch.tensor(house["price"])) & (
        upper[:, 0] >= torch.tensor(house["price"])
    )
    assert inside.double().mean() > 0.85
    assert "approximately" in (tmp_path / "card.md").read_text()
    again = dubito.load(tmp_path).predict(house).interval()
    torch.testing.assert_close(again, (lower, upper), rtol=0, atol=0)
