"""Choose a head's hyperparameters on validation classes.

OOD queries come from the validation classes that an episode leaves out. So neither the novel
classes nor the OOD set are seen before the choice is made. All candidates meet the same episodes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dubito import _checks
from dubito.fewshot.engine import Engine
from dubito.fewshot.episodes import Pool, Setting
from dubito.fewshot.heads import head
from dubito.fewshot.lbfgs import Solver
from dubito.fewshot.results import Figure, described, evaluate, summary
from dubito.report import files

__all__ = ["GRID", "KL_GRID", "OBJECTIVES", "SEARCHES", "Trial", "Tuned", "tune"]

#: the weights of -log det that are tried, around those that the paper's settings have
GRID = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
#: (kl_weight, kl_ramp): published first; a lower end, a steeper rise, and no KL at all
KL_GRID = ((1.0, 10), (0.1, 10), (1.0, 3), (0.0, 10))
ACCURACY, OOD = "accuracy", "ood/alpha0/aupr"
CHOICE, FRONT = "tuning.json", "pareto.png"

Parameters = dict[str, Any]
Try = Callable[[Parameters], "Trial"]


@dataclass(frozen=True)
class Trial:
    """One candidate, and its figures on the validation classes."""

    hyperparameters: Parameters
    accuracy: Figure
    ood_aupr: Figure


def _front(trials: Sequence[Trial]) -> list[int]:
    """The trials that no other one equals in both figures and exceeds in one."""

    def better(a: Trial, b: Trial) -> bool:
        gains = (a.accuracy.mean - b.accuracy.mean, a.ood_aupr.mean - b.ood_aupr.mean)
        return min(gains) >= 0 and max(gains) > 0

    return [i for i, one in enumerate(trials) if not any(better(other, one) for other in trials)]


def _of_front(trials: Sequence[Trial]) -> int:
    """Of the front, the trial whose two figures have the largest mean."""
    return max(_front(trials), key=lambda i: trials[i].accuracy.mean + trials[i].ood_aupr.mean)


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
            if {name: found[name] for name in wanted} != json.loads(json.dumps(wanted)):
                return None
            trials = [
                Trial(t["hyperparameters"], Figure(**t["accuracy"]), Figure(**t["ood_aupr"]))
                for t in found["trials"]
            ]
        except (ValueError, KeyError, TypeError):  # of another version, or broken: made again
            return None
        context = {k: v for k, v in wanted.items() if k not in ("objective", "search")}
        choice = OBJECTIVES[found["objective"]](trials)
        return cls(found["objective"], found["search"], trials, choice, _front(trials), context)

    @property
    def hyperparameters(self) -> Parameters:
        """Those of the chosen trial."""
        return self.trials[self.choice].hyperparameters

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in tuning.json."""
        return {
            **self.context,
            "objective": self.objective,
            "search": self.search,
            "choice": self.hyperparameters,
            "front": self.front,
            "trials": [asdict(trial) for trial in self.trials],
        }

    def write(self, folder: Path) -> None:
        """Write tuning.json and the figure of the front."""
        place = files.folder(folder)
        files.write(place / CHOICE, json.dumps(self.as_dict(), indent=2) + "\n")
        files.write(place / FRONT, drawn(self))


def tune(
    validation: Pool,
    setting: Setting,
    name: str = "iedl",
    *,
    objective: str = "pareto",
    episodes: int = 1000,
    grid: Sequence[float] = GRID,
    kl_grid: Sequence[tuple[float, int]] = KL_GRID[:1],
    search: str = "grid",
    trials: int = 30,
    device: torch.device | None = None,
    solver: Solver | None = None,
    tell: Callable[[int, int, Trial], None] | None = None,
    folder: Path | None = None,
) -> Tuned:
    """Try hyperparameters on the validation classes and choose by `objective`.

    The search "grid" tries `grid` times `kl_grid`; "optuna" makes `trials` trials between the least
    and the greatest of them. `tell` hears of each: its number, how many there are, the trial. The
    evidence goes to `folder`, where the same search is found again instead of made.
    """
    choose = _checks.entry(OBJECTIVES, objective, "objective")
    proposals = _checks.entry(SEARCHES, search, "search")
    if "fisher_weight" not in head(name).hyperparameters():
        raise ValueError(f"the head {name!r} has no fisher_weight to tune")
    engine = Engine(validation, None, setting, head(name), solver or Solver(), _device(device))

    total = trials if search == "optuna" else len(grid) * len(kl_grid)
    context = {
        **described(engine), "head": name, "episodes": episodes, "grid": list(grid),
        "kl_grid": [list(kl) for kl in kl_grid], "count": total,
    }  # fmt: skip
    if folder is not None:
        before = Tuned.stored(folder, {**context, "objective": objective, "search": search})
        if before is not None:
            return before

    def attempt(hyperparameters: Parameters) -> Trial:
        one = Engine(
            validation, None, setting, head(name, **hyperparameters), engine.solver, engine.device
        )
        figures = summary(evaluate(one, episodes))
        return Trial(hyperparameters, figures[ACCURACY], figures[OOD])

    done: list[Trial] = []
    for trial in proposals(attempt, grid, kl_grid, trials, objective, setting.seed):
        done.append(trial)
        if tell is not None:
            tell(len(done), total, trial)
    found = Tuned(objective, search, done, choose(done), _front(done), context)
    if folder is not None:
        found.write(folder)
    return found


