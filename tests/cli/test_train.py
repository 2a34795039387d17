"""`dubito train`: what it prints and leaves, goes on with, and refuses."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dubito import cli, data, runs
from dubito.training import CheckpointError, Settings

SHORT = ("--epochs", "2", "--batch-size", "32", "--set", "hidden=[16]", "--no-report")


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some digits in a file."""
    digits = data.load("digits", "all")
    path = tmp_path_factory.mktemp("data") / "few.npz"
    np.savez(path, x=digits.inputs[:300].numpy(), y=digits.labels[:300].numpy())
    return path


def train(*words: str | Path, fails: bool = False) -> Any:
    done = CliRunner().invoke(cli.app, ["train", *map(str, words)])
    assert (done.exit_code == 0) is not fails, (done.output, done.exception)
    return done


def refused(kind: type[Exception], *words: str | Path) -> str:
    done = train(*words, fails=True)
    assert isinstance(done.exception, kind), done.output
    return str(done.exception)


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(folder: Path) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in runs.load(folder).model.parameters()])


def test_it_says_that_weights_are_averaged(tmp_path: Path, few: Path) -> None:
    done = train(few, *SHORT, "--out", tmp_path / "mean", "--set", "average=2")
    assert "epochs: 2, weights averaged over 2, validation accuracy " in done.output
    assert "averaged" not in train(few, *SHORT, "--out", tmp_path / "moment").output


def test_it_trains_prints_and_stores_every_setting(tmp_path: Path, few: Path) -> None:
    done = train(few, *SHORT, "--out", tmp_path, "--set", "validate_every=1", "--report")
    assert "few: 240 training and 60 validation samples of shape (1, 8, 8), 10 clas" in done.output
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["training"]["batch_size"] == 32
    assert stored["backbone"]["name"] == "mlp"
    shown = " ".join(done.output.split())
    for section in runs.SECTIONS:
        for key, value in stored[section].items():
            assert f"{key}={value}" in shown
    assert {field.name for field in fields(Settings)} == stored["training"].keys()
    lines = [line for line in done.output.splitlines() if line.startswith("epoch")]
    assert len(lines) == 2
    for word in ("loss", "fisher_bias", "label_removed_kl", "validation acc", "samples/s", "left"):
        assert word in lines[1]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        "card.md", "config.json", "manifest.json", "metrics.jsonl", "model.safetensors",
        "policy.json", "report.html", "split.npz",
    ]  # fmt: skip
    best = max(line["validation_accuracy"] for line in metrics(tmp_path))
    assert f"validation accuracy {100 * best:.2f} %" in done.output.splitlines()[-4]
    assert "calibration on 60 validation samples: ECE " in done.output.splitlines()[-3]
    assert "policy: an error rate <= 0.05 with confidence 0.95" in done.output.splitlines()[-2]
    assert str(tmp_path / "report.html") in done.output.splitlines()[-1]


@pytest.mark.parametrize(("weight", "told"), [("0.1", False), ("5", True)])
def test_a_weight_that_leaves_no_evidence_is_told(
    tmp_path: Path, few: Path, weight: str, told: bool
) -> None:
    output = train(few, *SHORT, "--fisher-weight", weight, "--out", tmp_path).output
    assert (f"fisher_weight={weight} removes all evidence" in output) is told


