"""The whole path on embedded data: run, kill, resume, report."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reproduction.__main__ import main
from reproduction.recipes import Recipe, select
from reproduction.runner import Unit, run
from reproduction.store import Record, Store, comparable

Recipes = dict[str, Recipe]
ROOT = Path(__file__).parents[2]
#: one recipe of each kind, and all that a table needs
NAMES = ["mnist-edl", "mnist-mc-dropout", "cifar10-iedl", "fewshot-iedl-5w5s"]


def records(store: Store) -> list[Record]:
    return [comparable(record) for record in store.current()]


def finish(recipes: Recipes, folder: Path) -> Store:
    store = Store(folder / "results", recipes)
    selected = select(recipes, NAMES)
    problems = run(selected, store, folder / "work", device="cpu", report=lambda _: None)
    assert problems == {}
    return store


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, quick_recipes: Recipes) -> Path:
    """A run that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    finish(quick_recipes, folder)
    return folder


def test_records_are_complete(whole: Path, quick_recipes: Recipes) -> None:
    store = Store(whole / "results", quick_recipes)
    by_cell = {(record["recipe"], record["seed"]): record for record in store.current()}
    assert len(by_cell) == 6
    record = by_cell["cifar10-iedl", 322]
    assert record["quick"]
    assert set(record["result"]["ood"]) == {"svhn", "cifar-100"}
    assert "expected_entropy" in record["result"]["humans"]
    assert len(record["training"]["history"]["watched"]["svhn/max_prob/aupr"]) == 2
    assert set(record["curves"]["reliability"]) == {"before", "after"}
    assert not any((whole / "work").glob("*/*"))


def test_finished_runs_are_not_repeated(whole: Path, quick_recipes: Recipes) -> None:
    before = Store(whole / "results", quick_recipes).current()
    assert finish(quick_recipes, whole).current() == before


def test_finished_seed_keeps_the_checkpoints_of_others(
    tmp_path: Path, quick_recipes: Recipes
) -> None:
    recipe = quick_recipes["mnist-edl"]
    other = tmp_path / Unit(recipe, (1,)).folder / "seed-1"
    other.mkdir(parents=True)
    store = Store(tmp_path / "results", quick_recipes)
    assert run([recipe], store, tmp_path, seeds=[322], device="cpu", report=lambda _: None) == {}
    assert other.exists()
    assert not (other.parent / "seed-322").exists()


def test_killed_run_ends_with_the_same_records_in_two_processes(
    whole: Path, tmp_path: Path, quick_recipes: Recipes
) -> None:
    command = [sys.executable, "-m", "reproduction", "--quick", "--work", str(tmp_path), *NAMES]
    journal = tmp_path / "quick" / "results" / "journal.jsonl"
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, env=environment())
    while process.poll() is None and count_lines(journal) < 2:
        time.sleep(0.02)
    assert process.poll() is None, "the run was finished before it was killed"
    process.kill()
    process.wait()
    store = Store(tmp_path / "quick" / "results", quick_recipes)
    assert 2 <= len(store) < 6
    run(select(quick_recipes, NAMES), store, tmp_path / "quick", device="cpu", jobs=2)
    assert records(store) == records(Store(whole / "results", quick_recipes))


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


def count_lines(path: Path) -> int:
    return path.read_text("utf-8").count("\n") if path.exists() else 0


def test_report_of_a_quick_run(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--quick", "--report", "--results", str(whole / "results"), "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")
    assert "no evidence" in (tmp_path / "tables.md").read_text("utf-8")
    figures = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert {"overview", "epochs-mnist-edl", "densities-mnist", "risk-coverage"} <= figures


def test_unknown_table_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tab_odd"]) == 1
    assert capsys.readouterr().err.startswith("error: unknown table or recipe 'tab_odd'")


def test_list_shows_what_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "mnist-iedl", "--results", str(ROOT / "results")]) == 0
    assert "5 of  5" in capsys.readouterr().out


def test_run_in_use_is_an_error(
    whole: Path, quick_recipes: Recipes, capsys: pytest.CaptureFixture[str]
) -> None:
    from filelock import FileLock

    folder = whole / "other"
    (folder / "quick").mkdir(parents=True)
    with FileLock(folder / "quick" / ".lock"):
        assert main(["--quick", "--work", str(folder), "mnist-edl"]) == 1
    assert "another run uses" in capsys.readouterr().err
