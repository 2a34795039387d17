"""Choice of hyperparameters."""

from pathlib import Path

import pytest

from dubito.errors import DubitoError
from dubito.fewshot._episodes import Setting
from dubito.fewshot._tuning import tune
from dubito.methods import METHODS
from tests.fewshot.samples import draw_features

optuna = pytest.importorskip("optuna")
# Optuna announces that its grid and journal are experimental.
pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
SETTING = Setting(ways=3, shots=1)
GRID = {"fisher_weight": [0.0, 0.01], "scaling": ["none", "unit"]}


def test_lists_are_tried_in_all_combinations() -> None:
    choice = tune(draw_features(), SETTING, METHODS.build("iedl"), space=GRID, episodes=20)
    tried = {(row["fisher_weight"], row["scaling"]) for row in choice.trials}
    assert tried == {(0.0, "none"), (0.0, "unit"), (0.01, "none"), (0.01, "unit")}


def test_choice_is_the_best_trial() -> None:
    method = METHODS.build("iedl", kl_weight=0.5)
    choice = tune(draw_features(), SETTING, method, space=GRID, objective="accuracy", episodes=20)
    best = max(choice.trials, key=lambda row: row["accuracy"])
    assert choice.method == METHODS.build(
        "iedl", kl_weight=0.5, fisher_weight=best["fisher_weight"]
    )
    assert choice.scaling == best["scaling"]


def test_interrupted_search_continues(tmp_path: Path) -> None:
    options = {"episodes": 10, "storage": tmp_path / "tuning.log"}
    few = tune(draw_features(), SETTING, METHODS.build("iedl"), trials=2, **options)
    more = tune(draw_features(), SETTING, METHODS.build("iedl"), trials=3, **options)
    assert len(few.trials) == 2
    assert more.trials[:2] == few.trials
    assert len(more.trials) == 3
    same = tune(draw_features(), SETTING, METHODS.build("iedl"), trials=3, **options)
    assert same.trials == more.trials


def test_score_of_the_objective_can_be_chosen() -> None:
    options = {"space": {"fisher_weight": [0.01]}, "objective": "ood_aupr", "episodes": 20}
    own, other = (
        tune(draw_features(), SETTING, METHODS.build("iedl"), ood_score=score, **options)
        for score in (None, "max_prob")
    )
    assert own.trials[0]["ood_aupr"] != other.trials[0]["ood_aupr"]
    with pytest.raises(DubitoError, match="has no score 'magic'"):
        tune(draw_features(), SETTING, METHODS.build("iedl"), ood_score="magic", **options)
