"""Choose a head's hyperparameters, and how features are scaled, on validation classes.

OOD queries come from the validation classes that an episode leaves out. So neither the novel
classes nor the OOD set are seen before the choice is made. All candidates meet the same episodes.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dubito import _checks
from dubito.fewshot._front import drawn, front
from dubito.fewshot.engine import Engine
from dubito.fewshot.episodes import Pool, Setting
from dubito.fewshot.heads import head
from dubito.fewshot.lbfgs import Solver
from dubito.fewshot.results import (
    CONFIG,
    Figure,
    _fingerprint,
    _identity,
    _plain,
    described,
    evaluate,
    summary,
)
from dubito.fewshot.scalings import NONE, scaling
from dubito.report import files

__all__ = ["GRID", "KL_GRID", "OBJECTIVES", "SEARCHES", "Trial", "Tuned", "tune"]

#: the weights of -log det that are tried, around those that the paper's settings have
GRID = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
#: (kl_weight, kl_ramp): published first; a lower end, a steeper rise, and no KL at all
KL_GRID = ((1.0, 10), (0.1, 10), (1.0, 3), (0.0, 10))
ACCURACY, CONFIDENCE, OOD = "accuracy", "confidence/max_alpha/aupr", "ood/alpha0/aupr"
CHOICE, FRONT, UNFINISHED = "tuning.json", "pareto.png", "trials-{}.json"

Parameters = dict[str, Any]


@dataclass(frozen=True)
class Candidate:
    """What may be chosen: how features are scaled, and the head's hyperparameters."""

    scaling: str
    hyperparameters: Parameters


Try = Callable[[Candidate], "Trial"]


@dataclass(frozen=True)
class Trial:
    """One candidate, and its figures on the validation classes."""

    hyperparameters: Parameters
    accuracy: Figure
    ood_aupr: Figure
    confidence: Figure | None = None
    scaling: str = NONE

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Trial:
        """From plain values, as they stand in tuning.json."""
        figures = {
            name: None if values[name] is None else _read(values[name])
            for name in ("accuracy", "ood_aupr", "confidence")
        }
        return cls(values["hyperparameters"], scaling=values["scaling"], **figures)  # type: ignore[arg-type]


def _read(values: Mapping[str, Any]) -> Figure:
    """A figure from plain values, where null stands for NaN."""
    mean, interval = (
        math.nan if values[name] is None else values[name] for name in ("mean", "interval")
    )
    return Figure(mean, interval, values["episodes"])


def _of_front(trials: Sequence[Trial]) -> int:
    """Of the front, the trial whose two figures have the largest mean."""
    return max(front(trials), key=lambda i: trials[i].accuracy.mean + trials[i].ood_aupr.mean)


#: name -> which of the trials to take
OBJECTIVES: dict[str, Callable[[Sequence[Trial]], int]] = {
    "accuracy": lambda trials: max(range(len(trials)), key=lambda i: trials[i].accuracy.mean),
    "ood_aupr": lambda trials: max(range(len(trials)), key=lambda i: trials[i].ood_aupr.mean),
    "pareto": _of_front,
}


