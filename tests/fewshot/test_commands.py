"""`fewshot` and `features`."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from dubito.data import open as open_data
from dubito.errors import DubitoError
from dubito.fewshot import features, fewshot, read_features, write_features
from dubito.formats import Preprocessing
from dubito.model import Model
from dubito.tasks import Classification
from tests.fewshot.samples import draw_features


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_features(draw_features(), tmp_path_factory.mktemp("features") / "novel.npz")


def test_fewshot_writes_a_result(file, tmp_path):
    result = fewshot(
        file, ood=write_features(draw_features(5, 60, 64, 1), tmp_path / "ood.npz"),
        method={"name": "edl", "kl_weight": 0.5}, ways=4, shots=2, queries=3, episodes=30,
        device="cpu", out=tmp_path / "run",
    )  # fmt: skip
    assert result == json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["method"]["kl_weight"] == 0.5
    assert result["setting"] == {"ways": 4, "shots": 2, "queries": 3, "seed": 0}
    assert result["metrics"]["accuracy"]["episodes"] == 30


def test_presets_set_method_and_scaling(file):
    options = {"ways": 4, "shots": 1, "episodes": 20, "device": "cpu"}
    centered = fewshot(file, preset="centered", reference=draw_features(seed=1), **options)
    published = fewshot(file, preset="published", **options)
    assert centered["method"]["kl_weight"] == 0
    assert published["method"]["scale"] == "paper"
    assert centered["features"]["hash"] != published["features"]["hash"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "published", "method": "edl"}, "pass either preset, or method and scaling"),
        ({"preset": "published", "scaling": "unit"}, "pass either preset, or method and scaling"),
        ({"preset": "publishd"}, "unknown preset 'publishd'; known: 'published'"),
        ({"method": "edll"}, "unknown method 'edll'"),
        ({"scaling": "units"}, "unknown scaling 'units'; known: 'none', 'unit'"),
    ],
)
def test_wrong_options_fail_before_features_are_read(options, message):
    with pytest.raises(DubitoError, match=message):
        fewshot("no file.npz", **options)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, drawn = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name, level in (("dark", 40), ("light", 200)):
        (folder / name).mkdir()
        for i in range(5):
            pixels = drawn.integers(level - 30, level + 30, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


def test_features_of_a_model_folder(photos, tmp_path):
    source = open_data(photos, "all")
    task = Classification.from_target(source.target)
    preprocessing = Preprocessing.fit(source.format, source.load())
    model = Model.build("iedl", task, preprocessing, backbone={"name": "mlp", "hidden": [16]})
    model.save(tmp_path / "model")
    result = features(tmp_path / "model", photos, tmp_path / "a.npz", batch_size=3, device="cpu")
    assert result.classes == ("dark", "light")
    assert result.labels.tolist() == [0] * 5 + [1] * 5
    with torch.no_grad():
        torch.testing.assert_close(result.values, model.eval().features(source.load()))
    torch.testing.assert_close(read_features(tmp_path / "a.npz").values, result.values)


class Pixels(nn.Module):
    """Has a method `features`, and outputs that are something else."""

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((1, 2, 3))


@pytest.mark.parametrize("network", [Pixels, Pixels(), nn.Flatten(), "torch.nn:Flatten"], ids=str)
def test_features_of_a_network(photos, network):
    result = features(network, photos, size=4, mode="L", device="cpu")
    expected = open_data(photos, "all", size=4, mode="L").load().flatten(1) / 255
    torch.testing.assert_close(result.values, expected)


def test_outputs_that_are_no_features_are_an_error(photos):
    with pytest.raises(DubitoError, match=r"features have shape \(10, 3, 8, 8\)"):
        features(nn.Identity(), photos, device="cpu")


def test_features_of_a_model_with_a_module_of_the_user(photos, tmp_path):
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "def build(shape):\n"
        "    network = nn.Flatten()\n"
        "    network.out_features = shape[1] * shape[2]\n"
        "    return network\n"
    )
    source, factory = open_data(photos, size=4, mode="L"), f"{tmp_path / 'nets.py'}:build"
    task, inputs = Classification.from_target(source.target), Preprocessing(inputs=source.format)
    Model.build("edl", task, inputs, f"module:{factory}").save(tmp_path / "model")
    result = features(tmp_path / "model", photos, network=factory, device="cpu")
    torch.testing.assert_close(result.values, source.load().flatten(1) / 255)
    with pytest.raises(DubitoError, match="pass network="):
        features(tmp_path / "model", photos, device="cpu")
