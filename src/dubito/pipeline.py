"""The pipeline of a training: open, divide, build, train, fit, check, report.

`dubito.train`, the command line, the scikit-learn estimators and the reproduction of the paper run
these steps. Each sample serves one purpose: it trains the network, chooses the epoch, or
calibrates. With folds each network calibrates on the fold that it was not trained on.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dubito import data as datasets
from dubito import sanity
from dubito.backbones import BACKBONES
from dubito.backbones.base import BackboneLike, Shape, chain
from dubito.backbones.default import AUTO, advice
from dubito.calibration import interval_exponent
from dubito.config import Parts, PolicyConfig, RunConfig
from dubito.data import Source
from dubito.data.base import Items, Subset
from dubito.distributions import Distribution
from dubito.errors import DubitoError
from dubito.evaluation import evaluate
from dubito.formats import FORMATS, ArrayFormat, Encoded, Preprocessing
from dubito.methods import METHODS
from dubito.methods.base import Network
from dubito.model import Model, Prediction
from dubito.model.folder import MODEL, TrainingRecord
from dubito.model.model import FAMILIARITY
from dubito.plugins import import_function
from dubito.scores import SCORES, Score
from dubito.tasks import Classification, Regression, Task
from dubito.training import Callback, History, JSONLines, TensorBoard, Trainer, parallel
from dubito.training.batches import Samples
from dubito.training.callbacks import feature_progress
from dubito.training.config import LAST, TrainConfig
from dubito.training.recipes import HEAD, has_adapters, with_recipe
from dubito.training.run import CHECKPOINT, merge_adapters
from dubito.training.trainer import seconds_per_sample
from dubito.types import Json

__all__ = ["Pipeline", "Prepared"]

#: streamed inputs, and their bytes, that determine means and deviations
MAX_FITTED, FITTED_BYTES = 4096, 1 << 27
#: power of the deviation for the width of intervals, where no samples choose it
DEFAULT_EXPONENT = 0.5
#: values of the inputs of all folds up to which these are trained at once
VALUES_AT_ONCE = 1 << 24
#: characters of a value in a message
LONGEST = 200
#: ratio of the most frequent to the rarest class from which samples are weighted
IMBALANCE = 3
#: training samples that post-hoc scores are fitted to
MAX_SCORED = 1 << 16
#: features beyond which their covariance takes minutes and more memory than most networks
MAX_FEATURES = 4096
#: plural of a sample by the kind of its format
SAMPLES = {"image": "images", "table": "rows"}


@dataclass(frozen=True)
class Prepared:
    """Training data, opened and divided.

    Args:
        task: What is predicted.
        source: All samples.
        parts: Parts of the samples; those of each fold if there are folds.
        purpose: What the first part is for.
    """

    task: Task
    source: Source
    parts: list[Parts]
    purpose: str = "training"

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the data."""
        return self.source.fingerprint()

    @property
    def samples(self) -> dict[str, int]:
        """Number of samples by their purpose."""
        if len(self.parts) > 1:  # each sample serves every purpose, in different folds
            return {"training": len(self.source), "calibration": len(self.source)}
        train, selection, calibration = self.parts[0]
        parts = {self.purpose: train, "selection": selection, "calibration": calibration}
        return {name: len(part) for name, part in parts.items() if part is not None}

    @property
    def calibration(self) -> Source | None:
        """Samples that calibration and policy are fitted to, fold after fold."""
        held_out = [part.calibration for part in self.parts if part.calibration is not None]
        if len(held_out) < 2:
            return held_out[0] if held_out else None
        return self.source.subset([row for part in held_out for row in part.indices])


