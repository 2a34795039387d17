"""Recipes for data of one's own: files by any path, without a test part, with unlucky names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dubito import experiments

RECIPE = """
title = "t"
protocol = "dubito"
about = "a"
seeds = [1]
[data]
source = "{source}"
[backbone]
name = "mlp"
hidden = [8]
[method]
name = "iedl"
[training]
epochs = 3
validate_every = 1
[evaluate]
watch = true
ood = ["{ood}"]
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data, in which we are."""
    monkeypatch.chdir(tmp_path)
    drawn = np.random.default_rng(0)

    def samples(count: int) -> dict[str, Any]:
        labels = np.arange(count) % 2
        inputs = drawn.normal(size=(count, 2)) + np.where(labels, 2, -2)[:, None]
        return {"x": inputs.astype(np.float32), "y": labels}

    train, test = samples(120), samples(40)
    np.savez(
        "parts.npz",
        x_train=train["x"], y_train=train["y"], x_test=test["x"], y_test=test["y"],
    )  # fmt: skip
    np.savez("whole.npz", x=train["x"], y=drawn.permutation(train["y"]))  # nothing to learn
    for name in ("other", "test"):
        np.savez(f"{name}.npz", x=5 * np.ones((40, 2), np.float32))
    return tmp_path


def made(folder: Path, source: str, ood: str = "other.npz") -> tuple[list[str], dict[str, Any]]:
    """What ran, and the record."""
    (folder / "recipes").mkdir(exist_ok=True)
    (folder / "recipes" / "own.toml").write_text(RECIPE.format(source=source, ood=ood))
    known = experiments.read_recipes(folder / "recipes").values()
    found = experiments.reproduce(
        list(known), out=folder / "out", work=folder / "work", device="cpu"
    )
    assert found.failed == {}
    assert len(found.records) == 1
    return found.ran, found.records[0]


@pytest.mark.parametrize("absolute", [False, True])
def test_a_file_by_its_path_is_done_once_and_trained_where_work_is(
    own: Path, absolute: bool
) -> None:
    source = str(own / "parts.npz") if absolute else "parts.npz"
    assert made(own, source)[0] == ["own seed 1"]
    assert made(own, source)[0] == []
    (folder,) = own.rglob("seed-1")
    assert folder.parent.parent == own / "work"


def test_an_ood_set_called_test_is_not_the_test_set(own: Path) -> None:
    _, record = made(own, "parts.npz", "test.npz")
    assert list(record["result"]["calibrated"]["ood"]) == ["test-2"]
    assert list(record["curves"]["energy_distance"]) == ["test-2"]
    risk = record["curves"]["risk_coverage"]["max_prob"]["risk"][-1]
    assert risk == pytest.approx(1 - record["result"]["accuracy"], abs=1e-6)


def test_without_a_test_part_nothing_is_judged_by_what_it_was_fitted_on(own: Path) -> None:
    _, record = made(own, "whole.npz")
    history = record["training"]["history"]
    assert history["watched"]["accuracy"] == pytest.approx(history["validation_accuracy"])
    assert "calibrated" not in record["result"]
    assert list(record["curves"]["reliability"]) == ["before"]


def test_a_damaged_record_is_told_before_the_training(own: Path) -> None:
    made(own, "parts.npz")
    (path,) = (own / "out" / "own").glob("*.json")
    path.write_text(path.read_text()[:100])
    (own / "recipes" / "more.toml").write_text(RECIPE.format(source="whole.npz", ood="other.npz"))
    known = experiments.read_recipes(own / "recipes")
    with pytest.raises(ValueError, match=r"seed-1\.json can't be used"):
        experiments.reproduce(
            [known["more"]], out=own / "out", work=own / "work", device="cpu", among=known.values()
        )
    assert not (own / "out" / "more").exists()
    assert json.loads((own / "out" / "results.json").read_text())["results"]["own"]
