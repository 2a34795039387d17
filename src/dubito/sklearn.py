"""scikit-learn estimators around a `Model`.

>>> from sklearn.datasets import load_wine
>>> X, y = load_wine(return_X_y=True)
>>> classifier = EvidentialClassifier(epochs=20, random_state=0).fit(X[::2], y[::2])
>>> classifier.score(X[1::2], y[1::2]) > 0.9
True
>>> classifier.uncertainty(X[:3], "vacuity").shape
(3,)
"""

import copy
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from operator import index
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.exceptions import NotFittedError
    from sklearn.preprocessing import LabelEncoder, StandardScaler
    from sklearn.utils import check_random_state, compute_class_weight
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "scikit-learn is not installed: pip install 'dubito[sklearn]'", name=error.name
    ) from error

from dubito import _checks
from dubito.api import find_device
from dubito.backbones.base import BackboneLike
from dubito.config import PolicyConfig, RunConfig, validated
from dubito.data import Source
from dubito.data.base import Items
from dubito.errors import DubitoError
from dubito.formats import ArrayFormat, Encoded, InputFormat, Preprocessing, TableFormat
from dubito.formats.arrays import check_resolution
from dubito.formats.tables import Column
from dubito.methods import METHODS, Method
from dubito.methods.ensemble import MixtureMethod
from dubito.methods.posterior_network import DensityHead
from dubito.model import Model, Prediction
from dubito.pipeline import Pipeline
from dubito.targets import is_censored
from dubito.tasks import Classification, Regression, Task, class_names, numbers
from dubito.training import Callback, TrainConfig, Trainer
from dubito.training.recipes import numbers_options
from dubito.types import Array, Options

__all__ = ["EvidentialClassifier", "EvidentialRegressor"]

AnyMethod = str | Mapping[str, Any] | Method
#: fewer held-out samples calibrate worse than cross-validated predictions, and fewer train
MIN_HELD_OUT = 200
#: fewer samples in all are not calibrated
MIN_FOLDED = 20
FOLDS = 5
#: fewer samples keep the last epoch: too few would choose another one
MIN_SELECTED = 100
VALIDATE_EVERY = 4
#: smallest batch of "auto", which makes eight steps per epoch up to the largest
SMALLEST_BATCH = 16


