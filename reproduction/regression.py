"""Regression on tables: `python -m reproduction regression`.

Nine UCI sets with their usual splits. Each split is an experiment of its own:

- a fifth of the training samples chooses among three trials of hyperparameters, and the number of
  epochs, by the negative log-likelihood; then a network is trained on all of them;
- the whole test set is used once, for the metrics.

The networks of all splits and trials are trained side by side. DUBITO_DATA/uci has the sets, one
file NAME.npz each: x (N, D), y (N,) and test (splits, n), the indices of each split's test samples.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from dubito.data.known import data_folder
from dubito.distributions import Distribution, RealDistribution
from dubito.errors import DubitoError
from reproduction.regression_networks import Networks, Plan, Setting, standardized
from reproduction.regression_rivals import RIVALS, Prediction, of_distribution, parts, scores
from reproduction.store import FORMAT, Record, Store

__all__ = ["ROWS", "SETS", "Experiment", "Row", "experiments", "quick", "run"]

Array = np.ndarray[Any, Any]
#: number of a trial, and of epochs
Choice = tuple[int, int]
FILE, JOURNAL = "regression", "regression-journal.jsonl"
#: samples of a test batch in the published protocol of DER
PUBLISHED_BATCH = 100


@dataclass(frozen=True)
class Data:
    """A set.

    Attributes:
        title: Name in tables.
        plan: Sizes of the trainings.
        splits: Number of splits.
    """

    title: str
    plan: Plan
    splits: int = 20


SETS = {
    "bostonHousing": Data("Boston", Plan(50, 100, 64)),
    "concrete": Data("Concrete", Plan(50, 100, 64)),
    "energy": Data("Energy", Plan(50, 120, 64)),
    "kin8nm": Data("Kin8nm", Plan(50, 30, 128)),
    "naval-propulsion-plant": Data("Naval", Plan(50, 30, 128)),
    "power-plant": Data("Power", Plan(50, 30, 128)),
    "protein-tertiary-structure": Data("Protein", Plan(100, 12, 128), 5),
    "wine-quality-red": Data("Wine", Plan(50, 50, 64)),
    "yacht": Data("Yacht", Plan(50, 300, 64)),
}
#: splits whose networks are trained together
TOGETHER = 10
#: learning rate and weight decay of each trial
TRIALS = ((0.003, 0.0), (0.01, 0.1), (0.03, 0.0))


@dataclass(frozen=True)
class Row:
    """A row of the tables: networks of a method, an ensemble of another row's, or a rival.

    Attributes:
        name: Name in records.
        title: Name in tables.
        trials: Hyperparameters of networks.
        base: Row whose networks an ensemble has; it takes over what each split has chosen.
        members: Size of an ensemble.
        needs: Package without which the row is left out.
        splits: Most splits; None: all.
    """

    name: str
    title: str
    trials: tuple[Setting, ...] = ()
    base: str = ""
    members: int = 1
    needs: str = ""
    splits: int | None = None


def row(name: str, title: str, *options: Mapping[str, Any], **fields: Any) -> Row:
    """Create a row of networks; the options of its method alternate among the trials."""
    trials = [
        Setting(dict(options[i % len(options)]), rate, decay)
        for i, (rate, decay) in enumerate(TRIALS)
    ]
    return Row(name, title, tuple(trials), **fields)


def dropout(name: str, title: str, member: Mapping[str, Any]) -> Row:
    """Create a row of MC Dropout."""
    options = ({"name": "mc_dropout", "member": member, "dropout": p} for p in (0.02, 0.1))
    return row(name, title, *options)


WEIGHTS, FISHER_WEIGHTS = (0.01, 0.1), (0.02, 0.05)
ALL_ROWS = (
    row("gaussian", "Gaussian", {"name": "gaussian"}),
    row("beta", "Gaussian, β-NLL", {"name": "gaussian", "beta": 0.5}),
    row("der", "DER", *({"name": "der", "beta": 0.0, "evidence_weight": w} for w in WEIGHTS)),
    row(
        "der-beta",
        "DER, β-NLL",
        *({"name": "der", "beta": 0.5, "evidence_weight": w} for w in WEIGHTS),
    ),
    row("sder", "SDER", *({"name": "sder", "evidence_weight": w} for w in WEIGHTS)),
    row("quantile", "Quantiles", {"name": "quantile"}),
    row("ider", "I-DER", *({"name": "ider", "fisher_weight": w} for w in FISHER_WEIGHTS)),
    dropout("gaussian-dropout", "Gaussian, MC Dropout", {"name": "gaussian"}),
    dropout("der-beta-dropout", "DER, β-NLL, MC Dropout", {"name": "der", "beta": 0.5}),
    Row("gaussian-ensemble", "Gaussian, ensemble", base="gaussian", members=5),
    Row("der-beta-ensemble", "DER, β-NLL, ensemble", base="der-beta", members=5),
    Row("defaults", "EvidentialRegressor()"),
    Row("boosting", "HistGradientBoosting, CQR"),
    Row("ngboost", "NGBoost", needs="ngboost", splits=5),  # minutes on the large sets
    Row("mlp", "MLPRegressor"),
)
ROWS = {each.name: each for each in ALL_ROWS}


@dataclass(frozen=True)
class Experiment:
    """A row on a set."""

    data: str
    row: Row
    plan: Plan
    splits: int
    dataset: str = FILE
    quick: bool = False

    @property
    def name(self) -> str:
        """Name in records."""
        return f"{self.data}-{self.row.name}"

    @property
    def base(self) -> Experiment:
        """The experiment of the networks that an ensemble has."""
        return replace(self, row=ROWS[self.row.base])

    def cells(self, seeds: Sequence[int] | None = None) -> list[Split]:
        """Return a cell for each split."""
        return [Split(self, seed) for seed in (range(self.splits) if seeds is None else seeds)]

    @property
    def config(self) -> dict[str, Any]:
        """Everything that the records depend on."""
        trials = [asdict(s) for s in (self.base if self.row.base else self).row.trials]
        plan = asdict(self.plan) if trials else {}
        own = {"name": self.row.name, "members": self.row.members, "trials": trials}
        plan |= {"together": TOGETHER} if trials else {}
        return {"data": self.data, "row": own, "plan": plan, "quick": self.quick}


@dataclass(frozen=True)
class Split:
    """An experiment and a split: one record."""

    recipe: Experiment
    seed: int

    @property
    def id(self) -> str:
        """Hash of everything that the record depends on."""
        text = json.dumps({**self.recipe.config, "split": self.seed}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def experiments() -> dict[str, Experiment]:
    """Return all experiments by name."""
    every = [
        Experiment(name, row, data.plan, min(data.splits, row.splits or data.splits))
        for row in ALL_ROWS
        for name, data in SETS.items()
    ]
    return {each.name: each for each in every}


def quick() -> dict[str, Experiment]:
    """Return experiments on scikit-learn's diabetes data, of a second each."""
    plan = Plan(10, 2, 32, looks=2)
    every = [Experiment("diabetes", each, plan, 2, quick=True) for each in ALL_ROWS]
    return {each.name: each for each in every}


