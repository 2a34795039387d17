from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, load_wine, make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn
from typer.testing import CliRunner

import dubito
from dubito import bundle, cli, losses
from dubito._legacy import METHODS, method
from dubito.distributions import Dirichlet
from dubito.estimator import EvidentialClassifier
from dubito.methods import IEDL
from dubito.training import NonFiniteLoss

QUICK: dict[str, Any] = {"epochs": 10, "learning_rate": 1e-2, "random_state": 0}
Parts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [EvidentialClassifier(epochs=6, learning_rate=2e-2)]
)
def test_scikit_learn_contract(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def digits() -> Parts:
    """X and y to train with, X and y to test with."""
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.3, random_state=0)
    return X, y, X_test, y_test


@pytest.fixture(scope="module")
def promising(digits: Parts) -> EvidentialClassifier:
    """A classifier that promises an error rate of 5 %."""
    model = EvidentialClassifier(error=0.05, validation_fraction=0.25, **{**QUICK, "epochs": 20})
    return model.fit(*digits[:2])


@pytest.fixture(scope="module")
def wine() -> Parts:
    X, y = load_wine(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.3, random_state=0)
    return X, y, X_test, y_test


# --- probabilities, uncertainty, abstention ------------------------------------------------------


def test_the_package_exports_it() -> None:
    assert dubito.EvidentialClassifier is EvidentialClassifier


def test_calibrated_probabilities_are_more_likely(promising: Any, digits: Parts) -> None:
    _, _, X, y = digits
    assert len(promising.calibration_.theta) == 2  # factor and power of the evidence
    before = promising._learner.said(X).probs.numpy()
    after = promising.predict_proba(X)
    rows = np.arange(len(y))
    assert (before.argmax(1) == after.argmax(1)).all()
    assert -np.log(after[rows, y]).mean() < 0.5 * -np.log(before[rows, y]).mean()
    np.testing.assert_allclose(after.sum(1), 1)


def test_held_out_labels_that_are_all_right_do_not_ask_for_certainty() -> None:
    X, y = make_blobs(400, centers=2, cluster_std=0.5, random_state=0)
    model = EvidentialClassifier(**QUICK).fit(X, y)
    assert model.score(X, y) == 1
    # one imagined error in some four hundred samples
    assert 0.97 < np.median(model.predict_proba(X).max(1)) < 0.9999


def test_a_weight_that_leaves_no_evidence_is_told(digits: Parts) -> None:
    X, y, _, _ = digits
    model = EvidentialClassifier(epochs=1, method_options={"fisher_weight": 0.5}, calibrate=False)
    with pytest.warns(UserWarning, match="with 10 classes the limit is 0.16") as told:
        model.fit(X, y)
    assert told[0].filename == __file__
    with pytest.warns(UserWarning, match="fisher_weight=0.5 removes all evidence"):
        clone(model).partial_fit(X, y, classes=range(10))


def test_uncertainty_is_higher_for_what_is_strange(promising: Any, digits: Parts) -> None:
    _, _, X, y = digits
    noise = np.random.default_rng(0).uniform(0, 16, X.shape)
    for measure in ("vacuity", "mutual_information", "alpha0"):
        inside, outside = (promising.uncertainty(values, measure) for values in (X, noise))
        assert np.median(outside) > np.quantile(inside, 0.75), measure
    assert (promising.uncertainty(X) == promising.uncertainty(X, "vacuity")).all()
    wrong = promising.predict(X) != y
    surprised = promising.uncertainty(X, "max_prob")
    assert surprised[wrong].mean() > surprised[~wrong].mean()
    with pytest.raises(ValueError, match="unknown measure 'doubt'; known: 'max_prob'"):
        promising.uncertainty(X, "doubt")


