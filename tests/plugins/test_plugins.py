"""A plug-in from outside the package goes through every command, in new processes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest

HERE = Path(__file__).parent
OPTIONS = [
    *("--epochs", "4", "--lr", "0.01", "--no-report", "--method", "toy_method"),
    *("--method.tau_weight", "0.2", "--backbone", "toy_backbone", "--backbone.width", "8"),
    *("--posthoc", "toy_score", "--ood-score", "toy_score"),
]


@pytest.fixture
def installed(tmp_path_factory, source_env) -> dict[str, str]:
    """Return an environment in which a package announces the plug-in as an entry point."""
    site = tmp_path_factory.mktemp("site")
    info = site / "toy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dubito]\ntoy = toy\n")
    paths = [str(site), str(HERE), source_env["PYTHONPATH"]]
    return {**source_env, "PYTHONPATH": os.pathsep.join(paths)}


def dubito(env: dict[str, str], *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dubito", *map(str, words)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_every_command(installed, source_env, tmp_path):
    """One test, so that one process trains the model that the commands use."""
    out = tmp_path / "run"
    train_and_resume(installed, out)
    train_again(source_env, out, tmp_path / "again")
    evaluate(installed, out)
    calibrate_predict_and_export(installed, out, tmp_path)
    serve(installed, out)
    done = dubito(source_env, "predict", out, "new.npz")  # without the plug-in
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "toy_method" in done.stderr


def train_and_resume(env: dict[str, str], out: Path) -> None:
    train = ["train", "toy_data", "--out", out, *OPTIONS]
    killed = dubito({**env, "TOY_KILLED_IN_EPOCH": "2"}, *train)
    assert killed.returncode == -signal.SIGKILL
    assert not (out / "model.json").exists()
    resumed = dubito(env, *train)
    assert resumed.returncode == 0, resumed.stderr
    assert "epoch 1/4" not in resumed.stdout
    assert "epoch 4/4" in resumed.stdout
    content = json.loads((out / "model.json").read_text())
    assert content["method"]["name"] == "toy_method"
    assert content["backbone"] == {"name": "toy_backbone", "width": 8}
    assert content["scores"] == [{"name": "toy_score", "power": 2.0}]
    assert content["policy"]["ood_threshold"]["score"] == "toy_score"


def train_again(env: dict[str, str], resumed: Path, out: Path) -> None:
    """Train without interruption, with the plug-in named on the command line."""
    plugin = ["--import", HERE / "toy.py"]
    done = dubito(env, "train", "toy_data", "--out", out, *OPTIONS, *plugin)
    assert done.returncode == 0, done.stderr
    names = [sorted(path.name for path in folder.glob("weights-*")) for folder in (resumed, out)]
    assert names[0] == names[1]  # the hash of the content


def evaluate(env: dict[str, str], trained: Path) -> None:
    done = dubito(env, "evaluate", trained, "--noise", "3")
    assert done.returncode == 0, done.stderr
    result = json.loads((trained / "evaluation" / "result.json").read_text())
    assert result["metrics"]["accuracy"] > 0.7
    assert result["noise"]["3"]["detection"]["toy_score"]["auroc"] > 0.5
    assert "largest_tau" in done.stdout


def calibrate_predict_and_export(env: dict[str, str], trained: Path, tmp_path: Path) -> None:
    done = dubito(env, "calibrate", trained, "--error-rate", "0.2", "--out", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert "error <= 0.2" in done.stdout
    inputs = np.array([[3.0, 0.0], [90.0, 90.0]], dtype=np.float32)
    np.savez(tmp_path / "new.npz", inputs=inputs)
    words = ["--format", "jsonl", "--scores", "toy_score,largest_tau"]
    done = dubito(env, "predict", tmp_path / "new", tmp_path / "new.npz", *words)
    assert done.returncode == 0, done.stderr
    near, far = map(json.loads, done.stdout.splitlines())
    assert near["prediction"] == "class 0"
    assert far["toy_score"] > near["toy_score"]
    assert (far["accepted"], far["reason"]) == (False, "out_of_range")
    done = dubito(env, "export", tmp_path / "new", tmp_path / "model.onnx")
    assert done.returncode == 0, done.stderr
    assert "largest difference from torch" in done.stdout


def serve(env: dict[str, str], trained: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "dubito",
        "serve",
        str(trained),
        "--port",
        "0",
        "--engine",
        "torch",
    ]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().strip()
            body = {"inputs": [[3.0, 0.0]]}
            response = httpx.post(f"{url}v1/predict", json=body, timeout=600)
        finally:
            process.terminate()
    assert response.json()["predictions"][0]["prediction"] == "class 0"
