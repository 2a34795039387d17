"""Choice of hyperparameters and scaling on validation classes, by Optuna (extra `tune`).

Out-of-distribution queries come from the validation classes that an episode leaves out. So neither
the novel classes nor the out-of-distribution set influence the choice.
"""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dubito import _checks
from dubito._extras import need
from dubito._files import json_text, make_folder
from dubito.fewshot._engine import Engine
from dubito.fewshot._episodes import Setting
from dubito.fewshot._features import Features, scale
from dubito.fewshot._results import summarize
from dubito.methods import METHODS, Method
from dubito.types import Json

#: metrics to maximize, one of them or both
METRICS = ("accuracy", "ood_aupr")
#: hyperparameters that are searched by default, if a method has them
SPACE = {"fisher_weight": (1e-4, 0.1), "prior": (0.01, 1.0), "smoothing": (0.01, 0.5)}


class Choice(NamedTuple):
    """The chosen method and scaling, and the parameters and metrics of all trials."""

    method: Method
    scaling: str
    trials: list[Json]


def tune(
    features: Features,
    setting: Setting,
    method: Method,
    *,
    space: Mapping[str, Any] | None = None,
    objective: str = "pareto",
    ood_score: str | None = None,
    trials: int = 30,
    episodes: int = 400,
    storage: Path | None = None,
    device: str = "cpu",
) -> Choice:
    """Choose hyperparameters and scaling.

    Args:
        features: Features of validation classes.
        setting: Episodes; the same ones for all trials.
        method: Method whose other hyperparameters are kept.
        space: Values of fields of the method, and of "scaling": a list of choices, or (low, high)
            on a logarithmic scale. If all are lists, each combination is tried once.
        objective: "accuracy", "ood_aupr", or "pareto", the largest mean of both on their front.
        ood_score: Score of the AUPR; default: the one that the method detects OOD inputs by.
        trials: Number of trials, unless all combinations are tried.
        episodes: Episodes of each trial.
        storage: File of the trials; an interrupted search continues from it.
        device: Device to compute on.
    """
    _checks.one_of((*METRICS, "pareto"), objective, "objective")
    _checks.positive(episodes, "episodes")
    metrics = METRICS if objective == "pareto" else (objective,)
    if space is None:
        space = {name: values for name, values in SPACE.items() if hasattr(method, name)}
    optuna = need("optuna", "tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if any(isinstance(values, tuple) for values in space.values()):
        sampler = optuna.samplers.TPESampler(seed=setting.seed % 2**32)
    else:
        sampler = optuna.samplers.GridSampler(space, seed=setting.seed % 2**32)
        trials = math.prod(map(len, space.values()))
    engine = Engine(method, features, setting=setting, device=device)
    score = engine.example._resolve(ood_score or method.ood_score)
    _checks.one_of(engine.example.default_scores, score, "ood_score")
    config = {**engine.describe(), "space": space, "episodes": episodes}
    config |= {"objective": objective, "ood_score": score}
    study = optuna.create_study(
        storage=None if storage is None else _open(optuna, storage),
        study_name=hashlib.blake2b(json_text(config).encode(), digest_size=16).hexdigest(),
        directions=["maximize"] * len(metrics),
        sampler=sampler,
        load_if_exists=True,
    )

    def attempt(trial: Any) -> list[float]:
        variant, scaling = _build(method, {k: _suggest(trial, k, v) for k, v in space.items()})
        engine = Engine(variant, scale(features, scaling, features), setting=setting, device=device)
        summary = summarize([engine.values(0, episodes)])
        for name, metric in (("accuracy", "accuracy"), ("ood_aupr", f"ood/{score}/aupr")):
            trial.set_user_attr(name, summary[metric]["mean"])
            trial.set_user_attr(f"{name}_interval", summary[metric]["interval"])
        return [trial.user_attrs[name] for name in metrics]

    def finished() -> list[Any]:
        return list(study.get_trials(states=[optuna.trial.TrialState.COMPLETE]))

    study.optimize(attempt, n_trials=max(0, trials - len(finished())))
    best = max(study.best_trials, key=lambda trial: sum(trial.values))
    rows = [{**trial.params, **trial.user_attrs} for trial in finished()]
    return Choice(*_build(method, best.params), rows)


def _suggest(trial: Any, name: str, values: Any) -> Any:
    if isinstance(values, tuple):
        return trial.suggest_float(name, *values, log=True)
    return trial.suggest_categorical(name, values)


def _build(method: Method, parameters: Mapping[str, Any]) -> tuple[Method, str]:
    own = {name: value for name, value in parameters.items() if name != "scaling"}
    return METHODS.build({**METHODS.to_dict(method), **own}), parameters.get("scaling", "none")


def _open(optuna: Any, path: Path) -> Any:
    make_folder(path.parent)
    return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
