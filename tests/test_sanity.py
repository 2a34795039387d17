"""The sanity check: what is made of images, and what a policy accepts of it."""

import numpy as np
import pytest
import torch

import dubito
from dubito import Model, data, sanity
from dubito.config import PolicyConfig
from dubito.errors import DubitoError
from dubito.formats import ArrayFormat, Preprocessing
from dubito.pipeline import policy_scores
from dubito.policy import Policy, Threshold
from dubito.scores import SCORES
from dubito.tasks import Classification, Regression


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Return a model of digits with the default policy, and its folder."""
    folder = tmp_path_factory.mktemp("sanity")
    model = dubito.train("digits", out=folder, epochs=8, lr=0.005, report=False)
    return model, folder


def images(count=6, channels=3, height=9, width=12):
    return torch.randint(10, 200, (count, channels, height, width), dtype=torch.uint8)


def tiles(image):
    """Return the tiles of 2 x 3 pixels in the order of their values."""
    rows, columns = (0, 2, 4, 6), (0, 3, 6, 9)
    parts = (image[:, y : y + 2, x : x + 3] for y in rows for x in columns)
    return sorted(part.flatten().tolist() for part in parts)


def test_images_keep_shape_type_and_range():
    x = images()
    for name, made in sanity.images(x).items():
        assert (made.shape, made.dtype) == (x.shape, x.dtype), name
        assert made.min() >= x.min(), name
        assert made.max() <= x.max(), name


def test_shuffled_images_have_the_tiles_of_theirs_in_another_order():
    x = images()
    made = sanity.images(x)["shuffled"]
    assert not torch.equal(made, x)
    for before, after in zip(x, made, strict=True):
        assert tiles(before) == tiles(after)
    assert torch.equal(made[:, :, 8:], x[:, :, 8:])  # what is left over


def test_flat_inverted_and_noisy_images_are_what_they_are_called():
    x = images(count=50).float()
    made = sanity.images(x)
    assert torch.equal(made["flat"].amax((-2, -1)), made["flat"].amin((-2, -1)))
    torch.testing.assert_close(made["inverted"] + x, (x.min() + x.max()).expand_as(x))
    noise = (made["noise"] - x.min()) / (x.max() - x.min())
    assert noise.mean().item() == pytest.approx(0.5, abs=0.02)
    assert noise.var().item() == pytest.approx(1 / 12, abs=0.01)


def test_answers_to_noise_are_wrong_and_those_to_shuffled_images_may_be_right(digits):
    model, _ = digits
    samples = data.open("digits", "test")
    everything = Threshold(score="max_prob", higher="confidence", value=0.0)
    policy, model.policy = model.policy, Policy(threshold=everything)
    try:
        found = sanity.checked(model, samples).sanity
    finally:
        model.policy = policy
    assert {name: part.accepted for name, part in found.items()} == dict.fromkeys(found, 1.0)
    assert found["noise"].wrong == found["flat"].wrong == 1
    made = sanity.sources(model, samples)["shuffled"]
    assert 50 < len(made) <= 100
    wrong = model.predict(made).labels != np.asarray(made.target)
    assert found["shuffled"].wrong == pytest.approx(wrong.mean())
    assert 0 < found["shuffled"].wrong < 1


def test_the_default_policy_tells_images_by_their_features(digits):
    """By evidence alone most inverted digits pass; see docs/ood.md."""
    model, folder = digits
    assert model.policy.ood_threshold.score == "mahalanobis"
    found = model.policy.sanity
    assert not any(found[name].fails for name in ("noise", "flat", "inverted"))
    other = dubito.calibrate(folder, ood_score="epistemic", out=folder / "other")
    assert other.policy.sanity["inverted"].fails
    assert dubito.load(folder / "other").policy == other.policy


def test_a_named_score_is_fitted_and_a_policy_may_return_to_it(digits, tmp_path):
    settings = {"epochs": 1, "report": False, "backbone": "mlp", "out": tmp_path}
    model = dubito.train("digits", ood_score="knn", **settings)
    assert (model.policy.ood_threshold.score, [*model.scores]) == ("knn", ["knn"])
    model = dubito.train("digits", ood_score="mahalanobis", **settings)  # the network is kept
    assert [*model.scores] == ["knn", "mahalanobis"]
    with pytest.raises(DubitoError, match="fitted to one network: train without folds"):
        dubito.train("digits", ood_score="knn", folds=3, **settings)


CLASSES, NUMBERS = (
    Classification(classes=("a", "b")),
    Regression.from_target([1, 2, 3], tolerance=1),
)


@pytest.mark.parametrize(
    ("method", "task", "shape", "expected"),
    [
        ("iedl", CLASSES, (1, 8, 8), ["mahalanobis"]),
        ("iedl", CLASSES, (64,), []),
        ("ensemble", CLASSES, (1, 8, 8), []),
        ("der", NUMBERS, (1, 8, 8), []),
    ],
)
def test_one_network_that_classifies_images_gets_a_score_of_features(method, task, shape, expected):
    preprocessing = Preprocessing(inputs=ArrayFormat(shape=shape))
    model = Model.build(method, task, preprocessing, {"name": "mlp", "hidden": [4]})
    scores = policy_scores(model, PolicyConfig())
    assert [SCORES.name_of(score) for score in scores] == expected
    named = policy_scores(model, PolicyConfig(ood_score="total"))
    assert named == ()
