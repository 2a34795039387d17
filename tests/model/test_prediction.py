"""Predictions: values, columns and selection."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from dubito.calibration import Calibration
from dubito.distributions import NormalInverseGamma
from dubito.errors import DubitoError
from dubito.model import Prediction
from dubito.model.card import card
from dubito.policy import REASONS, Policy
from dubito.tasks import Regression
from tests.model import models


@pytest.fixture(scope="module")
def classifier():
    return models.fitted()


@pytest.fixture(scope="module")
def regressor():
    return models.fitted("der")


@pytest.fixture
def predicted(classifier):
    x, _ = models.samples()
    rows = x[:6].numpy().copy()
    rows[1] = np.nan
    rows[2, 3] = 700
    return classifier.predict(rows, on_error="report")


def test_point_comes_from_the_raw_and_probability_from_the_calibrated(classifier):
    x, _ = models.samples()
    predicted = classifier.predict(x)
    assert torch.equal(predicted.point, predicted.distribution.probs.argmax(-1))
    calibrated = classifier.calibration(predicted.distribution).probs
    torch.testing.assert_close(predicted.predictive.probs, calibrated)
    rows = torch.arange(len(predicted))
    expected = calibrated[rows, predicted.point].float()
    torch.testing.assert_close(predicted.tensors()["probability"], expected)
    assert (predicted.labels == models.CLASSES[predicted.point.numpy()]).all()


def test_interval_is_that_of_the_calibration(regressor):
    x, _ = models.samples()
    predicted = regressor.predict(x)
    lower, upper = predicted.interval()
    expected = regressor.calibration.interval(predicted.distribution, 0.9)
    torch.testing.assert_close((lower, upper), expected)
    inside = (lower[:, 0] <= torch.tensor(models.numbers())) & (
        torch.tensor(models.numbers()) <= upper[:, 0]
    )
    assert 0.85 < inside.double().mean() < 0.95


def test_columns_of_a_classifier(predicted):
    columns = predicted.columns(["vacuity"])
    assert list(columns) == [
        "prediction", "probability", "total", "aleatoric", "epistemic", "vacuity", "accepted",
        "reason", "note", "error", "probs.cat", "probs.dog", "probs.eel",
    ]  # fmt: skip
    assert columns["prediction"][0] == predicted.labels[0]
    assert columns["vacuity"][0] == pytest.approx(predicted.score("vacuity")[0].item())
    assert sum(columns[f"probs.{name}"][0] for name in models.CLASSES) == pytest.approx(1)
    assert "probs.cat" not in predicted.columns(probs=False)


def test_columns_of_a_regressor(regressor):
    x, _ = models.samples()
    columns = regressor.predict(x[:3]).columns()
    assert list(columns) == [
        "prediction", "lower", "upper", "total", "aleatoric", "epistemic", "accepted", "reason",
        "note", "error",
    ]  # fmt: skip
    assert columns["lower"][0] < columns["prediction"][0] < columns["upper"][0]


def test_columns_of_further_levels_have_their_number():
    x, _ = models.samples()
    model = models.build("der").calibrate(x, models.numbers(), levels=(0.9, 0.5, 0.975))
    columns = model.predict(x[:3]).columns()
    assert list(columns)[1:7] == ["lower", "upper", "lower50", "upper50", "lower97_5", "upper97_5"]
    lowers = [columns[name] for name in ("lower97_5", "lower", "lower50", "prediction")]
    assert np.all(np.diff(lowers, axis=0) > 0)


@pytest.mark.parametrize("method", ["der", "quantile"])
def test_a_policy_abstains_where_the_interval_is_wider(method):
    x, _ = models.samples()
    model = models.fitted(method).calibrate(x, models.numbers(), levels=(0.9, 0.5))
    lower, upper = model.predict(x).interval()
    width = (upper - lower)[:, 0]
    middle = width.median().item()
    predicted = model.fit_policy(x, max_width=middle, false_alarms=0.2).predict(x)
    narrow = width <= middle
    assert torch.equal(predicted.codes == 1, ~narrow & (predicted.codes != 2))
    assert 0 < predicted.accepted.sum() <= narrow.sum()
    assert f"intervals at most {middle:g} wide, accepts" in repr(model.policy)
    assert f"answers if the interval is at most {middle:g} wide and " in card(model)
    with pytest.raises(DubitoError, match="max_width needs intervals: pass their calibration"):
        model.policy.decide(predicted.distribution)
    none, everything = (deepcopy(model).fit_policy(x, max_width=w) for w in (1e-3, 1e6))
    assert none.policy.accepts_nothing
    assert "no interval is narrow enough" in card(none)
    assert "no interval is at most 0.001 wide" in repr(none.policy)
    assert everything.predict(x).accepted.double().mean() > 0.9


def test_a_width_needs_intervals_of_one_number(classifier):
    x, _ = models.samples()
    with pytest.raises(DubitoError, match="max_width needs intervals"):
        deepcopy(classifier).fit_policy(x, max_width=1.0)
    for outputs, width, message in (
        (8, 1.0, "one target value, not for 2"),
        (4, -1.0, "max_width must be a finite number > 0, not -1"),
    ):
        dist = NormalInverseGamma.from_outputs(torch.randn(30, outputs))
        with pytest.raises(DubitoError, match=message):
            Policy.control_width(dist, Calibration.fit(dist, dist.mean), width)


def test_sets_are_names_of_classes(classifier):
    x, _ = models.samples()
    model = deepcopy(classifier).calibrate(x, models.names(), levels=(0.99, 0.5))
    predicted = model.predict(x)
    sets, few = predicted.prediction_set(), predicted.prediction_set(0.5)
    covered = sets[torch.arange(len(x)), model.task.encode(models.names())]
    assert covered.double().mean() >= 0.99
    columns = predicted.columns()
    assert list(columns)[2:4] == ["set", "set50"]
    assert columns["set"] == [list(models.CLASSES[row]) for row in sets.numpy()]
    assert {1, 2} <= set(map(len, columns["set"]))
    assert [row["set50"] for row in predicted.rows()] == [list(models.CLASSES[r]) for r in few]
    assert torch.equal(predicted.tensors()["set"], sets)
    result = model.evaluate(predicted, models.names())
    assert result["set_coverage"]["0.99"] == pytest.approx(covered.double().mean().item())
    assert result["set_size"]["0.99"] == pytest.approx(sets.sum(-1).double().mean().item())


def test_several_target_values_have_a_column_each():
    task = Regression(names=("length", "width"), mean=(0.0, 0.0), std=(1.0, 1.0))
    dist = NormalInverseGamma.from_outputs(torch.randn(3, 8))
    predicted = Prediction(task, dist, dist.mean)
    assert predicted.tensors()["prediction"].shape == (3, 2)
    assert list(predicted.columns())[:2] == ["prediction.length", "prediction.width"]
    assert predicted.accepted is None
    assert predicted.reason is None
    with pytest.raises(DubitoError, match="there are no intervals"):
        predicted.interval()


def test_rows(predicted):
    typical, wrong, far, *_ = predicted.rows()
    assert set(typical["probs"]) == set(models.CLASSES)
    assert not {"error", "note"} & set(typical)
    assert list(wrong) == ["error"]
    assert "value [0] is nan" in wrong["error"]
    assert not predicted.accepted[1]
    assert predicted.reason[1] == "error"
    assert "feature 3 is 700" in far["note"]
    assert (far["accepted"], far["reason"]) == (False, "out_of_range")
    assert far["prediction"] in models.CLASSES


def test_tensors_are_indices_and_numbers(predicted):
    columns = predicted.tensors(["max_prob"])
    assert columns["prediction"].dtype == torch.int64
    assert columns["probs"].shape == (6, 3)
    reasons = [REASONS[code] for code in columns["reason"]]
    assert [r for i, r in enumerate(reasons) if i not in predicted.errors] == [
        r for r in predicted.reason if r != "error"
    ]
    assert torch.equal(columns["accepted"], columns["reason"] == 0)
    assert all(len(values) == 6 for values in columns.values())


@pytest.mark.parametrize("index", [slice(1, 3), [1, 2], torch.tensor([1, 2]), np.array([1, 2])])
def test_selected_rows_keep_their_messages(predicted, index):
    part = predicted[index]
    assert len(part) == 2
    assert (list(part.errors), list(part.notes)) == ([0], [1])
    assert list(part.rows())[1] == list(predicted.rows())[2]
    assert list(predicted[2].rows()) == list(predicted.rows())[2:3]


def test_frame_and_repr(predicted):
    frame = predicted.to_pandas()
    assert (list(frame), len(frame)) == (list(predicted.columns()), 6)
    assert repr(predicted).startswith("Prediction(6 inputs, ")
    assert repr(predicted).endswith("1 with errors)")
