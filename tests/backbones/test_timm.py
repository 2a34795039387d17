"""Networks of timm, compared with timm itself."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dubito.backbones import BACKBONES
from dubito.errors import DubitoError
from dubito.model import Model
from dubito.tasks import Classification

if torch.version.cuda is None and importlib.util.find_spec("timm"):
    for name in ("nms", "qnms"):  # timm imports torchvision, of which a CPU build lacks these
        schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{name}", schema)
timm = pytest.importorskip("timm", reason="timm needs torchvision, which needs its build of torch")

NAMES = ("ant", "bee", "cat", "dog", "eel")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a small network with random weights as timm does."""
    from timm.models import save_for_hf

    place = tmp_path_factory.mktemp("timm")
    network = timm.create_model("test_resnet", num_classes=len(NAMES))
    config = {"crop_pct": 0.9, "label_names": list(NAMES), "mean": [0.4, 0.5, 0.6]}
    save_for_hf(network, place, model_config=config, safe_serialization=True)
    return place


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    values = np.random.default_rng(0).integers(256, size=(7, 9, 3), dtype=np.uint8)
    return Image.fromarray(values).resize((300, 240), Image.Resampling.BICUBIC)


def test_inputs_and_features_are_those_of_timm(folder, photo):
    backbone = BACKBONES.build(f"timm:local-dir:{folder}")
    reference = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    config = timm.data.resolve_data_config({}, model=reference)
    expected = timm.data.create_transform(**config)(photo)[None]
    wanted: Any = backbone.inputs()
    x = wanted.normalize(wanted.inputs.encode([photo]).checked())
    assert (x - expected).abs().max() < 0.03  # a level of 255, divided by the deviation
    network = backbone.build(wanted.shape, pretrained=True).eval()
    features = reference.forward_head(reference.forward_features(x), pre_logits=True)
    torch.testing.assert_close(network(x), features)
    layer, names = backbone.classifier()
    torch.testing.assert_close(layer(network(x)), reference(x))
    assert names == NAMES


def test_model_loads_without_the_checkpoint(folder, tmp_path):
    moved = folder.rename(tmp_path / "moved")
    backbone = BACKBONES.build(f"timm:local-dir:{moved}")
    task = Classification(classes=("a", "b"))
    model = Model.build("edl", task, backbone.inputs(), backbone, pretrained=True)
    model.save(tmp_path / "model")
    moved.rename(folder)
    inputs = torch.randint(256, (2, *model.preprocessing.shape), dtype=torch.uint8)
    loaded = Model.load(tmp_path / "model")
    assert torch.equal(loaded.features(inputs), model.features(inputs))


@pytest.mark.parametrize(
    ("name", "size", "fit"), [("test_vit", 96, "crop"), ("test_efficientnet", 100, "crop")]
)
def test_architectures(name, size, fit, tmp_path):
    from timm.models import save_for_hf

    save_for_hf(timm.create_model(name), tmp_path, safe_serialization=True)
    backbone = BACKBONES.build(f"timm:local-dir:{tmp_path}")
    assert backbone.inputs().inputs.resize.fit == fit
    again = BACKBONES.build(json.loads(json.dumps(BACKBONES.to_dict(backbone))))
    network = again.build((3, size, size), pretrained=True)
    assert network(torch.rand(2, 3, size, size)).shape == (2, network.out_features)


def test_bad_input(folder, tmp_path):
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(DubitoError, match="has no weights in safetensors format: save them"):
        BACKBONES.build(f"timm:local-dir:{tmp_path}")
    with pytest.raises(DubitoError, match="cannot read the network nonsense: "):
        BACKBONES.build("timm:nonsense")
