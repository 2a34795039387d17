"""The scikit-learn estimators."""

import copy
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits, load_wine, make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from dubito.methods import METHODS
from dubito.model import Model
from dubito.sklearn import EvidentialClassifier, EvidentialRegressor
from dubito.training import NonFiniteLoss
from tests.training.helpers import AtEpochEnd

SMALL: Any = {"name": "mlp", "hidden": (16,)}
QUICK: dict[str, Any] = {"backbone": SMALL, "epochs": 10, "lr": 1e-2, "random_state": 0}
NO_LIMITS: dict[str, Any] = {**QUICK, "calibrate": False}
CLASSIFIERS = [name for name in METHODS if "classification" in METHODS.build(name).tasks]
Parts = tuple[Any, Any, Any, Any]


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [
        EvidentialClassifier(backbone=SMALL, epochs=3, batch_size=32, lr=5e-2),
        EvidentialRegressor(backbone=SMALL, epochs=3, batch_size=32, lr=5e-2),
    ],
    expected_failed_checks=lambda _: {
        "check_sample_weight_equivalence_on_dense_data": "a repeated sample is drawn more often"
    },
)
def test_estimator_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def split(data: tuple[Any, Any]) -> Parts:
    X, X_test, y, y_test = train_test_split(*data, test_size=0.4, random_state=0)
    return X, y, X_test, y_test


@pytest.fixture(scope="module")
def digits() -> Parts:
    return split(load_digits(return_X_y=True))


@pytest.fixture(scope="module")
def wine() -> Parts:
    return split(load_wine(return_X_y=True))


@pytest.fixture(scope="module")
def classifier(digits: Parts) -> EvidentialClassifier:
    """Return a classifier that guarantees an error rate of 5 %, with prediction sets."""
    options = {**QUICK, "backbone": "auto", "epochs": 20, "levels": (0.99, 0.8)}
    model = EvidentialClassifier(error_rate=0.05, validation_fraction=0.25, **options)
    return model.fit(*digits[:2])


@pytest.fixture(scope="module")
def regressor() -> tuple[EvidentialRegressor, Parts]:
    """Return a regressor with intervals and a guarantee, and its data."""
    data = split(load_diabetes(return_X_y=True, as_frame=True))
    options = {**QUICK, "validation_fraction": 0.4, "levels": (0.9, 0.5)}
    model = EvidentialRegressor(error_rate=0.4, tolerance=80, **options)
    return model.fit(*data[:2]), data


# --- predictions ---


def test_calibration_improves_the_likelihood(classifier: Any, digits: Parts) -> None:
    _, _, X, y = digits
    prediction, probs = classifier.prediction(X), classifier.predict_proba(X)
    raw = prediction.distribution.probs.numpy()
    rows = np.arange(len(y))
    assert (raw.argmax(1) == probs.argmax(1)).all()
    assert -np.log(probs[rows, y]).mean() < 0.6 * -np.log(raw[rows, y]).mean()
    np.testing.assert_allclose(probs.sum(1), 1)


def test_uncertainty_is_higher_for_mixtures_and_errors(classifier: Any, digits: Parts) -> None:
    _, _, X, y = digits
    mixed = 0.5 * (X[:-1] + X[1:])[y[:-1] != y[1:]]
    for score in ("total", "epistemic", "vacuity", "alpha0"):
        plain, mixture = (classifier.uncertainty(values, score) for values in (X, mixed))
        assert np.median(mixture) > np.quantile(plain, 0.75), score
    wrong = classifier.predict(X) != y
    uncertainty = classifier.uncertainty(X, "max_prob")
    assert uncertainty[wrong].mean() > uncertainty[~wrong].mean()
    with pytest.raises(ValueError, match="no score 'doubt'; known: 'total'"):
        classifier.uncertainty(X, "doubt")


def test_guarantee_holds_on_other_data(classifier: Any, digits: Parts) -> None:
    _, _, X, y = digits
    labels, accepted = classifier.predict_or_abstain(X)
    assert (labels == classifier.predict(X)).all()
    assert 0.5 < accepted.mean() < 1
    assert (labels != y)[accepted].mean() <= 0.05
    assert set(classifier.prediction(X + 100).reason) == {"out_of_range"}


