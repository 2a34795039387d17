"""Figures at each check of a training: they are those of the record, and there at all checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dubito import experiments
from dubito.data import embedded
from dubito.experiments import Outcome, Store

WATCH = "watch = true\n"


@pytest.fixture(scope="module")
def patches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of photographs' patches with a part for tests."""
    path = tmp_path_factory.mktemp("outside") / "patches.npz"
    images = embedded.patches(80, 0).numpy()
    np.savez(path, images_test=images, labels_test=np.zeros(80, np.int64), classes=np.array(["?"]))
    return path


class Bench:
    """Brings the one recipe of the test's folder up to date, in whatever state it is asked for."""

    def __init__(self, folder: Path, write: Any, ood: Path) -> None:
        self.out, self.work, self.write = folder / "out", folder / "work", write
        self.given: dict[str, Any] = {"seeds": "[1]", "ood": ood}

    def __call__(
        self, evaluate: str = "", *, data: str = "", tell: Any = None, **values: Any
    ) -> Outcome:
        folder = self.write("one", extra=evaluate, **{**self.given, **values})
        file = folder / "one.toml"
        file.write_text(file.read_text().replace("[data]\n", f"[data]\n{data}"))
        (recipe,) = experiments.read_recipes(folder).values()
        return experiments.reproduce(
            [recipe], out=self.out, work=self.work, device="cpu", tell=tell
        )


@pytest.fixture
def run(tmp_path: Path, write: Any, patches: Path) -> Bench:
    return Bench(tmp_path, write, patches)


def watched(outcome: Outcome) -> dict[str, list[float]]:
    """What was seen in the training of the one record, three times."""
    assert outcome.failed == {}
    (record,) = outcome.records
    history = record["training"]["history"]
    assert history["epoch"] == [1, 2, 3]
    seen: dict[str, list[float]] = history["watched"]
    assert {name: len(values) for name, values in seen.items()} == dict.fromkeys(seen, 3)
    return seen


def test_standardised_inputs_are_watched_as_they_are_judged(run: Bench, patches: Path) -> None:
    done = run(WATCH, data="standardize = true\n")
    seen, (record,) = watched(done), done.records
    best = record["training"]["best_epoch"] - 1
    assert record["result"]["accuracy"] > 0.5
    assert seen["accuracy"][best] == pytest.approx(record["result"]["accuracy"], abs=1e-4)
    told_apart = record["result"]["ood"]["patches"]["detection"]["max_prob"]
    assert seen[f"{patches}/max_prob/aupr"][best] == pytest.approx(told_apart["aupr"], abs=1e-4)


def test_a_training_that_nobody_watched_is_done_anew_to_be_watched(run: Bench) -> None:
    (before,) = run().records
    assert "watched" not in before["training"]["history"]
    done = run(WATCH)
    assert len(watched(done)["accuracy"]) == len(before["training"]["history"]["epoch"])
    assert done.ran == ["one seed 1"]
    assert done.records[0]["result"] == before["result"]  # to watch changes nothing


def test_a_training_stopped_unwatched_is_watched_from_its_first_epoch(run: Bench) -> None:
    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "epoch" and event["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tell=stop)
    watched(run(WATCH))


def test_a_training_watched_with_other_sets_is_refused(run: Bench) -> None:
    watched(run(WATCH))
    (folder,) = run.work.glob("*/seed-1")
    again = run(WATCH, ood="digits")
    assert again.records == []
    message = again.failed["one seed 1"]
    assert f"{folder} was trained" in message
    assert "without them or with other OOD sets; delete it" in message


def test_a_negative_seed_has_a_record_that_is_found(run: Bench, tmp_path: Path) -> None:
    done = run(seeds="[-1, 2]")
    assert [record["seed"] for record in done.records] == [-1, 2]
    recipes = experiments.read_recipes(tmp_path / "recipes").values()
    assert Store(run.out).records(recipes) == done.records
    assert run(seeds="[-1, 2]").ran == []