def test_the_promise_is_kept_on_other_data(promising: Any, digits: Parts) -> None:
    _, _, X, y = digits
    labels, accepted = promising.predict_or_abstain(X)
    assert (labels == promising.predict(X)).all()
    assert 0.5 < accepted.mean() < 1
    assert (labels != y)[accepted].mean() <= 0.05
    reasons = promising.decide(X).reason
    assert ((reasons == "accepted") == accepted).all()
    strange = promising.decide(X + 100).reason
    assert (strange == "unfamiliar").mean() > 0.5 or not (strange == "accepted").all()


def test_what_is_held_out_is_not_trained_on(digits: Parts) -> None:
    y = digits[1]
    model = EvidentialClassifier(error=0.05, validation_fraction=0.25, **QUICK)
    held = model._held_out(y, np.random.RandomState(0))
    assert held.sum() == int(0.25 * len(y))
    assert EvidentialClassifier()._held_out(y, np.random.RandomState(0)).sum() == len(y) // 10
    unpromising = EvidentialClassifier(calibrate=False)
    assert not unpromising._held_out(y, np.random.RandomState(0)).any()


def test_samples_of_rare_classes_are_held_out_like_any_other() -> None:
    rare, rng = np.array([0] * 57 + [1, 2, 3]), np.random.RandomState(0)
    model = EvidentialClassifier(error=0.05, validation_fraction=0.25)
    held = np.mean([model._held_out(rare, rng) for _ in range(2000)], axis=0)
    np.testing.assert_allclose(held, 0.25, atol=5 * np.sqrt(0.25 * 0.75 / 2000))


@pytest.mark.parametrize("counts", [(9, 1), (5, 5), (1, 1, 1), (1, 1)])
def test_two_classes_are_left_to_train_on(counts: tuple[int, ...]) -> None:
    codes, rng = np.repeat(np.arange(len(counts)), counts), np.random.RandomState(0)
    model = EvidentialClassifier(error=0.05, validation_fraction=0.9)
    for _ in range(50):
        held = model._held_out(codes, rng)
        assert len(np.unique(codes[~held])) == 2
        assert held.sum() == min(max(int(0.9 * len(codes)), 1), len(codes) - 2)


def test_a_class_of_one_sample_may_be_missing_from_a_part() -> None:
    X, y = make_blobs([40, 1, 1], centers=[[0, 0], [4, 0], [0, 4]], random_state=0)
    model = EvidentialClassifier(error=0.5, validation_fraction=0.5, **{**QUICK, "epochs": 2})
    for seed in range(2):  # calibrated across folds, most of which lack a class
        said = model.set_params(random_state=seed).fit(X, y).predict_proba(X)
        assert said.shape == (42, 3)
        np.testing.assert_allclose(said.sum(1), 1)
        assert model.policy_ is not None
        assert model.policy_.validation.samples == 21


def test_without_a_promise_there_is_nothing_to_abstain_by(wine: Parts) -> None:
    model = EvidentialClassifier(**QUICK).fit(*wine[:2])
    with pytest.raises(NotFittedError, match=r"say error=0\.05"):
        model.predict_or_abstain(wine[2])


def test_a_promise_that_can_not_be_kept_is_told(wine: Parts) -> None:
    model = EvidentialClassifier(error=0.01, **QUICK)
    with pytest.warns(UserWarning, match="accepts nothing: error <= 0.01 with confidence 0.95"):
        model.fit(*wine[:2])
    _, accepted = model.predict_or_abstain(wine[2])
    assert not accepted.any()


def test_limits_can_come_from_the_users_own_data(digits: Parts) -> None:
    X, y, X_held, y_held = digits
    model = EvidentialClassifier(calibrate=False, **QUICK).fit(X, y)
    assert model.calibration_ is None
    assert model.policy_ is None
    model.set_params(error=0.1, calibrate=True).calibrate_on(X_held, y_held)
    assert model.policy_ is not None
    assert model.policy_.validation.samples == len(y_held)
    assert len(model.calibration_.theta) == 2


# --- what goes in --------------------------------------------------------------------------------