@dataclass(frozen=True)
class Tuned:
    """What was chosen and what it was chosen from."""

    objective: str
    search: str
    trials: list[Trial]
    choice: int
    front: list[int]
    context: Mapping[str, Any]

    @classmethod
    def stored(cls, folder: Path, wanted: Mapping[str, Any]) -> Tuned | None:
        """What a folder holds of the same search, or None."""
        path = folder / CHOICE
        if not path.exists():
            return None
        try:
            found = dict(json.loads(path.read_text("utf-8")))
            if {name: found.get(name) for name in wanted} != json.loads(json.dumps(wanted)):
                return None
            trials = [Trial.of(values) for values in found["trials"]]
        except (ValueError, KeyError, TypeError):  # of another version, or broken: made again
            return None
        context = {k: v for k, v in wanted.items() if k not in ("objective", "search")}
        choice = OBJECTIVES[found["objective"]](trials)
        return cls(found["objective"], found["search"], trials, choice, front(trials), context)

    @property
    def hyperparameters(self) -> Parameters:
        """Those of the chosen trial."""
        return self.trials[self.choice].hyperparameters

    @property
    def scaling(self) -> str:
        """That of the chosen trial."""
        return self.trials[self.choice].scaling

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in tuning.json."""
        return {
            **self.context,
            "objective": self.objective,
            "search": self.search,
            "choice": self.hyperparameters,
            "scaling": self.scaling,
            "front": self.front,
            "trials": [asdict(trial) for trial in self.trials],
        }

    def write(self, folder: Path) -> None:
        """Write tuning.json and the figure of the front."""
        place = files.folder(folder)
        files.write(
            place / CHOICE, json.dumps(_plain(self.as_dict()), indent=2, allow_nan=False) + "\n"
        )
        files.write(place / FRONT, drawn(self.trials, self.front, self.choice))


def tune(
    validation: Pool,
    setting: Setting,
    name: str = "iedl",
    *,
    objective: str = "pareto",
    episodes: int = 1000,
    grid: Sequence[float] = GRID,
    kl_grid: Sequence[tuple[float, int]] = KL_GRID[:1],
    scalings: Sequence[str] = (NONE,),
    reference: Pool | None = None,
    search: str = "grid",
    trials: int = 30,
    device: torch.device | None = None,
    solver: Solver | None = None,
    tell: Callable[[int, int, Trial], None] | None = None,
    folder: Path | None = None,
) -> Tuned:
    """Try hyperparameters on the validation classes and choose by `objective`.

    The search "grid" tries `scalings` times `kl_grid` times `grid`; "optuna" makes `trials` trials
    between the least and the greatest of them. A head without -log det has no `grid`. `tell` hears
    of each trial: its number, how many there are, the trial. The evidence goes to `folder`, where
    the same search is found again instead of made, and goes on if it was stopped. Scalings take
    theirs from the classes of `reference`, by default the validation classes.
    """
    choose = _checks.entry(OBJECTIVES, objective, "objective")
    proposals = _checks.entry(SEARCHES, search, "search")
    weights: Sequence[float | None] = files.plain(list(_tunable(name, grid)))
    kl_grid, episodes, trials = files.plain(list(kl_grid)), int(episodes), int(trials)
    pools = {one: scaling(one, reference or validation).of(validation) for one in scalings}
    device = torch.device("cpu") if device is None else device

    def engine(candidate: Candidate) -> Engine:
        made = head(name, **candidate.hyperparameters)
        return Engine(pools[candidate.scaling], None, setting, made, solver or Solver(), device)

    total = trials if search == "optuna" else len(weights) * len(kl_grid) * len(scalings)
    context = {
        **described(engine(Candidate(scalings[0], {}))), "head": name, "episodes": episodes,
        "grid": list(weights), "kl_grid": [list(kl) for kl in kl_grid],
        "scalings": list(scalings), "count": total,
        "reference": None if reference is None else _fingerprint(reference),
    }  # fmt: skip
    wanted = {**context, "objective": objective, "search": search}
    if folder is not None:
        before = Tuned.stored(folder, wanted)
        if before is not None:
            return before
        if (folder / CHOICE).exists() and (folder / CONFIG).exists():
            raise ValueError(
                f"{folder} holds episodes that another search chose for ({CHOICE}); name another "
                "folder, or delete it"
            )
    tried = _Tried(folder, wanted)

    def attempt(candidate: Candidate) -> Trial:
        before = tried.of(candidate)
        if before is not None:
            return before
        found = summary(evaluate(engine(candidate), episodes))
        return tried.keep(
            Trial(
                candidate.hyperparameters, found[ACCURACY], found[OOD], found[CONFIDENCE],
                candidate.scaling,
            )
        )  # fmt: skip

    done: list[Trial] = []
    space = (scalings, kl_grid, weights)
    for trial in proposals(attempt, space, trials, objective, setting.seed):
        done.append(trial)
        if tell is not None:
            tell(len(done), total, trial)
    made = Tuned(objective, search, done, choose(done), front(done), context)
    if folder is not None:
        made.write(folder)
        tried.forget()
    return made


class _Tried:
    """The trials of a search so far, in a file that goes once the choice is written."""

    def __init__(self, folder: Path | None, wanted: Mapping[str, Any]) -> None:
        self.trials: list[Trial] = []
        self.path = None
        if folder is None:
            return
        name = UNFINISHED.format(_identity(wanted))
        self.path = files.folder(folder) / name
        if not self.path.exists():
            return
        try:
            found = json.loads(self.path.read_text("utf-8"))
            self.trials = [Trial.of(values) for values in found]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.path} holds no trials: {error}; delete it") from error

    def of(self, candidate: Candidate) -> Trial | None:
        """The trial of a candidate, if there was one."""
        for trial in self.trials:
            if Candidate(trial.scaling, trial.hyperparameters) == candidate:
                return trial
        return None

    def keep(self, trial: Trial) -> Trial:
        """The same trial, written down."""
        self.trials.append(trial)
        if self.path is not None:
            found = _plain([asdict(one) for one in self.trials])
            files.write(self.path, json.dumps(found, allow_nan=False))
        return trial

    def forget(self) -> None:
        """Leave nothing behind."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _tunable(name: str, grid: Sequence[float]) -> Sequence[float | None]:
    """The weights of -log det to try, None for a head that has only the KL term to weigh."""
    known = head(name).hyperparameters()
    if "kl_weight" not in known:
        raise ValueError(f"the head {name!r} has no fisher_weight or kl_weight to tune")
    return grid if "fisher_weight" in known else (None,)


