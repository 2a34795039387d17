"""Networks that are already trained: from a checkpoint or a module to a model."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import dubito
from dubito.api import calibrate, predict
from dubito.errors import DubitoError
from dubito.formats import ImageFormat
from tests.backbones import checkpoints
from tests.commands import run

COLORS = {"blue": (60, 60, 220), "green": (60, 220, 60), "red": (220, 60, 60)}
SIZE, MEAN, STD = 16, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
SETTINGS: dict[str, Any] = {"size": SIZE, "mean": MEAN, "std": STD, "report": False}
SETTINGS |= {"device": "cpu"}
CODE = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))

def sized(shape):
    return build()

def nothing():
    return None
"""


def colors(order: list[int]) -> nn.Module:
    """Return a network that tells blue, green and red, in that order."""
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
    layer: Any = network[2]
    with torch.no_grad():
        layer.weight.copy_(torch.eye(3).flip(0)[order])
        layer.bias.zero_()
    return network.eval()


def read(path: str) -> torch.Tensor:
    """Read an image as loops do."""
    image = Image.open(path).convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
    return (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


def loop(network: nn.Module) -> Callable[[list[str]], torch.Tensor]:
    def outputs(files: list[str]) -> torch.Tensor:
        with torch.no_grad():
            return network(torch.stack([read(file) for file in files]))

    return outputs


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write images of three colors, some with transparency."""
    folder, draw = tmp_path_factory.mktemp("data") / "photos", np.random.default_rng(0)
    for name, color in COLORS.items():
        (folder / name).mkdir(parents=True)
        for number in range(80):
            noise = draw.normal(0, 30, (*draw.integers(20, 40, 2), 3))
            image = Image.fromarray(np.clip(color + noise, 0, 255).astype(np.uint8))
            if number % 8 == 0:
                image.putalpha(100)
            image.save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def nets(tmp_path: Path) -> Path:
    (tmp_path / "nets.py").write_text(CODE)
    torch.save(colors([0, 1, 2]).state_dict(), tmp_path / "weights.pt")
    return tmp_path / "nets.py"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a network of transformers whose classes are not in the order of their names."""
    pytest.importorskip("transformers")
    place = tmp_path_factory.mktemp("checkpoint") / "resnet"
    return checkpoints.save("resnet", place, classes=["dog", "ant", "eel", "cat", "bee"])


@pytest.fixture(scope="module")
def animals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write noise of five classes, with images of all modes."""
    folder, draw = tmp_path_factory.mktemp("data") / "animals", np.random.default_rng(0)
    for number in range(100):
        shape = (1000, 1060, 3) if number == 12 else (*draw.integers(40, 90, 2), 3)
        image = Image.fromarray(draw.integers(256, size=shape, dtype=np.uint8))
        mode = ("RGB", "RGBA", "L", "LA", "P", "CMYK")[number % 6]
        if mode == "RGBA":
            image.putalpha(Image.linear_gradient("L").resize(image.size))
        place = folder / checkpoints.CLASSES[number % 5]
        place.mkdir(parents=True, exist_ok=True)
        suffix = "jpg" if mode == "CMYK" else "png"
        image.convert(mode).save(place / f"{number}.{suffix}")
    return folder


# --- networks of transformers ---


def test_a_checkpoint_answers_as_in_transformers(checkpoint, animals, tmp_path):
    transformers = pytest.importorskip("transformers")
    onnxruntime = pytest.importorskip("onnxruntime")
    folder = shutil.copytree(checkpoint, tmp_path / "resnet")
    classify = transformers.pipeline("image-classification", str(folder), top_k=5)
    files = [str(path) for path in sorted(animals.rglob("*.*"))[:12]]
    expected = [{row["label"]: row["score"] for row in rows} for rows in classify(files)]
    model = dubito.wrap(f"hf:{folder}", animals, out=tmp_path / "run", device="cpu")
    assert model.task.names == ("dog", "ant", "eel", "cat", "bee")
    found = model.predict(files).distribution.probs.tolist()
    for probs, wanted in zip(found, expected, strict=True):
        assert dict(zip(model.task.names, probs, strict=True)) == pytest.approx(wanted, abs=1e-4)
    shutil.rmtree(folder)
    loaded = dubito.load(tmp_path / "run")
    assert loaded.predict(files).columns() == model.predict(files).columns()
    dubito.export(loaded, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    inputs = loaded.preprocessing.inputs.encode(files).checked().numpy()
    (probs,) = session.run(["probs"], {"inputs": inputs})
    np.testing.assert_allclose(probs, loaded.predict(files).predictive.probs, atol=1e-4)
    calibrate(tmp_path / "run", error_rate=0.9)  # finds its samples again


def test_a_function_checks_images_of_all_kinds(checkpoint, animals):
    transformers = pytest.importorskip("transformers")
    network = transformers.AutoModelForImageClassification.from_pretrained(checkpoint).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(checkpoint, backend="pil")
    kinds = set()

    def outputs(files: list[str]) -> torch.Tensor:
        images = [Image.open(file) for file in files]
        kinds.update(image.mode for image in images)
        pixels = processor([image.convert("RGB") for image in images], return_tensors="pt")
        with torch.no_grad():
            return network(**pixels).logits

    dubito.wrap(f"hf:{checkpoint}", animals, check=outputs, device="cpu")
    assert kinds == {"RGB", "RGBA", "L", "LA", "P", "CMYK"}


def test_texts(tmp_path):
    pytest.importorskip("transformers")
    folder, path = checkpoints.save("bert", tmp_path / "bert"), tmp_path / "texts.csv"
    words = [*zip(checkpoints.WORDS[5:10], checkpoints.CLASSES, strict=True)] * 20
    path.write_text("\n".join(["review,animal", *(f"a {word} day,{name}" for word, name in words)]))
    options: dict[str, Any] = {"target": "animal", "device": "cpu"}
    model = dubito.wrap(f"hf:{folder}", path, text="review", **options)
    assert list(model.scores) == ["mahalanobis"]
    with pytest.raises(DubitoError, match=r"unknown column of texts\.csv 'txt'; known: 'review', "):
        dubito.wrap(f"hf:{folder}", path, text="txt", **options)


# --- modules ---


def test_a_network_of_ones_own(photos):
    network, lines = colors([0, 1, 2]), []
    model = dubito.wrap(network, photos, check=loop(network), on_start=lines.append, **SETTINGS)
    assert model.record.samples == {"scores": 72, "calibration": 168}
    assert model.policy.validation.samples == 168
    assert "72 samples fit mahalanobis, 168 calibration and policy, 3 classes" in lines[0]
    test = model.predict(sorted(photos.rglob("*.png")))
    assert (test.labels[:80] == "blue").all()
    assert test.accepted.double().mean() > 0.8
    noise = np.random.default_rng(0).integers(256, size=(50, 3, SIZE, SIZE), dtype=np.uint8)
    assert not model.predict(noise).accepted.any()


def test_classes_in_another_order_are_found(photos):
    network = colors([2, 0, 1])
    with pytest.raises(DubitoError, match=r"pass classes=\('red', 'blue', 'green'\)"):
        dubito.wrap(network, photos, **SETTINGS)
    model = dubito.wrap(network, photos, classes=("red", "blue", "green"), **SETTINGS)
    assert model.record.metrics["accuracy"] == 1


def test_kinds_of_images_that_differ_are_named(photos):
    network = colors([0, 1, 2])

    format = ImageFormat(size=(SIZE, SIZE), mode="RGB")
    with pytest.raises(DubitoError, match=r"differ .* \(4 of 4 RGBA images\): do preprocessing"):
        dubito.wrap(network, photos, format=format, check=loop(network), **SETTINGS)
    files = [str(photos / "red" / f"{number}.png") for number in (1, 2, 3)]
    with pytest.warns(UserWarning, match=r"compared with your own loop: 30 RGBA\. Loaders differ:"):
        dubito.wrap(network, photos, check=(files, loop(network)(files)), **SETTINGS)


# --- command line ---


def test_the_command(photos, nets, tmp_path, capsys):
    network, options = f"module:{nets}:build", ["--size", SIZE, "--mean", "0.5,0.5,0.5"]
    options += ["--std", "0.25,0.25,0.25", "--weights", tmp_path / "weights.pt"]
    assert run("wrap", network, photos, "--out", tmp_path / "run", *options) == 0
    text = capsys.readouterr().out
    assert "accuracy of the calibration samples 100.00%" in text
    assert "policy: " in text
    assert "report: " in text
    assert "trained elsewhere; promises hold if none" in (tmp_path / "run/card.md").read_text()
    assert "trained elsewhere" in (tmp_path / "run/report.html").read_text()
    factory = ["--network", f"{nets}:build"]
    assert run("evaluate", tmp_path / "run", "--no-report", *factory) == 0
    red = predict(tmp_path / "run", [photos / "red"], network=f"{nets}:build")
    assert (red.labels == "red").all()
    assert run("wrap", network, photos) == 2
    assert "--out: the folder of the model is missing" in capsys.readouterr().err
    assert run("wrap", "--help") == 0
    text = capsys.readouterr().out
    assert "--error-rate" in text
    assert "--epochs" not in text


# --- bad input ---


@pytest.mark.parametrize(
    ("network", "settings", "message"),
    [
        ("hf:{encoder}", {}, "encoder has no classifier: train one for your classes with dubito t"),
        ("hf:{five}", {}, r"five has 5 classes \('ant', .*'\), but photos has 3 \('blue', 'green'"),
        ("hf:{five}", {"classes": ["a", "b", "c"]}, r"five has 5 classes .* classes has 3 names"),
        ("hf:{five}", {"epochs": 3}, "epochs=3 is for training: leave it out"),
        ("hf:{five}", {"weights": "x.pt"}, r"weights='x\.pt' is for a module"),
        ("resnet", {}, "resnet has no classifier"),
        ("module:{nets}:build", {"size": None}, "which images of photos it was trained on: pass s"),
        ("module:{nets}:build", {"mode": "L", "mean": None, "std": None}, "cannot read inputs"),
        ("module:{nets}:build", {"classes": ["blue", "green", "rot"]}, "but photos has 'red'"),
        ("module:{nets}:build", {"weights": "{nets}"}, "is not what torch.save.*writes for this n"),
        ("module:{nets}:build", {"weights": "x.pt"}, r"cannot read the weights x\.pt: "),
        ("module:{nets}:build", {"calibration": 0.99}, "240 samples of photos are too few"),
        ("module:{nets}:build", {"calibration": 0}, "calibration=0 leaves no samples"),
        ("module:{nets}:sized", {}, "is called without arguments, but missing .*'shape'"),
        ("module:{nets}:nothing", {}, "returns NoneType, not a module"),
    ],
)
def test_bad_input(network, settings, message, photos, nets, tmp_path):
    if network.startswith("hf:"):
        pytest.importorskip("transformers")
    places = {"nets": nets, "five": tmp_path / "five", "encoder": tmp_path / "encoder"}
    if "{five}" in network:
        checkpoints.save("resnet", places["five"])
    if "{encoder}" in network:
        checkpoints.save("resnet_encoder", places["encoder"])
    name, given = network.format(**places), {} if "hf:" in network else SETTINGS
    given = {**given, **settings}
    if "weights" in given:
        given["weights"] = given["weights"].format(**places)
    with pytest.raises(DubitoError, match=message) as caught:
        dubito.wrap(name, photos, **given)
    assert "\n" not in str(caught.value)


def test_data_that_cannot_be_used(photos, tmp_path):
    network, few = colors([0, 1, 2]), tmp_path / "few"
    for name in COLORS:
        (few / name).mkdir(parents=True)
        shutil.copy(photos / name / "1.png", few / name)
    x = np.zeros((30, 3, SIZE, SIZE), np.uint8)
    for data, message in (
        (few, "3 samples of few are too few: none of 1 that fit the scores is of '"),
        (x, "data has no target to learn"),
        (sorted(photos.rglob("*.png")), "files have no targets: pass a folder with one sub-folder"),
        (photos / "red", "red has no sub-folders, and 80 image files"),
        ((x, [0, 1] * 15), r"Sequential has 3 classes, but data has 2 \('0', '1'\): pass"),
    ):
        with pytest.raises(DubitoError, match=message):
            dubito.wrap(network, data, **SETTINGS)


def test_a_network_of_transformers_in_memory_is_to_be_saved(checkpoint, animals):
    transformers = pytest.importorskip("transformers")
    network = transformers.AutoModelForImageClassification.from_pretrained(checkpoint)
    with pytest.raises(DubitoError, match="save a network of transformers with save_pretrained"):
        dubito.wrap(network, animals, **{**SETTINGS, "size": 32})