def store(folder: Path, known: Mapping[str, Experiment]) -> Store:
    """Open the records of a folder."""
    return Store(folder, known, JOURNAL)


# --- data ---


def load(name: str) -> tuple[Array, Array, Array]:
    """Return inputs (N, D), targets (N,) and the test samples of each split (splits, n)."""
    if name == "diabetes":
        from sklearn.datasets import load_diabetes

        x, y = load_diabetes(return_X_y=True)
        return x, y, np.stack([np.arange(40), np.arange(40, 80)])
    path = data_folder() / "uci" / f"{name}.npz"
    if not path.exists():
        raise DubitoError(f"{path} is missing: set DUBITO_DATA to a folder with uci/{name}.npz")
    with np.load(path) as file:
        return file["x"], file["y"], file["test"].astype(int)


def divided(name: str, splits: Sequence[int]) -> tuple[Array, Array, list[list[Array]]]:
    """Return inputs, targets, and rows of each split: four fifths, a fifth, and test samples."""
    x, y, tests = load(name)
    rows = []
    for split in splits:
        training = np.setdiff1d(np.arange(len(x)), tests[split])
        rng = np.random.default_rng([split, *name.encode()])
        rows.append([training[part] for part in parts(len(training), rng)] + [tests[split]])
    return x, y, rows