def test_classifier_sets_have_the_class(classifier: Any, digits: Parts) -> None:
    _, _, X, y = digits
    sets = classifier.predict_set(X)
    rows, column = np.arange(len(y)), np.searchsorted(classifier.classes_, y)
    assert sets[rows, column].mean() > 0.97
    assert 1 < sets.sum(1).mean() < 2
    assert (classifier.predict_set(X, 0.8) <= sets).all()
    other = copy.deepcopy(classifier).set_params(levels=None).calibrate_on(X, y)
    with pytest.raises(NotFittedError, match="there are no sets: set levels"):
        other.predict_set(X)


def test_regressor_intervals_cover_the_target(regressor: Any) -> None:
    model, (_, _, X, y) = regressor
    lower, upper = model.predict_interval(X)
    assert lower.shape == y.shape
    assert 0.8 < ((lower <= y) & (y <= upper)).mean() < 0.99
    low, high = model.predict_interval(X, 0.5)
    assert 0.35 < ((low <= y) & (y <= high)).mean() < 0.65
    assert model.score(X, y) > 0.3
    assert model.model_.task.names == ("target",)


def test_regressor_abstains(regressor: Any) -> None:
    model, (_, _, X, y) = regressor
    values, accepted = model.predict_or_abstain(X)
    assert 0.2 < accepted.mean() < 1
    assert (np.abs(values - y) > 80)[accepted].mean() <= 0.4
    narrow = copy.deepcopy(model).set_params(error_rate=None, max_width=180).calibrate_on(X, y)
    lower, upper = narrow.predict_interval(X)
    accepted = narrow.predict_or_abstain(X)[1]
    assert accepted.any()
    assert (upper - lower)[accepted].max() <= 180 < (upper - lower).max()
    with pytest.raises(ValueError, match="error_rate needs a tolerance"):
        EvidentialRegressor(error_rate=0.1, **QUICK).fit(X, y)


def test_regressor_of_quantiles() -> None:
    X, X_test, y, y_test = train_test_split(*load_diabetes(return_X_y=True), random_state=0)
    options = {**QUICK, "validation_fraction": 0.4, "method": "quantile"}
    options |= {"folds": None, "max_width": 180}
    model = EvidentialRegressor(**options).fit(X, y)
    lower, upper = model.predict_interval(X_test)
    assert 0.8 < ((lower <= y_test) & (y_test <= upper)).mean() < 1
    accepted = model.predict_or_abstain(X_test)[1]
    assert (upper - lower)[accepted].max() <= 180 < (upper - lower).max()


def test_several_targets(wine: Parts) -> None:
    X = wine[0]
    model = EvidentialRegressor(**NO_LIMITS).fit(X[:, 2:], X[:, :2])
    assert model.predict(X[:5, 2:]).shape == (5, 2)
    with pytest.raises(NotFittedError, match="there are no intervals"):
        model.predict_interval(X[:, 2:])


# --- calibration and policy ---


@pytest.mark.filterwarnings("ignore:Policy.accepts nothing")
@pytest.mark.parametrize("counts", [(9, 1), (5, 5), (1, 1, 1)])
def test_two_classes_are_always_trained_on(counts: tuple[int, ...]) -> None:
    X, y = np.arange(sum(counts))[:, None], np.repeat(np.arange(len(counts)), counts)
    model = EvidentialClassifier(
        error_rate=0.5, validation_fraction=0.9, **{**NO_LIMITS, "epochs": 1}
    )
    for seed in range(5):
        model.set_params(random_state=seed).fit(X, y)
        assert model.predict_proba(X).shape == (len(y), len(counts))


def test_few_samples_are_calibrated_by_cross_validation() -> None:
    X, y = make_blobs(90, centers=2, cluster_std=0.5, random_state=0)
    model = EvidentialClassifier(**QUICK).fit(X, y)
    assert model.score(X, y) == 1
    # As if one of 90 samples were an error.
    assert 0.95 < np.median(model.predict_proba(X).max(1)) < 0.9999


def test_calibrate_on_fits_calibration_and_policy(digits: Parts) -> None:
    X, y, X_test, y_test = digits
    model = EvidentialClassifier(**NO_LIMITS).fit(X, y)
    with pytest.raises(NotFittedError, match="there is no policy: set error_rate"):
        model.predict_or_abstain(X)
    model.set_params(error_rate=0.1, calibrate=True).calibrate_on(X_test, y_test)
    assert model.model_.calibration is not None
    policy = model.model_.policy
    assert policy.validation.samples + policy.validation.out_of_range == len(y_test)


def test_an_impossible_guarantee_is_a_warning(wine: Parts) -> None:
    model = EvidentialClassifier(error_rate=0.01, **NO_LIMITS)
    with pytest.warns(UserWarning, match="accepts nothing: error <= 0.01 with confidence 0.95"):
        model.fit(*wine[:2])
    assert not model.predict_or_abstain(wine[2])[1].any()


