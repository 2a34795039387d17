"""Model cards."""

import pytest

from dubito.model.card import card
from dubito.model.folder import TrainingRecord
from dubito.policy import SanityCheck
from tests.model import models


def test_card_of_a_classifier():
    model = models.fitted()
    model.record = TrainingRecord(
        epochs=30,
        best_epoch=20,
        samples={"training": 1200},
        metrics={"accuracy": 0.875, "loss": 0.5},
    )
    text = card(model)
    assert text.startswith("# Classification: 3 classes\n")
    assert "- Classes: cat, dog, eel" in text
    assert "- Samples: 1,200 for training" in text
    assert "| Accuracy | 87.50% |" in text
    assert "an error rate of at most 10% among the answers, with confidence 95%" in text
    assert "| Guaranteed error rate | Share answered |" in text
    assert "| at most 20% |" in text


def test_card_of_prediction_sets():
    model, (x, _) = models.fitted(), models.samples()
    assert "Prediction sets" not in card(model)
    text = card(model.calibrate(x, models.names(), levels=(0.9, 0.95, 0.999)))
    assert "sets of 90%, 95% and 99.9% contain the true class with at least this prob" in text
    assert "Those of 99.9% have every class: the calibration samples are too few." in text


def test_card_of_a_regression():
    text = card(models.fitted("der"))
    assert text.startswith("# Regression: price\n")
    assert "- Targets: price" in text


def test_card_without_calibration_and_policy():
    text = card(models.build())
    assert "not calibrated" in text
    assert "no policy" in text


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"error_rate": 0.001}, "abstains from every input"),
        ({"coverage": 0.8}, "at least 80% of the inputs are answered"),
    ],
)
def test_card_of_a_policy(limit, words):
    x, _ = models.samples()
    assert words in card(models.build().fit_policy(x, models.names(), **limit))


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (("a_b", "dog"), r"- Classes: a\_b, dog"),
        (("a\nb", "dog"), "- Classes: a b, dog"),
        (("<i>|", "dog"), r"- Classes: \<i\>\|, dog"),
        (tuple(map(str, range(25))), "18, 19 and 5 more"),
    ],
)
def test_names_are_escaped_and_shortened(names, shown):
    model = models.build()
    model.task = model.task.model_copy(update={"classes": names})
    assert f"{shown}\n" in card(model)


def test_hardly_recognized_classes_are_named():
    model = models.build()
    model.record = TrainingRecord(recall={"cat": 0.9, "dog": 0.8, "e_l": 0.1})
    assert r"**Classes hardly recognized: e\_l (10.0%); the mean recall is 60.0%.**" in card(model)
    model.record = TrainingRecord(recall={"cat": 0.9, "dog": 0.8, "e_l": 0.4})
    assert "recall" not in card(model)


def test_the_sanity_check_warns_of_wrong_answers():
    model = models.fitted()
    wrong = {"noise": 0.5, "shuffled": 0}
    found = {name: SanityCheck(accepted=0.5, wrong=share) for name, share in wrong.items()}
    model.policy = model.policy.model_copy(update={"sanity": found})
    text = card(model)
    assert "made from the data: noise 50%, shuffled 50% (0% wrongly)." in text
    assert "More than 5% wrong answers to noise: choose another score" in text
