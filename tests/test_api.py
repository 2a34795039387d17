"""Training, evaluation, prediction and calibration from Python."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import dubito
from dubito import data
from dubito.api import calibrate, evaluate, predict, train
from dubito.backbones import BACKBONES
from dubito.config import RunConfig
from dubito.errors import DubitoError
from dubito.methods import METHODS
from dubito.training import TrainConfig
from tests.training.helpers import weights

SETTINGS = {"lr": 0.01, "batch_size": 16, "report": False, "backbone": {"hidden": [32]}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of a model of digits."""
    out = tmp_path_factory.mktemp("run")
    train("digits", out=out, epochs=6, **SETTINGS)
    return out


@pytest.fixture(scope="module")
def housing() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    area, code = draw.uniform(30, 200, 500), draw.choice(["04109", "10115"], 500)
    price = 3 * area + 50 * (code == "10115") + draw.normal(0, 10, 500)
    return pd.DataFrame({"id": range(500), "area": area, "code": code, "price": price})


# --- configuration ---


def test_settings_override_a_config():
    first = {"method": {"name": "edl", "kl_ramp": 3}, "posthoc": ("energy",)}
    first["training"] = TrainConfig(epochs=9, lr=0.1)
    settings = {"epochs": "2", "method.kl_weight": "0.5", "policy.error_rate": 0.1, "posthoc": ()}
    config = RunConfig.merge(first, settings)
    assert (config.training.epochs, config.training.lr) == (2, 0.1)
    assert (config.method.kl_ramp, config.method.kl_weight) == (3, 0.5)
    assert config.policy.error_rate == 0.1
    assert config.posthoc == ()
    assert RunConfig.merge(first, {"method": "redl"}).method == METHODS.build("redl")


