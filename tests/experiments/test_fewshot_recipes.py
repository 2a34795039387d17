"""Few-shot recipes: what they say, what runs, what is skipped, and what is written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dubito import experiments
from dubito.data import read_features
from dubito.experiments import CHANGED, DONE, Store
from dubito.fewshot import Engine, Pool, Setting, evaluate, head, scaling, summary, tuning
from dubito.report import reproduction
from fewshot.samples import arrays

RECIPES = {n: r for n, r in experiments.recipes().items() if r.kind == "fewshot"}
PAPER = {
    "5w1s": 0.01, "5w5s": 0.05, "5w20s": 0.005, "5w50s": 0.01,
    "10w1s": 0.1, "10w5s": 0.01, "10w20s": 0.01, "10w50s": 0.01,
}  # fmt: skip

RECIPE = """
title = "I-EDL"
protocol = "dubito"
about = "A few episodes."
tables = ["few"]
seeds = [3]

[fewshot]
features = "made/novel.npz"
ood = "made/birds.npz"

[head]
name = "iedl"

[[setting]]
ways = 3
shots = 2
episodes = 20
fisher_weight = 0.05
"""
TUNE = """
[tune]
features = "made/validation.npz"
episodes = 10
objective = "accuracy"
grid = [0.0, 0.1]
kl_grid = [[1.0, 10], [0.0, 10]]
scalings = ["none", "centred"]
"""


def test_the_papers_settings_and_weights() -> None:
    for name, weight in PAPER.items():
        sections = RECIPES[f"fewshot-iedl-{name}"].sections
        assert sections["head"]["fisher_weight"] == weight
        ways, shots = map(int, name.removesuffix("s").split("w"))
        assert (sections["setting"]["ways"], sections["setting"]["shots"]) == (ways, shots)
    tables = experiments.tables(RECIPES)
    assert len(tables["tab_mini"]) == 12
    assert len(tables["app_tab_mini_all"]) == 16
    assert len(tables["tab_ablation"]) == 4
    assert set(tables["fewshot"]) == set(RECIPES)


def test_every_few_shot_number_of_the_paper_has_a_recipe() -> None:
    for table in experiments.paper()["table"]:
        for cell in table["cell"]:
            if "ways" in cell:
                method = cell["method"].replace("_", "-")
                name = f"fewshot-{method}-{cell['ways']}w{cell['shots']}s"
                assert table["label"] in RECIPES[name].tables


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("ways = 3\n", ""), r"\[setting\] lacks 'ways'"),
        (('ood = "made', 'odd = "made'), "'odd'"),
        (('"iedl"', '"magic"'), "unknown head 'magic'"),
        (("fisher_weight", "fisher_wait"), "unknown hyperparameter of the head 'iedl'"),
        (("seeds = [3]", "seeds = [3, 3]"), "seeds must be different"),
        (("[[setting]]", "[setting]"), r"at least one \[\[setting\]\]"),
        (("[head]", "[sweep]\nkey = 'fisher_weight'\n[head]"), "and a list of `values`"),
        (("[head]", "[training]\nepochs = 2\n[head]"), "training"),
        (("[head]", "[tune]\nobjective = 'x'\n[head]"), r"\[tune\] lacks 'features'"),
    ],
)
def test_a_wrong_recipe_is_told_when_it_is_read(
    tmp_path: Path, change: tuple[str, str], words: str
) -> None:
    assert change[0] in RECIPE
    (tmp_path / "one.toml").write_text(RECIPE.replace(*change, 1))
    with pytest.raises(ValueError, match=words):
        experiments.read_recipes(tmp_path)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all data, with features in it."""
    folder = tmp_path / "data" / "made"
    folder.mkdir(parents=True)
    for seed, name in enumerate(("novel", "birds", "validation")):
        made = arrays(seed=seed)
        np.savez(folder / f"{name}.npz", features=made.inputs, labels=made.labels)
    monkeypatch.setenv("DUBITO_DATA", str(tmp_path / "data"))
    return folder


def reproduce(folder: Path, text: str, **options: Any) -> Any:
    (folder / "recipes").mkdir(exist_ok=True)
    (folder / "recipes" / "few.toml").write_text(text)
    known = list(experiments.read_recipes(folder / "recipes").values())
    return experiments.reproduce(
        known, out=folder / "out", work=folder / "work", device="cpu", **options
    )


