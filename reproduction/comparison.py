"""One protocol for all methods: `python -m reproduction comparison`.

Methods and settings are in comparison.toml. In a setting all methods have the same images,
division, augmentation, budget and weight averaging, and the same number of trials of their
hyperparameters. The trial with the best mean rank of accuracy, NLL, right or wrong, and detection
of foreign images is trained with all seeds. Trials are judged on selection images and on foreign
images made of these: test and OOD sets are not read.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
import tomllib
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock

from dubito import evaluation
from dubito.config import RunConfig
from dubito.data import Source
from dubito.errors import DubitoError
from dubito.methods import METHODS
from dubito.model import Model
from dubito.pipeline import Pipeline, Prepared
from dubito.runs import Runs
from dubito.scores import SCORES
from dubito.training import NonFiniteLoss
from dubito.types import Json
from reproduction.comparison_data import Images
from reproduction.recipes import COMPARISON, Cell, Recipe, Sections, merge
from reproduction.store import Record, Store
from reproduction.training import describe, device_name, plain

__all__ = ["RIVAL", "Entrant", "Protocol", "run", "train"]

PATH = Path(__file__).parent / "comparison.toml"
#: method that others are compared with, read by its energy
RIVAL = "softmax"
QUICK, JOURNAL = "quick", "comparison-journal.jsonl"
TRIAL, FINAL, PUBLISHED = "trial", "final", "published"
#: number by which trials are ranked -> whether higher is better
CRITERIA = {"accuracy": True, "nll": False, "errors": True, "foreign": True}
#: result of a trial that diverges
DIVERGED = {"accuracy": 0.0, "nll": math.inf, "errors": 0.0, "foreign": 0.0}
#: seed of the trials, and of teachers
TRIAL_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Entrant(Recipe):
    """A method in a setting: a trial of its hyperparameters, or a training that counts."""

    place: str
    """Name of the setting."""
    key: str
    """Name of the method in comparison.toml."""
    kind: str
    """"trial", "final" or "published"."""

    @cached_property
    def config(self) -> RunConfig:
        """Configuration of the training."""
        names = "data", "backbone", "method", "training"
        sections = {name: self.sections[name] for name in names}
        # Otherwise images would be read by the features, whatever the method.
        policy = {"ood_score": METHODS.build(sections["method"]).ood_score}
        return RunConfig.merge({**sections, "policy": policy}, {})


class Protocol:
    """Settings and methods of a file.

    Args:
        path: A file like comparison.toml.
        seeds: Seeds in place of those of the file.
    """

    def __init__(self, path: Path = PATH, seeds: Sequence[int] | None = None) -> None:
        content = tomllib.loads(path.read_text("utf-8"))
        self.base, self.posthoc = content["base"], tuple(content["posthoc"])
        self.published = content["published"]
        self.settings: dict[str, Json] = {
            name: merge(content["setting"].get(own.get("extends"), {}), own)
            for name, own in content["setting"].items()
        }
        self.methods: dict[str, Json] = content["method"]
        self.given = seeds
        counts = {name: len(method["trials"]) for name, method in self.methods.items()}
        if len({*counts.values()}) > 1:
            raise DubitoError(f"methods need the same number of trials, not {counts}")

    def selected(self, patterns: Sequence[str], quick: bool = False) -> list[str]:
        """Return the settings of patterns of names; all of them without any.

        Args:
            patterns: Patterns.
            quick: Only the setting of embedded data.
        """
        if quick:
            return [QUICK]
        known = [name for name in self.settings if name != QUICK]
        for pattern in patterns:
            if not fnmatch.filter(known, pattern):
                raise DubitoError(f"unknown setting {pattern!r}; known: {', '.join(known)}")
        return [
            name for name in known if any(fnmatch.fnmatch(name, each) for each in patterns or "*")
        ]

    def seeds(self, setting: str) -> tuple[int, ...]:
        """Return the seeds of the trainings that count.

        Args:
            setting: Name of the setting.
        """
        return tuple(self.given or self.settings[setting]["seeds"])

    def names(self, setting: str) -> list[str]:
        """Return the methods of a setting.

        Args:
            setting: Name of the setting.
        """
        return list(self.settings[setting].get("methods", self.methods))

    def entrants(self, settings: Sequence[str], store: Store | None = None) -> Iterator[Entrant]:
        """Yield the trainings that are determined by the records.

        Args:
            settings: Names of settings.
            store: Records; None yields those that depend on none.
        """
        for setting in settings:
            for name in self.names(setting):
                yield from self._trials(setting, name, store)
            for name in self.names(setting):
                chosen = self.final(setting, name, store)
                if chosen is not None:
                    yield chosen
                published = self.methods[name].get(PUBLISHED)
                if published and any(fnmatch.fnmatch(setting, each) for each in published["in"]):
                    own = {key: value for key, value in published.items() if key != "in"}
                    sections = merge(self._sections(setting, name, store) or {}, self.published)
                    yield self._entrant(setting, name, PUBLISHED, merge(sections, own))

    def store(self, folder: Path) -> Store:
        """Return the records in a folder.

        Args:
            folder: Folder of the records.
        """
        known = {one.name: one for one in self.entrants([*self.settings])}
        store = Store(folder, known, JOURNAL)
        self.update(store)
        return store

    def update(self, store: Store) -> None:
        """Tell the store which trainings its records have determined.

        Args:
            store: Result of `store`.
        """
        store.recipes = {one.name: one for one in self.entrants([*self.settings], store)}

    def final(self, setting: str, name: str, store: Store | None) -> Entrant | None:
        """Return the training with the hyperparameters of the best trial, if all are done.

        Args:
            setting: Name of the setting.
            name: Name of the method.
            store: Records.
        """
        trials = self._trials(setting, name, store)
        records = [store.get(one.cells()[0]) for one in trials] if store is not None else []
        done = [record for record in records if record is not None]
        if not trials or len(done) < len(trials):
            return None
        best = trials[best_of(done)]
        return self._entrant(setting, name, FINAL, best.sections)

    def _trials(self, setting: str, name: str, store: Store | None) -> list[Entrant]:
        sections = self._sections(setting, name, store)
        if sections is None:
            return []
        trials, count = [], self.settings[setting].get("trials")
        for number, change in enumerate(self.methods[name]["trials"][:count]):
            own = {key: value for key, value in change.items() if key != "lr_times"}
            changed = deepcopy(merge(sections, own))
            changed["training"]["lr"] *= change.get("lr_times", 1)
            trials.append(self._entrant(setting, name, f"{TRIAL}-{number}", changed))
        return trials

    def _sections(self, setting: str, name: str, store: Store | None) -> Sections | None:
        """Return all that a training depends on; None if its teacher is not known yet."""
        own, method = self.settings[setting], self.methods[name]
        keys = ("images", "data", "backbone", "training")
        sections = merge(self.base, {key: own[key] for key in keys if key in own})
        sections = merge(sections, {"method": method["method"]})
        if "teacher" in method:
            teacher = self.final(setting, method["teacher"], store)
            if teacher is None:
                return None
            sections["teacher"] = teacher.sections
        return sections

    def _entrant(self, setting: str, name: str, kind: str, sections: Sections) -> Entrant:
        suffix = "" if kind == FINAL else f"/{kind}"
        is_trial = kind.startswith(TRIAL)
        return Entrant(
            name=f"{setting}/{name}{suffix}", group=f"{setting}/{name}", dataset=COMPARISON,
            seeds=(TRIAL_SEED,) if is_trial else self.seeds(setting), sections=sections,
            evaluate={} if is_trial else {"posthoc": self.posthoc}, quick=setting == QUICK,
            place=setting, key=name, kind=TRIAL if is_trial else kind,
        )  # fmt: skip


def best_of(records: Sequence[Record]) -> int:
    """Return the place of the trial with the best mean rank; the first of equals.

    Args:
        records: Records of trials.
    """
    frame = pd.DataFrame(
        [{name: float(record["result"][name]) for name in CRITERIA} for record in records]
    )
    signs = pd.Series({name: 1 if higher else -1 for name, higher in CRITERIA.items()})
    return int((frame * signs).rank(ascending=False).mean(axis=1).to_numpy().argmin())


def run(
    protocol: Protocol, settings: Sequence[str], folder: Path, work: Path, **options: Any
) -> dict[str, str]:
    """Run what is missing: trials first, then what they choose.

    Args:
        protocol: Protocol.
        settings: Names of settings.
        folder: Folder of the records.
        work: Folder of checkpoints.
        **options: device, jobs, ray and report of `reproduction.runner.run`.

    Returns:
        Error messages by unit.
    """
    from reproduction.runner import run as run_missing

    store, entrants = protocol.store(folder), None
    problems: dict[str, str] = {}
    while True:
        protocol.update(store)
        failed = {unit.rpartition(" seed ")[0] for unit in problems}
        found = [one for one in protocol.entrants(settings, store) if one.name not in failed]
        if found == entrants:
            return problems
        entrants = found
        problems |= run_missing(entrants, store, work, **options)


# --- training and evaluation ---


def train(entrant: Recipe, seeds: Sequence[int], folder: Path, device: str) -> list[Record]:
    """Train with several seeds, or continue, and return the records.

    Args:
        entrant: Entrant.
        seeds: Seeds.
        folder: Folder of the checkpoints, beside which are features and teachers.
        device: "cpu" or "cuda".
    """
    assert isinstance(entrant, Entrant)
    images = _images(json.dumps(entrant.sections["images"]), folder.parent / "features")
    config = entrant.config
    if "teacher" in entrant.sections:
        teacher = _teacher(entrant, images.train, folder.parent, device)
        config = RunConfig.merge(config, {"method.teachers": [str(teacher)]})
    pipeline = Pipeline(config, device=device)
    prepared, records = pipeline.prepare(images.train), []
    folders = {seed: folder / f"seed-{seed}" for seed in seeds}
    try:
        models = Runs(pipeline, prepared, folders, report=False).train()
    except NonFiniteLoss:
        if entrant.kind != TRIAL:
            raise
        return [_record(entrant, seed, {"epochs": 0}, DIVERGED, device) for seed in seeds]
    for seed, model in zip(seeds, models, strict=True):
        if entrant.kind == TRIAL:
            result = _validated(model, prepared, images)
        else:
            result = _tested(pipeline, model, prepared, images, entrant.evaluate["posthoc"])
        assert model.record is not None
        costs = {"epochs": model.record.epochs, "seconds": model.record.seconds}
        records.append(_record(entrant, seed, costs, result, device))
    return records


def _record(entrant: Entrant, seed: int, training: Json, result: Json, device: str) -> Record:
    return {
        **describe(Cell(entrant, seed)),
        "training": training,
        "result": plain(result, 6),
        "device": device_name(device),
    }


@lru_cache(maxsize=1)
def _images(setting: str, cache: Path) -> Images:
    """Return the images of a setting, which are read once for many trainings."""
    return Images(json.loads(setting), cache)


def _teacher(entrant: Entrant, source: Source, work: Path, device: str) -> Path:
    """Return the folder of the ensemble that a student learns from, which is trained once."""
    sections = entrant.sections["teacher"]
    digest = hashlib.sha256(repr(sorted(sections.items())).encode()).hexdigest()[:16]
    folder = work / f"teacher-{digest}"
    names = "data", "backbone", "method", "training"
    config = RunConfig.merge({name: sections[name] for name in names}, {})
    with FileLock(f"{folder}.lock"):
        pipeline = Pipeline(config, device=device)
        Runs(pipeline, pipeline.prepare(source), {TRIAL_SEED: folder}, report=False).train()
    return folder


def _validated(model: Model, prepared: Prepared, images: Images) -> Json:
    """Judge a trial on the selection images, and on foreign ones that are made of them."""
    selection = prepared.parts[0].selection
    assert selection is not None
    dist, labels = model.predict(selection).distribution, model.task.encode(selection.target)
    error, ood = model.method.error_score, model.method.ood_score
    found = evaluation.evaluate(model.task, dist, labels, [error])
    detected = {
        name: evaluation.ood_detection(dist, model.predict(foreign).distribution, [ood])
        for name, foreign in images.changed(selection.indices, labels).items()
    }
    by_kind = {name: value[ood]["auroc"] for name, value in detected.items()}
    errors = found.get("error_detection", {}).get(error, {"aupr": 1.0})  # without any error
    return {
        "accuracy": found["metrics"]["accuracy"],
        "nll": found["metrics"]["nll"],
        "errors": errors["aupr"],
        "foreign": sum(by_kind.values()) / len(by_kind),
        "by_kind": by_kind,
    }


def _tested(
    pipeline: Pipeline, model: Model, prepared: Prepared, images: Images, posthoc: Sequence[str]
) -> Json:
    """Evaluate a model on test and OOD sets by all scores."""
    wanted = [name for name in posthoc if name not in model.method.scores(model.task)]
    fitting = [SCORES.build(name) for name in wanted if _has(model, name)]
    pipeline.add_scores(model, fitting, prepared)
    foreign = {name: model.predict(source) for name, source in images.foreign.items()}
    found = model.evaluate(model.predict(images.test), images.test, ood=foreign)
    return {
        **found["metrics"],
        "calibrated": found["calibrated"],
        "declared": found["declared"],
        "aurc": found["aurc"],
        "errors": found["error_detection"],
        "ood": {name: part["detection"] for name, part in found["ood"].items()},
        "shifted": {
            str(severity): model.evaluate(source)["metrics"]
            for severity, source in images.shifted.items()
        },
        "answered": found["policy"]["accepted"],
        "answered_wrong": found["policy"].get("error_rate", 0.0),
    }


def _has(model: Model, name: str) -> bool:
    """Return whether a network has what a post-hoc score reads."""
    try:
        model.check_scores([SCORES.build(name)])
    except DubitoError:
        return False
    return True