@dataclass(eq=False, repr=False)
class _Estimator(BaseEstimator):
    """Parts that both estimators share.

    scikit-learn reads the parameters from the generated constructor.
    """

    method: AnyMethod
    backbone: BackboneLike = "auto"
    _: KW_ONLY
    epochs: int = 50
    batch_size: int | str = "auto"
    lr: float | str = 2e-3
    weight_decay: float | str = 0.0
    calibrate: bool = True
    error_rate: float | None = None
    confidence: float = 0.95
    false_alarms: float = 0.05
    levels: Sequence[float] | None = None
    validation_fraction: float = 0.1
    folds: int | str | None = "auto"
    random_state: int | np.random.RandomState | None = None
    device: str = "cpu"
    callbacks: Sequence[Callback] | None = None
    _target_options: ClassVar[Options] = {}
    _largest_batch: ClassVar[int] = 64
    #: share of the training samples that chooses the epoch, and by what
    _selection: ClassVar[float] = 0.0
    _keep: ClassVar[str] = "last"

    # --- training ---

    def _fit(
        self,
        X: Array,
        target: Array,
        task: Task,
        class_weight: Tensor | None = None,
        weight: Array | None = None,
    ) -> Self:
        """Train, calibrate and fit the policy.

        Args:
            X: Inputs, (N, *shape).
            target: Targets, (N,) or (N, T); classes are numbered.
            task: Task with the names of the targets.
            class_weight: Weight of each class.
            weight: Weight of each sample.
        """
        self.__dict__.pop("model_", None)  # has other classes or features if this call fails
        self.__dict__.pop("_scaler", None)
        self._check(task)
        rng = check_random_state(self.random_state)
        self._seed, self._epochs = int(rng.randint(2**31 - 1)), 0
        config = self._config(len(X), task)
        pipeline = Pipeline(
            config, device=find_device(self.device), callbacks=self.callbacks or (),
            backbone=self.backbone,
        )  # fmt: skip
        prepared = pipeline.prepare(self._source(X, target, weight))
        model = pipeline.build(prepared, self._seed)
        try:
            (self.history_,) = pipeline.train([model], prepared, class_weight=class_weight)
        finally:
            # In float64 the prediction of a sample does not depend on others in its batch.
            model.cpu().double()
        self.model_, self._epochs = model, self.epochs
        if prepared.calibration is not None:
            self._fit_held_out(pipeline.held_out(model, prepared), prepared.calibration.target)
        names = {"classes" if task.kind == "classification" else "names": task.names}
        model.task = model.task.model_copy(update=names)
        return self

    def _config(self, count: int, task: Task) -> RunConfig:
        """Return the configuration of a training."""
        few = count * self.validation_fraction < MIN_HELD_OUT
        folds, fits = self.folds, self.calibrate or self.error_rate is not None
        if folds == "auto":
            folds = FOLDS if fits and few and count >= MIN_FOLDED else None
        holds_out = folds is None and fits and count >= MIN_FOLDED
        holds_out |= folds is None and self.error_rate is not None
        data = {
            # At least two samples train, even of three.
            "calibration": min(self.validation_fraction, 1 - 2 / count) if holds_out else 0,
            "selection": self._selection if count >= MIN_SELECTED else 0,
            "class_weight": "none",  # those of the parameter are passed to the training
            "folds": folds,
            "split_seed": self._seed,
            "standardize": True,
            "task": task.kind,
            "tolerance": getattr(task, "tolerance", None),
        }
        return validated(
            RunConfig,
            {"method": self.method, "data": data, "training": self._training(count, self.epochs)},
        )

    def _source(self, X: Array, target: Array, weight: Array | None) -> Source:
        encoded = Encoded(_tensor(X), {}, {})
        return Fitted(
            "X", self._format(X), X, target, encoded=encoded, fit=self._format, weight=weight
        )

    def _format(self, X: Array, rows: Sequence[int] | None = None) -> InputFormat:
        """Return the format of inputs, with the range of some of them."""
        if X.ndim > 2:
            return ArrayFormat(shape=X.shape[1:])
        values = X if rows is None else X[rows]
        low, high = values.min(0), values.max(0)
        names = getattr(self, "feature_names_in_", range(len(low)))
        for name, column, a, b in zip(names, values.T, low, high, strict=True):
            check_resolution(f"feature {name!r}", column.mean(), column.std(), a, b)
        if not hasattr(self, "feature_names_in_"):
            return ArrayFormat(shape=X.shape[1:], low=tuple(low), high=tuple(high))
        columns = zip(names, low, high, strict=True)
        return TableFormat(columns=tuple(Column(name=str(n), low=a, high=b) for n, a, b in columns))

    def _partial_fit(self, X: Array, y: Array, task: Task, class_weight: Tensor | None) -> Self:
        """Train a new network, or that of earlier calls, for one epoch."""
        self._check(task)
        if not hasattr(self, "model_"):
            self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            self._epochs, self._scaler = 0, StandardScaler()
            preprocessing = Preprocessing(inputs=self._format(X))
            self.model_ = Model.build(
                self.method, task, preprocessing, self.backbone, seed=self._seed, pretrained=True
            )
        model = self.model_
        model.preprocessing = self._extended(model.preprocessing, X)
        model.task, model.calibration, model.policy = task, None, None
        for head in model.network.modules():
            if isinstance(head, DensityHead):
                head.log_counts.copy_(torch.tensor(task.counts).log())  # type: ignore[attr-defined]
        config = validated(TrainConfig, {**self._training(len(X), 1), "keep": "last"})
        trainer = Trainer(config, callbacks=self.callbacks or (), device=find_device(self.device))
        samples = _tensor(X), model.task.target(y)
        try:
            self.history_ = trainer.fit(model.float(), samples, class_weight=class_weight)
        finally:
            model.cpu().double()
        self._epochs += 1
        return self

    def _extended(self, preprocessing: Preprocessing, X: Array) -> Preprocessing:
        """Add inputs to the range, and to mean and deviation if there was no call of `fit`."""
        inputs = _joined(preprocessing.inputs, self._format(X))
        update: Options = {"inputs": inputs}
        if hasattr(self, "_scaler"):
            values = np.moveaxis(X, 1, -1).reshape(-1, X.shape[1])  # per channel
            scaler = self._scaler.partial_fit(values)
            update |= {"mean": tuple(scaler.mean_), "std": tuple(scaler.scale_)}
        return preprocessing.model_copy(update=update)

    def _training(self, count: int, epochs: int) -> Options:
        """Return the settings of a training on some samples."""
        size, (lr, decay) = self.batch_size, numbers_options(count)
        if size == "auto":
            size = int(np.clip(count // 8, SMALLEST_BATCH, self._largest_batch))
        return {
            "epochs": index(epochs),
            "first_epoch": self._epochs,
            "batch_size": size if isinstance(size, str) else index(size),
            "optimizer": "adamw",
            "lr": lr if self.lr == "auto" else self.lr,
            "optimizer_options": {
                "weight_decay": decay if self.weight_decay == "auto" else self.weight_decay
            },
            "schedule": "cosine",
            "schedule_by": "epoch",
            "keep": self._metric,
            "patience": 0,
            "validate_every": VALIDATE_EVERY,
            "seed": self._seed + self._epochs,
        }

    @property
    def _metric(self) -> str:
        """Metric that chooses the epoch; mixtures have no CRPS in closed form."""
        is_mixture = isinstance(METHODS.build(self.method), MixtureMethod)
        return "nll" if is_mixture and self._keep == "crps" else self._keep

    def calibrate_on(self, X: object, y: object) -> Self:
        """Fit calibration and policy on data that was neither trained nor selected on.

        Args:
            X: Inputs, (N, D).
            y: Targets, (N,).
        """
        check_is_fitted(self)
        X, y = self._samples(X, y)
        self._check(self.model_.task)
        self._fit_held_out(_predict(self.model_, X), y)
        return self

    def _fit_held_out(self, prediction: Prediction, y: object) -> None:
        """Fit calibration and policy; the policy does not depend on the calibration."""
        model = self.model_
        if self.calibrate:
            model.calibrate(prediction, y, levels=self.levels)
        model.policy = None
        if not (options := self._policy_options()):
            return
        policy = model.fit_policy(prediction, y, **options).policy
        if policy is not None and policy.accepts_nothing:
            text = f"{policy!r}: {policy.advice}"
            warnings.warn(text, UserWarning, stacklevel=4)

    def _check(self, task: Task) -> None:
        """Check parameters before the training."""
        find_device(self.device)
        _checks.in_open_unit_interval(validation_fraction=self.validation_fraction)
        if self.levels is not None:
            validated(PolicyConfig, {"levels": self.levels})
        validated(PolicyConfig, self._policy_options())
        if self.error_rate is not None and not task.defines_errors:
            raise DubitoError("error_rate needs a tolerance, the largest accepted deviation")
        if text := METHODS.build(self.method).warning(task):
            warnings.warn(text, UserWarning, stacklevel=4)

    def _policy_options(self) -> Options:
        """Return the settings of the policy; none for no policy."""
        width = getattr(self, "max_width", None)
        if self.error_rate is None and width is None:
            return {}
        options = {"confidence": self.confidence, "false_alarms": self.false_alarms}
        goal = {"error_rate": self.error_rate} if width is None else {"max_width": width}
        return options | goal

    # --- prediction ---

    def prediction(self, X: object) -> Prediction:
        """Return all that the model predicts: scores, intervals, decisions and their reasons.

        Args:
            X: Inputs, (N, D).
        """
        check_is_fitted(self)
        return _predict(self.model_, self._samples(X)[0])

    def uncertainty(self, X: object, score: str = "epistemic") -> Array:
        """Return the uncertainty of each sample: (N,).

        Args:
            X: Inputs, (N, D).
            score: Name of a score. One that is higher for confident samples changes its sign.
        """
        return (0 - self.prediction(X).distribution.confidence(score)).numpy()

    def predict_or_abstain(self, X: object) -> tuple[Array, Array]:
        """Return predictions, and which of them are accepted: bool (N,).

        The guaranteed error rate is that of accepted predictions; see `prediction` for the reasons.

        Args:
            X: Inputs, (N, D).
        """
        prediction = self.prediction(X)
        if prediction.accepted is None:
            raise NotFittedError("there is no policy: set error_rate, and call fit or calibrate_on")
        return self._labels(prediction), prediction.accepted.numpy()

    def predict(self, X: object) -> Array:
        """Return the most probable classes, or the expected values: (N,).

        Args:
            X: Inputs, (N, D).
        """
        return self._labels(self.prediction(X))

    def _labels(self, prediction: Prediction) -> Array:
        labels: Array = prediction.labels
        return labels

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Save the model for `dubito.load` and the command line; named features are columns.

        Args:
            folder: Folder to write.
        """
        check_is_fitted(self)
        return copy.deepcopy(self.model_).float().save(folder)

    def _samples(
        self, X: Any, y: Any = None, *, reset: bool = False, least: int = 1
    ) -> tuple[Array, Array]:
        """Check inputs, and targets if there are any."""
        dtypes = (np.float64, np.float32)
        options = {"reset": reset, "dtype": dtypes, "allow_nd": True, "ensure_min_samples": least}
        if y is None and not reset:
            X = validate_data(self, X, **options)
        else:
            X, y = validate_data(self, X, y, **options, **self._target_options)
        if not reset and X.shape[1:] != self.model_.preprocessing.shape:
            raise DubitoError(
                f"a sample has shape {X.shape[1:]}, but {self.model_.preprocessing.shape} in fit"
            )
        return X, y

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")


@dataclass(eq=False, repr=False)
class EvidentialClassifier(ClassifierMixin, _Estimator):
    """Classifier with calibrated probabilities and uncertainty, which may abstain.

    Args:
        method: Name of a method, a dict with its name and hyperparameters, or a `Method`.
        backbone: Backbone, its name or "auto", a dict with its name and options, or a function
            from the shape of an input to a module with `out_features`. Images are (N, C, H, W).
        epochs: Number of epochs.
        batch_size: Samples per step; "auto" is an eighth of the data, from 16 to 64.
        lr: Initial learning rate, which falls to 0 along a cosine.
        weight_decay: Weight decay of AdamW.
        calibrate: Calibrate on `validation_fraction` of the data, which is then not trained on, or
            on the predictions of folds.
        error_rate: Error rate among accepted predictions that `predict_or_abstain` guarantees,
            fitted on `validation_fraction` of the data; None for no guarantee.
        confidence: Probability with which the guarantee holds.
        false_alarms: Share of ordinary inputs that may be rejected as unfamiliar.
        levels: Coverage of prediction sets, one or several; None for no sets.
        validation_fraction: Share of the data that is held out.
        folds: Train as many networks, each without one fold of the data, calibrate on its
            predictions of that fold, and predict with their ensemble: its guarantee is approximate.
            "auto" takes five if fewer than 200 of at least 20 samples would be held out; None holds
            out.
        class_weight: "balanced", a dict from class to weight, or None.
        random_state: Seed; equal seeds give equal networks.
        device: Device of the training: "cpu", "cuda", or "auto" for a GPU if there is one.
        callbacks: Objects of subclasses of `dubito.training.Callback`, or None.

    Attributes:
        classes_: Classes, (K,).
        model_: Trained `Model`.
        history_: `History` of the last training.
    """

    method: AnyMethod = "iedl"
    class_weight: str | Mapping[Any, float] | None = field(default=None, kw_only=True)

    def fit(self, X: object, y: object, sample_weight: object = None) -> Self:
        """Train a new network.

        Args:
            X: Inputs, (N, D).
            y: Classes, (N,).
            sample_weight: Weight of each sample in the training, (N,); 0 leaves it out.
        """
        X, y = self._samples(X, y, reset=True)
        X, y, weight = _counted(X, y, sample_weight)
        check_classification_targets(y)
        self._set_classes(y)
        self._class_counts += self._counts(y)
        task, numbers = self._task(self._class_counts), self._encoder.transform(y)
        return self._fit(X, numbers, task, self._class_weights(y), weight)

    def partial_fit(self, X: object, y: object, classes: Any = None) -> Self:
        """Train for one more epoch, on this data.

        Normalization follows all data so far, or that of `fit`, and the optimizer is reset.
        Calibration and policy are removed: call `calibrate_on`.

        Args:
            X: Inputs, (N, D).
            y: Classes, (N,).
            classes: All classes; needed in the first call.
        """
        first = not hasattr(self, "model_")
        if first and classes is None:
            raise DubitoError("classes must be passed in the first call of partial_fit")
        if self.class_weight == "balanced":
            raise DubitoError("class_weight='balanced' needs all data at once: pass a dict")
        X, y = self._samples(X, y, reset=first)
        check_classification_targets(y)
        if first:
            self._set_classes(classes)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise DubitoError(f"classes are {classes!r}, but were {self.classes_.tolist()} before")
        self._class_counts += self._counts(y)
        return self._partial_fit(X, y, self._task(self._class_counts), self._class_weights(y))

    def predict_proba(self, X: object) -> Array:
        """Return calibrated probabilities in the order of `classes_`: (N, K).

        Args:
            X: Inputs, (N, D).
        """
        predictive: Any = self.prediction(X).predictive
        return np.asarray(predictive.probs)

    def predict_set(self, X: object, level: float | None = None) -> Array:
        """Return which classes are in the prediction sets, in the order of `classes_`: bool (N, K).

        Args:
            X: Inputs, (N, D).
            level: One of `levels`; None: the first.
        """
        prediction = self.prediction(X)
        if not prediction.levels:
            raise NotFittedError("there are no sets: set levels, and call fit or calibrate_on")
        return prediction.prediction_set(level).numpy()

    def _labels(self, prediction: Prediction) -> Array:
        labels: Array = self.classes_[prediction.point.numpy()]
        return labels

    def _set_classes(self, values: object) -> None:
        self._encoder = LabelEncoder().fit(values)
        self.classes_ = self._encoder.classes_
        if len(self.classes_) < 2:
            raise DubitoError(f"a classifier needs two classes, but there is one class: {values!r}")
        self._class_counts = np.zeros(len(self.classes_), np.int64)

    def _counts(self, y: Array) -> Array:
        return np.bincount(self._encoder.transform(y), minlength=len(self.classes_))

    def _task(self, counts: Array) -> Classification:
        """Return the task; a class without a sample counts as one, for Posterior Networks."""
        names = tuple(class_names(self.classes_))
        return Classification(classes=names, counts=tuple(counts.clip(1).tolist()))

    def _class_weights(self, y: Array) -> Tensor | None:
        """Return the weight of each class, 1 on average over the samples: (K,)."""
        if self.class_weight is None:
            return None
        weights = compute_class_weight(self.class_weight, classes=self.classes_, y=y)
        mean = weights[self._encoder.transform(y)].mean()
        return torch.as_tensor(weights / (mean or 1.0), dtype=torch.float32)


@dataclass(eq=False, repr=False)
class EvidentialRegressor(RegressorMixin, _Estimator):
    """Regressor with calibrated intervals and uncertainty, which may abstain.

    Args:
        method: Name of a method, a dict with its name and hyperparameters, or a `Method`.
        backbone: Backbone, its name or "auto", a dict with its name and options, or a function
            from the shape of an input to a module with `out_features`. Images are (N, C, H, W).
        epochs: Number of epochs; a twentieth of the training samples chooses the best one by CRPS.
        batch_size: Samples per step; "auto" is an eighth of the data, from 16 to 256.
        lr: Initial learning rate, which falls to 0 along a cosine; "auto" is 0.02, and 0.01 from
            2,000 samples. Images need a lower one.
        weight_decay: Weight decay of AdamW; "auto" is 0.5, and 0.1 from 2,000 samples.
        calibrate: Fit intervals on `validation_fraction` of the data, which is then not trained on,
            or on the predictions of folds.
        error_rate: Error rate among accepted predictions that `predict_or_abstain` guarantees,
            fitted on `validation_fraction` of the data; None for no guarantee.
        tolerance: Deviation, one or one per target, beyond which a prediction is an error; needed
            for `error_rate`.
        max_width: Abstain where the interval is wider, in place of `error_rate`; one target only.
        confidence: Probability with which the guarantee holds.
        false_alarms: Share of ordinary inputs that may be rejected as unfamiliar.
        levels: Coverage of intervals, one or several; None: 0.9.
        validation_fraction: Share of the data that is held out.
        folds: Train as many networks, each without one fold of the data, calibrate on its
            predictions of that fold, and predict with their ensemble: its guarantee is approximate.
            "auto" takes five if fewer than 200 of at least 20 samples would be held out; None holds
            out.
        random_state: Seed; equal seeds give equal networks.
        device: Device of the training: "cpu", "cuda", or "auto" for a GPU if there is one.
        callbacks: Objects of subclasses of `dubito.training.Callback`, or None.

    Attributes:
        model_: Trained `Model`.
        history_: `History` of the last training.
    """

    method: AnyMethod = "der"
    epochs: int = field(default=40, kw_only=True)
    lr: float | str = field(default="auto", kw_only=True)
    weight_decay: float | str = field(default="auto", kw_only=True)
    tolerance: float | Sequence[float] | None = field(default=None, kw_only=True)
    max_width: float | None = field(default=None, kw_only=True)
    _target_options: ClassVar[Options] = {"y_numeric": True, "multi_output": True}
    _largest_batch: ClassVar[int] = 256
    _selection: ClassVar[float] = 0.05
    _keep: ClassVar[str] = "crps"

    def fit(self, X: object, y: object, sample_weight: object = None) -> Self:
        """Train a new network.

        Args:
            X: Inputs, (N, D).
            y: Numbers, (N,) or (N, T); text such as ">1000", "<0.1" or "0.1..0.5" is a number that
                is known to be above, below or between.
            sample_weight: Weight of each sample in the training, (N,); 0 leaves it out.
        """
        X, values = self._samples(X, y, reset=True, least=2)
        X, values, weight = _counted(X, values, sample_weight)
        return self._fit(X, values, self._task(y), weight=weight)

    def _samples(self, X: Any, y: Any = None, **options: Any) -> tuple[Array, Array]:
        if y is None or np.asarray(y).dtype.kind not in "OU":
            return super()._samples(X, y, **options)
        values, _ = numbers(y, partial=True)
        X, values = super()._samples(X, values if np.ndim(y) > 1 else values[:, 0], **options)
        return X, np.asarray(y, dtype=object) if is_censored(y) else values

    def partial_fit(self, X: object, y: object) -> Self:
        """Train for one more epoch, on this data.

        Normalization of inputs follows all data so far, or that of `fit`, that of targets the
        first call; the optimizer is reset. Calibration and policy are removed: call `calibrate_on`.

        Args:
            X: Inputs, (N, D).
            y: Numbers, (N,) or (N, T).
        """
        first = not hasattr(self, "model_")
        X, values = self._samples(X, y, reset=first)
        return self._partial_fit(X, values, self._task(y) if first else self.model_.task, None)

    def predict_interval(self, X: object, level: float | None = None) -> tuple[Array, Array]:
        """Return the ends of intervals: (N,) or (N, T) each.

        Args:
            X: Inputs, (N, D).
            level: One of `levels`; None: the first.
        """
        prediction = self.prediction(X)
        if not prediction.levels:
            raise NotFittedError("there are no intervals: call calibrate_on with held-out data")
        lower, upper = map(self.model_.task.decode, prediction.interval(level))
        return lower, upper

    def _task(self, y: object) -> Regression:
        return Regression.from_target(y, tolerance=self.tolerance)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


@dataclass(eq=False, repr=False)
class Fitted(Items):
    """Inputs that are encoded already; only the range of their format is fitted again."""

    def in_memory(self) -> Items:
        """Return the inputs as they are."""
        return self


def _joined(old: InputFormat, new: InputFormat) -> InputFormat:
    """Return a format with the ranges of two."""
    if isinstance(old, TableFormat) and isinstance(new, TableFormat):
        pairs = zip(old.columns, new.columns, strict=True)
        ranges = ({"low": min(a.low, b.low), "high": max(a.high, b.high)} for a, b in pairs)
        columns = zip(old.columns, ranges, strict=True)
        return replace(old, columns=tuple(c.model_copy(update=span) for c, span in columns))
    if not isinstance(old, ArrayFormat) or not isinstance(new, ArrayFormat) or old.low is None:
        return old
    low, high = (np.array([a, b]) for a, b in ((old.low, new.low), (old.high, new.high)))
    return replace(old, low=tuple(low.min(0).tolist()), high=tuple(high.max(0).tolist()))


def _tensor(X: Array) -> Tensor:
    return torch.from_numpy(np.require(X, np.float32, ["C", "W"]))  # torch warns of others


def _counted(X: Array, y: Array, sample_weight: object) -> tuple[Array, Array, Array | None]:
    """Return the samples with a weight above 0, and their weights."""
    if sample_weight is None:
        return X, y, None
    weight = np.asarray(sample_weight, np.float64)
    if weight.shape != (len(X),) or not (weight >= 0).all() or not 0 < weight.sum() < np.inf:
        raise DubitoError(
            f"sample_weight must have {len(X)} finite numbers of at least 0, not all zero, but has "
            f"shape {weight.shape} and spans [{weight.min():g}, {weight.max():g}]"
        )
    counted = weight > 0
    return X[counted], y[counted], weight[counted]


def _predict(model: Model, X: Array) -> Prediction:
    return model.predict(_tensor(X))