def test_a_record_has_the_figures_of_its_episodes(tmp_path: Path, data: Path) -> None:
    events: list[dict[str, Any]] = []
    done = reproduce(tmp_path, RECIPE, tell=events.append)
    assert done.failed == {}
    assert done.ran == ["few-3w2s seed 3"]
    assert [event["event"] for event in events] == ["start", "episodes", "done"]
    (record,) = done.records
    novel, birds = (Pool.of(read_features(data / f"{n}.npz")) for n in ("novel", "birds"))
    engine = Engine(novel, birds, Setting(3, 2, seed=3), head("iedl", fisher_weight=0.05))
    for name, figure in summary(evaluate(engine, 20)).items():
        assert record["result"]["figures"][name]["mean"] == pytest.approx(figure.mean, abs=1e-6)
    assert record["config"]["head"]["kl_ramp"] == 10
    assert str(tmp_path) not in json.dumps(record)


def test_done_is_skipped_and_changed_runs_again(tmp_path: Path, data: Path) -> None:
    reproduce(tmp_path, RECIPE)
    assert reproduce(tmp_path, RECIPE).ran == []
    assert reproduce(tmp_path, RECIPE.replace('"I-EDL"', '"Other"')).ran == []
    changed = RECIPE.replace("0.05", "0.5")
    (tmp_path / "recipes" / "few.toml").write_text(changed)
    (recipe,) = experiments.read_recipes(tmp_path / "recipes").values()
    store = Store(tmp_path / "out")
    assert store.state(recipe.cells()[0]) == CHANGED
    assert reproduce(tmp_path, changed).ran == ["few-3w2s seed 3"]
    assert store.state(recipe.cells()[0]) == DONE
    assert len(list((tmp_path / "out" / "few-3w2s").glob("*.stale"))) == 1


def test_a_tuned_recipe_keeps_its_evidence(tmp_path: Path, data: Path) -> None:
    text = RECIPE.replace("fisher_weight = 0.05\n", "tune_episodes = 8\n") + TUNE
    (record,) = reproduce(tmp_path, text).records
    novel, birds, validation = (
        Pool.of(read_features(data / f"{name}.npz")) for name in ("novel", "birds", "validation")
    )
    setting = Setting(3, 2, seed=3)
    found = tuning.tune(
        validation, setting, objective="accuracy", episodes=8, grid=(0.0, 0.1),
        kl_grid=((1.0, 10), (0.0, 10)), scalings=("none", "centred"),
    )  # fmt: skip
    assert len(record["tuning"]["trials"]) == 8
    assert record["tuning"]["choice"] == found.hyperparameters
    made = scaling(found.scaling, validation)
    engine = Engine(made.of(novel), made.of(birds), setting, head("iedl", **found.hyperparameters))
    accuracy = summary(evaluate(engine, 20))["accuracy"].mean
    assert record["result"]["accuracy"] == pytest.approx(accuracy, abs=1e-6)
    assert record["config"]["used"]["scaling"] == found.scaling


def test_missing_features_are_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUBITO_DATA", str(tmp_path))
    done = reproduce(tmp_path, RECIPE)
    (reason,) = done.failed.values()
    assert "there are no features" in reason
    assert "`dubito features` makes them from images" in reason


def test_a_rehearsal_needs_no_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUBITO_DATA", str(tmp_path / "none"))
    wanted = ("fewshot-iedl-tuned-10w5s", "fewshot-softmax-5w50s", "fewshot-iedl-lambda-5w5s-0.1")
    quick = [experiments.quick(RECIPES[name]) for name in wanted]
    folders: dict[str, Any] = {"out": tmp_path / "out", "work": tmp_path / "work"}
    done = experiments.reproduce(quick, device="cpu", **folders)
    assert done.failed == {}
    assert all(record["quick"] for record in done.records)
    for recipe, name in zip(quick, wanted, strict=True):
        assert recipe.cells()[0].id != RECIPES[name].cells()[0].id
    made = reproduction.report(done.records, experiments.paper())
    few = {table.key: table for table in made.tables if table.section == "Few-shot"}
    assert {"fewshot-5w", "fewshot-lambda", "fewshot-tuned"} <= set(few)
    assert all(table.quick for table in few.values())
