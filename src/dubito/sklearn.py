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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from operator import index
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.exceptions import NotFittedError
    from sklearn.preprocessing import LabelEncoder, MinMaxScaler, StandardScaler
    from sklearn.utils import check_random_state, compute_class_weight
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "scikit-learn is not installed: pip install 'dubito[sklearn]'", name=error.name
    ) from error

from dubito import _checks
from dubito.api import find_device
from dubito.api.config import PolicyConfig, validated
from dubito.calibration import Calibration
from dubito.data import ArrayFormat, TableFormat
from dubito.data.arrays import check_resolution
from dubito.data.tables import Column
from dubito.distributions import Distribution
from dubito.errors import DubitoError
from dubito.methods import METHODS, Method
from dubito.methods.posterior_network import DensityHead
from dubito.model import Model, Prediction, Preprocessing
from dubito.tasks import Classification, Regression, Task, class_names
from dubito.training import Callback, TrainConfig, Trainer

__all__ = ["EvidentialClassifier", "EvidentialRegressor"]

Array = np.ndarray[Any, Any]
AnyMethod = str | Mapping[str, Any] | Method
Backbone = str | Mapping[str, Any] | Callable[[tuple[int, ...]], torch.nn.Module]
#: fewer held-out samples calibrate worse than cross-validated predictions
MIN_HELD_OUT = 100
#: fewer samples in all are not calibrated
MIN_CALIBRATED = 20
FOLDS = 3
#: smallest and largest batch of "auto", which otherwise makes eight steps per epoch
BATCH = (16, 64)