def test_names_are_kept() -> None:
    pandas = pytest.importorskip("pandas")
    data = load_wine(as_frame=True)
    names = np.array(["barolo", "grignolino", "barbera"])[data.target]
    model = EvidentialClassifier(**QUICK).fit(data.data, names)
    assert model.classes_.tolist() == ["barbera", "barolo", "grignolino"]
    assert model.feature_names_in_.tolist() == list(data.data.columns)
    assert model.n_features_in_ == 13
    assert model.score(data.data, names) > 0.95
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(data.data[data.data.columns[::-1]])
    assert isinstance(data.data, pandas.DataFrame)


def test_sparse_input_is_refused_in_words(wine: Parts) -> None:
    with pytest.raises(TypeError, match=r"Sparse data was passed.*dense"):
        EvidentialClassifier(**QUICK).fit(scipy.sparse.csr_array(wine[0]), wine[1])


def test_scales_of_features_do_not_matter(wine: Parts) -> None:
    X, y, X_test, _ = wine
    plain = EvidentialClassifier(**QUICK).fit(X, y)
    scales = 10.0 ** np.arange(-6, 7)
    scaled = EvidentialClassifier(**QUICK).fit(X * scales + 5, y)
    np.testing.assert_allclose(
        scaled.predict_proba(X_test * scales + 5), plain.predict_proba(X_test), atol=1e-3
    )


class Convolutions(nn.Module):
    """A small network for images."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.filters = nn.Conv2d(shape[0], 8, 3)
        self.head = nn.Linear(8 * (shape[1] - 2) * (shape[2] - 2), outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, C, H, W) -> (N, outputs)."""
        head: torch.Tensor = self.head(self.filters(x).relu().flatten(1))
        return head


def test_a_named_network_for_images(digits: Parts) -> None:
    X, y, X_test, _ = digits
    model = EvidentialClassifier(backbone="convnet", calibrate=False, **{**QUICK, "epochs": 1})
    said = model.fit(X[:100].reshape(-1, 1, 8, 8), y[:100]).predict_proba(
        X_test.reshape(-1, 1, 8, 8)
    )
    assert said.shape == (len(X_test), 10)
    with pytest.raises(ValueError, match=r"backbone 'convnet' expects images"):
        model.fit(X, y)


def test_any_module_and_images(digits: Parts) -> None:
    X, y, X_test, y_test = digits
    images, images_test = X.reshape(-1, 1, 8, 8), X_test.reshape(-1, 1, 8, 8)
    model = EvidentialClassifier(backbone=Convolutions, **QUICK).fit(images, y)
    assert model.score(images_test, y_test) > 0.9
    again = pickle.loads(pickle.dumps(model))  # noqa: S301
    assert (again.predict_proba(images_test) == model.predict_proba(images_test)).all()
    with pytest.raises(ValueError, match=r"shape \(1, 4, 16\), but \(1, 8, 8\) in fit"):
        model.predict(images_test.reshape(-1, 1, 4, 16))


@pytest.mark.parametrize("method", METHODS)
def test_every_method(method: str, wine: Parts) -> None:
    X, y, X_test, y_test = wine
    model = EvidentialClassifier(method, calibrate=False, **QUICK).fit(X, y)
    assert model.score(X_test, y_test) > 0.8
    model.set_params(error=0.2, calibrate=True).calibrate_on(X_test, y_test)
    assert (model.predict_proba(X_test) == model.predict_proba(X_test)).all()
    assert (model.predict_proba(X_test).argmax(1) == model.predict(X_test)).all()
    evidential = "vacuity" in model._learner.said(X).available
    assert len(model.calibration_.theta) == (2 if evidential else 1)
    assert model.decide(X_test).reason.shape == y_test.shape


