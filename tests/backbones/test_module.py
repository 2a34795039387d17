"""Backbones from a function of the user, in a file or a module."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from dubito.backbones import BACKBONES
from dubito.errors import DubitoError
from dubito.formats import ArrayFormat, Preprocessing
from dubito.model import Model
from dubito.tasks import Classification

CODE = """
import pathlib
from torch import nn

pathlib.Path(__file__).with_suffix(".imported").touch()

def build(shape, width=5, dropout=None):
    layers = [nn.Dropout(dropout)] if dropout else []
    network = nn.Sequential(nn.Linear(shape[0], width), *layers)
    network.out_features = width
    return network

def fixed():
    return build((4,))

def nothing(shape):
    return nn.Linear(4, 3).weight
"""
TASK = Classification(classes=("a", "b"))
PREPROCESSING = Preprocessing(inputs=ArrayFormat(shape=(4,)))
X = torch.rand(6, 4)


@pytest.fixture
def nets(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(CODE)
    return path


def test_a_factory_gets_the_shape_and_options(nets):
    entry = BACKBONES.build(f"module:{nets}:build", options={"width": 7})
    assert BACKBONES.build(json.loads(json.dumps(BACKBONES.to_dict(entry)))) == entry
    assert entry.build((3,))(torch.rand(2, 3)).shape == (2, 7)
    assert BACKBONES.build(f"module:{nets}:fixed").build((9,)).out_features == 5


def test_a_class_of_an_installed_module(monkeypatch, nets):
    monkeypatch.syspath_prepend(nets.parent)
    (nets.parent / "own_nets.py").write_text(CODE)
    assert BACKBONES.build("module:own_nets:build").build((4,)).out_features == 5
    flatten = BACKBONES.build("module:torch.nn:Flatten").build((4,))
    assert isinstance(flatten, nn.Flatten)


def test_dropout_of_the_method_reaches_the_factory(nets):
    method = {"name": "mc_dropout", "dropout": 0.4}
    model = Model.build(method, TASK, PREPROCESSING, f"module:{nets}:build")
    assert [m.p for m in model.modules() if isinstance(m, nn.Dropout)] == [0.4]


def test_loading_never_imports(nets, tmp_path):
    model = Model.build("edl", TASK, PREPROCESSING, f"module:{nets}:build").eval()
    folder = model.save(tmp_path / "model")
    nets.with_suffix(".imported").unlink()
    nets.write_text(CODE + "\nraise SystemExit")
    with pytest.raises(DubitoError, match=r"nets\.py:build': pass network=\.\.\., this function"):
        Model.load(folder)
    assert not nets.with_suffix(".imported").exists()


def test_loading_takes_the_factory(nets, tmp_path):
    model = Model.build(
        {"name": "ensemble", "member": "edl", "size": 2}, TASK, PREPROCESSING,
        {"name": f"module:{nets}:build", "options": {"width": 3}},
    ).eval()  # fmt: skip
    folder = model.save(tmp_path / "model")

    def moved(shape, width):
        network = nn.Sequential(nn.Linear(shape[0], width))
        network.out_features = width
        return network

    loaded = Model.load(folder, network=moved)
    assert loaded.backbone == model.backbone
    with torch.no_grad():
        assert torch.equal(loaded(X).probs, model(X).probs)
    with pytest.raises(DubitoError, match="pass network"):
        Model.load(folder, network=model.network)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("module", "path is required"),
        ("module:build", "'build' must be module:function or file.py:function"),
        ("module:no.such:build", "cannot import the plug-in no.such: ModuleNotFoundError"),
        ("module:{nets}:other", r"nets\.py has no function 'other'"),
        ("module:{nets}:nothing", "Parameter needs an attribute out_features"),
        ({"name": "module:{nets}:fixed", "dropout": 0.1}, r"takes \(\): .* 'dropout'"),
        ({"name": "module:{nets}:build", "options": {"depth": 1}}, r"takes \(shape, .*'depth'"),
    ],
)
def test_wrong_factories(name, message, nets):
    options = {"name": name} if isinstance(name, str) else name
    options = {**options, "name": options["name"].format(nets=nets)}
    with pytest.raises(DubitoError, match=message):
        Model.build("edl", TASK, PREPROCESSING, options)
