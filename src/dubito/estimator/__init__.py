"""A scikit-learn classifier that says how sure it is, and abstains at a promised error rate.

>>> from sklearn.datasets import load_wine
>>> X, y = load_wine(return_X_y=True)
>>> model = EvidentialClassifier(random_state=0, epochs=20).fit(X[::2], y[::2])
>>> model.score(X[1::2], y[1::2]) > 0.9
True
>>> model.uncertainty(X[:3], "vacuity").shape
(3,)
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from dubito import _checks, methods
from dubito._legacy import MEASURES, Method, Prediction
from dubito.bundle import Factory
from dubito.calibration import Calibration
from dubito.estimator._inputs import class_weights, coded, labelled, samples
from dubito.estimator._learner import Array, Learner, untrained
from dubito.estimator._limits import LEAST_HELD_OUT, across_folds, drawn, promised
from dubito.estimator._parameters import backbone_of, check_parameters, method_of, settings_of
from dubito.estimator._save import save
from dubito.policy import Decision, Policy
from dubito.runs import device_named

__all__ = ["EvidentialClassifier"]


class EvidentialClassifier(ClassifierMixin, BaseEstimator):
    """A neural network with evidence for its classes, as a scikit-learn classifier.

    Features are standardised inside. Probabilities are calibrated (`dubito.calibration`): with part
    of the data, which is then not trained on, or, where that would be fewer than 100 samples, with
    predictions across three folds, which takes three further trainings. Measures of uncertainty and
    the decision to abstain come from the evidence before calibration.

    Args:
        method: a name in `dubito.methods.METHODS`, or a `Method`.
        backbone: a name in `dubito.backbones.BACKBONES`, or a function (shape, outputs) -> module.
            With one for images, X is (N, C, H, W).
        method_options: hyperparameters of the named method. I-EDL has the scale "per_class" here.
        hidden: sizes of the hidden layers of the backbone "mlp".
        epochs: passes through the data. Nothing stops earlier.
        batch_size: samples of a step; "auto" is an eighth of the data, from 16 to 64.
        learning_rate: the first one; it falls to 0 along a cosine.
        weight_decay: of AdamW.
        calibrate: whether probabilities are calibrated.
        error: the error rate that `predict_or_abstain` promises among what it accepts, or None for
            no promise. A promise needs data of its own: `validation_fraction` is not trained on.
        confidence: the probability, over the draw of that data, that the promise holds.
        measure: which measure decides whether a prediction is sure enough.
        false_alarms: the share of ordinary inputs that may be refused as unfamiliar.
        validation_fraction: the share of the data that `fit` holds out, where it does.
        class_weight: "balanced", a dict of weights by class, or None.
        random_state: a seed; equal seeds give equal networks.
        device: "cpu", "cuda", or "auto" for a GPU where there is one.
        verbose: whether to show a progress bar.

    Attributes:
        classes_: the K classes.
        n_features_in_, feature_names_in_: what was seen in `fit`.
        calibration_: the fitted calibration, or None.
        policy_: the `dubito.policy.Policy`, or None without a promise.
        history_: what was noted after each epoch of the last training.
    """

    classes_: Array
    calibration_: Calibration | None
    policy_: Policy | None
    history_: list[dict[str, Any]]

    def __init__(
        self,
        method: str | Method | methods.Method = "iedl",
        backbone: str | Factory = "mlp",
        *,
        method_options: Mapping[str, Any] | None = None,
        hidden: Sequence[int] = (256,),
        epochs: int = 50,
        batch_size: int | str = "auto",
        learning_rate: float = 2e-3,
        weight_decay: float = 0.0,
        calibrate: bool = True,
        error: float | None = None,
        confidence: float = 0.95,
        measure: str = "max_prob",
        false_alarms: float = 0.01,
        validation_fraction: float = 0.1,
        class_weight: str | Mapping[Any, float] | None = None,
        random_state: int | np.random.RandomState | None = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.backbone = backbone
        self.method_options = method_options
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.calibrate = calibrate
        self.error = error
        self.confidence = confidence
        self.measure = measure
        self.false_alarms = false_alarms
        self.validation_fraction = validation_fraction
        self.class_weight = class_weight
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    # --- learning --------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> EvidentialClassifier:
        """Learn from X (N, D) and labels y (N,), forgetting what was learnt before."""
        check_parameters(vars(self))
        # should this fit fail, the old network would speak of the new classes
        self.__dict__.pop("_learner", None)
        X, y = labelled(self, X, y, None)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class, {self.classes_[0]!r}; a classifier needs two")
        self._warn()
        rng = check_random_state(self.random_state)
        seed = int(rng.randint(2**31 - 1))
        held = self._held_out(codes, rng)
        weights = class_weights(self.class_weight, y, self.classes_)
        trained = partial(self._trained, weights=weights, epochs=self.epochs)
        seen = X[~held], codes[~held]
        few = held.sum() < LEAST_HELD_OUT
        across = across_folds(trained, *seen, rng) if few and self.calibrate else None
        self._learner = trained(*seen, seed)
        self._forget_limits()
        if held.any():
            self._learn_limits(X[held], codes[held], self.calibrate and not few)
        self.calibration_ = across or self.calibration_
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> EvidentialClassifier:
        """One more pass, through this data; the first call names all `classes`.

        Standardisation and the class counts of a Posterior Network follow all data seen so far, and
        the optimiser starts anew with each call.
        Calibration and policy are gone then: `calibrate_on` makes them from data held out.
        """
        check_parameters(vars(self))
        first = not hasattr(self, "_learner")
        if first and classes is None:
            raise ValueError("classes must be given in the first call of partial_fit")
        X, y = labelled(self, X, y, None if first else self._learner.shape)
        if first:
            self.classes_ = np.unique(classes)
            if len(self.classes_) < 2:
                raise ValueError(f"classes are {classes!r}; a classifier needs two")
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes are {classes!r}, but were {self.classes_!r} before")
        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight='balanced' needs all data at once; give partial_fit a dict"
            )
        codes = coded(y, self.classes_)
        weights = class_weights(self.class_weight, y, self.classes_)
        if first:
            self._warn()
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            self._learner = self._trained(X, codes, seed, weights=weights, epochs=1)
        else:
            self._train(self._learner, X, codes, weights, epochs=1)
        self._forget_limits()
        return self

    def calibrate_on(self, X: Any, y: Any) -> EvidentialClassifier:
        """Calibrate, and make the policy of the promised `error`, with data held out by the user.

        The promise holds for data that was used neither for `fit` nor for choosing parameters.
        """
        check_is_fitted(self)
        X, y = labelled(self, X, y, self._learner.shape)
        self._learn_limits(X, coded(y, self.classes_), self.calibrate)
        return self

    def _learn_limits(self, X: Array, codes: Array, calibrate: bool) -> None:
        said, labels = self._learner.said(X), torch.from_numpy(codes)
        self._forget_limits()
        if calibrate:
            self.calibration_ = Calibration.fit(said.distribution, labels)
        if self.error is not None:
            # On what was said before calibration, which therefore can't disturb the promise.
            self.policy_ = promised(
                said, labels, error=self.error, confidence=self.confidence,
                measure=self.measure, false_alarms=self.false_alarms,
            )  # fmt: skip

    def _warn(self) -> None:
        """Of a method that may not learn so many classes, at the caller of `fit`."""
        method = method_of(self.method, self.method_options)
        if caution := method.caution(len(self.classes_)):
            warnings.warn(caution, UserWarning, stacklevel=3)

    def _forget_limits(self) -> None:
        self.calibration_ = None
        self.policy_ = None

    def _trained(
        self, X: Array, codes: Array, seed: int, *, weights: Tensor | None, epochs: int
    ) -> Learner:
        """A new network, trained."""
        method = method_of(self.method, self.method_options)
        backbone = backbone_of(self.backbone, self.hidden)
        learner = untrained(method, backbone, X.shape[1:], len(self.classes_), seed)
        self._train(learner, X, codes, weights, epochs)
        return learner

    def _train(
        self, learner: Learner, X: Array, codes: Array, weights: Tensor | None, epochs: int
    ) -> None:
        settings = settings_of(
            len(X), epochs=epochs, batch_size=self.batch_size, learning_rate=self.learning_rate,
            weight_decay=self.weight_decay, seed=learner.seed + learner.epochs,
        )  # fmt: skip
        place = device_named(self.device)
        self.history_ = learner.learn(X, codes, weights, settings, place, self.verbose)

    def _held_out(self, codes: Array, rng: np.random.RandomState) -> Array:
        """Which samples are not trained on: (N,) bool."""
        count = int(len(codes) * self.validation_fraction)
        if self.error is None and not (self.calibrate and count >= LEAST_HELD_OUT):
            return np.zeros(len(codes), bool)
        return drawn(codes, max(count, 1), rng)

    # --- asking ----------------------------------------------------------------------------------

    def predict(self, X: Any) -> Array:
        """The most probable class of each sample: (N,)."""
        said = self._said(X)
        labels: Array = self.classes_[said.label.numpy()]
        return labels

    def predict_proba(self, X: Any) -> Array:
        """Calibrated probabilities in the order of `classes_`: (N, K)."""
        return self._said(X).calibrated(self.calibration_).probs.numpy()

    def uncertainty(self, X: Any, measure: str = "vacuity") -> Array:
        """The measure of each sample, higher meaning less sure: (N,).

        A measure that rises with confidence, like max_prob, has its sign
        turned. `max_prob` finds misclassifications best, `vacuity` inputs unlike the training data.
        """
        _checks.one_of(MEASURES, measure, "measure")
        return -self._said(X).confidence(measure).numpy() + 0.0

    def decide(self, X: Any) -> Decision:
        """Accept or abstain: `accepted` (N,) and `reason` (N,) of the policy's decision."""
        said = self._said(X)
        if self.policy_ is None:
            raise NotFittedError(
                "there is no policy to abstain by: give the error rate to promise, say error=0.05, "
                "and call fit, or calibrate_on with data held out"
            )
        return self.policy_.decide(said.distribution)

    def predict_or_abstain(self, X: Any) -> tuple[Array, Array]:
        """Labels (N,), and which of them are accepted (N,) bool.

        The promised error rate is that of `labels[accepted]`; `decide` tells why others are not.
        """
        accepted = self.decide(X).accepted.numpy()
        return self.predict(X), accepted

    def _said(self, X: Any) -> Prediction:
        check_is_fitted(self)
        return self._learner.said(samples(self, X, self._learner.shape))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write a bundle: what `dubito predict`, `dubito export` and `dubito.bundle.load` read.

        Names of features become the columns of a table. A bundle runs no code, so one with a
        backbone of the user's own is loaded with `factory=` that backbone.
        """
        check_is_fitted(self)
        return save(
            folder, self._learner, classes=self.classes_.tolist(),
            features=getattr(self, "feature_names_in_", None),
            backbone=backbone_of(self.backbone, self.hidden), calibration=self.calibration_,
            policy=self.policy_,
        )  # fmt: skip

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_learner")