def test_a_method_that_cannot_learn_is_a_warning(digits: Parts) -> None:
    method = {"name": "iedl", "fisher_weight": 0.5}
    model = EvidentialClassifier(method, **{**NO_LIMITS, "epochs": 1})
    with pytest.warns(UserWarning, match="fisher_weight=0.5 removes all evidence") as caught:
        model.fit(*digits[:2])
    assert caught[0].filename == __file__


# --- training ---


@pytest.mark.parametrize("method", CLASSIFIERS)
def test_every_method(method: str, wine: Parts, tmp_path: Path) -> None:
    X, y, X_test, y_test = wine
    model = EvidentialClassifier(method, **NO_LIMITS).fit(X, y)
    assert model.score(X_test, y_test) > 0.8
    saved = Model.load(model.save(tmp_path)).predict(X_test.astype(np.float32))
    if method != "mc_dropout":  # its samples depend on the precision
        np.testing.assert_allclose(
            saved.distribution.probs.numpy(), model.predict_proba(X_test), atol=1e-4
        )


def test_seed_determines_the_model(wine: Parts) -> None:
    X, y, X_test, _ = wine
    state = torch.get_rng_state()
    first, second, other = (
        EvidentialClassifier(**{**QUICK, "epochs": 2, "random_state": seed})
        .fit(X, y)
        .predict_proba(X_test)
        for seed in (1, 1, 2)
    )
    assert (first == second).all()
    assert (first != other).any()
    assert torch.equal(torch.get_rng_state(), state)


def test_scales_of_features_do_not_matter(wine: Parts) -> None:
    X, y, X_test, _ = wine
    scales = 10.0 ** np.arange(-6, 7)
    first = EvidentialClassifier(**NO_LIMITS).fit(X, y).predict_proba(X_test)
    second = EvidentialClassifier(**NO_LIMITS).fit(X * scales, y).predict_proba(X_test * scales)
    np.testing.assert_allclose(first, second, atol=1e-3)
    with pytest.raises(ValueError, match=r"feature 0 varies by .* too little for float32"):
        EvidentialClassifier(**NO_LIMITS).fit(X + 1e9, y)


def test_class_weights_move_the_border() -> None:
    X, y = make_blobs([225, 25], centers=[[0, 0], [2, 0]], random_state=0)
    weights = {
        "none": None,
        "balanced": "balanced",
        "other": {0: 10.0, 1: 0.1},
        "equal": {0: 3, 1: 3},
    }
    counts = {}
    for name, weight in weights.items():
        model = EvidentialClassifier("softmax", class_weight=weight, **NO_LIMITS)
        counts[name] = model.fit(X, y).predict(X).sum()
    assert counts["balanced"] > 1.5 * counts["none"]
    assert counts["other"] < 0.5 * counts["none"]
    assert abs(counts["equal"] - counts["none"]) <= 2
    with pytest.raises(ValueError, match="weight must be >= 0 and finite"):
        EvidentialClassifier(class_weight={0: -1.0, 1: 1.0}, **NO_LIMITS).fit(X, y)


def test_partial_fit_learns_from_parts(digits: Parts) -> None:
    X, y, X_test, y_test = digits
    model = EvidentialClassifier(**QUICK)
    for _ in range(3):
        for start in range(0, len(X), 200):
            part = slice(start, start + 200)
            model.partial_fit(X[part], y[part], classes=range(10))
    assert model.score(X_test, y_test) > 0.85
    np.testing.assert_allclose(model.model_.preprocessing.mean, X.mean(0), atol=1e-6)
    assert model.model_.calibration is None
    assert model.calibrate_on(X_test, y_test).model_.calibration is not None


def test_partial_fit_continues_the_loss_weights() -> None:
    X, y = make_blobs(60, centers=3, random_state=0)
    model = EvidentialClassifier(**QUICK)
    for epoch in range(3):
        model.partial_fit(X, y, classes=[0, 1, 2])
        (record,) = model.history_.records
        weights = model.model_.method.weights(epoch, epoch + 1)
        expected = sum(weights[name] * value for name, value in record["terms"].items())
        assert record["loss"] == pytest.approx(expected, rel=1e-5)
    assert weights["label_removed_kl"] == 0.2


