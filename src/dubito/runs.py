"""Runs: trainings in folders, resumed after an interruption.

The folder of a run gets checkpoints, then the model and its report. A pretrained network is
fine-tuned from a head on its features: a first model, which is saved before the rest is trained.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dubito import sanity
from dubito.backbones import BACKBONES
from dubito.backbones.base import Shape, chain
from dubito.backbones.default import AUTO, advice
from dubito.config import Parts, RunConfig
from dubito.data.base import Items, Subset
from dubito.errors import DubitoError
from dubito.formats import FORMATS, ArrayFormat, Encoded
from dubito.methods import METHODS
from dubito.methods.base import Network
from dubito.model import Model, Prediction
from dubito.model.folder import MODEL, TrainingRecord
from dubito.pipeline import Pipeline, Prepared, policy_scores, refit
from dubito.plugins import import_function
from dubito.report.page import View
from dubito.training import Callback, History, JSONLines, TensorBoard, parallel
from dubito.training.callbacks import feature_progress
from dubito.training.config import TrainConfig
from dubito.training.recipes import HEAD, has_adapters, with_recipe
from dubito.training.run import CHECKPOINT, merge_adapters
from dubito.training.trainer import seconds_per_sample

__all__: list[str] = []

#: characters of a value in a message
LONGEST = 200
#: plural of a sample by the kind of its format
SAMPLES = {"image": "images", "table": "rows"}


@dataclass(frozen=True)
class Runs:
    """Runs that differ in their seed.

    Args:
        pipeline: Pipeline.
        prepared: Training data.
        folders: Folder of each run, by its seed.
        report: Write report.html.
        finish: End interrupted trainings now, with the weights of their checkpoints.
        freeze: Train only the heads of pretrained networks.
    """

    pipeline: Pipeline
    prepared: Prepared
    folders: Mapping[int, Path]
    report: bool = True
    finish: bool = False
    freeze: bool = False

    def train(
        self, *, tensorboard: bool = False, on_start: Callable[[str], Any] | None = None
    ) -> list[Model]:
        """Train and save the models, or resume; the models of finished runs are loaded.

        Args:
            tensorboard: Write scalars for TensorBoard.
            on_start: Function that is called with a line about data and model.
        """
        found = {seed: self._finished(seed) for seed in self.folders}
        models = {seed: model for seed, model in found.items() if model is not None}
        missing = {seed: folder for seed, folder in self.folders.items() if found[seed] is None}
        if missing:
            built = {seed: self.pipeline.build(self.prepared, seed) for seed in missing}
            first = next(iter(built.values()))
            if self.freeze and not _learns_head(first):
                raise DubitoError("freeze=True needs a pretrained backbone, such as 'hf:FOLDER'")
            own = replace(self, pipeline=self._tuned(first), folders=missing)
            if on_start is not None:
                on_start(own.describe(first))
            heads = own._train_heads(built) if self.freeze or not self.finish else {}
            models |= built | heads if self.freeze else own._train(built, tensorboard)
        return [models[seed] for seed in self.folders]

    def _train(self, models: Mapping[int, Model], tensorboard: bool) -> Mapping[int, Model]:
        """Train models by their seeds in place, and save them."""
        callbacks = (*self.pipeline.callbacks, *self._loggers(tensorboard))
        histories = replace(self.pipeline, callbacks=callbacks).train(
            [*models.values()], self.prepared, seeds=[*models], out=[*self.folders.values()],
            finish=self.finish,
        )  # fmt: skip
        for (seed, model), history in zip(models.items(), histories, strict=True):
            if parallel.rank() == 0:
                prediction = self.pipeline.finish(model, self.prepared, history, seed)
                folder = self.folders[seed]
                save(model, self.prepared, prediction, history, folder, self.report)
                _remove_checkpoints(folder)
        return models

    def _loggers(self, tensorboard: bool) -> Iterator[Callback]:
        for seed, folder in self.folders.items():
            for fold in range(len(self.prepared.parts)):
                own = self.pipeline.network_seed(seed, fold)
                yield JSONLines(folder / "metrics.jsonl", seed=own)
                if tensorboard:
                    yield TensorBoard(folder / "tensorboard", seed=own)

    def _tuned(self, model: Model, device: str | None = None) -> Pipeline:
        """Return the pipeline with the recipe for a model and a device, but for what is set."""
        pipeline = self.pipeline
        count = min(len(part.train) for part in self.prepared.parts)
        device = device or torch.device(pipeline.device).type
        member = pipeline.member(model, 0)
        training = with_recipe(pipeline.config.training, member, count, device)
        return replace(pipeline, config=pipeline.config.model_copy(update={"training": training}))

    # --- runs that have been started ---

    def _finished(self, seed: int) -> Model | None:
        """Return the model of a finished run; raise if the folder contains another run.

        A head on features will do if nothing else is to be trained.
        """
        folder, pipeline, prepared = self.folders[seed], self.pipeline, self.prepared
        has_checkpoint = not self.freeze and (folder / CHECKPOINT).exists()
        if not (folder / MODEL).exists() or has_checkpoint:
            return None
        model, record = self._saved(seed)
        if record.frozen and not (self.finish or self.freeze):
            return None
        policy = RunConfig.merge(record.config, {}).policy
        if policy != pipeline.config.policy and prepared.calibration and parallel.rank() == 0:
            scores = policy_scores(model, pipeline.config.policy)
            pipeline.add_scores(model, scores, prepared)
            prediction = pipeline.held_out(model, prepared)
            refit(model, prediction, prepared.calibration, pipeline.config.policy)
            model.save(folder)
        return model

    def _saved(self, seed: int) -> tuple[Model, TrainingRecord]:
        """Return the model in the folder of a run, and its record; raise if it is another run."""
        folder, backbone = self.folders[seed], self.pipeline.config.backbone
        path = backbone["path"] if backbone["name"] == "module" else None
        model = Model.load(folder, network=import_function(path) if path else None)
        record = model.record
        if record is None:
            raise DubitoError(
                f"{folder} contains a model that was trained elsewhere: choose another folder"
            )
        before = RunConfig.merge(record.config, {})
        saved = {**before.identity(), "fingerprint": record.fingerprint}
        config = self._tuned(model, record.device).config
        now = {**config.identity(), "training.seed": seed}
        for key, value in {**now, "fingerprint": self.prepared.fingerprint}.items():
            if saved.get(key) != value:
                old, new = _shown(saved.get(key), value)
                raise DubitoError(
                    f"{folder} contains another run: its {key} is {old}, not {new}; choose "
                    "another folder"
                )
        return model, record

    # --- first models ---

    def _train_heads(self, models: Mapping[int, Model]) -> dict[int, Model]:
        """Train the heads of pretrained networks on their features, and save these first models.

        Heads that are saved already are read. Returns the first models that were trained, by seed.
        Their networks are those of `models`.
        """
        trained: dict[int, Model] = {}
        if not _learns_head(next(iter(models.values()))):
            return trained
        waiting = {}
        for seed, model in models.items():
            if (self.folders[seed] / MODEL).exists():
                saved, _ = self._saved(seed)
                # Adapters, which have not been trained yet, are not in the file.
                model.network.load_state_dict(saved.network.state_dict(), strict=False)
            elif not (self.folders[seed] / CHECKPOINT).exists():
                waiting[seed] = model
        if not waiting:
            return trained
        first_seed, any_model = next(iter(waiting.items()))
        features, heads = self._features(first_seed, any_model), self._heads(any_model)
        for seed, model in waiting.items():
            head = heads.build(features, seed)
            (history,) = heads.train([head], features, seeds=[seed])
            prediction = heads.finish(head, features, history, seed)
            loaded = model.network.load_state_dict(head.network.state_dict(), strict=False)
            assert not loaded.unexpected_keys
            own = model if self.freeze or not has_adapters(model) else deepcopy(model)
            merge_adapters(own.network)
            parts = (own.network, model.method, model.task, model.preprocessing)
            first = Model(*parts, backbone=model.backbone)
            first.calibration, first.policy = head.calibration, head.policy
            first.scores = head.scores
            if self.prepared.calibration is not None:
                first.policy = sanity.checked(first, self.prepared.calibration)
            config = self.pipeline.recorded(seed)
            known = {"config": config, "fingerprint": self.prepared.fingerprint, "frozen": True}
            first.record = head.record and head.record.model_copy(update=known)
            if parallel.rank() == 0:
                report = self.report and self.freeze
                save(first, self.prepared, prediction, history, self.folders[seed], report)
                _remove_checkpoints(self.folders[seed])
            trained[seed] = first
        return trained

    def _heads(self, model: Model) -> Pipeline:
        """Return a pipeline for heads on features, with the scores of a model."""
        config = self.pipeline.config
        values = {"standardize": False, "mean": None, "std": None, "stream": None}
        data = config.data.model_copy(update=values)
        update = {"data": data, "training": TrainConfig(**HEAD), "backbone": {"name": AUTO}}
        config = config.model_copy(update={**update, "posthoc": self.pipeline.scores(model)})
        dropout = None if model.backbone is None else model.backbone.dropout
        backbone = partial(_identity, dropout=dropout)
        return Pipeline(config, device=self.pipeline.device, backbone=backbone)

    def _features(self, seed: int, model: Model) -> Prepared:
        """Return training data with the features of a network in place of inputs."""
        pipeline, prepared = self.pipeline, self.prepared
        training = pipeline.config.training
        network = next(part for part in model.network.modules() if isinstance(part, Network))
        if training.channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        own = Model(network, model.method, model.task, model.preprocessing).to(pipeline.device)
        first = prepared.parts[0].train
        source = first.source if len(prepared.parts) == 1 else prepared.source
        callbacks = pipeline.callbacks if parallel.rank() == 0 else ()
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

    # --- messages ---

    def describe(self, model: Model) -> str:
        """Describe data, model and duration of a training in a line, and what would be better.

        Args:
            model: Model of `Pipeline.build`.
        """
        pipeline, prepared, task = self.pipeline, self.prepared, model.task
        source, shape = prepared.source, model.preprocessing.shape
        backbone = "custom" if model.backbone is None else BACKBONES.name_of(model.backbone)
        format = FORMATS.name_of(source.format)
        what = SAMPLES.get(format, "samples")
        if pipeline.config.data.folds is None:
            *counts, last = [f"{count:,} {name}" for name, count in prepared.samples.items()]
            samples = f"{', '.join(counts)} and {last} {what}" if counts else f"{last} {what}"
        else:
            samples = f"{len(source):,} {what} in {pipeline.config.data.folds} folds"
        classifies = task.kind == "classification"
        target = f"{task.size} classes" if classifies else f"target {', '.join(task.names)}"
        method = METHODS.name_of(pipeline.config.method)
        weights = " with pretrained weights" if model.backbone and model.backbone.pretrained else ""
        hint = advice(shape, format, model.backbone)
        return (
            f"{source.name}: {samples} of shape {shape}, {target}; method {method}, backbone "
            f"{backbone}{weights}, {pipeline.device}: {self._duration(model)}"
            f"{'; ' + hint if hint else ''}"
        )

    def _duration(self, model: Model) -> str:
        """Say how long a training takes, by the time of a batch."""
        training = self.pipeline.config.training
        device = torch.empty(0, device=self.pipeline.device).device
        train = self.prepared.parts[0].train
        count = sum(len(part.train) for part in self.prepared.parts)
        epochs = training.for_samples(len(train)).num_epochs
        batch = train.load(range(min(training.batch_size, len(train))))
        forward, step = seconds_per_sample(model, batch, training, device)
        plural = "" if epochs == 1 else "s"
        whole = f"about {_time(step * count * epochs)} for {epochs} epoch{plural}"
        if not _learns_head(model):
            return whole
        first = f"a first model in about {_time(forward * len(self.prepared.source))}"
        share = f" of the last {1 - training.freeze_stages:.0%} of its layers"
        tuned = share if training.freeze_stages else ""
        return first if self.freeze else f"{first}, then fine-tuning{tuned}, {whole}"


def save(
    model: Model,
    prepared: Prepared,
    prediction: Prediction | None,
    history: History,
    folder: Path,
    report: bool,
) -> None:
    """Save a model, and write its report.

    Args:
        model: Finished model.
        prepared: Training data.
        prediction: Prediction of the calibration samples; without one there is no report.
        history: History of the training.
        folder: Folder of the model.
        report: Write report.html.
    """
    model.save(folder)
    if report and prediction is not None and prepared.calibration is not None:
        View(model, prepared.calibration, prediction, history.records).write(folder)


def _remove_checkpoints(folder: Path) -> None:
    (folder / CHECKPOINT).unlink(missing_ok=True)
    for place in folder.glob("fold-*"):
        (place / CHECKPOINT).unlink(missing_ok=True)
        place.rmdir()


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


def _shown(*values: Any) -> Iterator[str]:
    """Yield values for a message; of long ones, such as tokenizers, the part that differs."""
    texts = [repr(value) for value in values]
    pairs = enumerate(zip(*texts, strict=False))
    differs = next((place for place, letters in pairs if len({*letters}) > 1), 0)
    start = max(0, differs - LONGEST // 2) if max(map(len, texts)) > LONGEST else 0
    for text in texts:
        part = text[start : start + LONGEST]
        yield f"{'...' if start else ''}{part}{'...' if text[start + LONGEST :] else ''}"
