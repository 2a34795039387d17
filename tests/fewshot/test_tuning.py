"""The choice of hyperparameters on validation classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dubito.fewshot import Engine, Figure, Head, Setting, evaluate, head, scaling, summary, tuning
from dubito.fewshot.tuning import KL_GRID, OBJECTIVES, Trial, Tuned, tune
from fewshot.samples import pool

SETTING = Setting(ways=3, shots=2)


def trial(accuracy: float, ood: float) -> Trial:
    return Trial({"fisher_weight": 0.1}, Figure(accuracy, 0.0, 9), Figure(ood, 0.0, 9))


def test_objectives_and_the_front() -> None:
    trials = [trial(0.7, 0.6), trial(0.6, 0.8), trial(0.5, 0.7), trial(0.72, 0.3), trial(0.7, 0.6)]
    assert OBJECTIVES["accuracy"](trials) == 3
    assert OBJECTIVES["ood_aupr"](trials) == 1
    assert OBJECTIVES["pareto"](trials) == 1  # 0.6 + 0.8 is the most
    tuned = Tuned("pareto", "grid", trials, 1, [0, 1, 3, 4], {})
    assert tuned.as_dict()["trials"][2]["ood_aupr"]["mean"] == 0.7


@pytest.fixture(scope="module")
def tuned() -> Tuned:
    told: list[tuple[int, int]] = []
    found = tune(
        pool(), SETTING, objective="accuracy", episodes=25, grid=(0.0, 0.02, 5.0),
        kl_grid=KL_GRID[:2], tell=lambda done, total, _: told.append((done, total)),
    )  # fmt: skip
    assert told == [(i, 6) for i in range(1, 7)]
    return found


def test_a_grid_is_tried_on_episodes_without_another_pool(tuned: Tuned) -> None:
    for one in tuned.trials:
        engine = Engine(pool(), None, SETTING, head("iedl", **one.hyperparameters))
        figures = summary(evaluate(engine, 25))
        assert one.accuracy == figures["accuracy"]
        assert one.ood_aupr == figures["ood/alpha0/aupr"]
    weights = [
        (t.hyperparameters["fisher_weight"], t.hyperparameters["kl_weight"]) for t in tuned.trials
    ]
    assert weights == [(w, k) for k in (1.0, 0.1) for w in (0.0, 0.02, 5.0)]


def test_the_choice_is_the_best_and_is_on_the_front(tuned: Tuned) -> None:
    best = max(one.accuracy.mean for one in tuned.trials)
    assert tuned.trials[tuned.choice].accuracy.mean == best
    for i, one in enumerate(tuned.trials):
        dominated = any(
            other.accuracy.mean >= one.accuracy.mean
            and other.ood_aupr.mean >= one.ood_aupr.mean
            and (other.accuracy.mean, other.ood_aupr.mean) != (one.accuracy.mean, one.ood_aupr.mean)
            for other in tuned.trials
        )
        assert dominated == (i not in tuned.front)


def test_the_evidence_is_written(tuned: Tuned, tmp_path: Path) -> None:
    tuned.write(tmp_path)
    found = json.loads((tmp_path / "tuning.json").read_text())
    assert found["choice"] == tuned.hyperparameters
    assert found["ood"] is None
    assert len(found["trials"]) == 6
    assert found["features"]["name"] == "made-0"
    assert (tmp_path / "pareto.png").read_bytes().startswith(b"\x89PNG")


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    given: dict[str, Any] = {"episodes": np.int64(2), "grid": np.array([0.0, 0.5], np.float32)}
    found = [tune(pool(), SETTING, **given, folder=folder) for folder in (None, tmp_path)]
    assert found[0].trials == found[1].trials
    assert found[0].trials == tune(pool(), SETTING, episodes=2, grid=[0.0, 0.5]).trials


def test_the_same_search_is_found_again(tmp_path: Path) -> None:
    told: list[int] = []

    def search(objective: str) -> Tuned:
        return tune(
            pool(), SETTING, objective=objective, episodes=8, grid=(0.0, 0.1), folder=tmp_path,
            tell=lambda done, *_: told.append(done),
        )  # fmt: skip

    first = search("accuracy")
    assert search("accuracy") == first
    assert told == [1, 2]
    search("pareto")
    assert told == [1, 2, 1, 2]
    (tmp_path / "tuning.json").write_text("{}")
    assert search("accuracy") == first
    assert told == [1, 2] * 3


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Head]:
    """The heads whose episodes were computed."""
    heads: list[Head] = []

    def noted(engine: Engine, episodes: int) -> Any:
        heads.append(engine.head)
        return evaluate(engine, episodes)

    monkeypatch.setattr(tuning, "evaluate", noted)
    return heads


def stopped(*given: Any, after: int, **options: Any) -> None:
    """A search that ends with Ctrl+C."""

    def tell(done: int, *_: Any) -> None:
        if done == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(*given, **options, tell=tell)


@pytest.mark.parametrize("search", ["grid", "optuna"])
def test_a_stopped_search_goes_on_to_the_same_choice(
    search: str, tmp_path: Path, tried: list[Head]
) -> None:
    if search == "optuna":
        pytest.importorskip("optuna")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    grid, count = [0.002 * i for i in range(13)], 13  # optuna's first ten are drawn
    options: dict[str, Any] = {"episodes": 4, "grid": grid, "search": search, "trials": count}
    wanted = tune(pool(), SETTING, **options, folder=whole)
    for after in (11, 12):
        stopped(pool(), SETTING, **options, folder=parts, after=after)
        assert not (parts / "tuning.json").exists()
    assert tune(pool(), SETTING, **options, folder=parts) == wanted
    assert tried[:count] == tried[count:]
    assert {one.name for one in parts.iterdir()} == {"tuning.json", "pareto.png"}
    assert (parts / "tuning.json").read_bytes() == (whole / "tuning.json").read_bytes()


def test_another_search_takes_nothing_of_a_stopped_one(tmp_path: Path, tried: list[Head]) -> None:
    given: dict[str, Any] = {"validation": pool(), "setting": SETTING, "episodes": 4}
    given |= {"grid": (0.0, 0.1), "folder": tmp_path}
    stopped(**given, after=1)
    others: list[dict[str, Any]] = [
        {"setting": Setting(ways=3, shots=2, seed=1)}, {"setting": Setting(ways=3, shots=3)},
        {"validation": pool(seed=5)}, {"episodes": 5}, {"objective": "accuracy"},
        {"reference": pool(seed=5)},
    ]  # fmt: skip
    for other in others:
        tried.clear()
        stopped(**{**given, **other}, after=2)
        assert len(tried) == 2, other
    tried.clear()
    tune(**given)
    assert tried == [head("iedl", fisher_weight=0.1)]


def test_trials_that_can_not_be_read_are_named(tmp_path: Path) -> None:
    given: dict[str, Any] = {"episodes": 2, "grid": (0.0, 0.1), "folder": tmp_path}
    stopped(pool(), SETTING, **given, after=1)
    (path,) = tmp_path.iterdir()
    path.write_text("[{}]")
    with pytest.raises(ValueError, match=r"trials-\w+\.json holds no trials: .*; delete it"):
        tune(pool(), SETTING, **given)


def test_scalings_are_tried_with_the_mean_of_the_validation_classes() -> None:
    found = tune(
        pool(), SETTING, "edl", objective="ood_aupr", episodes=15, kl_grid=KL_GRID[:2],
        scalings=("none", "centred"),
    )  # fmt: skip
    tried = [(one.scaling, one.hyperparameters["kl_weight"]) for one in found.trials]
    assert tried == [("none", 1.0), ("none", 0.1), ("centred", 1.0), ("centred", 0.1)]
    for one in found.trials:
        scaled = scaling(one.scaling, pool()).of(pool())
        engine = Engine(scaled, None, SETTING, head("edl", **one.hyperparameters))
        figures = summary(evaluate(engine, 15))
        assert one.ood_aupr == figures["ood/alpha0/aupr"]
        assert one.confidence == figures["confidence/max_alpha/aupr"]
    assert found.scaling == found.trials[found.choice].scaling
    assert Trial.of(found.as_dict()["trials"][2]) == found.trials[2]


def test_optuna_searches_within_the_grid() -> None:
    pytest.importorskip("optuna")
    for objective in ("pareto", "ood_aupr"):
        found = tune(
            pool(), SETTING, objective=objective, episodes=10, search="optuna", trials=4,
            grid=(0.0, 1e-3, 1e-1),
        )  # fmt: skip
        weights = [one.hyperparameters["fisher_weight"] for one in found.trials]
        assert len(set(weights)) == 4
        assert all(1e-3 <= weight <= 1e-1 for weight in weights)


@pytest.mark.parametrize(
    ("name", "expected"), [("iedl", {"fisher_weight": 0.0}), ("edl", {})], ids=["iedl", "edl"]
)
def test_optuna_takes_a_weight_of_0_at_its_word(name: str, expected: dict[str, float]) -> None:
    pytest.importorskip("optuna")
    found = tune(pool(), SETTING, name, episodes=4, search="optuna", trials=1, grid=(0.0,))
    assert found.hyperparameters == {**expected, "kl_weight": 1.0, "kl_ramp": 10}


def test_a_missing_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(ValueError, match=r'pip install "dubito\[tune\]"'):
        tune(pool(), SETTING, search="optuna", episodes=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"objective": "both"},
            "unknown objective 'both'; known: 'accuracy', 'ood_aupr'",
        ),
        ({"search": "luck"}, "unknown search 'luck'; known: 'grid', 'optuna'"),
        ({"name": "softmax"}, "the head 'softmax' has no fisher_weight or kl_weight to tune"),
    ],
)
def test_what_is_unknown_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tune(pool(), SETTING, **given)  # type: ignore[arg-type]