def test_partial_fit_counts_classes_that_come_later() -> None:
    X, y = make_blobs([30, 20, 10], centers=[[0, 0], [4, 0], [0, 4]], random_state=0)
    model = EvidentialClassifier(
        {"name": "ensemble", "member": "posterior_network", "size": 2}, **QUICK
    )
    model.partial_fit(X[y == 0], y[y == 0], classes=[0, 1, 2])
    assert model.model_.task.counts == (30, 1, 1)
    model.partial_fit(X, y)
    assert model.model_.task.counts == (60, 20, 10)
    logs = [part for name, part in model.model_.network.named_buffers() if "counts" in name]
    assert [part.exp().round().tolist() for part in logs] == [[60, 20, 10]] * 2
    assert model.fit(X, y).partial_fit(X, y).model_.task.counts == (60, 40, 20)


def test_partial_fit_of_a_regressor() -> None:
    X, y = load_diabetes(return_X_y=True)
    model = EvidentialRegressor(**QUICK)
    for _ in range(12):
        model.partial_fit(X, y)
    assert model.score(X, y) > 0.3


def test_errors_of_partial_fit() -> None:
    X, y = make_blobs(60, centers=3, random_state=0)
    model = EvidentialClassifier(**QUICK)
    with pytest.raises(ValueError, match="classes must be passed in the first call"):
        model.partial_fit(X, y)
    model.partial_fit(X[:1], y[:1], classes=[0, 1, 2])  # one sample is enough
    with pytest.raises(ValueError, match=r"previously unseen labels: .*7"):
        model.partial_fit(X[:1], [7])
    with pytest.raises(ValueError, match=r"classes are \[0, 1\], but were \[0, 1, 2\]"):
        model.partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match="needs all data at once"):
        model.set_params(class_weight="balanced").partial_fit(X, y)


def test_after_a_failed_fit_the_estimator_is_not_fitted(wine: Parts) -> None:
    X, y, X_test, _ = wine
    model = EvidentialClassifier(**NO_LIMITS).fit(X, y)
    with pytest.raises(NonFiniteLoss, match="the loss is not finite"):
        model.set_params(lr=1e30).fit(X, y)
    with pytest.raises(NotFittedError):
        model.predict(X_test)


def test_callbacks(wine: Parts) -> None:
    epochs: list[int] = []
    callbacks = [AtEpochEnd(lambda progress: epochs.append(progress.epoch))]
    EvidentialClassifier(callbacks=callbacks, **NO_LIMITS).fit(*wine[:2])
    assert epochs == list(range(1, 11))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"method": "magic"}, "unknown method 'magic'; known: "),
        ({"method": "der"}, "der is for regression, not for classification"),
        ({"backbone": "magic"}, "unknown backbone 'magic'; known: "),
        ({"method": {"name": "iedl", "magic": 1}}, "unknown option 'magic'"),
        ({"device": "magic"}, "unknown device 'magic'; known: 'auto', 'cpu', 'cuda'"),
        ({"batch_size": "magic"}, "batch_size.*'magic'"),
        ({"epochs": 0}, "epochs.*0"),
        ({"lr": -1.0}, "lr.*-1"),
        ({"error_rate": 1.5}, r"error_rate.*1\.5"),
        ({"validation_fraction": 0.0}, r"validation_fraction must be in \(0, 1\), not 0.0"),
        ({"class_weight": "magic"}, "class_weight"),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], message: str, wine: Parts) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        EvidentialClassifier(**{**QUICK, **parameters}).fit(*wine[:2])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": ["tall", *range(9)]}, "row 0 of target 'target' is 'tall', not a number"),
        ({"y": [3.0] * 10}, "target 'target' is constant: mean 3"),
        ({"y": [*range(9), math.inf]}, "y contains infinity"),
        ({"y": [*range(9), math.nan]}, "y contains NaN"),
        ({"y": [">5", "7..3", *range(8)]}, "row 1 of target 'target' is '7..3': the first number"),
        ({"y": range(9)}, "inconsistent numbers of samples"),
        ({"y": np.zeros((10, 2, 2))}, "Found array with dim 3"),
        ({"X": [[0.0]], "y": [1.0]}, "minimum of 2 is required"),
        ({"X": [[math.nan]] * 10}, "X contains NaN"),
        ({"X": [[math.inf]] * 10}, "X contains infinity"),
    ],
)
def test_bad_numbers(change: dict[str, Any], message: str) -> None:
    data = {"X": np.arange(10.0)[:, None], "y": np.arange(10.0), **change}
    with pytest.raises(ValueError, match=re.escape(message)):
        EvidentialRegressor(epochs=1).fit(**data)


