"""`dubito features`: from images to episodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from dubito import _legacy as methods
from dubito import backbones, bundle, cli, runs
from dubito.data import ImageFolder, read_features
from dubito.fewshot import extract

SIDE = 16


def invoke(*words: str | Path) -> Any:
    return CliRunner().invoke(cli.app, [str(word) for word in words])


def features(*words: str | Path) -> Any:
    done = invoke("features", *words, "--device", "cpu")
    if done.exit_code != 0:
        raise done.exception
    return done.output


def images(folder: Path, classes: str, each: int, seed: int) -> None:
    """Noisy stripes: each class has its own direction and width."""
    drawn = np.random.default_rng(seed)
    across, down = np.meshgrid(np.arange(SIDE), np.arange(SIDE))
    for number, name in enumerate(classes):
        angle = np.pi * number / len(classes)
        wave = np.sin((np.cos(angle) * across + np.sin(angle) * down) * (0.6 + 0.15 * number))
        (folder / name).mkdir(parents=True)
        for i in range(each):
            noisy = 127 + 90 * wave[..., None] + drawn.normal(0, 25, (SIDE, SIDE, 3))
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / name / f"{i:02}.png")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with base and novel classes."""
    folder = tmp_path_factory.mktemp("photos")
    images(folder / "base", "abcdef", 12, seed=0)
    images(folder / "novel", "uvwxyz", 20, seed=1)
    return folder


TRAINED = ("--train", "--backbone", "wide_resnet", "--set", "backbone.depth=10")
SMALL = ("--set", "backbone.width=1", "--epochs", "3", "--set", "batch_size=16")


@pytest.fixture(scope="module")
def done(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of features, of a small WideResNet that was trained on the base classes."""
    out = tmp_path_factory.mktemp("work") / "features"
    told = features(photos, *TRAINED, *SMALL, "-o", out)
    assert "training wide_resnet on" in told
    assert "of 6 classes" in told
    return out


def test_from_images_to_episodes(done: Path, tmp_path: Path) -> None:
    assert [path.name for path in done.iterdir()] == ["novel.npz"]
    found = read_features(done / "novel.npz")
    assert (len(found), found.classes, found.shape) == (120, tuple("uvwxyz"), (64,))
    words = ("--ways", "3", "--shots", "2", "--episodes", "20", "--out", tmp_path)
    told = invoke("fewshot", done / "novel.npz", *words, "--method", "softmax")
    assert told.exit_code == 0, (told.output, told.exception)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["figures"]["accuracy"]["mean"] > 0.6  # by chance 1/3


def test_features_are_those_before_the_last_layer(done: Path, photos: Path) -> None:
    run = runs.load(done.with_name("features-run"))
    folder = ImageFolder(photos / "novel", size=SIDE)
    pixels = torch.stack([folder[i][0] for i in (0, 57, 119)])
    model = run.model
    assert isinstance(model, backbones.WideResNet)
    with torch.no_grad():
        wanted = model.features(pixels / 255)
    found = read_features(done / "novel.npz")
    assert torch.allclose(found.inputs[[0, 57, 119]], wanted, atol=1e-5)
    assert found.labels[[0, 57, 119]].tolist() == [folder.labels[i] for i in (0, 57, 119)]


def test_a_finished_training_is_used_and_batches_do_not_matter(done: Path, photos: Path) -> None:
    before = (done / "novel.npz").read_bytes()
    run = done.with_name("features-run")
    weights = (run / "model.safetensors").stat().st_mtime_ns
    told = features(photos, *TRAINED, *SMALL, "--batch-size", "7", "-o", done)
    assert "training" not in told
    assert (run / "model.safetensors").stat().st_mtime_ns == weights
    again = read_features(done / "novel.npz")
    (done / "novel.npz").write_bytes(before)
    assert torch.allclose(again.inputs, read_features(done / "novel.npz").inputs, atol=1e-5)
    with pytest.raises(Exception, match=r"holds another run: its training\.epochs is 3"):
        features(photos, *TRAINED, *SMALL[:2], "--epochs", "4", "-o", done)


def test_a_stopped_training_goes_on(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (photos, *TRAINED, *SMALL, "--set", "validate_every=1", "-o", tmp_path / "a")
    train, heard = runs.train, []

    def stopped(plan: Any, tell: Any) -> Any:
        def once(entry: dict[str, Any]) -> None:
            tell(entry)
            heard.append(entry["epoch"])
            if len(heard) == 1:
                raise KeyboardInterrupt

        return train(plan, once)

    monkeypatch.setattr(runs, "train", stopped)
    first = invoke("features", *words, "--device", "cpu")
    assert first.exit_code == 130
    assert "goes on from the last checkpoint" in first.output
    features(*words)
    assert heard[0] == 1
    assert heard[-1] == 3
    assert (tmp_path / "a" / "novel.npz").exists()


def test_a_bundle_and_another_format(done: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "novel.safetensors"
    features(photos / "novel", "--weights", done.with_name("features-run"), "-o", out)
    one, other = read_features(out), read_features(done / "novel.npz")
    assert torch.equal(one.inputs, other.inputs)
    assert one.classes == other.classes


def test_weights_of_a_named_backbone_on_an_npz(tmp_path: Path) -> None:
    network = backbones.build("convnet", (1, SIDE, SIDE), 4).eval()
    save_file(network.state_dict(), tmp_path / "net.safetensors")
    pixels = np.random.default_rng(0).integers(256, size=(9, 1, SIDE, SIDE), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", images=pixels, labels=np.arange(9) % 3)
    weights = ("--backbone", "convnet", "--weights", tmp_path / "net.safetensors")
    features(tmp_path / "data.npz", *weights, "-o", tmp_path / "out.npz")
    with torch.no_grad():
        wanted = network.features(torch.from_numpy(pixels) / 255)
    found = read_features(tmp_path / "out.npz")
    assert torch.allclose(found.inputs, wanted, atol=1e-6)
    assert found.labels.tolist() == [0, 1, 2] * 3


CODE = """
import torch
from torch import nn

def flat():
    return nn.Flatten()

def strange():
    return nn.Conv2d(3, 2, 3)

def nothing():
    return 3

def asked(shape, outputs):
    return nn.Flatten()

def double():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).double()

