"""Configurations: every name is looked up before data is read."""

import numpy as np
import pytest

from dubito import data
from dubito.api import calibrate, evaluate, predict, train
from dubito.config import RunConfig
from dubito.errors import DubitoError
from dubito.methods import EDL, METHODS
from tests.model import models

MISSPELLED = {
    "data": ({"data": None}, "nothing to train on"),
    "train_ood": ({"method": "kl_pn", "train_ood": "digitz"}, "'digitz' is not a file"),
    "train_ood of another method": ({"train_ood": "digits"}, "train_ood is for methods"),
    "method": ({"method": "iedll"}, "unknown method 'iedll'; known: .*'iedl'"),
    "method option": ({"method.fisher": 1}, "unknown option 'fisher'; known: .*'fisher_weight'"),
    "method value": ({"method.kl_weight": -1}, "kl_weight: .* greater than or equal to 0"),
    "member": ({"method": {"name": "ensemble", "member": "softmx"}}, "unknown method 'softmx'"),
    "method of another task": ({"method": "der", "task": "classification"}, "der is for regr"),
    "backbone": ({"backbone": "resnett"}, "unknown backbone 'resnett'"),
    "backbone option": ({"backbone": "mlp", "backbone.hiden": [8]}, "unknown option 'hiden'"),
    "option of auto": ({"backbone.hiden": [8]}, "unknown option of the backbone 'hiden'"),
    "module": ({"backbone": "module:no_module.nets:build"}, "cannot import the plug-in no_module"),
    "posthoc option": ({"posthoc.energy.temprature": 2}, "'temprature'; known: 'temperature'"),
    "posthoc value": ({"posthoc.energy.temperature": 0}, "temperature: .* greater than 0"),
    "posthoc": ({"posthoc": ["enrgy"]}, "unknown score 'enrgy'; known: .*'energy'"),
    "score": ({"score": "max_porb"}, "unknown score 'max_porb'; known: .*'max_prob'"),
    "ood_score": ({"ood_score": "enrgy"}, "unknown ood_score 'enrgy'; .*'vacuity'"),
    "optimizer": ({"optimizer": "adamm"}, "unknown optimizer 'adamm'; known: .*'adam'"),
    "schedule": ({"schedule": "cosin"}, "training.schedule: .*'cosine'"),
    "keep": ({"keep": "acuracy"}, "unknown metric to keep 'acuracy'; known: .*'accuracy'"),
    "keep of another task": ({"keep": "rmse"}, "unknown metric to keep 'rmse'"),
    "precision": ({"precision": "bf16"}, "training.precision: .*'bfloat16'"),
    "augment": ({"augment": "phto"}, "unknown augmentation 'phto'; known: .*'photo', 'shift'"),
    "augment option": ({"augment": "photo", "augment.flipp": 1}, "unknown option 'flipp'"),
    "augment without a name": ({"augment.flip": 1}, "the augmentation needs a name"),
    "optimizer option": (
        {"optimizer_options": {"betas": (0.9, 0.99), "momentm": 1}},
        "unknown option of adam 'momentm'; known: .*'weight_decay'",
    ),
    "param_groups": ({"param_groups": {"head.*": {"lrr": 1}}}, "unknown setting .*'lr'"),
    "format": ({"format": "imag"}, "unknown format 'imag'; known: .*'image'"),
    "format option": ({"format": "image", "format.size": 8}, "format 'image': .*mode is required"),
    "mean without std": ({"mean": (0.5,)}, "mean and std go together"),
    "std": ({"mean": (0.5,), "std": (0,)}, "data.std: .*greater than 0"),
    "standardize": ({"mean": (0.5,), "std": (1,), "standardize": False}, "standardize=False"),
    "task": ({"task": "clasification"}, "data.task: .*'classification'"),
    "class_weight": ({"class_weight": "balancd"}, "data.class_weight: .*'balanced'"),
    "class_weight of numbers": ({"method": "der", "class_weight": "balanced"}, "class_weight"),
    "mode": ({"mode": "RGBX"}, "data.mode: "),
    "size": ({"size": 0}, "data.size: .*greater than 0"),
    "tolerance": ({"method": "der", "tolerance": -1}, "data.tolerance: .*equal to 0"),
    "levels": ({"levels": (0.9, 0.9)}, r"levels must be distinct, not \(0.9, 0.9\)"),
    "width": ({"max_width": 2}, "max_width is for regression"),
    "level": ({"levels": (95,)}, "policy.levels: .*less than 1, not 95"),
    "no level": ({"levels": ()}, "policy.levels: .*at least 1 item"),
    "on_error": ({"on_error": "skp"}, "data.on_error: .*'skip'"),
    "nested setting": ({"training.epoch": 3}, "did you mean .epochs."),
    "number": ({"epochs": "many"}, "training.epochs: Input should be a valid integer.*'many'"),
    "setting": ({"lrr": 1}, "unknown setting 'lrr'; did you mean 'lr'"),
    "shares": ({"calibration": 0.6, "selection": 0.5}, "calibration and selection leave -0.1"),
    "folds": ({"folds": 1}, "data.folds: .*greater than or equal to 2"),
    "device": ({"device": "cdua"}, "unknown device 'cdua'"),
    "seeds": ({"seeds": [1, 1]}, "seeds must be distinct"),
}


