"""The pipeline of a training: divide, build, train, fit, check.

`dubito.train`, the command line, the scikit-learn estimators and the reproduction of the paper run
these steps; `dubito.runs` saves and resumes them. Each sample serves one purpose: it trains the
network, chooses the epoch, or calibrates. With folds each network calibrates on the fold that it
was not trained on.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dubito import data as datasets
from dubito import sanity
from dubito.backbones.base import BackboneLike
from dubito.calibration import LEVEL, interval_exponent
from dubito.config import Parts, PolicyConfig, RunConfig
from dubito.data import Source
from dubito.distributions import Distribution
from dubito.errors import DubitoError
from dubito.evaluation import evaluate
from dubito.formats import Preprocessing
from dubito.methods import METHODS
from dubito.model import Model, Prediction
from dubito.model.folder import TrainingRecord
from dubito.model.model import FAMILIARITY
from dubito.scores import SCORES, Score
from dubito.tasks import Classification, Regression, Task, are_numbers
from dubito.training import Callback, History, Trainer
from dubito.training.batches import Samples
from dubito.training.config import LAST
from dubito.types import Json

__all__ = ["Pipeline", "Prepared"]

#: streamed inputs, and their bytes, that determine means and deviations
MAX_FITTED, FITTED_BYTES = 4096, 1 << 27
#: power of the deviation for the width of intervals, where no samples choose it
DEFAULT_EXPONENT = 0.5
#: values of the inputs of all folds up to which these are trained at once
VALUES_AT_ONCE = 1 << 24
#: ratio of the most frequent to the rarest class from which samples are weighted
IMBALANCE = 3
#: training samples that post-hoc scores are fitted to
MAX_SCORED = 1 << 16
#: features beyond which their covariance takes minutes and more memory than most networks
MAX_FEATURES = 4096


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
    def training(self) -> Source:
        """Samples that a network is trained on; with folds, all of them."""
        return self.parts[0].train if len(self.parts) == 1 else self.source

    @property
    def calibration(self) -> Source | None:
        """Samples that calibration and policy are fitted to, fold after fold."""
        held_out = [part.calibration for part in self.parts if part.calibration is not None]
        if len(held_out) < 2:
            return held_out[0] if held_out else None
        return self.source.subset([row for part in held_out for row in part.indices])


@dataclass
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

    config: RunConfig
    _: KW_ONLY
    device: torch.device | str = "cpu"
    callbacks: Sequence[Callback] = ()
    backbone: BackboneLike | None = None

    def prepare(self, source: Source) -> Prepared:
        """Divide training data, and learn from its targets what is predicted.

        Args:
            source: Labeled samples.
        """
        if source.target is None:
            raise DubitoError(f"{source.name} has no target to learn")
        config = self.config
        if config.task_kind == "classification":
            if config.data.task is None and are_numbers(source.target):
                raise DubitoError(
                    f"the target of {source.name} looks like a number, not a class: use the method "
                    "'der' for regression, or task='classification'"
                )
            task: Task = Classification.from_target(source.target)
            prepared = Prepared(task, source, config.divide(source))
            encoded = task.encode(prepared.training.target)
            # Posterior Networks need a sample of each class; a class without one counts as one.
            counts = torch.bincount(encoded, minlength=task.size).clamp_min(1).tolist()
            return replace(prepared, task=task.model_copy(update={"counts": tuple(counts)}))
        tolerance = config.data.tolerance
        task = Regression.from_target(source.target, tolerance=tolerance)
        prepared = Prepared(task, source, config.divide(source))
        # Mean and deviation come from the training samples alone.
        task = Regression.from_target(prepared.training.target, tolerance=tolerance)
        return replace(prepared, task=task)

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
        backbone = self.config.backbone if self.backbone is None else self.backbone
        model = Model.build(method, *parts, backbone, seed=seed, pretrained=True)
        model.check_scores(self.scores(model))
        texts = [self.config.input_warning(), method.warning(prepared.task)]
        if model.backbone is not None:
            texts.append(model.backbone.warning(model.preprocessing.shape))
        for text in filter(None, texts):
            warnings.warn(text, stacklevel=3)
        return model

    def _preprocessing(self, prepared: Prepared) -> Preprocessing:
        source = prepared.training
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
    ) -> list[History]:
        """Train models in place, or resume.

        Args:
            models: Models of `build`.
            prepared: Training data.
            seeds: Seed of each model; None: that of the configuration.
            class_weight: Weight of each class; None: that of the configuration.
            out: Folder of each model's checkpoint; None saves none.
            finish: End interrupted trainings now, with the weights of their checkpoints.

        Returns:
            History of each model; with folds that of its first network.
        """
        config = self.config.training
        if not self.config.selection:
            config = config.model_copy(update={"keep": LAST})
        trainer = Trainer(config, callbacks=self.callbacks, device=self.device)
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
                members += [self.member(model, fold) for model in models]
                own_seeds += [self.network_seed(seed, fold) for seed in seeds]
                folders += [self._folder(folder, fold) for folder in out or ()]
                train += [self._samples(part.train, prepared.task)] * len(models)
                # Not even progress is shown on calibration samples: users would stop by it.
                if part.selection is not None:
                    selection += [self._samples(part.selection, prepared.task)] * len(models)
            histories += trainer.fit_many(
                members, train, selection or None, seeds=own_seeds, ood=ood,
                class_weight=class_weight, out=folders or None, finish=finish,
                one_epoch=len(folds) > 1,
            )  # fmt: skip
        return histories[: len(models)]

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

    def member(self, model: Model, fold: int) -> Model:
        """Return a model around the network of a fold.

        Args:
            model: Model of `build`.
            fold: Number of the fold, from 0.
        """
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
        self.add_scores(model, self.scores(model), prepared)
        if samples is None:
            return None
        prediction, exponent = self.held_out(model, prepared), self._exponent(model, prepared)
        return fit_held_out(model, prediction, samples, policy, exponent=exponent)

    def scores(self, model: Model) -> tuple[Score, ...]:
        """Return the post-hoc scores that a model gets, those that its policy reads included.

        Args:
            model: Model of `build`.
        """
        posthoc = self.config.posthoc
        return posthoc + policy_scores(model, self.config.policy, posthoc)

    def _exponent(self, model: Model, prepared: Prepared) -> float:
        """Choose the width of intervals on the selection samples."""
        parts = [part.selection for part in prepared.parts if part.selection is not None]
        if model.task.kind != "regression" or not parts:
            return DEFAULT_EXPONENT
        dist: Any = self._by_members(model, parts).distribution
        if dist.ends(LEVEL) is not None:  # the width of its intervals is not to be chosen
            return DEFAULT_EXPONENT
        rows = [row for part in parts for row in part.indices]
        target = model.task.target(prepared.source.subset(rows).target)
        return interval_exponent(dist, target)

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
        return self._by_members(model, parts)

    def _by_members(self, model: Model, parts: Sequence[Source]) -> Prediction:
        """Predict the samples of each fold by its network, and join the predictions."""
        found = [self.member(model, fold).predict(part) for fold, part in enumerate(parts)]
        if len(found) == 1:
            return found[0]
        ranges = [part.in_range for part in found if part.in_range is not None]
        return replace(
            found[0],
            distribution=Distribution.cat([part.distribution for part in found]),
            point=torch.cat([part.point for part in found]),
            in_range=torch.cat(ranges),
            notes={},
            inputs=[name for part in found for name in part.inputs or ()] or None,
            out_of_fold=True,
        )

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
            config=self.recorded(seed),
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

    def recorded(self, seed: int) -> Json:
        """Return the configuration of the run of a seed, as plain values.

        Args:
            seed: Seed of the run.
        """
        training = self.config.training.model_copy(update={"seed": seed})
        return self.config.model_copy(update={"training": training}).model_dump(mode="json")


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


def _class_weight(config: RunConfig, task: Task) -> Tensor | None:
    """Return weights with which all classes count alike, 1 on average over the samples."""
    wanted = config.data.class_weight
    if wanted == "none" or not isinstance(task, Classification):
        return None
    counts = torch.tensor(task.counts, dtype=torch.float64)
    if wanted == "auto" and counts.max() < IMBALANCE * counts.min():
        return None
    return (counts.sum() / (len(counts) * counts)).float()