def test_a_method_may_be_given_whole(wine: Parts) -> None:
    X, y, X_test, _ = wine
    named = EvidentialClassifier(method_options={"fisher_weight": 0.1, "scale": "paper"}, **QUICK)
    whole = EvidentialClassifier(IEDL(fisher_weight=0.1, scale="paper"), **QUICK)
    said = [clone(model).fit(X, y).predict_proba(X_test) for model in (named, whole)]
    assert (said[0] == said[1]).all()
    with pytest.raises(ValueError, match="method_options are for a method given by its name"):
        whole.set_params(method_options={"kl_weight": 1.0}).fit(X, y)


# --- training ------------------------------------------------------------------------------------


def test_a_seed_decides_everything_and_the_users_random_state_is_left_alone(wine: Parts) -> None:
    X, y, X_test, _ = wine
    torch.manual_seed(5)
    state, numpys = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    first, second, other = (
        EvidentialClassifier(**{**QUICK, "random_state": seed}).fit(X, y).predict_proba(X_test)
        for seed in (1, 1, 2)
    )
    assert (first == second).all()
    assert (first != other).any()
    assert torch.equal(torch.get_rng_state(), state)
    assert (np.random.get_state()[1] == numpys).all()  # type: ignore[index]  # noqa: NPY002


def test_class_weights_move_the_border() -> None:
    X, y = make_blobs([225, 25], centers=[[0, 0], [2, 0]], random_state=0)
    options = {**QUICK, "method": "softmax", "calibrate": False}
    found = {
        name: (EvidentialClassifier(class_weight=weight, **options).fit(X, y).predict(X) == 1).sum()
        for name, weight in {
            "none": None, "balanced": "balanced", "other": {0: 10.0, 1: 0.1}, "equal": {0: 3, 1: 3},
        }.items()
    }  # fmt: skip
    assert found["balanced"] > 1.5 * found["none"]
    assert found["other"] < 0.5 * found["none"]
    assert abs(found["equal"] - found["none"]) <= 2


def test_class_weights_are_those_of_the_loss() -> None:
    iedl, classes = method("iedl", fisher_weight=0.1), torch.tensor([0.5, 2.0, 1.0])
    outputs, target = torch.randn(8, 3), torch.randint(3, (8,))
    names = iedl.weights(3, 10)
    loss, sums = replace(iedl, class_weight=classes).loss_of(
        outputs, target, torch.tensor(list(names.values()))
    )
    dist, kl = Dirichlet.from_logits(outputs), names["label_removed_kl"]
    wanted = losses.iedl(
        dist, target, fisher_weight=0.1, kl_weight=kl, weight=classes, reduction="sum",
        scale="paper",
    )  # fmt: skip
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(sums[0], (classes[target] * losses.fisher_bias(dist, target)).sum())
    # a network that has been trained goes on where the weights of its terms were
    later = replace(iedl, before=4)
    assert later.weights(1, 2) == iedl.weights(5, 6)


def test_a_failed_training_leaves_a_network_that_answers(wine: Parts) -> None:
    X, y, X_test, _ = wine
    model = EvidentialClassifier(calibrate=False, **QUICK).fit(X, y)
    with pytest.raises(NonFiniteLoss, match="the loss is not finite"):
        model.set_params(learning_rate=1e30).partial_fit(X, y)
    assert {p.dtype for p in model._learner.network.parameters()} == {torch.float64}
    assert model.set_params(learning_rate=1e-2).fit(X, y).predict(X_test).shape == (len(X_test),)


@pytest.mark.parametrize(
    ("weight", "message"),
    [({0: -1.0, 1: 1.0}, "class_weight must be >= 0"), ({0: 0.0, 1: 0.0}, "not all 0")],
)
def test_bad_class_weights_are_named(weight: dict[int, float], message: str) -> None:
    X, y = make_blobs(40, centers=2, random_state=0)
    with pytest.raises(ValueError, match=message):
        EvidentialClassifier(class_weight=weight, **QUICK).fit(X, y)


