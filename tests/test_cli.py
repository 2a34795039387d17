"""The command line: help, version, errors, and one demonstration from end to end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import dubito
from dubito import cli, demo


def invoke(*words: str) -> Any:
    return CliRunner().invoke(cli.app, words, env={"COLUMNS": "100", "NO_COLOR": "1"})


def main(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run the command line in this process; return its exit status."""
    monkeypatch.setattr(sys, "argv", ["dubito", *words])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.mark.parametrize("words", [["--help"], []], ids=["asked", "no arguments"])
def test_help_lists_the_commands(words: list[str]) -> None:
    done = invoke(*words)
    assert done.exit_code == 0, done.output
    assert "Usage" in done.output
    assert any(line.strip(" │").startswith("demo ") for line in done.output.splitlines())
    assert "--version" in done.output


def test_version() -> None:
    done = invoke("--version")
    assert done.exit_code == 0
    assert done.output == f"dubito {dubito.__version__}\n"


def test_help_of_the_demo_names_its_options() -> None:
    done = invoke("demo", "--help")
    assert done.exit_code == 0
    for option in ("--out", "--epochs", "--seed"):
        assert option in done.output
    assert "dubito-demo" in done.output
    assert str(demo.Settings.epochs) in done.output


@pytest.mark.parametrize("words", [["dmeo"], ["demo", "--epochs", "0"], ["demo", "--seed", "x"]])
def test_wrong_use_exits_with_2(words: list[str]) -> None:
    assert invoke(*words).exit_code == 2


@pytest.fixture
def never_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(*_: object) -> None:
        raise AssertionError("training began")

    monkeypatch.setattr(demo, "_results", trained)


@pytest.mark.usefixtures("never_trained")
def test_a_bad_folder_is_one_red_line_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(monkeypatch, "demo", "--out", str(taken / "below")) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "31m" in error
    assert "Traceback" not in error
    assert "cannot write to the folder" in error
    assert taken.read_text() == ""


@pytest.mark.usefixtures("never_trained")
def test_debugging_shows_the_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("DUBITO_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["dubito", "demo", "--out", str(tmp_path / "taken")])
    with pytest.raises(OSError, match="a file is in the way"):
        cli.main()


def test_value_errors_are_told_and_others_are_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_with(error: Exception) -> None:
        def fail(*_: object) -> None:
            raise error

        monkeypatch.setattr(demo, "_results", fail)

    monkeypatch.chdir(tmp_path)
    fail_with(ValueError("alpha [bold]must[/bold] be > 0"))
    assert main(monkeypatch, "demo") == 2
    assert capsys.readouterr().err == "error: alpha [bold]must[/bold] be > 0\n"
    fail_with(ZeroDivisionError("a fault of ours"))
    monkeypatch.setattr(sys, "argv", ["dubito", "demo"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_a_warning_is_one_line_without_the_place_in_the_code(
    source_env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "mnist").mkdir()
    for name in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"):
        (tmp_path / "mnist" / name).write_bytes(b"")
    words = ("train", "mnist", "--out", "run")
    done = subprocess.run(
        [sys.executable, "-m", "dubito", *words],
        env={**source_env, "DUBITO_DATA": str(tmp_path), "NO_COLOR": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    first = done.stderr.splitlines()[0]
    assert first.startswith("warning: mnist: "), done.stderr
    assert "is not the published file" in first
    assert ".py:" not in done.stderr


def test_the_demo_from_end_to_end(source_env: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "dubito", "demo", "--epochs", "2"],
        env={**source_env, "COLUMNS": "80"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert sorted(os.listdir(tmp_path / "dubito-demo")) == [
        "densities.png",
        "report.html",
        "results.json",
        "results.md",
    ]
    for words in ("Accuracy", "I-EDL", "Max.P", "α₀", "D.Ent.", "M.I.", "AUPR", "AUROC", "ECE"):
        assert words in done.stdout
    assert str(Path("dubito-demo") / "report.html") in done.stdout
    assert "Over 5 runs I-EDL is right on" in done.stdout