class Samples:
    """Samples of several splits in training units: inputs (P, N, D) and targets (P, N, 1).

    Args:
        x: Inputs, (N, D).
        y: Targets, (N,).
        rows: Training samples and others of each split; what follows is ignored.
    """

    def __init__(self, x: Array, y: Array, rows: Sequence[Sequence[Array]]) -> None:
        values = torch.as_tensor(x), torch.as_tensor(y)[:, None]
        training, other = (
            [v[torch.as_tensor(np.stack([each[part] for each in rows]))] for v in values]
            for part in (0, 1)
        )
        self._units = [standardized(each) for each in training]
        self.training, self.other = self._scaled(training), self._scaled(other)

    def _scaled(self, values: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        x, y = (((v - m) / s).float() for v, (m, s) in zip(values, self._units, strict=True))
        return x, y

    def units(self, split: int) -> tuple[Tensor, Tensor]:
        """Return deviation and mean of the targets, (1,) each."""
        mean, std = self._units[1]
        return std[split, 0].float(), mean[split, 0].float()


# --- experiments ---

Task = tuple[Experiment, list[int], list[Choice]]
#: prediction of the test samples of a split, and what is known about the training
Outcome = tuple[Prediction, dict[str, Any]]


def networks(
    experiment: Experiment, splits: Sequence[int], chosen: Sequence[Choice]
) -> list[Outcome]:
    """Train networks on the training samples of each split, and predict its test samples.

    Args:
        experiment: Experiment of networks.
        splits: Splits.
        chosen: Trial and number of epochs of each split; empty to choose them.
    """
    plan, members = experiment.plan, experiment.row.members
    trials = (experiment.base if experiment.row.base else experiment).row.trials
    x, y, rows = divided(experiment.data, splits)
    seed = [splits[0], *experiment.name.encode()]
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    chosen = chosen or search(trials, plan, Samples(x, y, rows), generator)
    owner = [i for i in range(len(splits)) for _ in range(members)]
    samples = Samples(x, y, [(np.concatenate(rows[i][:2]), rows[i][2]) for i in owner])
    settings = [trials[chosen[i][0]] for i in owner]
    nets = Networks(settings, torch.arange(len(owner)), x.shape[1], plan.hidden, generator)
    found: dict[int, Prediction] = {}
    least = torch.full((2, len(owner)), torch.inf)
    for epoch in nets.train(*samples.training, plan):
        ready: dict[int, RealDistribution] = {}
        inputs, target = samples.other
        batch = torch.as_tensor(rng.permutation(inputs.shape[1])[:PUBLISHED_BATCH])
        for numbers, dists in nets.predict(inputs):
            part, y_batch = dists[:, batch], target[numbers][:, batch]
            mse = (part.mean - y_batch).square().mean((1, 2))
            seen = torch.stack([mse.sqrt(), -part.predictive.log_prob(y_batch).mean(1)])
            least[:, numbers] = torch.minimum(least[:, numbers], seen)
            ready |= {n: dists[i] for i, n in enumerate(numbers.tolist())}
        for i, (_, epochs) in enumerate(chosen):
            if epoch == epochs:
                own = [ready[j].affine(*samples.units(j)) for j in _members(i, members)]
                dist: Distribution = own[0]
                if members > 1:
                    dist = Distribution.cat([each[:, None] for each in own], 1).mixture()
                found[i] = of_distribution(dist, y[rows[i][2]])
    outcomes: list[Outcome] = []
    for i, (trial, epochs) in enumerate(chosen):
        std = samples.units(i * members)[0].item()
        rmse, nll = least[:, i * members].tolist()
        flattered = {"rmse": rmse * std, "nll": nll + math.log(std)}
        outcomes.append((found[i], {"trial": trial, "epochs": epochs, "least": flattered}))
    return outcomes


def _members(split: int, count: int) -> range:
    return range(split * count, (split + 1) * count)


def search(
    trials: Sequence[Setting], plan: Plan, samples: Samples, generator: torch.Generator
) -> list[Choice]:
    """Return the trial and the number of epochs with the least NLL of held-out samples."""
    x, y = samples.other
    task = torch.arange(len(x)).repeat(len(trials))
    settings = [trial for trial in trials for _ in range(len(x))]
    nets = Networks(settings, task, x.shape[-1], plan.hidden, generator)
    losses = []
    for _ in nets.train(*samples.training, plan):
        loss = torch.empty(len(settings))
        for own, dist in nets.predict(x):
            loss[own] = -dist.predictive.log_prob(y[task[own]]).mean(1)
        losses.append(loss)
    # NaN and overflows lose.
    table = torch.stack(losses).nan_to_num(nan=torch.inf).view(len(losses), len(trials), len(x))
    best = table.transpose(0, 1).flatten(0, 1).argmin(0).tolist()
    return [(i // len(losses), plan.epochs_of_looks[i % len(losses)]) for i in best]


def records(
    experiment: Experiment, splits: Sequence[int], chosen: Sequence[Choice]
) -> list[Record]:
    """Run an experiment on some splits.

    Args:
        experiment: Experiment.
        splits: Splits, whose networks are trained together.
        chosen: What the networks of an ensemble have chosen, for each split.
    """
    torch.set_num_threads(1)
    start = time.perf_counter()
    name = experiment.row.name
    if name in RIVALS:
        x, y, rows = divided(experiment.data, splits)
        outcomes: list[Outcome] = []
        for split, (first, second, test) in zip(splits, rows, strict=True):
            training = np.concatenate([first, second])
            rng = np.random.default_rng([split, *name.encode()])
            with threadpool_limits(1):  # jobs run side by side
                own = RIVALS[name](x[training], y[training], x[test], y[test], rng)
            outcomes.append((own, {}))
    else:
        outcomes = networks(experiment, splits, chosen)
    seconds = (time.perf_counter() - start) / len(splits)
    _, y, rows = divided(experiment.data, splits)
    return [
        {
            "recipe": experiment.name, "seed": split, "id": Split(experiment, split).id,
            "format": FORMAT, "quick": experiment.quick, "config": experiment.config,
            "training": {**training, "seconds": seconds},
            "result": scores(prediction, y[test]),
            "versions": {each: version(each) for each in ("torch", "scikit-learn", "numpy")},
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        for split, (prediction, training), (*_, test) in zip(splits, outcomes, rows, strict=True)
    ]  # fmt: skip


def run(
    store: Store,
    patterns: Sequence[str] = (),
    *,
    seeds: Sequence[int] | None = None,
    jobs: int = 1,
    report: Callable[[str], None] = print,
) -> None:
    """Run the experiments whose records are missing.

    Splits that are trained together run again if one is missing, so that a killed run ends with the
    same records.

    Args:
        store: Records, and the experiments that they are of.
        patterns: Names of experiments such as 'yacht-*'; empty for all.
        seeds: Splits that are wanted; None for all.
        jobs: Number of processes.
        report: Function that shows a line of text.
    """
    named = [e for e in store.recipes.values() if _named(e, patterns)]
    known = [each for each in named if _available(each, report)]
    for of_others in (False, True):
        tasks = []
        most = max((each.splits for each in known), default=0)
        for start in range(0, most, TOGETHER):
            for each in known:
                cells = each.cells()[start : start + TOGETHER]
                wanted = [c for c in cells if seeds is None or c.seed in seeds]
                if bool(each.row.base) is of_others and any(store.get(c) is None for c in wanted):
                    bases = [store.get(Split(each.base, c.seed)) for c in cells if of_others]
                    chosen = [(r["training"]["trial"], r["training"]["epochs"]) for r in bases if r]
                    tasks.append((each, [cell.seed for cell in cells], chosen))
        for number, done in enumerate(_outcomes(tasks, jobs), 1):
            for record in done:
                store.add(record)
            crps = np.mean([record["result"]["crps"] for record in done])
            name, first = done[0]["recipe"], done[0]["seed"]
            report(f"[{number}/{len(tasks)}] {name} from split {first}: CRPS {crps:.4g}")
        store.compact()


def _outcomes(tasks: Sequence[Task], jobs: int) -> Iterator[list[Record]]:
    if jobs == 1:
        yield from itertools.starmap(records, tasks)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for future in as_completed([pool.submit(records, *task) for task in tasks]):
            yield future.result()


def _named(experiment: Experiment, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch(experiment.name, pattern) for pattern in patterns)


def _available(experiment: Experiment, report: Callable[[str], None]) -> bool:
    package = experiment.row.needs
    if package and find_spec(package) is None:
        report(f"{experiment.name} is left out: pip install {package}")
        return False
    return True