def test_a_prediction_outside_the_targets_has_a_note() -> None:
    X = np.linspace(-1, 1, 100)[:, None]
    model = EvidentialRegressor(**{**NO_LIMITS, "epochs": 20}).fit(X, 10 * X[:, 0])
    notes = model.prediction([[0.0], [1.4]]).notes
    assert notes.keys() == {1}
    assert "target is predicted outside [-10, 10]" in notes[1]


# --- inputs ---


def test_named_features_become_the_columns_of_a_table(tmp_path: Path) -> None:
    data = load_wine(as_frame=True)
    names = data.target_names[data.target]
    model = EvidentialClassifier(**NO_LIMITS).fit(data.data, names)
    assert model.feature_names_in_.tolist() == list(data.data.columns)
    assert model.classes_.tolist() == ["class_0", "class_1", "class_2"]
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(data.data[data.data.columns[::-1]])
    data.data.iloc[:, ::-1].to_csv(tmp_path / "rows.csv", index=False)
    saved = Model.load(model.save(tmp_path / "model")).predict(tmp_path / "rows.csv")
    assert (saved.labels == model.predict(data.data)).all()


class Convolutions(nn.Module):
    """A small backbone for images."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = nn.Conv2d(shape[0], 8, 3)
        self.out_features = 8 * (shape[1] - 2) * (shape[2] - 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.layer(x).relu().flatten(1)
        return features


def test_images_and_a_custom_backbone(digits: Parts) -> None:
    X, y, X_test, y_test = digits
    images, images_test = X.reshape(-1, 1, 8, 8), X_test.reshape(-1, 1, 8, 8)
    model = EvidentialClassifier(**{**NO_LIMITS, "backbone": Convolutions}).fit(images, y)
    assert model.score(images_test, y_test) > 0.9
    with pytest.raises(ValueError, match=r"shape \(1, 4, 16\), but \(1, 8, 8\) in fit"):
        model.predict(images_test.reshape(-1, 1, 4, 16))


# --- sample weights ---


@pytest.mark.parametrize("kind", [EvidentialClassifier, EvidentialRegressor])
def test_sample_weights(kind: Any, wine: Parts) -> None:
    X, y, X_test, _ = wine

    def predicted(rows: Any, weight: Any = None) -> Any:
        model = kind(**NO_LIMITS).fit(X[rows], y[rows], sample_weight=weight)
        return model.prediction(X_test).distribution.epistemic.numpy()

    half, rest = np.arange(len(X)) % 2 == 0, np.ones(len(X), bool)
    alone = predicted(half)
    np.testing.assert_allclose(predicted(half, np.ones(half.sum())), alone, rtol=1e-3)
    np.testing.assert_allclose(predicted(rest, half), alone, rtol=1e-3)
    assert not np.allclose(predicted(rest, 0.01 + half), predicted(rest), rtol=1e-2)
    with pytest.raises(ValueError, match="sample_weight must have 106 finite numbers"):
        predicted(rest, -np.ones(len(X)))


# --- with the rest of scikit-learn ---


def test_grid_search_over_a_pipeline(wine: Parts) -> None:
    X, y, X_test, y_test = wine
    model = EvidentialClassifier(**NO_LIMITS)
    search = GridSearchCV(
        make_pipeline(MinMaxScaler(), model),
        {"evidentialclassifier__epochs": np.array([1, 10])},
        cv=2,
    ).fit(X, y)
    assert search.best_params_["evidentialclassifier__epochs"] == 10
    assert search.score(X_test, y_test) > 0.8


def test_a_pickle_predicts_the_same(classifier: Any, digits: Parts) -> None:
    again = pickle.loads(pickle.dumps(classifier))  # noqa: S301
    assert (again.predict_proba(digits[2]) == classifier.predict_proba(digits[2])).all()
    assert again.model_.policy == classifier.model_.policy
    assert repr(clone(again)) == repr(clone(classifier))


def test_saved_model_predicts_the_same(classifier: Any, digits: Parts, tmp_path: Path) -> None:
    X = digits[2]
    saved = Model.load(classifier.save(tmp_path)).predict(X.astype(np.float32))
    probs = saved.predictive.probs.numpy()
    np.testing.assert_allclose(probs, classifier.predict_proba(X), atol=1e-4)
    # In float32 a sample may be on the other side of a threshold.
    assert (saved.codes == classifier.prediction(X).codes).double().mean() > 0.99