def test_partial_fit_learns_from_parts(digits: Parts) -> None:
    X, y, X_test, y_test = digits
    model = EvidentialClassifier(**QUICK)
    scores = []
    for _ in range(3):
        for start in range(0, len(X), 300):
            part = slice(start, start + 300)
            model.partial_fit(X[part], y[part], classes=range(10))
        scores.append(model.score(X_test, y_test))
    assert scores[-1] > 0.9
    assert scores[-1] > scores[0]
    assert model._learner.epochs == 15  # the KL's weight has risen
    assert model.calibration_ is None
    model.set_params(error=0.1).calibrate_on(X_test, y_test)
    assert model.predict_or_abstain(X_test)[1].any()


@pytest.mark.parametrize(
    ("method", "options"),
    [("posterior_network", {}), ("ensemble", {"member": "posterior_network", "size": 2})],
)
def test_partial_fit_counts_classes_that_come_later(
    method: str, options: dict[str, Any], tmp_path: Path
) -> None:
    X, y = make_blobs([30, 20, 10], centers=[[0, 0], [4, 0], [0, 4]], random_state=0)
    model = EvidentialClassifier(method, method_options=options, **QUICK)
    model.partial_fit(X[y == 0], y[y == 0], classes=[0, 1, 2])
    assert model._learner.class_counts == (30, 1, 1)
    model.partial_fit(X, y).partial_fit(X[y > 0], y[y > 0])
    assert model._learner.class_counts == (60, 40, 20)
    budgets = [part for name, part in model._learner.network.named_buffers() if "counts" in name]
    assert len(budgets) == options.get("size", 1)
    for logs in budgets:
        torch.testing.assert_close(logs.exp(), torch.tensor([60.0, 40, 20]).double())
    said = bundle.load(model.save(tmp_path / "model")).predict(X.astype(np.float32))
    np.testing.assert_allclose(said.probs.numpy(), model.predict_proba(X), atol=1e-4)


def test_partial_fit_explains_itself() -> None:
    X, y = make_blobs(60, centers=3, random_state=0)
    model = EvidentialClassifier(**QUICK)
    with pytest.raises(ValueError, match="classes must be given in the first call"):
        model.partial_fit(X, y)
    with pytest.raises(NotFittedError):
        model.predict(X)
    model.partial_fit(X[:1], y[:1], classes=[0, 1, 2])  # one sample is enough
    with pytest.raises(ValueError, match=r"y has the classes \[7\]; known: \[0, 1, 2\]"):
        model.partial_fit(X[:1], [7])
    with pytest.raises(ValueError, match=r"classes are .*, but were"):
        model.partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match="needs all data at once"):
        model.set_params(class_weight="balanced").partial_fit(X, y)


def test_progress_is_shown_on_request_alone(
    wine: Parts, capsys: pytest.CaptureFixture[str]
) -> None:
    model = EvidentialClassifier(calibrate=False, **QUICK).fit(*wine[:2])
    assert capsys.readouterr() == ("", "")
    assert len(model.history_) == 10
    model.set_params(verbose=True).fit(*wine[:2])
    assert "training, loss" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"method": "magic"}, "unknown method 'magic'; known: 'iedl'"),
        ({"backbone": "magic"}, "unknown backbone 'magic'; known: 'mlp'"),
        ({"method_options": {"magic": 1}}, "unknown hyperparameter of the method 'iedl': 'magic'"),
        ({"measure": "magic"}, "unknown measure 'magic'; known: 'max_prob'"),
        ({"device": "magic"}, "unknown device 'magic'; known: 'auto', 'cpu', 'cuda'"),
        ({"batch_size": "magic"}, "unknown batch_size 'magic'; known: 'auto'"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"epochs": 0}, "epochs must be at least 1, not 0"),
        ({"learning_rate": -1.0}, "learning_rate must be > 0"),
        ({"weight_decay": -1.0}, "weight_decay must be >= 0"),
        ({"error": 1.5}, "error must be between 0 and 1, not 1.5"),
        ({"validation_fraction": 0.0}, "validation_fraction must be between 0 and 1"),
        ({"hidden": (0,)}, "a hidden size must be at least 1"),
        ({"class_weight": "magic"}, "class_weight"),
    ],
)
def test_bad_parameters_are_named(parameters: dict[str, Any], message: str, wine: Parts) -> None:
    model = EvidentialClassifier(**{**QUICK, **parameters})
    with pytest.raises(ValueError, match=message):
        model.fit(*wine[:2])


