"""A package from outside goes through every command, in new processes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from PIL import Image

from tests.outside.backbone import OFFLINE, WANTED
from tests.outside.dataset import photos

OPTIONS = {
    "method": ("my_modex", "tau_weight", 0.2),
    "backbone": ("tiny_cnn", "width", 8),
    "augment": ("dim", "darkest", 0.75),
    "posthoc": ("vim_like", "dimensions", 3),
}
CONFIG = """
posthoc = [{name = "vim_like", dimensions = 3}]
data.source = "color_photos"
method = {name = "my_modex", tau_weight = 0.2}
backbone = {name = "tiny_cnn", width = 8}
policy.ood_score = "vim_like"

[training]
epochs = 4
lr = 0.02
augment = {name = "dim", darkest = 0.75}
"""
TRAIN = """
import sys
from dubito import train
from dubito.plugins import load_plugins

load_plugins()
from outside.callback import Counter

folder, killed = sys.argv[1:]
options = {"config": "run.toml", "device": "cpu", "report": False}
train(out=folder, callbacks=[Counter(int(killed))], **options)
"""
COMPARE = """
import json, sys
import onnxruntime
from dubito import load, predict

folder, image = sys.argv[1:]
model = load(folder)
inputs = model.preprocessing.inputs.encode([image]).inputs.numpy()
(probs,) = onnxruntime.InferenceSession("model.onnx").run(["probs"], {"inputs": inputs})
prediction = predict(model, [image])
print(json.dumps([probs.tolist(), prediction.predictive.probs.tolist()]))
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory, source_env) -> dict[str, str]:
    """Return an environment in which Python finds the package."""
    site = tmp_path_factory.mktemp("site")
    (site / "outside").symlink_to(Path(__file__).parent)
    return {**source_env, "PYTHONPATH": os.pathsep.join([str(site), source_env["PYTHONPATH"]])}


@pytest.fixture(scope="module")
def installed(tmp_path_factory, imported) -> dict[str, str]:
    """Return an environment in which the package announces itself as an entry point."""
    site = tmp_path_factory.mktemp("site")
    info = site / "dubito_outside-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dubito-outside\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[dubito]\noutside = outside\n")
    return {**imported, "PYTHONPATH": os.pathsep.join([str(site), imported["PYTHONPATH"]])}


def python(env: dict[str, str], *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def dubito(env: dict[str, str], *words: object) -> str:
    """Run a command that succeeds; return its output."""
    done = python(env, "-m", "dubito", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory, installed) -> Path:
    """Train by a file of settings; the process is killed in the third epoch, then resumed."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "run.toml").write_text(CONFIG)
    killed, resumed = (
        subprocess.run(
            [sys.executable, "-c", TRAIN, "run", epoch],
            env=installed, cwd=folder, capture_output=True, text=True, check=False,
        )
        for epoch in "30"
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert resumed.returncode == 0, resumed.stderr
    Image.fromarray(photos(3, seed=1)[0][0]).save(folder / "red.png")
    return folder / "run"


@pytest.fixture(scope="module")
def offline(installed) -> dict[str, str]:
    """Return an environment in which pretrained weights cannot be loaded."""
    return {**installed, OFFLINE: "1"}


def test_the_model_has_the_inputs_of_the_backbone_and_all_options(trained):
    content = json.loads((trained / "model.json").read_text())
    assert content["preprocessing"] == WANTED.model_dump(mode="json")
    assert content["method"] == {"name": "my_modex", "tau_weight": 0.2}
    common = {"dropout": None, "spectral_norm": False}
    assert content["backbone"] == {"name": "tiny_cnn", **common, "width": 8}
    assert content["scores"] == [{"name": "vim_like", "dimensions": 3}]
    assert content["policy"]["ood_threshold"]["score"] == "vim_like"
    augment = content["training"]["config"]["training"]["augment"]
    assert augment == {"name": "dim", "darkest": 0.75}


def test_the_state_of_a_callback_survives_a_kill(trained):
    records = (trained / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["count"] for line in records] == [1, 2, 3, 4]


def test_options_of_the_command_line_train_the_same_weights(trained, imported, tmp_path):
    words = ["--epochs", 4, "--lr", 0.02, "--ood-score", "vim_like", "--no-report"]
    for setting, (name, option, value) in OPTIONS.items():
        section = f"{setting}.{name}" if setting == "posthoc" else setting
        words += [f"--{setting}", name, f"--{section}.{option}", value]
    place = ["--out", tmp_path, "--device", "cpu", "--import", "outside"]
    dubito(imported, "train", "color_photos", *place, *words)
    names = [[path.name for path in at.glob("weights-*")] for at in (trained, tmp_path)]
    assert names[0] == names[1]  # the hash of weights and scores


def test_evaluate_and_calibrate(trained, offline, tmp_path):
    dubito(offline, "evaluate", trained, "--noise", "3")
    result = json.loads((trained / "evaluation" / "result.json").read_text())
    assert result["part"] == "test"
    assert result["metrics"]["accuracy"] > 0.9
    detection = result["noise"]["3"]["detection"]
    assert detection["vim_like"]["auroc"] > 0.5
    assert "largest_tau" in detection
    words = ["--error-rate", "0.2", "--posthoc.energy.temperature", 2, "--out", tmp_path]
    assert "error <= 0.2" in dubito(offline, "calibrate", trained, *words)


def test_predict_export_and_serve_agree(trained, offline, tmp_path):
    image, folder = trained.parent / "red.png", tmp_path
    words = ["--format", "jsonl", "--scores", "vim_like,largest_tau"]
    row = json.loads(dubito(offline, "predict", trained, image, *words))
    assert row["prediction"] == "red"
    assert {"vim_like", "largest_tau"} < set(row)
    assert "from torch" in dubito(offline, "export", trained, folder / "model.onnx")
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, trained, image],
        env=offline, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    probs = [*row["probs"].values()]
    for other in json.loads(done.stdout):
        assert other[0] == pytest.approx(probs, abs=1e-5)
    assert served(offline, trained, image)["probs"] == pytest.approx(row["probs"], abs=1e-5)


def served(env: dict[str, str], folder: Path, image: Path) -> dict[str, object]:
    """Return the answer of the service to an image."""
    words = ["serve", folder, "--port", 0, "--engine", "torch"]
    command = [sys.executable, "-m", "dubito", *map(str, words)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().strip()
            headers = {"Content-Type": "image/png"}
            options = {"content": image.read_bytes(), "headers": headers, "timeout": 600}
            return httpx.post(f"{url}v1/predict", **options).json()["predictions"][0]
        finally:
            process.terminate()


def test_a_model_needs_the_package(trained, source_env):
    done = python(source_env, "-m", "dubito", "predict", trained, "new.npz")
    assert done.returncode == 2
    assert "unknown method 'my_modex'" in done.stderr
