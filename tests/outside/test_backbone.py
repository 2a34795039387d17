"""What a backbone wants of its inputs, and what replaces it."""

from contextlib import nullcontext

import pytest

from dubito.config import RunConfig
from dubito.formats import ImageFormat, Preprocessing, Resize
from dubito.model import Model
from dubito.pipeline import Pipeline
from dubito.tasks import Classification
from tests.outside.backbone import OFFLINE, WANTED


def preprocessing(settings, message=None):
    """Return the preprocessing of an untrained model of 20 x 28 photos."""
    config = RunConfig.merge({"backbone": "tiny_cnn"}, settings)
    pipeline = Pipeline(config)
    prepared = pipeline.prepare(config.open("color_photos"))
    with pytest.warns(UserWarning, match=message) if message else nullcontext():
        return pipeline.build(prepared, seed=0).preprocessing


def test_photos_become_what_the_backbone_wants():
    assert preprocessing({}) == WANTED


FORMAT = ImageFormat(size=(8, 8), mode="RGB")
RESIZE = WANTED.inputs.resize


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"size": 12}, {"size": (12, 12)}),
        ({"fit": "stretch"}, {"resize": Resize(fit="stretch", interpolation=RESIZE.interpolation)}),
        ({"mode": "L"}, {"mode": "L"}),
        ({"format": FORMAT}, {"size": (8, 8), "resize": FORMAT.resize}),
    ],
    ids=str,
)
def test_a_setting_replaces_a_part_with_a_warning(settings, expected):
    (name,) = settings
    found = preprocessing(settings, f"{name}=.* replaces what the backbone expects: 16 x 16 RGB")
    values = {name: getattr(WANTED.inputs, name) for name in ("size", "mode", "resize")}
    assert found.inputs == ImageFormat(**values | expected)
    assert found.mean == (None if name == "mode" else WANTED.mean)  # gray has one channel


def test_mean_and_deviation_are_replaced_with_a_warning():
    settings = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    found = preprocessing(settings, "mean=.*, std=.* replaces what .* mean \\(0.5, 0.45, 0.4\\)")
    assert found == Preprocessing(inputs=WANTED.inputs, **settings)
    assert preprocessing({"standardize": False}, "standardize=False replaces").mean is None


def test_weights_from_elsewhere_are_for_training_only(monkeypatch):
    parts = ("edl", Classification(classes=("a", "b")), WANTED, "tiny_cnn")
    weights = [
        Model.build(*parts, seed=seed, pretrained=True).network.backbone[0].weight
        for seed in (0, 1)
    ]
    assert weights[0].equal(weights[1])
    monkeypatch.setenv(OFFLINE, "1")
    assert not weights[0].equal(Model.build(*parts).network.backbone[0].weight)