# --- with the rest of scikit-learn ---------------------------------------------------------------


def test_in_a_pipeline_a_search_and_a_cross_validation(wine: Parts) -> None:
    X, y, X_test, y_test = wine
    model = EvidentialClassifier(calibrate=False, **QUICK)
    search = GridSearchCV(
        make_pipeline(MinMaxScaler(), model),
        {"evidentialclassifier__hidden": [(8,), (64, 64)], "evidentialclassifier__epochs": [1, 10]},
        cv=2,
    ).fit(X, y)
    assert search.best_params_["evidentialclassifier__epochs"] == 10
    assert search.score(X_test, y_test) > 0.9
    assert cross_val_score(model, X, y, cv=3).mean() > 0.9


def test_a_pickle_says_the_same(promising: Any, digits: Parts) -> None:
    again = pickle.loads(pickle.dumps(promising))  # noqa: S301
    assert (again.predict_proba(digits[2]) == promising.predict_proba(digits[2])).all()
    assert again.policy_ == promising.policy_
    assert repr(clone(again)) == repr(clone(promising))


def test_it_saves_to_a_bundle_that_says_the_same(
    promising: Any, digits: Parts, tmp_path: Path
) -> None:
    X = digits[2]
    loaded = bundle.load(promising.save(tmp_path / "model"))
    said = loaded.predict(X.astype(np.float32))
    assert loaded.classes == tuple(str(name) for name in promising.classes_)
    probs = loaded.calibrated(said).probs.numpy()
    np.testing.assert_allclose(probs, promising.predict_proba(X), atol=1e-4)
    agree = loaded.decide(said).codes == promising.decide(X).codes
    assert agree.float().mean() > 0.99  # float32 may fall on the other side of a threshold


def test_names_of_features_are_the_columns_of_a_saved_table(tmp_path: Path) -> None:
    data = load_wine(as_frame=True)
    model = EvidentialClassifier(**QUICK).fit(data.data, data.target_names[data.target])
    folder = model.save(tmp_path / "wine")
    table = tmp_path / "rows.csv"
    data.data.iloc[:, ::-1].to_csv(table, index=False)  # columns are found by their names
    answer = CliRunner().invoke(cli.app, ["predict", str(folder), str(table), "--format", "jsonl"])
    rows = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [row["label"] for row in rows] == list(model.predict(data.data))


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_saves(method: str, wine: Parts, tmp_path: Path) -> None:
    X, y, X_test, _ = wine
    model = EvidentialClassifier(method, **QUICK | {"epochs": 2, "calibrate": False}).fit(X, y)
    said = bundle.load(model.save(tmp_path / "model")).predict(X_test.astype(np.float32))
    if method != "mc_dropout":  # which draws, and in another precision other numbers
        np.testing.assert_allclose(said.probs.numpy(), model.predict_proba(X_test), atol=1e-4)
    assert said.probs.shape == (len(X_test), 3)


def test_a_module_of_ones_own_is_loaded_by_its_factory(wine: Parts, tmp_path: Path) -> None:
    X, y, X_test, _ = wine

    def network(shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Linear(shape[0], outputs)

    model = EvidentialClassifier(backbone=network, **QUICK).fit(X, y)
    folder = model.save(tmp_path / "model")
    with pytest.raises(bundle.BundleError, match="factory"):
        bundle.load(folder)
    said = bundle.load(folder, factory=network).predict(X_test.astype(np.float32))
    assert (model.classes_[said.label] == model.predict(X_test)).all()