class Endless(nn.Module):
    def forward(self, x):
        return x.flatten(1) / 0
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_networks.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    return "own_networks"


def test_a_module_of_the_users(own: str, photos: Path, tmp_path: Path) -> None:
    words = ("--module", f"{own}:flat", "--size", "4", "--grey", "-o", tmp_path / "out.npz")
    told = features(photos / "novel", *words)
    assert f"running your code: {own}:flat" in told
    found = read_features(tmp_path / "out.npz")
    assert found.shape == (16,)
    assert 0 <= found.inputs.min() < found.inputs.max() <= 1
    features(photos / "novel", "--module", f"{own}:double", *words[2:])  # of another type
    assert read_features(tmp_path / "out.npz").inputs.dtype == torch.float32


def test_an_ensemble_has_no_features_of_one(tmp_path: Path) -> None:
    method = methods.method("ensemble", member="softmax", size=2)
    backbone = {"name": "mlp", "hidden": [3]}
    model = bundle.build(method, backbone, (4,), 2, None)
    bundle.save(tmp_path, model, method=method, classes=("a", "b"), shape=(4,), backbone=backbone)
    with pytest.raises(ValueError, match="holds 2 networks"):
        extract.from_bundle(tmp_path, torch.device("cpu"))


def test_what_it_refuses(own: str, done: Path, photos: Path, tmp_path: Path) -> None:
    novel, out = photos / "novel", ("-o", tmp_path / "out.npz")
    network = done.with_name("features-run")
    (tmp_path / "net.pt").touch()
    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
    other = backbones.build("convnet", (3, SIDE, SIDE), 4)
    save_file(other.state_dict(), tmp_path / "convnet.safetensors")
    small = tmp_path / "small"
    images(small, "ab", 2, seed=2)
    (small / "a" / "broken.png").write_bytes(b"no picture")
    own_size = ("--size", "8", *out)
    cases: dict[tuple[Any, ...], str] = {
        (novel, *out): "Give --weights or --module for a trained network, or --train",
        (novel, "--train", "--weights", network, *out): "Give --weights or --module",
        (novel, "--weights", network, "--epochs", "3", "--set", "a=1", *out): (
            "leave --epochs, --set out: nothing is trained without --train"
        ),
        (novel, "--weights", network, "--method", "softmax", *out): "leave --method out",
        (novel, "--weights", network, "--grey", *own_size): (
            "leave --size, --grey out: the bundle .* knows its network and its images"
        ),
        (novel, "--weights", network, "--backbone", "mlp", *out): "leave --backbone out",
        (novel, "--module", f"{own}:flat", "--backbone", "mlp", *own_size): (
            f"leave --backbone out: the network is that of --module {own}:flat"
        ),
        ("digits", "--module", f"{own}:flat", "--grey", *own_size): (
            "leave --size, --grey out: the inputs of digits have a shape already"
        ),
        (novel, "--weights", tmp_path / "none", *own_size): "there are no weights",
        (novel, "--weights", tmp_path / "net.pt", "--backbone", "vgg16", *own_size): "pickles",
        (novel, "--weights", tmp_path / "other.safetensors", *own_size): "Give --backbone",
        (novel, "--weights", tmp_path / "other.safetensors", "--backbone", "mlp", *own_size): (
            "'head.weight', is missing"
        ),
        (novel, "--weights", tmp_path / "convnet.safetensors", "--backbone", "mlp", *own_size): (
            "the weights of another network"
        ),
        (novel, "--weights", tmp_path / "convnet.safetensors", "--backbone", "big", *own_size): (
            "unknown backbone 'big'; known: 'mlp'"
        ),
        (novel, "--weights", network, "-o", tmp_path / "out.txt"): "kind of feature file",
        (photos, "--weights", network, *out): "--out must be a folder",
        (small, "--weights", network, *out): r"broken\.png can't be read",
        ("digits", "--weights", network, *out): r"\(1, 8, 8\), but the network takes \(3, 16, 16\)",
        (novel, "--module", f"{own}:flat", *out): "Give --size",
        (novel, "--module", own, *own_size): "package.module:factory",
        (novel, "--module", f"{own}:asked", *own_size): "must take no arguments here: missing a",
        (
            novel,
            "--module",
            f"{own}:double",
            *own_size,
        ): r"the network fails on inputs \(64, 3, 8, 8\)",
        (novel, "--module", f"{own}:absent", *own_size): "has no attribute 'absent'",
        (novel, "--module", f"{own}:nothing", *own_size): "must make a torch module, not int",
        (novel, "--module", f"{own}:strange", *own_size): r"features \(N, D\).*\(64, 2, 6, 6\)",
        (novel, "--module", f"{own}:Endless", *own_size): "not finite",
    }
    for words, message in cases.items():
        with pytest.raises((ValueError, OSError), match=message):
            features(*words)
    assert not (tmp_path / "out.npz").exists()
