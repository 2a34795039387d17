"""`dubito report`: the report again, from the records alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dubito import cli
from report import synthetic


def invoke(*words: str | Path) -> Any:
    return CliRunner().invoke(cli.app, [str(word) for word in words], env={"COLUMNS": "100"})


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder as `dubito reproduce` leaves it, without figures: those are tested elsewhere."""
    for recipe in ("mnist-edl", "mnist-iedl"):
        record = synthetic.record(recipe, 322)
        del record["curves"], record["extremes"]
        record["result"]["ood"]["kmnist"]["detection"]["max_prob"]["aupr"] = 0.5
        path = tmp_path / "results" / recipe / "seed-322.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(record))
    return tmp_path / "results"


def test_the_report_from_a_folder(results: Path) -> None:
    (results / "notes.toml").write_text('"mnist-edl/ood/*" = "Too few epochs."\n')
    done = invoke("report", results)
    assert done.exit_code == 0, (done.output, done.exception)
    place = results / "report"
    assert f"Wrote {place / 'report.html'}" in done.output.replace("\n", "")
    assert "Of 127 published numbers" in done.output
    assert "▼ MNIST → KMNIST, EDL: AUPR Max.P 50.00 (paper 97.02 ±0.8)" in done.output
    page = (place / "report.html").read_text("utf-8")
    assert "Too few epochs." in page
    assert "missing" in page
    assert (place / "tables.tex").exists()


def test_other_published_numbers_may_be_given(results: Path, tmp_path: Path) -> None:
    paper = tmp_path / "paper.toml"
    paper.write_text(
        '[[table]]\nlabel = "mine"\ncell = [{ method = "edl", data = "mnist", metric = '
        '"accuracy", mean = 100.0, deviation = 0.1 }]\n'
    )
    done = invoke("report", results, "--paper", paper, "--out", tmp_path / "out")
    assert done.exit_code == 0, (done.output, done.exception)
    assert "Of 1 published numbers" in done.output
    assert "▼ MNIST: accuracy, and right or wrong, EDL: Acc." in done.output
    assert (tmp_path / "out" / "report.html").exists()


def test_what_can_not_be_read_is_told(tmp_path: Path, results: Path) -> None:
    done = invoke("report", tmp_path / "none")
    assert isinstance(done.exception, FileNotFoundError)
    (tmp_path / "paper.toml").write_text("=")
    done = invoke("report", results, "--paper", tmp_path / "paper.toml")
    assert isinstance(done.exception, ValueError)
    assert "is no toml" in str(done.exception)