@dataclass(eq=False, repr=False)
class _Estimator(BaseEstimator):
    """Parts that both estimators share.

    scikit-learn reads the parameters from the generated constructor.
    """

    method: AnyMethod
    backbone: Backbone = "auto"
    _: KW_ONLY
    epochs: int = 50
    batch_size: int | str = "auto"
    lr: float = 2e-3
    weight_decay: float = 0.0
    calibrate: bool = True
    error_rate: float | None = None
    confidence: float = 0.95
    false_alarms: float = 0.05
    validation_fraction: float = 0.1
    random_state: int | np.random.RandomState | None = None
    device: str = "cpu"
    callbacks: Sequence[Callback] | None = None
    _target_options: ClassVar[dict[str, Any]] = {}

    # --- training ---

    def _fit(self, X: Array, y: Array, task: Callable[[Array], Task], strata: Array) -> Self:
        """Train, calibrate and fit the policy.

        Args:
            X: Inputs, (N, *shape).
            y: Targets.
            task: Returns the task for some of the targets.
            strata: Samples with two different values of this, (N,), are trained on.
        """
        self.__dict__.pop("model_", None)  # has other classes or features if this call fails
        self._check(task(y))
        rng = check_random_state(self.random_state)
        seed = int(rng.randint(2**31 - 1))
        held_out = self._held_out(strata, rng)
        enough = held_out.sum() >= MIN_HELD_OUT
        X_train, y_train = X[~held_out], y[~held_out]
        cross_validate = self.calibrate and not enough and len(X_train) >= MIN_CALIBRATED
        fitted = self._cross_validate(X_train, y_train, task, rng) if cross_validate else None
        self.model_ = self._trained(X_train, y_train, task(y_train), seed)
        self.model_.calibration = fitted
        if held_out.any():
            self._fit_held_out(X[held_out], y[held_out], self.calibrate and bool(enough))
        return self

    def _partial_fit(self, X: Array, y: Array, task: Task) -> Self:
        """Train a new network, or that of earlier calls, for one epoch."""
        self._check(task)
        if not hasattr(self, "model_"):
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            self.model_ = self._untrained(X, task, seed)
        else:
            self.model_.preprocessing = self._preprocessing(X)
        model = self.model_
        model.task, model.calibration, model.policy = task, None, None
        for head in model.network.modules():
            if isinstance(head, DensityHead):
                head.log_counts.copy_(torch.tensor(task.counts).log())  # type: ignore[attr-defined]
        self._train(model, X, y, 1)
        return self

    def calibrate_on(self, X: Any, y: Any) -> Self:
        """Fit calibration and policy on data that was neither trained nor selected on.

        Args:
            X: Inputs, (N, D).
            y: Targets, (N,).
        """
        check_is_fitted(self)
        X, y = self._samples(X, y)
        self._check(self.model_.task)
        self._fit_held_out(X, y, self.calibrate)
        return self

    def _fit_held_out(self, X: Array, y: Array, calibrate: bool) -> None:
        """Fit calibration and policy; the policy does not depend on the calibration."""
        model, prediction = self.model_, _predict(self.model_, X)
        if calibrate:
            model.calibrate(prediction, y)
        model.policy = None
        if self.error_rate is None:
            return
        policy = model.fit_policy(prediction, y, **self._policy_options()).policy
        if policy is not None and policy.accepts_nothing:
            text = f"{policy!r}: hold out more data, or raise error_rate={self.error_rate:g}"
            warnings.warn(text, UserWarning, stacklevel=4)

    def _cross_validate(
        self, X: Array, y: Array, task: Callable[[Array], Task], rng: np.random.RandomState
    ) -> Calibration:
        """Calibrate on predictions of each sample by a network that was not trained on it."""
        fold = rng.permutation(len(X)) % FOLDS
        dists, targets = [], []
        for number, seed in enumerate(rng.randint(2**31 - 1, size=FOLDS)):
            train, test = fold != number, fold == number
            model = self._trained(X[train], y[train], task(y[train]), int(seed))
            dists.append(_predict(model, X[test]).distribution)
            targets.append(model.task.encode(y[test]))
        return Calibration.fit(Distribution.cat(dists), torch.cat(targets))

    def _trained(self, X: Array, y: Array, task: Task, seed: int) -> Model:
        return self._train(self._untrained(X, task, seed), X, y, self.epochs)

    def _untrained(self, X: Array, task: Task, seed: int) -> Model:
        self._scaler, self._span = StandardScaler(), MinMaxScaler()
        self._seed, self._epochs = seed, 0
        return Model.build(self.method, task, self._preprocessing(X), self.backbone, seed=seed)

    def _preprocessing(self, X: Array) -> Preprocessing:
        """Add inputs (N, *shape) to those so far, and return the preprocessing for all."""
        values = np.moveaxis(X, 1, -1).reshape(-1, X.shape[1])  # per channel
        mean, std = self._scaler.partial_fit(values).mean_, self._scaler.scale_
        low, high = self._span.partial_fit(values).data_min_, self._span.data_max_
        names = getattr(self, "feature_names_in_", range(len(mean)))
        columns = []
        for name, center, scale, a, b in zip(names, mean, std, low, high, strict=True):
            check_resolution(f"feature {name!r}", center, scale, a, b)
            columns.append(Column(name=str(name), low=a, high=b))
        format: ArrayFormat | TableFormat = ArrayFormat(shape=X.shape[1:])
        if hasattr(self, "feature_names_in_"):
            format = TableFormat(columns=tuple(columns))
        elif X.ndim == 2:
            format = ArrayFormat(shape=X.shape[1:], low=tuple(low), high=tuple(high))
        return Preprocessing(inputs=format, mean=tuple(mean), std=tuple(std))

    def _train(self, model: Model, X: Array, y: Array, epochs: int) -> Model:
        size = self.batch_size
        if size == "auto":
            size = int(np.clip(len(X) // 8, *BATCH))
        values = {
            "epochs": index(epochs),
            "first_epoch": self._epochs,
            "batch_size": size if isinstance(size, str) else index(size),
            "optimizer": "adamw",
            "lr": self.lr,
            "optimizer_options": {"weight_decay": self.weight_decay},
            "schedule": "cosine",
            "schedule_by": "epoch",  # a single epoch of partial_fit has the whole rate
            "keep": "last",
            "seed": self._seed + self._epochs,
        }
        config, device = validated(TrainConfig, values), find_device(self.device)
        trainer = Trainer(config, callbacks=self.callbacks or (), device=device)
        samples, weights = (_tensor(X), model.task.encode(y)), self._class_weights(y)
        try:
            self.history_ = trainer.fit(model.float(), samples, class_weight=weights)
        finally:
            # In float64 the prediction of a sample does not depend on others in its batch.
            model.cpu().double()
        self._epochs += epochs
        return model

    def _check(self, task: Task) -> None:
        """Check parameters before the training."""
        find_device(self.device)
        _checks.in_open_unit_interval(validation_fraction=self.validation_fraction)
        if self.error_rate is not None:
            validated(PolicyConfig, self._policy_options())
            if not task.defines_errors:
                raise DubitoError("error_rate needs a tolerance, the largest accepted deviation")
        if text := METHODS.build(self.method).warning(task):
            warnings.warn(text, UserWarning, stacklevel=4)

    def _policy_options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("error_rate", "confidence", "false_alarms")}

    def _held_out(self, strata: Array, rng: np.random.RandomState) -> Array:
        """Return which samples are not trained on: bool (N,).

        They are drawn regardless of their class, as the guarantee assumes. If a single stratum
        would remain, the last drawn sample of another one is trained on.
        """
        held_out = np.zeros(len(strata), bool)
        count = int(len(strata) * self.validation_fraction)
        if self.error_rate is not None or (self.calibrate and count >= MIN_HELD_OUT):
            order = rng.permutation(len(strata))
            differs = np.flatnonzero(strata[order] != strata[order[-1]])
            candidates = np.delete(order, [differs[-1], len(order) - 1])
            held_out[candidates[: max(count, 1)]] = True
        return held_out

    def _class_weights(self, y: Array) -> Tensor | None:
        return None

    # --- prediction ---

    def prediction(self, X: Any) -> Prediction:
        """Return all that the model predicts: scores, intervals, decisions and their reasons.

        Args:
            X: Inputs, (N, D).
        """
        check_is_fitted(self)
        return _predict(self.model_, self._samples(X)[0])

    def uncertainty(self, X: Any, score: str = "epistemic") -> Array:
        """Return the uncertainty of each sample: (N,).

        Args:
            X: Inputs, (N, D).
            score: Name of a score. One that is higher for confident samples changes its sign.
        """
        return (0 - self.prediction(X).distribution.confidence(score)).numpy()

    def predict_or_abstain(self, X: Any) -> tuple[Array, Array]:
        """Return predictions, and which of them are accepted: bool (N,).

        The guaranteed error rate is that of accepted predictions; see `prediction` for the reasons.

        Args:
            X: Inputs, (N, D).
        """
        prediction = self.prediction(X)
        if prediction.accepted is None:
            raise NotFittedError("there is no policy: set error_rate, and call fit or calibrate_on")
        return self._labels(prediction), prediction.accepted.numpy()

    def predict(self, X: Any) -> Array:
        """Return the most probable classes, or the expected values: (N,).

        Args:
            X: Inputs, (N, D).
        """
        return self._labels(self.prediction(X))

    def _labels(self, prediction: Prediction) -> Array:
        return prediction.labels

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
        backbone: Name of a backbone or "auto", a dict with its name and options, or a function
            from the shape of an input to a module with `out_features`. Images are (N, C, H, W).
        epochs: Number of epochs.
        batch_size: Samples per step; "auto" is an eighth of the data, from 16 to 64.
        lr: Initial learning rate, which falls to 0 along a cosine.
        weight_decay: Weight decay of AdamW.
        calibrate: Calibrate on `validation_fraction` of the data, which is then not trained on. If
            that is fewer than 100 samples, train three further networks on two thirds of the data
            each, and calibrate on their predictions of the rest.
        error_rate: Error rate among accepted predictions that `predict_or_abstain` guarantees,
            fitted on `validation_fraction` of the data; None for no guarantee.
        confidence: Probability with which the guarantee holds.
        false_alarms: Share of ordinary inputs that may be rejected as unfamiliar.
        validation_fraction: Share of the data that is held out.
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

    def fit(self, X: Any, y: Any) -> Self:
        """Train a new network.

        Args:
            X: Inputs, (N, D).
            y: Classes, (N,).
        """
        X, y = self._samples(X, y, reset=True)
        check_classification_targets(y)
        self._set_classes(y)
        self._class_counts += self._counts(y)
        return self._fit(X, y, lambda target: self._task(self._counts(target)), y)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Train for one more epoch, on this data.

        Normalization follows all data so far, and the optimizer is reset. Calibration and policy
        are removed: call `calibrate_on`.

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
        return self._partial_fit(X, y, self._task(self._class_counts))

    def predict_proba(self, X: Any) -> Array:
        """Return calibrated probabilities in the order of `classes_`: (N, K).

        Args:
            X: Inputs, (N, D).
        """
        predictive: Any = self.prediction(X).predictive
        return np.asarray(predictive.probs)

    def _labels(self, prediction: Prediction) -> Array:
        labels: Array = self.classes_[prediction.point.numpy()]
        return labels

    def _set_classes(self, values: Any) -> None:
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
        backbone: Name of a backbone or "auto", a dict with its name and options, or a function
            from the shape of an input to a module with `out_features`. Images are (N, C, H, W).
        epochs: Number of epochs.
        batch_size: Samples per step; "auto" is an eighth of the data, from 16 to 64.
        lr: Initial learning rate, which falls to 0 along a cosine.
        weight_decay: Weight decay of AdamW.
        calibrate: Fit intervals on `validation_fraction` of the data, which is then not trained on.
            If that is fewer than 100 samples, train three further networks on two thirds of the
            data each, and use their predictions of the rest.
        error_rate: Error rate among accepted predictions that `predict_or_abstain` guarantees,
            fitted on `validation_fraction` of the data; None for no guarantee.
        tolerance: Deviation, one or one per target, beyond which a prediction is an error; needed
            for `error_rate`.
        confidence: Probability with which the guarantee holds.
        false_alarms: Share of ordinary inputs that may be rejected as unfamiliar.
        validation_fraction: Share of the data that is held out.
        random_state: Seed; equal seeds give equal networks.
        device: Device of the training: "cpu", "cuda", or "auto" for a GPU if there is one.
        callbacks: Objects of subclasses of `dubito.training.Callback`, or None.

    Attributes:
        model_: Trained `Model`.
        history_: `History` of the last training.
    """

    method: AnyMethod = "der"
    tolerance: float | Sequence[float] | None = field(default=None, kw_only=True)
    _target_options: ClassVar[dict[str, Any]] = {"y_numeric": True, "multi_output": True}

    def fit(self, X: Any, y: Any) -> Self:
        """Train a new network.

        Args:
            X: Inputs, (N, D).
            y: Numbers, (N,) or (N, T).
        """
        X, values = self._samples(X, y, reset=True, least=2)
        task = self._task(y)
        return self._fit(X, values, lambda _: task, np.arange(len(X)))

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Train for one more epoch, on this data.

        Normalization of inputs follows all data so far, that of targets the first call; the
        optimizer is reset. Calibration and policy are removed: call `calibrate_on`.

        Args:
            X: Inputs, (N, D).
            y: Numbers, (N,) or (N, T).
        """
        first = not hasattr(self, "model_")
        X, values = self._samples(X, y, reset=first)
        return self._partial_fit(X, values, self._task(y) if first else self.model_.task)

    def predict_interval(self, X: Any) -> tuple[Array, Array]:
        """Return the ends of 90 % intervals: (N,) or (N, T) each.

        Args:
            X: Inputs, (N, D).
        """
        interval = self.prediction(X).interval
        if interval is None:
            raise NotFittedError("there are no intervals: call calibrate_on with held-out data")
        lower, upper = (self.model_.task.decode(end) for end in interval)
        return lower, upper

    def _task(self, y: Any) -> Regression:
        return Regression.from_target(y, tolerance=self.tolerance)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _tensor(X: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(X, np.float32))


def _predict(model: Model, X: Array) -> Prediction:
    return model.predict(_tensor(X))
