"""`dubito reproduce`: a rehearsal, what it says, and how it ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dubito import cli
from dubito.cli._cells import Cells


def invoke(*words: str | Path) -> Any:
    return CliRunner().invoke(cli.app, ["reproduce", *(str(word) for word in words)])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    place = tmp_path_factory.mktemp("reproduce")
    return ("--out", str(place / "out"), "--work", str(place / "work"), "--device", "cpu")


def test_a_rehearsal_from_training_to_the_report(folders: tuple[str, ...]) -> None:
    done = invoke("--quick", "mnist-softmax", *folders)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "the figures mean nothing" in done.output
    assert "mnist-softmax seed 322 is done: test accuracy" in done.output
    assert "1 cells ran, 0 were done before" in done.output
    page = Path(folders[1]) / "report" / "report.html"
    assert "quick" in page.read_text("utf-8").lower()


def test_records_have_all_parts_and_no_paths(folders: tuple[str, ...]) -> None:
    words = ("--quick", "mnist-softmax", "cifar10-iedl", "--seeds", "322", "--no-report", *folders)
    done = invoke(*words)
    assert done.exit_code == 0, (done.output, done.exception)
    out = Path(folders[1])
    results = json.loads((out / "results.json").read_text())
    assert results["quick"] is True
    assert list(results["results"]) == ["cifar10-iedl", "mnist-softmax"]
    record = json.loads((out / "cifar10-iedl" / "seed-322.json").read_text())
    assert record["quick"] is True
    assert record["config"]["data"]["source"] == "quick:cifar-10"
    result = record["result"]
    assert list(result["ood"]) == ["svhn", "cifar-100"]
    assert result["humans"]["samples"] == result["test"]["samples"]
    assert -1 <= result["humans"]["expected_entropy"]["spearman"] <= 1
    assert str(out.parent) not in (out / "results.json").read_text()
    assert str(out.parent) not in json.dumps(record)
    again = invoke(*words)
    assert "0 cells ran, 2 were done before" in again.output


def test_the_list_runs_nothing(folders: tuple[str, ...], tmp_path: Path) -> None:
    done = invoke("--list", "tab_conf", "--out", tmp_path / "none")
    assert done.exit_code == 0
    for name in ("cifar10-edl", "cifar10-mc-dropout", "0/5", "tables: "):
        assert name in done.output
    assert "mnist-edl" not in done.output
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tab_odd",), "unknown table or recipe 'tab_odd'; tables: 'ablation'"),
        (("--seeds", "a"), "--seeds must be whole numbers"),
        (("--address", "auto"), "no cluster without --ray"),
        (("--gpus", "0.5"), "no cluster without --ray"),
        (("--ray", "--jobs", "2"), "no jobs with ray"),
    ],
)
def test_what_it_refuses(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    folders = ("--out", tmp_path / "out", "--work", tmp_path / "work")
    done = invoke("--quick", *words, *folders)
    assert done.exit_code != 0
    assert message in str(done.exception)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    folders = ("--out", tmp_path / "out", "--work", tmp_path / "work")
    done = invoke("--quick", "mnist-softmax", "--ray", *folders)
    assert isinstance(done.exception, ValueError)
    assert "pip install 'dubito[ray]'" in str(done.exception)


def test_failures_are_told_at_the_end_and_in_the_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUBITO_DATA", str(tmp_path / "a-file"))
    (tmp_path / "a-file").touch()  # nothing can be found or downloaded there
    folders = ("--out", tmp_path / "out", "--work", tmp_path / "work", "--device", "cpu")
    done = invoke("mnist-softmax", "--seeds", "1", "--no-report", *folders)
    assert done.exit_code == 1
    assert "1 cells failed:" in done.output
    assert done.output.count("mnist-softmax seed 1") == 2
    assert "a-file" in done.output.replace("\n", "")


def test_progress_counts_cells_and_tells_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = Cells(4)
    cells.start -= 60
    for name in ("a", "b", "c"):
        assert cells.note({"event": "start", "cell": name, "state": "new"}) == f"{name} starts"
    line = cells.note({"event": "done", "cell": "a", "accuracy": 0.5})
    assert line is not None
    assert "test accuracy 50.00 %" in line
    assert "[1 of 4 done, 2 running, 1 left; about 0:03:00 more]" in line
    assert cells.note({"event": "failed", "cell": "b", "reason": "why"}) == "b failed: why"
    epoch = {"event": "epoch", "cell": "c", "epoch": 3, "epochs": 9}
    assert cells.note(epoch) is None
    line = cells.note({**epoch, "epoch": 4, "validation_accuracy": 0.25})
    assert line is not None
    assert "c epoch 4/9  validation accuracy 25.00 %" in line
    assert "1 failed, 1 running" in line
    cells.lines["c"] += 1e6
    assert cells.note({**epoch, "epoch": 6, "validation_accuracy": 0.3}) is None


def test_the_time_left_counts_what_is_done_of_cells_that_run() -> None:
    cells = Cells(4)
    cells.start -= 60
    for name in ("a", "b"):
        cells.note({"event": "start", "cell": name, "state": "new"})
    cells.note({"event": "epoch", "cell": "a", "epoch": 1, "epochs": 10})
    assert cells.left() == "0:01:00 so far"
    cells.note({"event": "epoch", "cell": "a", "epoch": 10, "epochs": 20})
    assert cells.left() == "at most 0:07:00 more"  # half a cell of four in a minute
    # this one goes on after 15 of 20 epochs: the one that is new took the time, the others did not
    cells.note({"event": "epoch", "cell": "b", "epoch": 16, "epochs": 20})
    cells.note({"event": "episodes", "cell": "c", "done": 45, "total": 100})
    assert cells.left() == "at most 0:02:15 more"  # 1 of 4 done now, 0.75 found
    cells.note({"event": "done", "cell": "a", "accuracy": 0.5})
    assert cells.left().startswith("about ")