class Pipeline:
    """Trains models as a configuration says.

    Args:
        config: Configuration.
        device: Device of the training.
        callbacks: Callbacks of the training.
        backbone: Function of a shape that builds the backbone, in place of `config.backbone`.

    >>> pipeline = Pipeline(RunConfig(training={"epochs": 3, "lr": 0.01}))
    >>> prepared = pipeline.prepare(datasets.open("digits"))
    >>> prepared.samples
    {'training': 1150, 'calibration': 288}
    >>> model = pipeline.build(prepared, seed=0)
    >>> histories = pipeline.train([model], prepared)
    >>> prediction = pipeline.fit(model, prepared)
    >>> model.calibration is not None, model.policy is not None
    (True, True)
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        device: torch.device | str = "cpu",
        callbacks: Sequence[Callback] = (),
        backbone: BackboneLike | None = None,
    ) -> None:
        self.config, self.device, self.callbacks = config, device, tuple(callbacks)
        self.backbone: BackboneLike = config.backbone if backbone is None else backbone

    def run(
        self,
        source: Source,
        folders: Sequence[Path],
        seeds: Sequence[int],
        *,
        report: bool = True,
        tensorboard: bool = False,
        finish: bool = False,
        freeze: bool = False,
        on_start: Callable[[str], Any] | None = None,
    ) -> list[Model]:
        """Train a model for each seed, or resume, and save it.

        A pretrained network is fine-tuned from a head on its features: a first model, saved, too.

        Args:
            source: Labeled samples.
            folders: Folder of each model; a finished one is loaded.
            seeds: Seeds.
            report: Write report.html.
            tensorboard: Write scalars for TensorBoard.
            finish: End interrupted trainings now, with the weights of their checkpoints.
            freeze: Train only the heads of pretrained networks.
            on_start: Function that is called with a line about data and model.
        """
        prepared = self.prepare(source)
        models: dict[int, Model] = {}
        missing: dict[int, Path] = {}
        for seed, folder in zip(seeds, folders, strict=True):
            model = self.finished(folder, prepared, seed, finish=finish, freeze=freeze)
            if model is None:
                missing[seed] = folder
            else:
                models[seed] = model
        if missing:
            built = {seed: self.build(prepared, seed) for seed in missing}
            first = next(iter(built.values()))
            if freeze and not _learns_head(first):
                raise DubitoError("freeze=True needs a pretrained backbone, such as 'hf:FOLDER'")
            tuned = self.tuned(first, prepared)
            if on_start is not None:
                on_start(tuned.describe(first, prepared, freeze=freeze))
            if freeze or not finish:
                heads = tuned.train_heads(built, prepared, missing, freeze=freeze, report=report)
            if freeze:
                built |= heads
            else:
                histories = tuned.train(
                    [*built.values()], prepared, seeds=[*built], out=[*missing.values()],
                    finish=finish, loggers=[*self._loggers(missing, tensorboard)],
                )  # fmt: skip
                for (seed, model), history in zip(built.items(), histories, strict=True):
                    if parallel.rank() == 0:
                        prediction = tuned.finish(model, prepared, history, seed)
                        self._save(model, prepared, prediction, history, missing[seed], report)
            models |= built
        return [models[seed] for seed in seeds]

    def tuned(self, model: Model, prepared: Prepared, device: str | None = None) -> "Pipeline":
        """Return this pipeline with the recipe for a model, but for what is set.

        Args:
            model: Model of `build`.
            prepared: Training data.
            device: Kind of the device; None: that of this pipeline.
        """
        count = min(len(part.train) for part in prepared.parts)
        device = device or torch.device(self.device).type
        training = with_recipe(self.config.training, self._member(model, 0), count, device)
        config = self.config.model_copy(update={"training": training})
        return Pipeline(
            config, device=self.device, callbacks=self.callbacks, backbone=self.backbone
        )

    def _loggers(self, folders: Mapping[int, Path], tensorboard: bool) -> Iterator[Callback]:
        for seed, folder in folders.items():
            for fold in range(self.config.data.folds or 1):
                own = self.network_seed(seed, fold)
                yield JSONLines(folder / "metrics.jsonl", seed=own)
                if tensorboard:
                    yield TensorBoard(folder / "tensorboard", seed=own)

    def _save(
        self,
        model: Model,
        prepared: Prepared,
        prediction: Prediction | None,
        history: History,
        folder: Path,
        report: bool,
    ) -> None:
        """Save a model, write its report, and remove its checkpoints."""
        samples = prepared.calibration
        model.save(folder)
        if report and prediction is not None and samples is not None:
            from dubito.report.page import View

            View(model, samples, prediction, history.records).write(folder)
        (folder / CHECKPOINT).unlink(missing_ok=True)
        for place in folder.glob("fold-*"):
            (place / CHECKPOINT).unlink(missing_ok=True)
            place.rmdir()

    def prepare(self, source: Source) -> Prepared:
        """Divide training data, and learn from its targets what is predicted.

        Args:
            source: Labeled samples.
        """
        if source.target is None:
            raise DubitoError(f"{source.name} has no target to learn")
        config = self.config
        if config.task_kind == "classification":
            if config.data.task is None and _are_numbers(source.target):
                raise DubitoError(
                    f"the target of {source.name} looks like a number, not a class: use the method "
                    "'der' for regression, or task='classification'"
                )
            task: Task = Classification.from_target(source.target)
            parts = config.divide(source, task)
            encoded = task.encode(self._training(parts, source).target)
            # Posterior Networks need a sample of each class; a class without one counts as one.
            counts = torch.bincount(encoded, minlength=task.size).clamp_min(1).tolist()
            return Prepared(task.model_copy(update={"counts": tuple(counts)}), source, parts)
        tolerance = config.data.tolerance
        # Mean and deviation come from the training samples alone.
        parts = config.divide(source, Regression.from_target(source.target, tolerance=tolerance))
        trained = self._training(parts, source).target
        return Prepared(Regression.from_target(trained, tolerance=tolerance), source, parts)

    @staticmethod
    def _training(parts: list[Parts], source: Source) -> Source:
        return parts[0].train if len(parts) == 1 else source

    def build(self, prepared: Prepared, seed: int) -> Model:
        """Build an untrained model; with folds the ensemble of their networks.

        Args:
            prepared: Training data.
            seed: Seed of the initial weights.
        """
        method = self.config.method
        if self.config.data.folds is not None:
            method = METHODS.build("ensemble", member=method, size=self.config.data.folds)
        parts = (prepared.task, self._preprocessing(prepared))
        model = Model.build(method, *parts, self.backbone, seed=seed, pretrained=True)
        posthoc = self.config.posthoc
        model.check_scores(posthoc + policy_scores(model, self.config.policy, posthoc))
        texts = [self.config.input_warning(), method.warning(prepared.task)]
        if model.backbone is not None:
            texts.append(model.backbone.warning(model.preprocessing.shape))
        for text in filter(None, texts):
            warnings.warn(text, stacklevel=3)
        return model

    def _preprocessing(self, prepared: Prepared) -> Preprocessing:
        source = self._training(prepared.parts, prepared.source)
        if self._streams(source):
            count = max(1, min(MAX_FITTED, FITTED_BYTES // source[0].nbytes))
            source = source.subset(range(0, len(source), -(-len(source) // count)))
        data, wanted = self.config.data, self.config.inputs()
        mean, std = data.mean, data.std
        if wanted is not None and wanted.mean is not None:
            is_free = mean is None and data.standardize is None
            if is_free and len(wanted.mean) == source.format.shape[0]:  # not in another mode
                mean, std = wanted.mean, wanted.std
        return Preprocessing.fit(source.format, source.load(), data.standardize, mean=mean, std=std)

    def train(
        self,
        models: Sequence[Model],
        prepared: Prepared,
        *,
        seeds: Sequence[int] | None = None,
        class_weight: Tensor | None = None,
        out: Sequence[Path] | None = None,
        finish: bool = False,
        loggers: Sequence[Callback] = (),
    ) -> list[History]:
        """Train models in place, or resume.

        Args:
            models: Models of `build`.
            prepared: Training data.
            seeds: Seed of each model; None: that of the configuration.
            class_weight: Weight of each class; None: that of the configuration.
            out: Folder of each model's checkpoint; None saves none.
            finish: End interrupted trainings now, with the weights of their checkpoints.
            loggers: Callbacks that log what the others add to a record.

        Returns:
            History of each model; with folds that of its first network.
        """
        config = self.config.training
        if not self.config.selection:
            config = config.model_copy(update={"keep": LAST})
        callbacks = (*self.callbacks, *loggers)
        trainer = Trainer(config, callbacks=callbacks, device=self.device)
        seeds = [config.seed] if seeds is None else seeds
        if class_weight is None:
            class_weight = _class_weight(self.config, prepared.task)
        ood = self._train_ood(models[0])
        histories: list[History] = []
        folds = [*enumerate(prepared.parts)]
        values = math.prod(models[0].preprocessing.shape) * len(prepared.source) * len(folds)
        together = len(folds) if values <= VALUES_AT_ONCE else 1
        for start in range(0, len(folds), together):
            members, train, selection, own_seeds, folders = [], [], [], [], []
            for fold, part in folds[start : start + together]:
                members += [self._member(model, fold) for model in models]
                own_seeds += [self.network_seed(seed, fold) for seed in seeds]
                folders += [self._folder(folder, fold) for folder in out or ()]
                train += [self._samples(part.train, prepared.task)] * len(models)
                # Not even progress is shown on calibration samples: users would stop by it.
                if part.selection is not None:
                    selection += [self._samples(part.selection, prepared.task)] * len(models)
            histories += trainer.fit_many(
                members, train, selection or None, seeds=own_seeds, ood=ood,
                class_weight=class_weight, out=folders or None, finish=finish,
            )  # fmt: skip
        return histories[: len(models)]

    def train_heads(
        self,
        models: Mapping[int, Model],
        prepared: Prepared,
        folders: Mapping[int, Path],
        *,
        freeze: bool = False,
        report: bool = False,
    ) -> dict[int, Model]:
        """Train the heads of pretrained networks on their features, and save these first models.

        Heads that are saved already are read.

        Args:
            models: Models of `build`, by seed.
            prepared: Training data.
            folders: Folder of each model.
            freeze: Whether nothing else is trained.
            report: Write report.html if that is so.

        Returns:
            The first models that were trained, by seed. Their networks are those of `models`.
        """
        trained: dict[int, Model] = {}
        if not _learns_head(next(iter(models.values()))):
            return trained
        waiting = {}
        for seed, model in models.items():
            if (folders[seed] / MODEL).exists():
                saved = self._saved(folders[seed], prepared, seed)
                # Adapters, which have not been trained yet, are not in the file.
                model.network.load_state_dict(saved.network.state_dict(), strict=False)
            elif not (folders[seed] / CHECKPOINT).exists():
                waiting[seed] = model
        if not waiting:
            return trained
        first_seed, any_model = next(iter(waiting.items()))
        features = self._features(first_seed, any_model, prepared)
        heads = self._heads(any_model)
        for seed, model in waiting.items():
            dropout = None if model.backbone is None else model.backbone.dropout
            heads.backbone = partial(_identity, dropout=dropout)
            head = heads.build(features, seed)
            (history,) = heads.train([head], features, seeds=[seed])
            prediction = heads.finish(head, features, history, seed)
            loaded = model.network.load_state_dict(head.network.state_dict(), strict=False)
            assert not loaded.unexpected_keys
            own = model if freeze or not has_adapters(model) else deepcopy(model)
            merge_adapters(own.network)
            parts = (own.network, model.method, model.task, model.preprocessing)
            first = Model(*parts, backbone=model.backbone)
            first.calibration, first.policy = head.calibration, head.policy
            first.scores = head.scores
            if prepared.calibration is not None:
                first.policy = sanity.checked(first, prepared.calibration)
            config = self._recorded(seed)
            known = {"config": config, "fingerprint": prepared.fingerprint, "frozen": True}
            first.record = head.record and head.record.model_copy(update=known)
            if parallel.rank() == 0:
                self._save(first, prepared, prediction, history, folders[seed], report and freeze)
            trained[seed] = first
        return trained

    def _heads(self, model: Model) -> "Pipeline":
        """Return a pipeline for heads on features, with the scores of a model."""
        scores = self.config.posthoc
        scores += policy_scores(model, self.config.policy, scores)
        values = {"standardize": False, "mean": None, "std": None, "stream": None}
        data = self.config.data.model_copy(update=values)
        update = {"data": data, "training": TrainConfig(**HEAD), "backbone": {"name": AUTO}}
        config = self.config.model_copy(update={**update, "posthoc": scores})
        return Pipeline(config, device=self.device)

    def _features(self, seed: int, model: Model, prepared: Prepared) -> Prepared:
        """Return training data with the features of a network in place of inputs."""
        training = self.config.training
        network = next(part for part in model.network.modules() if isinstance(part, Network))
        if training.channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        own = Model(network, model.method, model.task, model.preprocessing).to(self.device)
        first = prepared.parts[0].train
        source = first.source if len(prepared.parts) == 1 else prepared.source
        callbacks = self.callbacks if parallel.rank() == 0 else ()
        progress = feature_progress(callbacks, network, seed, training.num_epochs, len(source))
        values = own.features(source, progress=progress).cpu()
        table = Items(
            source.name, ArrayFormat(shape=values.shape[1:]), values.numpy(), source.target,
            names=[source.item(row) for row in range(len(source))],
            encoded=Encoded(values, {}, {}), weight=source.weight,
        )  # fmt: skip

        def part(own: Subset | None) -> Subset | None:
            return None if own is None else table.subset(own.indices)

        parts = [
            Parts(table.subset(own.train.indices), part(own.selection), part(own.calibration))
            for own in prepared.parts
        ]
        return Prepared(prepared.task, table, parts)

    def _folder(self, folder: Path, fold: int) -> Path:
        """Return the folder of the checkpoint of a fold."""
        return folder if self.config.data.folds is None else folder / f"fold-{fold + 1}"

    def network_seed(self, seed: int, fold: int) -> int:
        """Return the seed of the training of a fold.

        Args:
            seed: Seed of the run.
            fold: Number of the fold, from 0.
        """
        return seed * (self.config.data.folds or 1) + fold

    def _member(self, model: Model, fold: int) -> Model:
        """Return a model around the network of a fold."""
        if self.config.data.folds is None:
            return model
        networks: Any = model.network
        parts = self.config.method, model.task, model.preprocessing
        return Model(networks[fold], *parts, backbone=model.backbone)

    def _samples(self, source: Source, task: Task) -> Samples:
        """Return inputs, in memory if they fit, and encoded targets."""
        inputs = source if self._streams(source) else source.load()
        return inputs, task.target(source.target, source.weight)

    def _streams(self, source: Source) -> bool:
        stream = self.config.data.stream
        return not source.is_in_memory if stream is None else stream

    def _train_ood(self, model: Model) -> Tensor | None:
        name = self.config.data.train_ood
        if name is None:
            return None
        format = model.preprocessing.inputs
        return datasets.open(name, "train", format=format, resize=True, labeled=False).load()

    def fit(self, model: Model, prepared: Prepared) -> Prediction | None:
        """Fit scores, calibration and policy of a trained model.

        Args:
            model: Trained model.
            prepared: Training data.

        Returns:
            Prediction of the calibration samples by networks that were not trained on them, with
            calibration and policy; None without such samples.
        """
        samples, policy = prepared.calibration, self.config.policy
        posthoc = self.config.posthoc
        self.add_scores(model, posthoc + policy_scores(model, policy, posthoc), prepared)
        if samples is None:
            return None
        prediction, exponent = self.held_out(model, prepared), self._exponent(model, prepared)
        return fit_held_out(model, prediction, samples, policy, exponent=exponent)

    def _exponent(self, model: Model, prepared: Prepared) -> float:
        """Choose the width of intervals on the selection samples."""
        parts = [part.selection for part in prepared.parts if part.selection is not None]
        if model.task.kind != "regression" or not parts:
            return DEFAULT_EXPONENT
        members = (self._member(model, fold) for fold in range(len(parts)))
        chosen = _joined([own.predict(part) for own, part in zip(members, parts, strict=True)])
        rows = [row for part in parts for row in part.indices]
        target = model.task.target(prepared.source.subset(rows).target)
        return interval_exponent(chosen.distribution, target)

    def add_scores(self, model: Model, scores: Sequence[Score], prepared: Prepared) -> None:
        """Add post-hoc scores, fitted to one pass over the training samples, or many of them.

        Args:
            model: Trained model.
            scores: Scores.
            prepared: Training data.
        """
        train = prepared.parts[0].train
        model.add_scores(scores, train.subset(range(0, len(train), -(-len(train) // MAX_SCORED))))

    def held_out(self, model: Model, prepared: Prepared) -> Prediction:
        """Predict the calibration samples by networks that were not trained on them.

        Args:
            model: Trained model.
            prepared: Training data.
        """
        parts = [part.calibration for part in prepared.parts if part.calibration is not None]
        if not parts:
            raise DubitoError("this model was trained without calibration samples: pass data")
        return _joined([self._member(model, fold).predict(part) for fold, part in enumerate(parts)])

    def finish(
        self, model: Model, prepared: Prepared, history: History, seed: int
    ) -> Prediction | None:
        """Fit scores, calibration and policy, and record how the model was trained.

        Args:
            model: Trained model.
            prepared: Training data.
            history: History of the training.
            seed: Seed of the run.

        Returns:
            Result of `fit`.
        """
        prediction = self.fit(model, prepared)
        found: Json = {}
        if prediction is not None and prepared.calibration is not None:
            samples = prepared.calibration
            target = model.task.target(samples.target, samples.weight)
            found = evaluate(model.task, prediction.distribution, target, ())
        device = next(model.parameters()).device
        model.record = TrainingRecord(
            config=self._recorded(seed),
            seed=seed,
            epochs=len(history.records),
            best_epoch=history.best_epoch,
            seconds=history.seconds,
            samples=prepared.samples,
            fingerprint=prepared.fingerprint,
            metrics=found.get("metrics", {}),
            recall=found.get("recall", {}),
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        )
        return prediction

    def _recorded(self, seed: int) -> Json:
        """Return the configuration of the run of a seed, as plain values."""
        training = self.config.training.model_copy(update={"seed": seed})
        return self.config.model_copy(update={"training": training}).model_dump(mode="json")

    def finished(
        self,
        folder: Path,
        prepared: Prepared,
        seed: int,
        *,
        finish: bool = False,
        freeze: bool = False,
    ) -> Model | None:
        """Return the model of a finished run; raise if the folder contains another run.

        Args:
            folder: Folder of the run.
            prepared: Training data.
            seed: Seed of the run.
            finish: Whether a head on frozen features will do if the run has no checkpoint.
            freeze: Whether it will do in any case.
        """
        if not (folder / MODEL).exists() or (not freeze and (folder / CHECKPOINT).exists()):
            return None
        model = self._saved(folder, prepared, seed)
        if model.record is None or (model.record.frozen and not (finish or freeze)):
            return None
        policy = RunConfig.merge(model.record.config, {}).policy
        if policy != self.config.policy and prepared.calibration and parallel.rank() == 0:
            self.add_scores(model, policy_scores(model, self.config.policy), prepared)
            prediction = self.held_out(model, prepared)
            refit(model, prediction, prepared.calibration, self.config.policy)
            model.save(folder)
        return model

    def _saved(self, folder: Path, prepared: Prepared, seed: int) -> Model:
        """Return the model in the folder of a run; raise if it contains another run."""
        backbone = self.config.backbone
        path = backbone["path"] if backbone["name"] == "module" else None
        model = Model.load(folder, network=import_function(path) if path else None)
        if model.record is None:
            raise DubitoError(
                f"{folder} contains a model that was trained elsewhere: choose another folder"
            )
        before = RunConfig.merge(model.record.config, {})
        saved = {**before.identity(), "fingerprint": model.record.fingerprint}
        config = self.tuned(model, prepared, model.record.device).config
        now = {**config.identity(), "training.seed": seed}
        for key, value in {**now, "fingerprint": prepared.fingerprint}.items():
            if saved.get(key) != value:
                raise DubitoError(
                    f"{folder} contains another run: its {key} is {_shown(saved.get(key))}, not "
                    f"{_shown(value)}; choose another folder"
                )
        return model

    def describe(self, model: Model, prepared: Prepared, *, freeze: bool = False) -> str:
        """Describe data, model and duration of a training in a line, and what would be better.

        Args:
            model: Model of `build`.
            prepared: Training data.
            freeze: Whether only the head is trained.
        """
        task, source = model.task, prepared.source
        backbone = "custom" if model.backbone is None else BACKBONES.name_of(model.backbone)
        what = SAMPLES.get(FORMATS.name_of(source.format), "samples")
        if self.config.data.folds is None:
            *counts, last = [f"{count:,} {name}" for name, count in prepared.samples.items()]
            samples = f"{', '.join(counts)} and {last} {what}" if counts else f"{last} {what}"
        else:
            samples = f"{len(source):,} {what} in {self.config.data.folds} folds"
        classifies = task.kind == "classification"
        target = f"{task.size} classes" if classifies else f"target {', '.join(task.names)}"
        method = METHODS.name_of(self.config.method)
        weights = " with pretrained weights" if model.backbone and model.backbone.pretrained else ""
        hint = advice(model.preprocessing.shape, FORMATS.name_of(source.format), model.backbone)
        return (
            f"{source.name}: {samples} of shape {model.preprocessing.shape}, {target}; method "
            f"{method}, backbone {backbone}{weights}, {self.device}: "
            f"{self._duration(model, prepared, freeze)}{'; ' + hint if hint else ''}"
        )

    def _duration(self, model: Model, prepared: Prepared, freeze: bool) -> str:
        """Say how long a training takes, by the time of a batch."""
        training, device = self.config.training, torch.empty(0, device=self.device).device
        train = prepared.parts[0].train
        count = sum(len(part.train) for part in prepared.parts)
        epochs = training.for_samples(len(train)).num_epochs
        batch = train.load(range(min(training.batch_size, len(train))))
        forward, step = seconds_per_sample(model, batch, training, device)
        whole = f"about {_time(step * count * epochs)} for {epochs} epochs"
        if not _learns_head(model):
            return whole
        first = f"a first model in about {_time(forward * len(prepared.source))}"
        share = f" of the last {1 - training.freeze_stages:.0%} of its layers"
        tuned = share if training.freeze_stages else ""
        return first if freeze else f"{first}, then fine-tuning{tuned}, {whole}"


def _identity(shape: Shape, dropout: float | None) -> nn.Module:
    """Build a backbone that returns its inputs, which are features."""
    return chain(shape[0], dropout=dropout)


def _learns_head(model: Model) -> bool:
    """Return whether the head of a network is trained first, on features."""
    is_pretrained = model.backbone is not None and model.backbone.pretrained
    has_parts = any(isinstance(part, Network) for part in model.network.modules())
    reads_inputs = model.method.ood_terms or model.method.teachers
    return is_pretrained and has_parts and not reads_inputs


def _time(seconds: float) -> str:
    """Round a duration for people.

    >>> _time(8.2), _time(51), _time(200), _time(9000)
    ('8 seconds', '51 seconds', '3 minutes', '2.5 hours')
    """
    if seconds < 100:
        return f"{max(seconds, 1):.0f} second{'s' if seconds >= 1.5 else ''}"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"


def _shown(value: Any) -> str:
    """Return a value for a message; that of a tokenizer is long."""
    return shorten(repr(value), LONGEST)


def policy_scores(
    model: Model, policy: PolicyConfig, added: Sequence[Score] = ()
) -> tuple[Score, ...]:
    """Return the post-hoc scores that a policy reads, and a model does not have yet.

    By default OOD images are detected by their features, not by evidence: some networks have more
    of it for noise than for photos. Methods that train with OOD inputs keep their score,
    and so do ensembles and folds, of which the features are too many, or not those of one network.

    Args:
        model: Trained model.
        policy: Guarantee of the policy.
        added: Further scores that the model gets.
    """
    names = {name for name in (policy.score, policy.ood_score) if name is not None}
    if policy.ood_score is None and sanity.shows_images(model) and _has_features(model):
        names.add(FAMILIARITY)
    known = {*model.method.scores(model.task), *model.scores, *map(SCORES.name_of, added)}
    return tuple(SCORES.build(name) for name in sorted(names - known))


def _has_features(model: Model) -> bool:
    """Return whether one network has features of classes, and not too many."""
    if model.task.kind != "classification" or model.method.ood_terms:
        return False
    if isinstance(model.network, nn.ModuleList):
        return False
    try:
        return model.features(model.preprocessing.inputs.blank(2)).shape[1] <= MAX_FEATURES
    except DubitoError:  # of a network of the user
        return False


def fit_held_out(
    model: Model,
    prediction: Prediction,
    samples: Source,
    policy: PolicyConfig,
    coverage: float | None = None,
    exponent: float | None = None,
) -> Prediction:
    """Fit calibration and policy to held-out samples, and check what the policy accepts.

    Args:
        model: Trained model.
        prediction: Prediction of samples that it was neither trained nor selected on.
        samples: These samples, labeled.
        policy: Guarantee of the policy.
        coverage: Guarantee this share of accepted predictions in place of an error rate.
        exponent: Power of the deviation for the width of intervals; None keeps that of the model.

    Returns:
        The prediction, with calibration and policy.
    """
    if exponent is None:
        exponent = DEFAULT_EXPONENT if model.calibration is None else model.calibration.exponent
    target = samples.target
    model.calibrate(prediction, target, levels=policy.levels, exponent=exponent)
    if model.task.defines_errors or (coverage, policy.max_width) != (None, None):
        options = policy.model_dump(exclude={"levels"})
        model.fit_policy(prediction, target, coverage=coverage, **options)
        model.policy = sanity.checked(model, samples)
    return prediction.reread(model)


def refit(
    model: Model,
    prediction: Prediction,
    samples: Source,
    policy: PolicyConfig,
    coverage: float | None = None,
) -> None:
    """Fit calibration and policy again, and record the configuration of the policy.

    A policy that accepts predictions is not replaced by one that accepts none.

    Args:
        model: Finished model.
        prediction: Prediction of held-out samples.
        samples: These samples, labeled.
        policy: Guarantee of the policy.
        coverage: Guarantee this share of accepted predictions in place of an error rate.
    """
    calibration, old = model.calibration, model.policy
    fit_held_out(model, prediction, samples, policy, coverage)
    new = model.policy
    if new is not None and new.accepts_nothing and old and not old.accepts_nothing:
        model.calibration, model.policy = calibration, old
        raise DubitoError(
            f"the model keeps its policy, because the new one would be {new!r}: pass more data, "
            "or allow more errors (error_rate)"
        )
    if model.record is not None:
        config = {**model.record.config, "policy": policy.model_dump()}
        model.record = model.record.model_copy(update={"config": config})


def _joined(predictions: Sequence[Prediction]) -> Prediction:
    """Join the predictions of networks, each of its own samples."""
    first, *others = predictions
    if not others:
        return first
    ranges = [part.in_range for part in predictions if part.in_range is not None]
    return replace(
        first,
        distribution=Distribution.cat([part.distribution for part in predictions]),
        point=torch.cat([part.point for part in predictions]),
        in_range=torch.cat(ranges),
        notes={},
        inputs=[name for part in predictions for name in part.inputs or ()] or None,
        out_of_fold=True,
    )


def _are_numbers(target: Any) -> bool:
    """Return whether targets look like measurements rather than classes."""
    values = np.asarray(target)
    return values.dtype.kind == "f" and len(np.unique(values)) > len(values) / 2


def _class_weight(config: RunConfig, task: Task) -> Tensor | None:
    """Return weights with which all classes count alike, 1 on average over the samples."""
    wanted = config.data.class_weight
    if wanted == "none" or not isinstance(task, Classification):
        return None
    counts = torch.tensor(task.counts, dtype=torch.float64)
    if wanted == "auto" and counts.max() < IMBALANCE * counts.min():
        return None
    return (counts.sum() / (len(counts) * counts)).float()