def test_a_finished_run_is_left_alone(tmp_path: Path, few: Path) -> None:
    train(few, *SHORT, "--out", tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    done = train(few, *SHORT, "--out", tmp_path)
    assert "is finished: nothing to do" in done.output
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_another_configuration_is_refused_by_name(tmp_path: Path, few: Path) -> None:
    train(few, *SHORT, "--out", tmp_path)
    for words, difference in [
        (("--lr", "0.5"), "its training.learning_rate is 0.001, and now 0.5;"),
        (("--method", "edl"), "its method.name is 'iedl', and now 'edl'"),
        (("--validation", "0.3"), "its data.validation is 0.2, and now 0.3"),
        (("--augment", "paper"), "its training.augment.flip is None, and now 0.5"),
        (("--set", "optimizer_options.eps=0.1"), "optimizer_options.eps is None, and now 0.1"),
    ]:
        message = refused(CheckpointError, few, *SHORT, *words, "--out", tmp_path)
        assert difference in message
    train(few, *SHORT, "--set", "workers=1", "--out", tmp_path)  # a matter of speed


def test_interrupted_in_a_process_of_its_own_it_goes_on(
    tmp_path: Path, few: Path, source_env: dict[str, str]
) -> None:
    words = [few, "--epochs", "40", "--patience", "0", *SHORT[2:], "--out"]
    command = [sys.executable, "-m", "dubito", "train", *map(str, words), str(tmp_path / "a")]
    process = subprocess.Popen(command, env=source_env, stdout=subprocess.PIPE, text=True)
    told = tmp_path / "a" / "metrics.jsonl"
    while process.poll() is None and not (told.exists() and told.read_text().count("\n") > 2):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "the same command goes on" in output
    epochs = len(metrics(tmp_path / "a"))
    assert 2 < epochs < 40
    done = train(*words, tmp_path / "a")
    assert "was stopped: it goes on" in done.output
    assert sum(line.startswith("epoch") for line in done.output.splitlines()) <= 40 - epochs + 1
    train(*words, tmp_path / "whole")
    assert torch.equal(weights(tmp_path / "a"), weights(tmp_path / "whole"))


def test_seeds_side_by_side_are_those_of_single_runs(tmp_path: Path, few: Path) -> None:
    train(few, *SHORT, "--seed", "1", "--out", tmp_path / "one")
    train(few, *SHORT, "--seeds", "1", "--out", tmp_path / "many")
    done = train(few, *SHORT, "--seeds", "1,2", "--out", tmp_path / "many")
    assert "seed-1 is finished: nothing to do" in done.output
    assert "seed=[1, 2]" in done.output
    first, second = (weights(tmp_path / "many" / f"seed-{seed}") for seed in (1, 2))
    assert torch.equal(first, weights(tmp_path / "one"))
    assert not torch.equal(first, second)
    assert "give --seed or --seeds" in refused(
        ValueError, few, "--seed", "1", "--seeds", "1,2", "--out", tmp_path
    )


CONFIG = """
[data]
validation = 0.25
[backbone]
name = "mlp"
hidden = [8]
[method]
name = "edl"
likelihood = "marginal"
[training]
epochs = 1
augment = {flip = 0.0, padding = 1}
optimizer = "sgd"
optimizer_options = {momentum = 0.9}
"""


def test_flags_override_the_file(tmp_path: Path, few: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(CONFIG)
    train(few, "--config", file, "--validation", "0.5", "--set", "kl_ramp=all", "--out", tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["data"]["validation"] == 0.5
    assert (stored["facts"]["train"], stored["facts"]["validation"]) == (150, 150)
    assert stored["method"]["likelihood"] == "marginal"
    assert stored["method"]["kl_ramp"] == "all"
    assert stored["training"]["augment"] == {"flip": 0.0, "padding": 1, "degrees": 15.0}
    assert stored["training"]["optimizer_options"] == {"momentum": 0.9}
    again = tmp_path / "again"
    train("--config", tmp_path / "config.json", "--out", again)  # a run's own, data and all
    assert json.loads((again / "config.json").read_text()) == stored
    assert torch.equal(weights(again), weights(tmp_path))


TYPOS = {
    "section": ("[trainig]\nepochs = 1", "unknown key 'trainig'.* did you mean 'training'"),
    "training": (
        "[training]\nepoch = 1",
        r"unknown key 'epoch' in \[training\]; did you mean 'epochs'\? Known: .*'batch_size'",
    ),
    "method": (
        "[method]\nname = 'iedl'\nfisher_wieght = 1",
        r"unknown key 'fisher_wieght' in \[method\] of 'iedl'; did you mean 'fisher_weight'",
    ),
    "backbone": (
        "[backbone]\nname = 'mlp'\ndepth = 3",
        r"'depth' in \[backbone\] of 'mlp'; .*'hid",
    ),
    "data": ("[data]\nlabels = 'x'", r"unknown key 'labels' in \[data\]; did you mean 'label'"),
    "augment": ("[training.augment]\nrotate = 3", r"unknown key 'rotate' in \[training.augment\]"),
    "member": (
        "[method]\nname = 'ensemble'\noptions = {beta = 1}",
        r"'beta' in \[method.options\]",
    ),
    "optimizer": (
        "[training]\noptimizer = 'sgd'\noptimizer_options = {momentun = 0.9}",
        r"'momentun' in \[training.optimizer_options\]; did you mean 'momentum'",
    ),
    "value": ("[training]\nepochs = 'many'", r"'epochs' in \[training\] should be a valid integer"),
    "no section": ("training = 3", r"\[training\] must be a section of keys and values, not 3"),
    "not toml": ("[training", "config.toml can't be read"),
}


@pytest.mark.parametrize(("text", "message"), TYPOS.values(), ids=TYPOS)
def test_a_typo_in_the_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        raise train("digits", "--config", file, "--out", tmp_path / "x", fails=True).exception
    assert not (tmp_path / "x").exists()


WRONG = {
    "set": ("--set fisher_wieght=1", "'fisher_wieght' in --set; did you mean 'fisher_weight'"),
    "section": ("--set training.epoch=1", r"'epoch' in \[training\]; did you mean 'epochs'"),
    "no value": ("--set epochs", "--set takes key=value, not 'epochs'"),
    "ambiguous": (
        "--method mc_dropout --set dropout=0.5",
        "several sections have that key; write backbone.dropout or method.dropout",
    ),
    "not its own": ("--method softmax --fisher-weight 1", r"'fisher_weight' in \[method\] of 's"),
    "method": ("--method idel", "unknown method 'idel'; known: 'iedl', 'edl', .*'ensemble'"),
    "backbone": ("--backbone cnn", "unknown backbone 'cnn'; known: 'auto', 'mlp', 'convnet', 'vgg"),
    "optimizer": ("--optimizer adamm", "unknown optimizer 'adamm'; known: .*'adam'"),
    "augment": ("--augment strong", "unknown augment 'strong'; known: 'none', 'paper'"),
    "validation": ("--validation 1.5", r"validation must be between 0 and 1, not 1\.5"),
    "device": ("--device tpu", "unknown device 'tpu'; known: 'auto', 'cpu', 'cuda'"),
    "reader": ("--set mode=L", "unknown option 'mode' for data set 'digits'"),
    "seeds": ("--seeds 1,two", "--seeds must be whole numbers with commas between, not '1,two'"),
    "epochs": ("--epochs 0", "epochs must be at least 1, not 0"),
}


@pytest.mark.parametrize(("words", "message"), WRONG.values(), ids=WRONG)
def test_wrong_words_are_named(tmp_path: Path, words: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        raise train("digits", *words.split(), "--out", tmp_path / "x", fails=True).exception
    assert not (tmp_path / "x").exists()


def test_unknown_data_lists_the_known(tmp_path: Path) -> None:
    message = refused(FileNotFoundError, "minst", "--out", tmp_path)
    assert "'minst' is neither a file or folder nor a known data set" in message
    assert "'mnist', 'fashion-mnist'" in message
    assert "Give DATA" in refused(ValueError, "--out", tmp_path)


def test_a_csv_by_the_name_of_its_label(tmp_path: Path) -> None:
    rows = ["kind,length,width"]
    rows += [f"{'ab'[i % 2]},{i % 2 + i / 100},{1 - i % 2}" for i in range(60)]
    (tmp_path / "own.csv").write_text("\n".join(rows))
    train(
        tmp_path / "own.csv", "--out", tmp_path / "run", "--set", "data.label=kind",
        "--epochs", "15", "--lr", "0.05", "--batch-size", "16", "--set", "hidden=[8]",
    )  # fmt: skip
    run = runs.load(tmp_path / "run")
    assert (run.classes, run.shape) == (("a", "b"), (2,))
    assert run.predict(torch.tensor([[0.1, 1.0], [1.2, 0.0]])).label.tolist() == [0, 1]


def test_the_promise_is_told_and_can_be_another(tmp_path: Path) -> None:
    words = ("digits", "--epochs", "12", "--lr", "0.005", "--out", tmp_path)
    told = train(*words, "--error", "0.1", "--confidence", "0.9").output
    assert re.search(r"ECE \d+\.\d\d% -> \d\.\d\d%, NLL", told)
    assert re.search(
        r"rate <= 0\.1 with confidence 0\.9: accepts 9\d\.\d% of them, \d+ wrong", told
    )
    assert "vacuity <= " in told
    promised = json.loads((tmp_path / "policy.json").read_text())["policy"]["guarantee"]
    assert promised == {
        "controls": "error", "level": 0.1, "confidence": 0.9, "false_alarms": 0.05,
    }  # fmt: skip
    told = train(*words, "--error", "0.001").output
    assert "is finished: its policy is for this promise now" in told
    assert "was not shown by 288 validation samples, so it abstains on everything" in told
    assert "nothing to do" in train(*words).output
    promised = json.loads((tmp_path / "policy.json").read_text())["policy"]["guarantee"]
    assert promised["level"] == 0.001
    message = refused(ValueError, *words, "--false-alarms", "1.5")
    assert message == "false_alarms must be between 0 and 1, not 1.5"


def test_classes_can_count_alike(tmp_path: Path, few: Path) -> None:
    train(few, *SHORT, "--out", tmp_path / "a", "--class-weight", "balanced")
    stored = json.loads((tmp_path / "a" / "config.json").read_text())
    assert stored["data"]["class_weight"] == "balanced"
    train(few, *SHORT, "--out", tmp_path / "b")
    assert not torch.equal(weights(tmp_path / "a"), weights(tmp_path / "b"))
    message = refused(ValueError, few, "--class-weight", "even", "--out", tmp_path / "c")
    assert "'class_weight' in [data] should be 'balanced', not 'even'" in message


def test_what_can_be_mended_is_told_in_one_line(
    tmp_path: Path, few: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hopeless = [str(few), *SHORT, "--lr", "1e30", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["dubito", "train", *hopeless])
    with pytest.raises(SystemExit) as left:
        cli.main()
    told = capsys.readouterr().err
    assert left.value.code == 2
    assert told.startswith("error: the loss is not finite in epoch 0")
    assert told.count("\n") == 1
    (tmp_path / "checkpoint.safetensors").write_bytes(b"cut")
    with pytest.raises(SystemExit):
        cli.main()
    assert "error: could not read" in capsys.readouterr().err


JOINED = """
import sys
from pathlib import Path
from dubito import cli

try:
    cli.main()
except SystemExit as left:
    assert not left.code, left.code
names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
assert not [name for name in names if "gloo" in name], "the group's threads go on after it"
"""


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
def test_two_processes_leave_one_run_and_are_one_with_the_doubled_batch(
    tmp_path: Path, source_env: dict[str, str]
) -> None:
    digits = data.load("digits", "train")
    np.savez(tmp_path / "digits.npz", x=digits.inputs.numpy(), y=digits.labels.numpy())
    (tmp_path / "joined.py").write_text(JOINED)
    words = (
        "train", str(tmp_path / "digits.npz"), "--validation", "0.5", "--epochs", "10", "--device",
        "cpu", "--set", "hidden=[32]", "--set", "validate_every=1", "--batch-size",
    )  # fmt: skip
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(tmp_path / "joined.py"), *words, "16", "--out", str(tmp_path / "two"),
    ]  # fmt: skip
    environment = {**source_env, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch 10/10") == 1
    stored = json.loads((tmp_path / "two" / "config.json").read_text())
    assert stored["facts"]["processes"] == 2
    assert stored["facts"]["train"] % 2 == 1  # one process has more of the last batch
    train(*words[1:], "32", "--out", tmp_path / "one", "--no-report")
    best = [
        max(line["validation_accuracy"] for line in metrics(tmp_path / name))
        for name in ("one", "two")
    ]
    assert best[1] == pytest.approx(best[0], abs=0.01)
    both, one = weights(tmp_path / "two"), weights(tmp_path / "one")
    torch.testing.assert_close(both, one, rtol=1e-3, atol=1e-4)


def test_tensorboard_gets_the_figures(tmp_path: Path, few: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(few, *SHORT, "--out", tmp_path)
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    told = [(event.step, event.value) for event in board.Scalars("loss")]
    assert told == [(line["epoch"], pytest.approx(line["loss"])) for line in metrics(tmp_path)]
    assert "terms/fisher_penalty" in board.Tags()["scalars"]


def test_a_terminal_sees_it_live() -> None:
    from io import StringIO

    from rich.console import Console

    from dubito.cli._progress import shown

    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=60, legacy_windows=False)
    entry = {"seed": 1, "epoch": 3, "loss": 0.5, "terms": {"kl": 0.25}, "samples_per_second": 1e4}
    with shown(console, [1, 2], 10) as tell:
        tell(entry | {"validation_accuracy": 0.5})
        tell(entry | {"epoch": 4})
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert re.search(r"^seed +1 +2 *$", text, re.MULTILINE)
    assert re.search(r"^epoch +4/10 +0/10 *$", text, re.MULTILINE)
    for word in ("0.5000", "kl", "50.00 %", "10,000", "left"):
        assert word in text