def _device(device: torch.device | None) -> torch.device:
    return torch.device("cpu") if device is None else device


# --- searches ------------------------------------------------------------------------------------


def _parameters(weight: float, kl: tuple[float, int]) -> Parameters:
    return {"fisher_weight": weight, "kl_weight": kl[0], "kl_ramp": kl[1]}


def _by_grid(
    attempt: Try, grid: Sequence[float], kl_grid: Sequence[tuple[float, int]], *_: Any
) -> Iterator[Trial]:
    for kl, weight in itertools.product(kl_grid, grid):
        yield attempt(_parameters(weight, kl))


def _by_optuna(
    attempt: Try,
    grid: Sequence[float],
    kl_grid: Sequence[tuple[float, int]],
    trials: int,
    objective: str,
    seed: int,
) -> Iterator[Trial]:
    """Weights on a logarithmic scale; the KL schedule is one of the grid's."""
    try:
        import optuna
    except ImportError as error:
        raise ValueError(
            'the search "optuna" needs an extra: pip install "dubito[tune]"'
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    both = objective == "pareto"
    study = optuna.create_study(
        directions=["maximize"] * (1 + both),
        sampler=optuna.samplers.TPESampler(seed=seed),
    )
    least, most = min(w for w in grid if w > 0), max(grid)
    for _ in range(trials):
        asked = study.ask()
        weight = asked.suggest_float("fisher_weight", least, most, log=True)
        kl = kl_grid[asked.suggest_int("kl", 0, len(kl_grid) - 1)]
        trial = attempt(_parameters(weight, kl))
        figures = {"accuracy": trial.accuracy.mean, "ood_aupr": trial.ood_aupr.mean}
        study.tell(asked, list(figures.values()) if both else figures[objective])
        yield trial


#: name -> trials, from how to try and what
SEARCHES: dict[str, Callable[..., Iterator[Trial]]] = {"grid": _by_grid, "optuna": _by_optuna}


# --- the figure ----------------------------------------------------------------------------------


def drawn(tuned: Tuned) -> bytes:
    """Accuracy against OOD AUPR of all trials, the front joined and the choice marked: PNG."""
    import io

    from matplotlib.figure import Figure as Canvas

    from dubito.report.figures.style import COLOURS, FAINT, INK

    canvas = Canvas(figsize=(6.4, 4.8), layout="constrained")
    ax = canvas.subplots()
    across = [100 * trial.accuracy.mean for trial in tuned.trials]
    up = [100 * trial.ood_aupr.mean for trial in tuned.trials]
    front = sorted(tuned.front, key=lambda i: across[i])
    ax.errorbar(
        across, up, [100 * t.ood_aupr.interval for t in tuned.trials],
        [100 * t.accuracy.interval for t in tuned.trials],
        fmt="none", ecolor=FAINT, elinewidth=0.5, alpha=0.6,
    )  # fmt: skip
    ax.plot(across, up, "o", color=COLOURS[0], markersize=5)
    ax.plot([across[i] for i in front], [up[i] for i in front], color=COLOURS[0], linewidth=1)
    ax.plot(across[tuned.choice], up[tuned.choice], "o", color=COLOURS[1], markersize=9)
    for i in {*front, tuned.choice}:
        label = f"λ = {tuned.trials[i].hyperparameters['fisher_weight']:.3g}"
        ax.annotate(label, (across[i], up[i]), (5, 5), textcoords="offset points", color=INK)
    ax.set_xlabel("accuracy on validation classes, %")
    ax.set_ylabel("OOD AUPR (α₀), %")
    buffer = io.BytesIO()
    canvas.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()