@pytest.mark.parametrize(("settings", "message"), MISSPELLED.values(), ids=MISSPELLED)
def test_a_bad_name_fails_before_data_is_read(settings, message, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "open", lambda *_, **__: pytest.fail("data was read"))
    with pytest.raises(DubitoError, match=message):
        train(**{"data": "digits", "out": tmp_path, **settings})
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: predict(f, "x.png", scores=["vacuty"]), "score 'vacuty'; known: .*'vacuity'"),
        (lambda f: predict(f, "x.png", format="xml"), "format 'xml'; known: 'csv', 'jsonl'"),
        (lambda f: predict(f, "x.png", device="abacus"), "unknown device 'abacus'"),
        (lambda f: calibrate(f, posthoc=["energy"], ood_score="enrgy"), "unknown score 'enrgy'"),
    ],
)
def test_a_bad_name_fails_before_inputs_are_read(tmp_path, monkeypatch, call, message):
    folder = models.build().save(tmp_path)
    monkeypatch.setattr(data, "open", lambda *_, **__: pytest.fail("inputs were read"))
    with pytest.raises(DubitoError, match=message):
        call(folder)


def test_a_bad_ood_set_fails_before_the_model_is_loaded():
    with pytest.raises(DubitoError, match="'digitz' is not a file, a folder or a known dataset"):
        evaluate("there is no model here", ood=["digitz"])


# --- parts ---


def rows(part):
    return set() if part is None else set(part.indices)


def parts_of(**settings):
    return RunConfig.merge(None, settings).divide(data.open("digits"))


def test_parts_share_no_sample():
    ((train, selection, calibration),) = parts_of(calibration=0.2, selection=0.1)
    assert [len(train), len(selection), len(calibration)] == [1006, 144, 288]
    assert len(rows(train) | rows(selection) | rows(calibration)) == 1438


def test_an_epoch_is_chosen_only_where_it_helps():
    assert RunConfig().selection == 0
    assert RunConfig(method="der").selection == 0.1
    assert RunConfig.merge(None, {"keep": "accuracy"}).selection == 0.1
    assert RunConfig.merge(None, {"method": "der", "selection": 0}).selection == 0


def test_each_sample_calibrates_in_one_fold():
    folds = parts_of(folds=5)
    assert len(folds) == 5
    assert sum(len(fold.calibration) for fold in folds) == 1438
    assert len(set().union(*(rows(fold.calibration) for fold in folds))) == 1438
    for fold in folds:
        assert 287 <= len(fold.calibration) <= 288
        assert not rows(fold.train) & rows(fold.calibration)
        assert len(fold.train) + len(fold.calibration) == 1438


def test_folds_of_regression_select_on_other_samples():
    source = data.open((data.open("digits").load().flatten(1).numpy(), [*range(1438)]))
    config = RunConfig.merge(None, {"method": "der", "folds": 3})
    for fitted, selection, calibration in config.divide(source):
        assert not rows(fitted) & rows(selection)
        assert not (rows(fitted) | rows(selection)) & rows(calibration)


def test_calibration_samples_are_drawn_regardless_of_their_class():
    """The proof of a guarantee assumes independent draws."""
    ((train, selection, calibration),) = parts_of(selection=0.2)
    rest = np.concatenate([train.target, selection.target])

    def is_proportional(part, whole):
        own, all_of_them = (np.unique(names, return_counts=True)[1] for names in (part, whole))
        return bool((abs(own - all_of_them * len(part) / len(whole)) <= 1).all())

    assert is_proportional(selection.target, rest)
    assert not is_proportional(calibration.target, data.open("digits").target)


def test_a_score_that_the_method_has_is_skipped():
    scores = {"posthoc": ["energy", "knn"], "ood_score": "energy"}
    with pytest.warns(UserWarning, match="softmax has a score 'energy' of its own"):
        config = RunConfig.merge(None, {"method": "softmax", **scores})
    assert [score["name"] for score in config.model_dump()["posthoc"]] == ["knn"]
    assert RunConfig.merge(config.model_dump(), {}).posthoc  # without a warning
    assert len(RunConfig.merge(None, {"method": "edl", **scores}).posthoc) == 2


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"ood_score": "vacuty"}, "method 'mine': ood_score is 'vacuty', not one of .*'vacuity'"),
        ({"error_score": "maxprob"}, "method 'mine': error_score is 'maxprob'"),
        ({"tasks": ("clasification",)}, "unknown task of the method Mine 'clasification'"),
    ],
)
def test_a_misspelled_declaration_of_a_method_fails_first(declared, message, monkeypatch):
    kind = type("Mine", (EDL,), declared)
    monkeypatch.setattr(METHODS, "_entries", {**METHODS._entries, "mine": kind})
    with pytest.raises(DubitoError, match=message):
        RunConfig.merge(None, {"method": "mine"})