def test_a_damaged_config_file(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("[data")
    with pytest.raises(DubitoError, match="cannot read the configuration"):
        RunConfig.merge(path, {})


# --- train ---


def test_train_learns_and_records(folder):
    model = dubito.load(folder)
    assert model.record.metrics["accuracy"] > 0.9
    assert model.record.samples == {"training": 1150, "calibration": 288}
    assert model.record.config["training"]["epochs"] == 6
    assert model.calibration is not None
    assert model.policy.guarantee.level == 0.05
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == list(range(1, 7))


def test_several_seeds(tmp_path):
    first, second = train("digits", out=tmp_path, seeds=[1, 2], epochs=2, **SETTINGS)
    assert not torch.equal(weights(first), weights(second))
    assert dubito.load(tmp_path / "seed-2").record.seed == 2
    result = evaluate(tmp_path)
    assert 0 <= result["metrics"]["accuracy"]["std"] < result["metrics"]["accuracy"]["mean"]
    assert result["samples"] == 359


def test_arrays_in_memory(tmp_path):
    x = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    model = train((x, x[:, 0] > 0), out=tmp_path, epochs=8, **SETTINGS)
    assert model.task.classes == ("False", "True")
    assert model.record.metrics["accuracy"] > 0.8
    with pytest.raises(DubitoError, match="calibration samples of this model are unknown"):
        calibrate(tmp_path)
    assert evaluate(tmp_path, (x, x[:, 0] > 0))["samples"] == 200


def test_ood_inputs_and_class_weights(tmp_path):
    settings = {**SETTINGS, "method": "rkl_pn", "class_weight": "balanced", "train_ood": "digits"}
    model = train("digits", out=tmp_path, epochs=1, **settings)
    assert model.record.config["data"]["class_weight"] == "balanced"
    with pytest.raises(DubitoError, match="train_ood is for methods that train with OOD inputs"):
        train("digits", out=tmp_path / "b", epochs=1, train_ood="digits", **SETTINGS)


# --- regression ---


def test_regression_end_to_end(housing, tmp_path):
    housing[:400].to_csv(tmp_path / "housing.csv", index=False)
    options = {"target": "price", "ignore": ["id"], "method": "der", "tolerance": 50, "epochs": 15}
    settings = {**SETTINGS, **options, "report": True}
    model = train(tmp_path / "housing.csv", out=tmp_path / "run", **settings)
    assert (tmp_path / "run" / "report.html").exists()
    prediction = predict(model, housing[400:].drop(columns="price"))
    lower, upper = prediction.interval()
    truth = torch.tensor(housing["price"][400:].to_numpy())
    inside = (lower[:, 0] <= truth) & (truth <= upper[:, 0])
    assert inside.double().mean() > 0.75
    result = evaluate(tmp_path / "run", housing[400:])
    assert result["metrics"]["rmse"] < 60
    assert result["policy"]["accepted"] > 0


@pytest.mark.parametrize("settings", [{}, {"task": "regression"}])
def test_numbers_as_targets_need_no_method(housing, tmp_path, settings):
    model = train(housing, out=tmp_path, target="price", **settings, **SETTINGS)
    assert METHODS.name_of(model.method) == "der"
    assert BACKBONES.name_of(model.backbone) == "tabular"
    again = train(housing, out=tmp_path, target="price", **settings, **SETTINGS)
    assert again.record.fingerprint == model.record.fingerprint


def test_a_method_for_classes_does_not_take_numbers(housing, tmp_path):
    with pytest.raises(DubitoError, match="looks like a number"):
        train(housing, out=tmp_path, target="price", method="iedl", **SETTINGS)
    with pytest.raises(DubitoError, match="is for classification, not for regression"):
        train(housing, out=tmp_path, target="price", task="regression", method="iedl", **SETTINGS)


# --- use ---


def test_evaluate_takes_ood_data_by_name(folder):
    noise = np.random.default_rng(0).integers(17, size=(20, 1, 8, 8), dtype=np.uint8)
    result = evaluate(folder, ood={"noise": noise, "known": "digits"})
    assert {name: part["samples"] for name, part in result["ood"].items()} == {
        "noise": 20, "known": 359,
    }  # fmt: skip
    for data_without_a_name in ([noise], noise, "digits"):
        with pytest.raises(DubitoError, match=r"or a dict: ood=\{'noise': array\}"):
            evaluate(folder, ood=data_without_a_name)


def test_evaluate_ood_and_noise(folder):
    result = evaluate(folder, ood=["digits"], noise=[0.5])
    assert result["part"] == "test"
    assert list(result["ood"]) == ["digits"]
    assert result["noise"]["0.5"]["detection"]["max_prob"]["auroc"] > 0.6
    assert json.loads((folder / "evaluation" / "result.json").read_text()) == result
    assert result["declared"] == {"errors": "max_prob", "ood": "mahalanobis"}


def test_predict_writes_rows(folder, tmp_path):
    images = data.open("digits", "test").load()[:5]
    prediction = predict(folder, images, out=tmp_path / "rows.csv", scores=["vacuity"])
    table = pd.read_csv(tmp_path / "rows.csv", dtype={"prediction": str})
    assert table["prediction"].tolist() == prediction.labels.tolist()
    assert table["vacuity"].tolist() == pytest.approx(prediction.score("vacuity").tolist(), 1e-5)


def test_calibrate_on_other_data(folder, tmp_path):
    test = data.open("digits", "test")
    model = calibrate(dubito.load(folder), test, coverage=0.8, out=tmp_path)
    assert model.policy.guarantee.controls == "coverage"
    assert dubito.load(tmp_path).policy.validation.samples == 359
    assert torch.equal(weights(model), weights(dubito.load(folder)))


def test_calibrate_adds_scores_to_a_finished_model(folder, tmp_path):
    posthoc = ["energy", "knn"]
    model = calibrate(folder, posthoc=posthoc, ood_score="knn", out=tmp_path)
    assert len(model.scores["knn"].bank) == model.record.samples["training"]
    assert model.policy.ood_threshold.score == "knn"
    test = data.open("digits", "test")
    expected = model.predict(test).score("knn")
    assert torch.equal(dubito.load(tmp_path).predict(test).score("knn"), expected)
    assert evaluate(tmp_path)["aurc"].keys() >= {"energy", "knn"}
    assert [*dubito.load(folder).scores] == ["mahalanobis"]


def test_changed_data_is_an_error(tmp_path):
    x = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    np.savez(tmp_path / "data.npz", inputs=x, labels=x[:, 0] > 0)
    train(tmp_path / "data.npz", out=tmp_path / "run", epochs=1, **SETTINGS)
    np.savez(tmp_path / "data.npz", inputs=x, labels=x[:, 1] > 0)
    with pytest.raises(DubitoError, match="has changed since the training"):
        calibrate(tmp_path / "run")


NETWORK = """
from torch.nn import Flatten, Linear, Sequential

def make():
    return Sequential(Flatten(), Linear(64, 10))
"""


def test_a_custom_network_is_evaluated_and_predicted(folder, tmp_path):
    (tmp_path / "my_network.py").write_text(NETWORK)
    network, trained = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), dubito.load(folder)
    test = data.open("digits", "test")
    some = test.load()[:5]
    parts = (network, trained.method, trained.task, trained.preprocessing)
    model = dubito.Model.from_network(*parts, check=(some, network(some / 255).detach()))
    run = model.save(tmp_path / "run")
    factory = f"{tmp_path / 'my_network.py'}:make"
    assert evaluate(run, test, network=factory)["samples"] == 359
    assert calibrate(run, test, network=factory).policy is not None
    assert len(predict(run, test, network=factory)) == 359
    with pytest.raises(DubitoError, match="has no function 'other'"):
        predict(run, test, network=factory.replace("make", "other"))


# --- backbones ---


def test_an_mlp_on_photos_warns(tmp_path):
    photos = np.random.default_rng(0).integers(0, 256, (40, 3, 48, 40), dtype=np.uint8)
    options = {"epochs": 1, "report": False}
    with pytest.warns(UserWarning, match="'mlp' does not learn photos of 48x40 pixels"):
        train((photos, np.arange(40) % 2), out=tmp_path, backbone="mlp", **options)