# --- searches ------------------------------------------------------------------------------------

Space = tuple[Sequence[str], Sequence[tuple[float, int]], Sequence[float | None]]


def _candidate(scaled: str, kl: tuple[float, int], weight: float | None) -> Candidate:
    given: Parameters = {} if weight is None else {"fisher_weight": weight}
    return Candidate(scaled, {**given, "kl_weight": kl[0], "kl_ramp": kl[1]})


def _by_grid(attempt: Try, space: Space, *_: Any) -> Iterator[Trial]:
    for scaled, kl, weight in itertools.product(*space):
        yield attempt(_candidate(scaled, kl, weight))


def _by_optuna(
    attempt: Try, space: Space, trials: int, objective: str, seed: int
) -> Iterator[Trial]:
    """Weights on a logarithmic scale; the scaling and the KL schedule are some of the given."""
    try:
        import optuna
    except ImportError as error:
        raise ValueError(
            'the search "optuna" needs an extra: pip install "dubito[tune]"'
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    scalings, kl_grid, grid = space
    both = objective == "pareto"
    study = optuna.create_study(
        directions=["maximize"] * (1 + both),
        sampler=optuna.samplers.TPESampler(seed=seed),
    )
    positive = [w for w in grid if w]
    for _ in range(trials):
        asked = study.ask()
        weight = 0.0 if 0.0 in grid else None
        if positive:
            ends = (min(positive), max(positive))
            weight = asked.suggest_float("fisher_weight", *ends, log=True)
        kl = kl_grid[asked.suggest_int("kl", 0, len(kl_grid) - 1)]
        scaled = scalings[asked.suggest_int("scaling", 0, len(scalings) - 1)]
        trial = attempt(_candidate(scaled, kl, weight))
        figures = {"accuracy": trial.accuracy.mean, "ood_aupr": trial.ood_aupr.mean}
        study.tell(asked, list(figures.values()) if both else figures[objective])
        yield trial


#: name -> trials, from how to try and what
SEARCHES: dict[str, Callable[..., Iterator[Trial]]] = {"grid": _by_grid, "optuna": _by_optuna}
