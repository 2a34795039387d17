"""`dubito evaluate`: the figures it prints and writes."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dubito import bundle, cli, data, runs
from dubito._legacy import (
    MEASURES,
    Prediction,
    calibration_metrics,
    misclassification,
    ood_figures,
)
from dubito.policy import REASONS
from dubito.training import CheckpointError


def invoke(*words: str | Path) -> Any:
    return CliRunner().invoke(cli.app, [str(word) for word in words])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on digits, made by the command."""
    folder = tmp_path_factory.mktemp("run")
    short = ("--epochs", "4", "--lr", "0.01", "--set", "hidden=[32]")
    done = invoke("train", "digits", *short, "--out", folder)
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def uniform(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs that are no digits, in a file."""
    path = tmp_path_factory.mktemp("data") / "uniform.npz"
    pixels = np.random.default_rng(0).integers(256, size=(80, 1, 8, 8), dtype=np.uint8)
    np.savez(path, images=pixels, labels=np.zeros(80, int))
    return path


def test_from_training_to_figures(run: Path, uniform: Path) -> None:
    done = invoke("evaluate", run, "--ood", uniform, "--noise", "0.1", "--noise", "0.5")
    assert done.exit_code == 0, (done.output, done.exception)
    found = json.loads((run / "evaluation" / "result.json").read_text())
    loaded, test = runs.load(run), data.load("digits", "test")
    said = loaded.predict(test.inputs)
    outside = loaded.predict(data.load(uniform).inputs)
    assert found["misclassification"] == misclassification(said, test.labels)
    assert found["ood"]["uniform"]["detection"] == ood_figures(said, outside)
    assert found["ood"]["uniform"]["source"] == str(uniform)
    assert list(found["noise"]) == ["0.1", "0.5"]
    harder, easier = (one["detection"]["dissonance"]["auroc"] for one in found["noise"].values())
    assert harder < easier
    assert found["accuracy"] > 0.7
    printed = done.output
    assert f"{100 * found['accuracy']:.2f}" in printed
    for name in said.available:
        assert MEASURES[name].label in printed
    for figures in found["ood"]["uniform"]["detection"].values():
        assert f"{100 * figures['auroc']:.2f}" in printed
    for title in ("359 test samples", "Right or wrong?", "digits or uniform (80)?", "N(0, 0.5)?"):
        assert title in printed
    assert {"dubito", "torch", "python"} == found["versions"].keys()


def test_the_promise_can_be_checked(run: Path, uniform: Path) -> None:
    done = invoke("evaluate", run, "--ood", uniform, "--noise", "0.1")
    assert done.exit_code == 0, (done.output, done.exception)
    found = json.loads((run / "evaluation" / "result.json").read_text())
    told, loaded, test = found["limits"], bundle.load(run), data.load("digits", "test")
    said = loaded.predict(test.inputs)
    after = calibration_metrics(loaded.calibrated(said), test.labels)
    assert told["calibration"] == after
    assert found["calibration"] == calibration_metrics(said, test.labels)  # as it was
    assert after["nll"] < found["calibration"]["nll"]
    accept = loaded.decide(said).accepted
    wrong = (said.label != test.labels)[accept].double().mean().item()
    assert told["promise"]["error"] == 0.05
    assert (told["test"]["accepted"], told["test"]["wrong"]) == (accept.double().mean(), wrong)
    strange = loaded.decide(loaded.predict(data.load(uniform).inputs))
    assert told["ood"]["uniform"]["accepted"] == strange.accepted.double().mean()
    assert "wrong" not in told["ood"]["uniform"]
    assert "wrong" in told["noise"]["0.1"]
    for shares in (told["test"], told["ood"]["uniform"], told["noise"]["0.1"]):
        assert sum(shares[name] for name in REASONS) == pytest.approx(1)
        assert f"{100 * shares['accepted']:.2f}" in done.output
    for figure in (100 * after["ece"], 100 * wrong):
        assert f"{figure:.2f}" in done.output
    assert "≤ 5)" in done.output
    assert "before calibration" in done.output


def test_several_seeds(tmp_path: Path) -> None:
    short = ("--epochs", "2", "--lr", "0.01", "--set", "hidden=[16]", "--seeds", "3,21")
    assert invoke("train", "digits", *short, "--out", tmp_path).exit_code == 0
    done = invoke("evaluate", tmp_path, "--noise", "0.5")
    assert done.exit_code == 0, (done.output, done.exception)
    both = [
        json.loads((tmp_path / f"seed-{seed}" / "evaluation" / "result.json").read_text())
        for seed in (3, 21)
    ]
    found = json.loads((tmp_path / "evaluation" / "result.json").read_text())
    accuracies = [one["accuracy"] for one in both]
    mean, spread = statistics.mean(accuracies), statistics.stdev(accuracies)
    assert found["accuracy"] == pytest.approx({"mean": mean, "deviation": spread})
    assert found["run"]["seeds"] == [3, 21]
    assert found["test"] == both[0]["test"]
    aurocs = [one["noise"]["0.5"]["detection"]["vacuity"]["auroc"] for one in both]
    told = found["noise"]["0.5"]["detection"]["vacuity"]["auroc"]
    assert told["mean"] == pytest.approx(statistics.mean(aurocs))
    limits = [one["limits"] for one in both]
    for name in ("accepted", "unfamiliar"):
        mean_share = statistics.mean(one["test"][name] for one in limits)
        assert found["limits"]["test"][name]["mean"] == pytest.approx(mean_share)
    nll = statistics.mean(one["calibration"]["nll"] for one in limits)
    assert found["limits"]["calibration"]["nll"]["mean"] == pytest.approx(nll)
    assert f"{nll:.4f} ±" in done.output
    assert "over the seeds 3, 21" in done.output
    assert f"{100 * mean:.2f} ±{100 * spread:.2f}" in done.output


def test_arrays_are_those_of_the_figures(run: Path, uniform: Path) -> None:
    invoke("evaluate", run, "--ood", uniform, "--ood", uniform)
    found = json.loads((run / "evaluation" / "result.json").read_text())
    assert list(found["ood"]) == ["uniform", "uniform-2"]
    with np.load(run / "evaluation" / "arrays.npz", allow_pickle=False) as arrays:
        both = (arrays[f"{place}/alpha"] for place in ("test", "ood/uniform-2"))
        expected = ood_figures(*(Prediction.from_alpha(torch.from_numpy(one)) for one in both))
        assert found["ood"]["uniform-2"]["detection"] == expected
        kinds = {"alpha", *MEASURES}
        assert set(arrays.files) == {
            "labels",
            *(f"{place}/{kind}" for kind in kinds for place in ("test", *_places(found))),
        }


def _places(found: dict[str, Any]) -> list[str]:
    return [f"ood/{name}" for name in found["ood"]]


def test_the_same_seed_draws_the_same_noise(run: Path) -> None:
    figures = []
    for seed in ("3", "3", "4"):
        invoke("evaluate", run, "--noise", "0.3", "--seed", seed, "--batch-size", "100")
        found = json.loads((run / "evaluation" / "result.json").read_text())
        figures.append(found["noise"]["0.3"]["detection"])
    assert figures[0] == figures[1] != figures[2]


def test_held_out_samples_are_called_so(tmp_path: Path) -> None:
    digits = data.load("digits", "all")
    np.savez(tmp_path / "own.npz", x=digits.inputs[:300], y=digits.labels[:300])
    out = tmp_path / "run"
    short = ("--epochs", "1", "--set", "hidden=[8]")
    invoke("train", tmp_path / "own.npz", "--method", "softmax", *short, "--out", out)
    done = invoke("evaluate", out)
    assert "own has no test part: these are the held-out validation" in done.output
    found = json.loads((out / "evaluation" / "result.json").read_text())
    assert found["test"] == {"data": "own", "part": "held-out validation", "samples": 60}
    assert set(found["misclassification"]) == {"max_prob", "entropy_of_mean"}
    assert not {"calibration", "test"} & set(found["limits"])  # they were fitted on these samples
    assert "check these with --data" in " ".join(done.output.split())
    assert "Accept or abstain?" not in done.output
    done = invoke("evaluate", out, "--data", "digits")
    assert "Accept or abstain?" in done.output
    assert "359 test samples" in done.output
    assert "no test part" not in done.output


def test_other_shapes_need_the_flag(run: Path, tmp_path: Path) -> None:
    pixels = np.zeros((5, 3, 10, 10), np.uint8)
    np.savez(tmp_path / "colour.npz", x=pixels, y=np.zeros(5, int))
    done = invoke("evaluate", run, "--ood", tmp_path / "colour.npz")
    message = "shape (3, 10, 10), but the network takes (1, 8, 8); `dubito evaluate --resize`"
    assert message in str(done.exception)
    done = invoke("evaluate", run, "--ood", tmp_path / "colour.npz", "--resize")
    assert done.exit_code == 0
    assert "digits or colour (5)?" in done.output


def test_what_is_no_finished_run_is_refused(tmp_path: Path) -> None:
    for folder, message in ((tmp_path / "none", "no folder"), (tmp_path, "is no run's folder")):
        done = invoke("evaluate", folder)
        assert isinstance(done.exception, CheckpointError)
        assert message in str(done.exception)
    done = invoke("evaluate", tmp_path, "--noise", "much")
    assert done.exit_code == 2
