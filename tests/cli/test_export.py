"""`dubito export`: a trained run as a file that needs neither torch nor dubito."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

from dubito import bundle, cli, data, runs

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

ALONE = """
import json, sys
import numpy as np, onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
names = [one.name for one in session.get_outputs()]
told = session.run(names, {"inputs": np.load("images.npy")})
about = session.get_modelmeta().custom_metadata_map
classes, reasons = json.loads(about["classes"]), json.loads(about["reasons"])
said = {name: values.tolist() for name, values in zip(names, told)}
said["label"] = [classes[label] for label in said["label"]]
said["reason"] = [reasons[code] for code in said["reason"]]
assert not {"torch", "dubito"} & set(sys.modules)
print(json.dumps(said))
"""


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(cli.app, ["export", *map(str, words)])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on digits, with all that evidence has: measures, belief, a policy."""
    folder = tmp_path_factory.mktemp("trained")
    sections = {
        "data": {"source": "digits"},
        "backbone": {"name": "mlp", "hidden": [32]},
        "training": {"epochs": 15, "batch_size": 64, "learning_rate": 0.005, "patience": 0},
    }
    runs.train(runs.plan(runs.configure(sections), folder))
    return folder


def test_a_file_says_alone_what_predict_says(trained: Path, tmp_path: Path) -> None:
    done = invoke(trained, tmp_path / "model.onnx")
    assert done.exit_code == 0, (done.output, done.exception)
    assert "inputs (N, 1, 8, 8) uint8 -> label, probs, belief, max_prob" in done.output
    found = re.search(r"20 random and extreme inputs: (\S+); of the network (\S+), of", done.output)
    assert found is not None
    assert all(0 < float(value) < 1e-5 for value in found.groups())

    inputs = (data.load("digits", "test").inputs[:100] * 255).round().byte().numpy()
    noise = np.random.default_rng(0).integers(256, size=(20, 1, 8, 8), dtype=np.uint8)
    images = np.concatenate([inputs, noise])
    np.save(tmp_path / "images.npy", images)
    alone = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert alone.returncode == 0, alone.stderr
    said = json.loads(alone.stdout)

    paths = [tmp_path / f"{i:03d}.png" for i in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image[0]).save(path)
    rows = [row for part in bundle.stream(bundle.load(trained), paths) for row in part.rows]
    assert [row["label"] for row in rows] == said["label"]
    assert [row["decision"] == "accept" for row in rows] == said["accept"]
    assert [row.get("why", "accepted") for row in rows] == said["reason"]
    assert set(said["reason"]) == {"accepted", "ambiguous", "unfamiliar"}
    for column, told in (("probability", "probs"), ("belief", "belief")):
        wanted = [row[column] for row in rows]
        np.testing.assert_allclose(np.max(said[told], axis=1), wanted, atol=1e-4)
    for measure in ("vacuity", "mutual_information", "expected_entropy"):
        np.testing.assert_allclose(said[measure], [row[measure] for row in rows], atol=1e-4)


def test_a_network_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import torch\nfactory = lambda shape, outputs: torch.nn.Linear(*shape, outputs)\n"
    (tmp_path / "own_line.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    made: dict[str, Any] = {"method": "softmax", "classes": ("a", "b"), "shape": (3,)}
    folder = bundle.save(tmp_path / "b", torch.nn.Linear(3, 2), **made)
    words = ("--measure", "max_prob", "--module", "own_line:factory")
    done = invoke(folder, tmp_path / "model.onnx", *words)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "running your code: own_line:factory" in done.output
    assert "inputs (N, 3) float32 -> label, probs" in done.output
    done = invoke(folder, tmp_path / "other.onnx", *words, "--floats")
    assert "leave --floats out" in str(done.exception)
    assert not (tmp_path / "other.onnx").exists()
    done = invoke(folder, tmp_path / "other.onnx", "--module", "own_line:none")
    assert "has no attribute 'none'" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("{run}", "model.pt"), "path must end with .onnx"),
        (("{run}/none", "model.onnx"), "there is no folder"),
    ],
)
def test_what_it_refuses(words: tuple[str, str], message: str, trained: Path) -> None:
    done = invoke(*(word.format(run=trained) for word in words))
    assert done.exit_code != 0
    assert message in str(done.exception)


def test_a_missing_extra_is_named(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    done = invoke(trained, tmp_path / "model.onnx")
    assert isinstance(done.exception, ValueError)
    assert "pip install 'dubito[onnx]'" in str(done.exception)
    assert list(tmp_path.iterdir()) == []
