"""Models: building, prediction, fitting on held-out data, evaluation, networks from elsewhere."""

import numpy as np
import pytest
import torch
from torch import nn

from dubito import data
from dubito.backbones import BACKBONES
from dubito.calibration import Calibration
from dubito.errors import DubitoError
from dubito.formats import ArrayFormat, ImageFormat, Preprocessing
from dubito.methods import METHODS
from dubito.model import Model
from dubito.policy import Policy
from dubito.tasks import Classification
from tests.model import models

X, _ = models.samples()
#: methods that need nothing but samples, and what they are for
EACH = pytest.mark.parametrize("method", [name for name in METHODS if name != "my_modex"])


@pytest.fixture(scope="module")
def fitted():
    return models.fitted()


def weights(model):
    return nn.utils.parameters_to_vector(model.network.parameters())


# --- building ---


def test_seed_determines_the_weights_and_leaves_the_global_state():
    before = torch.get_rng_state()
    first, second, other = (weights(models.build(seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_auto_chooses_a_backbone_by_the_shape():
    images = Preprocessing(inputs=ImageFormat(size=(28, 28), mode="L"))
    model = Model.build("softmax", Classification(classes=("a", "b")), images)
    assert model.backbone == BACKBONES.build("convnet")


def test_only_training_asks_for_pretrained_weights(monkeypatch, tmp_path):
    mlp, asked = BACKBONES["mlp"], []
    build = mlp.build

    def recorded(self, shape, *, pretrained=False):
        asked.append(pretrained)
        return build(self, shape)

    monkeypatch.setattr(mlp, "build", recorded)
    parts = ("edl", models.task_of("edl"), models.preprocessing(), BACKBONES.build("mlp"))
    model = Model.build(*parts, pretrained=True)
    Model.load(model.save(tmp_path))
    Model.build(*parts)
    assert asked == [True, False, False]


def test_backbone_from_a_function():
    class Narrow(nn.Linear):
        pass

    task, preprocessing = models.task_of("edl"), models.preprocessing()
    model = Model.build("edl", task, preprocessing, lambda shape: Narrow(4, 2))
    assert model.backbone is None
    assert len(model.predict(X[:3])) == 3


def test_dropout_of_the_method_reaches_the_backbone():
    method = {"name": "ensemble", "size": 2, "member": {"name": "mc_dropout", "dropout": 0.4}}
    rates = [m.p for m in models.build(method).modules() if isinstance(m, nn.Dropout)]
    assert rates == [0.4, 0.4]
    with pytest.raises(DubitoError, match=r"backbone has dropout 0\.1, but the method 0\.4"):
        Model.build(
            {"name": "mc_dropout", "dropout": 0.4}, models.task_of("edl"), models.preprocessing(),
            {"name": "mlp", "dropout": 0.1},
        )  # fmt: skip


@pytest.mark.parametrize(
    ("method", "backbone", "message"),
    [
        ("der", "mlp", "DER is for regression, not for classification"),
        ("edl", {"hidden": [3]}, "the backbone needs a name"),
        ("edl", lambda shape: nn.Flatten(), "backbone Flatten needs an attribute out_features"),
    ],
)
def test_wrong_arguments(method, backbone, message):
    with pytest.raises(DubitoError, match=message):
        Model.build(method, models.task_of("edl"), models.preprocessing(), backbone)


# --- every method ---


@EACH
def test_every_method_fits_saves_and_loads(method, tmp_path):
    model = models.train(models.build(method), steps=0 if method in OOD else 3)
    target = models.target_of(model)
    model.calibrate(X, target).fit_policy(X, target, error_rate=0.2)
    predicted = model.predict(X[:50])
    loaded = Model.load(model.save(tmp_path))
    again = loaded.predict(X[:50])
    assert loaded.method == model.method
    for name in ("total", "aleatoric", "epistemic", *predicted.distribution.scores):
        assert torch.equal(again.score(name), predicted.score(name))
    assert again.columns() == predicted.columns()
    assert torch.equal(loaded.features(X[:5]), model.features(X[:5]))


#: methods whose training needs inputs out of distribution
OOD = ("kl_pn", "rkl_pn")


# --- prediction ---


def test_forward_returns_user_units():
    model = models.fitted("der")
    dist = model(X)
    assert abs(dist.mean.mean().item() - 1000) < 20
    torch.testing.assert_close(dist.mean, model.predict(X).distribution.mean)


@pytest.mark.parametrize("batch_size", [1, 7, 600])
def test_batch_size_does_not_change_predictions(fitted, batch_size):
    expected = fitted.predict(X[:20])
    predicted = fitted.predict(X[:20], batch_size=batch_size)
    torch.testing.assert_close(predicted.distribution.probs, expected.distribution.probs)
    assert predicted.inputs is None
    assert predicted.columns()["reason"] == expected.columns()["reason"]


def test_lists_arrays_tensors_and_sources_are_read_alike(fitted):
    rows = X[:9]
    expected = fitted.predict(rows).distribution.probs
    source = data.open((rows.numpy(), models.names()[:9]), format=fitted.preprocessing.inputs)
    for items in (rows.numpy(), rows.tolist(), list(rows.numpy()), source):
        torch.testing.assert_close(fitted.predict(items).distribution.probs, expected)
    assert fitted.predict(source).inputs == [source.item(row) for row in range(9)]


def test_prediction_leaves_the_mode_alone():
    model = models.build("mc_dropout").train()
    frozen = next(module for module in model.modules() if isinstance(module, nn.Linear)).eval()
    model.predict(X[:3])
    assert model.training
    assert not frozen.training


def test_error_names_the_row(fitted):
    rows = X[:1].repeat(1100, 1).numpy()
    rows[1050, 1] = np.inf
    for call in (fitted.predict, fitted.features):
        with pytest.raises(DubitoError, match=r": row 1050: value \[1\] is inf"):
            call(rows)
    with pytest.raises(DubitoError, match="no inputs to predict"):
        fitted.predict([])


def test_unreadable_image_is_named_by_its_path(tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_text("no image")
    images = Preprocessing(inputs=ImageFormat(size=(8, 8), mode="L"))
    model = Model.build("edl", Classification(classes=("a", "b")), images, "mlp")
    paths = [str(tmp_path / name) for name in ("a.png", "b.png")]
    with pytest.raises(DubitoError, match=r"b\.png: cannot identify image"):
        model.predict(paths)
    predicted = model.predict(paths, on_error="report")
    assert list(predicted.errors) == [1]
    assert list(predicted.rows())[1].keys() == {"input", "error"}
    with pytest.raises(DubitoError, match=r"b\.png: cannot identify image"):
        model.calibrate(predicted, ["a", "b"])


def test_outputs_that_are_not_finite_are_reported_by_row():
    model = models.build("edl")
    model.network.head.weight.data *= 1e3
    rows = X[:3].clone()
    rows[1] = 3e38
    with pytest.raises(DubitoError, match="row 1: the outputs of the network are not finite"):
        model.predict(rows)
    predicted = model.predict(rows, on_error="report")
    assert predicted.errors == {1: "the outputs of the network are not finite"}
    assert predicted.distribution.probs.isfinite().all()


def test_network_with_a_wrong_number_of_outputs_is_named():
    model = Model(models.Custom(5), *parts())
    with pytest.raises(DubitoError, match=r"returns \(2, 5\), but its method needs \(N, 3\)"):
        model.predict(X[:2])


def parts(method="edl"):
    model = models.build(method)
    return model.method, model.task, model.preprocessing


# --- calibration, policy, scores ---


def test_calibration_and_policy_are_fitted_to_the_raw_distribution(fitted):
    dist, target = fitted.predict(X).distribution, fitted.task.encode(models.names())
    assert fitted.calibration == Calibration.fit(dist, target)
    errors = dist.probs.argmax(-1) != target
    expected = Policy.control_error(dist, errors, 0.1, ood_score="epistemic", false_alarms=0.05)
    assert fitted.policy.threshold == expected.threshold
    assert fitted.policy.ood_threshold == expected.ood_threshold


def test_calibration_improves_likelihood_and_keeps_points():
    model = models.trained()
    before = model.evaluate(X, models.names())["metrics"]
    after = model.calibrate(X, models.names()).evaluate(X, models.names())
    assert after["metrics"] == before
    assert after["calibrated"]["nll"] < before["nll"]
    assert after["calibrated"]["accuracy"] == pytest.approx(before["accuracy"])


def test_guarantee_is_about_inputs_in_range():
    model = models.trained()
    outside = X.clone()
    outside[::3, 3] = 700
    model.fit_policy(outside, models.names(), error_rate=0.2)
    inside = [row for row in range(600) if row % 3]
    same = models.trained().fit_policy(X[inside], models.names()[inside], error_rate=0.2)
    assert model.policy.threshold == same.policy.threshold
    assert model.fit_policy(X, models.names()).policy.guarantee.level == 0.05
    model.fit_policy(outside, models.names(), error_rate=0.2)
    assert (model.policy.validation.samples, model.policy.validation.out_of_range) == (400, 200)
    for row, expected in zip(model.policy.table, same.policy.table, strict=True):
        assert row.error_rate == expected.error_rate
        assert row.coverage == pytest.approx(expected.coverage * 2 / 3)
    reasons = model.predict(outside).reason
    assert (reasons[::3] == "out_of_range").all()
    assert "out_of_range" not in reasons[inside]


def test_policy_can_control_the_coverage():
    model = models.trained("der").fit_policy(X, coverage=0.7)
    assert model.predict(X).accepted.double().mean().item() == pytest.approx(0.7, abs=0.01)


def test_regression_without_tolerance_has_no_error_rate():
    model = models.trained("der")
    model.task = model.task.model_copy(update={"tolerance": None})
    with pytest.raises(DubitoError, match="errors of a regression need a tolerance for 'price'"):
        model.fit_policy(X, models.numbers())


def test_target_of_the_source_is_the_default(fitted):
    source = data.open((X.numpy(), models.names()), format=fitted.preprocessing.inputs)
    assert models.fitted().calibrate(source).calibration == fitted.calibration
    with pytest.raises(DubitoError, match=r"no targets: pass target=\.\.\."):
        fitted.calibrate(X)
    with pytest.raises(DubitoError, match="599 targets for 600 inputs"):
        fitted.calibrate(X, models.names()[:-1])


def test_earlier_prediction_is_read_with_the_present_policy():
    model = models.trained()
    predicted = model.predict(X)
    assert predicted.accepted is None
    model.calibrate(predicted, models.names()).fit_policy(predicted, models.names())
    expected = models.trained().calibrate(X, models.names())
    expected.fit_policy(X, models.names())
    assert (model.calibration, model.policy) == (expected.calibration, expected.policy)
    assert torch.equal(predicted.reread(model).accepted, model.predict(X).accepted)


def test_score_that_does_not_fit_is_rejected():
    with pytest.raises(DubitoError, match="score 'energy' is not for regression"):
        models.build("der").add_scores(["energy"], X, models.numbers())
    with pytest.raises(DubitoError, match="already has a score 'energy'"):
        models.build("softmax").add_scores(["energy"])
    model = models.build().add_scores(["energy"])
    with pytest.raises(DubitoError, match="already has a score 'energy'"):
        model.add_scores([{"name": "energy", "temperature": 2.0}])
    assert model.scores["energy"].temperature == 1


# --- evaluation ---


def test_evaluation_of_a_classifier(fitted):
    result = fitted.evaluate(X, models.names(), ood={"far": X[:50] + 2.5}, noise=[0.1, 5.0], seed=1)
    predicted = fitted.predict(X)
    wrong = predicted.labels != models.names()
    assert result["samples"] == 600
    assert result["metrics"]["accuracy"] == pytest.approx(1 - wrong.mean())
    accepted = predicted.accepted.numpy()
    assert result["policy"]["accepted"] == pytest.approx(accepted.mean())
    assert result["policy"]["error_rate"] == pytest.approx(wrong[accepted].mean())
    assert result["ood"]["far"]["samples"] == 50
    assert result["ood"]["far"]["detection"]["max_prob"].keys() == {"aupr", "auroc", "fpr95"}
    small, large = result["noise"]["0.1"], result["noise"]["5"]
    assert small["metrics"]["accuracy"] > large["metrics"]["accuracy"]
    assert large["policy"]["out_of_range"] > small["policy"]["out_of_range"]
    assert fitted.evaluate(X, models.names(), noise=[0.1], seed=1)["noise"]["0.1"] == small


def test_evaluation_of_a_regressor():
    model = models.fitted("der")
    result = model.evaluate(X, models.numbers())
    assert result["metrics"]["rmse"] < 40
    assert result["interval_coverage"]["0.9"] == pytest.approx(0.9, abs=0.03)
    assert result["policy"]["error_rate"] <= 0.1
    assert "ood" not in result


# --- networks from elsewhere ---


@pytest.fixture
def network():
    torch.manual_seed(3)
    return models.Custom().eval()


def expected_outputs(network):
    with torch.no_grad():
        return network(models.preprocessing().normalize(X[:20]))


def test_from_network_accepts_matching_outputs_and_labels(network, tmp_path):
    outputs = expected_outputs(network)
    labels = models.CLASSES[outputs.argmax(-1).numpy()]
    for expected in (outputs, outputs.numpy(), labels, list(labels)):
        model = Model.from_network(network, *parts("softmax"), check=(X[:20].numpy(), expected))
    assert (model.predict(X[:20]).labels == labels).all()
    model.calibrate(X, models.names()).fit_policy(X, models.names()).save(tmp_path)
    loaded = Model.load(tmp_path, network=models.Custom)
    assert loaded.predict(X).columns() == model.predict(X).columns()


def test_from_network_detects_other_preprocessing(network):
    method, task, _ = parts("softmax")
    plain = Preprocessing(inputs=ArrayFormat(shape=(4,)))
    wide = X[:20].numpy() * 9 + 40
    prepared = Preprocessing.fit(plain.inputs, torch.from_numpy(wide))
    outputs = network(prepared.normalize(torch.from_numpy(wide))).detach()
    Model.from_network(network, method, task, prepared, check=(wide, outputs))
    with pytest.raises(DubitoError, match=r"differ from the expected ones .*preprocessing"):
        Model.from_network(network, method, task, plain, check=(wide, outputs))
    labels = models.CLASSES[outputs.argmax(-1).numpy()]
    with pytest.raises(DubitoError, match=r"only \d+\.\d% of the labels are as expected"):
        Model.from_network(network, method, task, plain, check=(wide, labels))


def test_from_network_detects_another_order_of_classes_and_another_count(network):
    method, task, preprocessing = parts("softmax")
    outputs = expected_outputs(network)
    with pytest.raises(DubitoError, match=r"shape \(5, 3\), but the model returns \(20, 3\)"):
        Model.from_network(network, method, task, preprocessing, check=(X[:20], outputs[:5]))
    labels = models.CLASSES[outputs.argmax(-1).numpy()]
    task = Classification(classes=("eel", "dog", "cat"))
    with pytest.raises(DubitoError, match="order of the classes"):
        Model.from_network(network, method, task, preprocessing, check=(X[:20], labels))


def test_features_are_the_inputs_of_the_last_layer(network):
    model = Model(network, *parts("softmax"))
    assert torch.equal(model.features(X[:2]), models.preprocessing().normalize(X[:2]))
    assert models.build("ensemble").features(X[:2]).shape == (2, 40)


def test_network_without_a_linear_layer_says_its_features():
    class Distances(nn.Module):
        def forward(self, x):
            return -torch.cdist(x, torch.eye(3, 4))

    class Said(Distances):
        def forward_with_features(self, x):
            return x[:, :2], self(x)

    with pytest.raises(DubitoError, match=r"Distances has no features: .* no nn\.Linear"):
        Model(Distances(), *parts("softmax")).features(X[:2])
    assert Model(Said(), *parts("softmax")).features(X[:2]).shape == (2, 2)
