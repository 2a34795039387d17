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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state, compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from dubito import _checks, backbones, calibration, methods
from dubito.bundle import Factory, joined
from dubito.estimator._learner import Array, Learner
from dubito.estimator._save import save
from dubito.measures import MEASURES
from dubito.methods import Method
from dubito.policy import UNFAMILIAR, Decision, Policy
from dubito.prediction import Prediction
from dubito.training import Settings

__all__ = ["EvidentialClassifier"]

#: hyperparameters that differ from a method's own: tables often have few classes
TUNED: dict[str, dict[str, Any]] = {"iedl": {"scale": "per_class"}}
BATCH = (16, 64)  # the least and the largest "auto" batch; between them eight make an epoch
LEAST_HELD_OUT = 100  # fewer samples calibrate worse than predictions across folds do
LEAST_CALIBRATED = 20  # fewer samples in all are not calibrated
FOLDS = 3
FLOATS = (np.float64, np.float32)  # kept; all else becomes the first
DEVICES = ("auto", "cpu", "cuda")


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
    calibration_: calibration.Calibration | None
    policy_: Policy | None
    history_: list[dict[str, Any]]

    def __init__(
        self,
        method: str | Method = "iedl",
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
        self._check_parameters()
        X, y = self._labelled(X, y, reset=True)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class, {self.classes_[0]!r}; a classifier needs two")
        rng = check_random_state(self.random_state)
        seed = int(rng.randint(2**31 - 1))
        held = self._held_out(codes, rng)
        weights = self._class_weights(y)
        seen = X[~held], codes[~held], weights
        few = held.sum() < LEAST_HELD_OUT
        across = self._across_folds(*seen, rng) if few and self.calibrate else None
        self._learner = self._trained(*seen, seed, self.epochs)
        self._forget_limits()
        if held.any():
            self._learn_limits(X[held], codes[held], self.calibrate and not few)
        self.calibration_ = across or self.calibration_
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> EvidentialClassifier:
        """One more pass, through this data; the first call names all `classes`.

        Standardisation follows all data seen so far, and the optimiser starts anew with each call.
        Calibration and policy are gone then: `calibrate_on` makes them from data held out.
        """
        self._check_parameters()
        first = not hasattr(self, "_learner")
        if first and classes is None:
            raise ValueError("classes must be given in the first call of partial_fit")
        X, y = self._labelled(X, y, reset=first)
        if (
            classes is not None
            and not first
            and not np.array_equal(np.unique(classes), self.classes_)
        ):
            raise ValueError(f"classes are {classes!r}, but were {self.classes_!r} before")
        if first:
            self.classes_ = np.unique(classes)
        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight='balanced' needs all data at once; give partial_fit a dict"
            )
        codes = self._coded(y)
        weights = self._class_weights(y)
        if first:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            self._learner = self._trained(X, codes, weights, seed, 1)
        else:
            self._train(self._learner, X, codes, weights, 1)
        self._forget_limits()
        return self

    def calibrate_on(self, X: Any, y: Any) -> EvidentialClassifier:
        """Calibrate, and make the policy of the promised `error`, with data held out by the user.

        The promise holds for data that was used neither for `fit` nor for choosing parameters.
        """
        check_is_fitted(self)
        X, y = self._labelled(X, y, reset=False)
        self._learn_limits(X, self._coded(y), self.calibrate)
        return self

    def _learn_limits(self, X: Array, codes: Array, calibrate: bool) -> None:
        said, labels = self._learner.said(X), torch.from_numpy(codes)
        self._forget_limits()
        if calibrate:
            self.calibration_ = calibration.fit(said, labels)
        if self.error is not None:
            familiar = [name for name in UNFAMILIAR if name in said.available]
            # On what was said before calibration, which therefore can't disturb the promise.
            self.policy_ = Policy.promise_error(
                said, labels, self.error, self.confidence, self.measure,
                unfamiliar=familiar[0] if familiar else None, false_alarms=self.false_alarms,
            )  # fmt: skip
            if self.policy_.accepts_nothing:
                warnings.warn(
                    f"{self.policy_}, so every sample is abstained on. More held-out data, a "
                    "greater `error` or a better network may change that",
                    UserWarning,
                    stacklevel=3,
                )

    def _forget_limits(self) -> None:
        self.calibration_ = None
        self.policy_ = None

    def _across_folds(
        self, X: Array, codes: Array, weights: Tensor | None, rng: np.random.RandomState
    ) -> calibration.Calibration | None:
        """The calibration of networks like this one on parts that they did not see."""
        if len(X) < LEAST_CALIBRATED:
            return None
        fold = rng.permutation(len(X)) % FOLDS
        seeds = rng.randint(2**31 - 1, size=FOLDS)
        said = []
        for number, seed in enumerate(seeds):
            seen = fold != number
            learner = self._trained(X[seen], codes[seen], weights, int(seed), self.epochs)
            said.append(learner.said(X[~seen]))
        order = np.concatenate([np.flatnonzero(fold == number) for number in range(FOLDS)])
        return calibration.fit(joined(said), torch.from_numpy(codes[order]))

    def _trained(
        self, X: Array, codes: Array, weights: Tensor | None, seed: int, epochs: int
    ) -> Learner:
        """A new network, trained."""
        method, classes = self._method(), len(self.classes_)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            backbone = self._backbone(tuple(X.shape[1:]), method, classes)
            # a class may be missing here, in a fold or a first batch
            counts = torch.bincount(torch.from_numpy(codes), minlength=classes).clamp_min(1)
            network = method.model(backbone, classes, counts)
        shape = tuple(X.shape[1:])
        learner = Learner(method, network, StandardScaler(), shape, tuple(counts.tolist()), seed)
        self._train(learner, X, codes, weights, epochs)
        return learner

    def _train(
        self, learner: Learner, X: Array, codes: Array, weights: Tensor | None, epochs: int
    ) -> None:
        size = self.batch_size
        settings = Settings(
            epochs=epochs,
            batch_size=int(np.clip(len(X) // 8, *BATCH)) if isinstance(size, str) else size,
            optimizer="adamw",
            learning_rate=self.learning_rate,
            optimizer_options={"weight_decay": self.weight_decay},
            schedule="cosine",
            validate_every=epochs,  # so that the last weights are kept
            patience=0,
            seed=learner.seed + learner.epochs,
        )
        with _progress(epochs, self.verbose) as tell:
            self.history_ = learner.learn(X, codes, weights, settings, _place(self.device), tell)

    def _method(self) -> Method:
        if isinstance(self.method, Method):
            if self.method_options:
                raise ValueError("method_options are for a method given by its name")
            return self.method
        return methods.method(
            self.method, **{**TUNED.get(self.method, {}), **(self.method_options or {})}
        )

    def _backbone(self, shape: tuple[int, ...], method: Method, classes: int) -> nn.Module:
        if not isinstance(self.backbone, str):
            return self.backbone(shape, method.outputs(classes))
        return backbones.build(
            self.backbone, shape, method.outputs(classes), dropout=method.dropout, **self._options()
        )

    def _options(self) -> dict[str, Any]:
        return {"hidden": tuple(self.hidden)} if self.backbone == "mlp" else {}

    def _held_out(self, codes: Array, rng: np.random.RandomState) -> Array:
        """Which samples are not trained on: (N,) bool.

        Drawn like any sample, and not in equal shares from the classes: the promise is about draws.
        """
        held = np.zeros(len(codes), bool)
        count = int(len(codes) * self.validation_fraction)
        wanted = self.calibrate and count >= LEAST_HELD_OUT
        if wanted or self.error is not None:
            order = rng.permutation(len(codes))
            # of each class the first sample in this order is trained on
            _, first = np.unique(codes[order], return_index=True)
            held[np.delete(order, first)[: max(count, 1)]] = True
        return held

    def _class_weights(self, y: Array) -> Tensor | None:
        """Weights (K,), 1 on the mean of the samples: the learning rate keeps its meaning."""
        if self.class_weight is None:
            return None
        weights = compute_class_weight(self.class_weight, classes=self.classes_, y=y)
        if not np.all(np.isfinite(weights) & (weights >= 0)) or not np.any(weights):
            raise ValueError(f"class_weight must be >= 0 and not all 0, but is {self.class_weight}")
        mean = weights[self._coded(y)].mean()
        return torch.as_tensor(weights / (mean or 1.0), dtype=torch.float32)

    # --- asking ----------------------------------------------------------------------------------

    def predict(self, X: Any) -> Array:
        """The most probable class of each sample: (N,)."""
        said = self._said(X)
        labels: Array = self.classes_[said.label.numpy()]
        return labels

    def predict_proba(self, X: Any) -> Array:
        """Calibrated probabilities in the order of `classes_`: (N, K)."""
        said = self._said(X)
        if self.calibration_ is not None:
            said = self.calibration_.apply(said)
        return said.probs.numpy()

    def uncertainty(self, X: Any, measure: str = "vacuity") -> Array:
        """The measure of each sample, higher meaning less sure: (N,).

        A measure of `dubito.measures` that rises with confidence, like max_prob, has its sign
        turned. `max_prob` finds misclassifications best, `vacuity` inputs unlike the training data.
        """
        _checks.one_of(MEASURES, measure, "measure")
        return -self._said(X).confidence(measure).numpy() + 0.0

    def decide(self, X: Any) -> Decision:
        """Accept or abstain, and why: `accept` (N,) and `reason` (N,) of the policy's decision."""
        said = self._said(X)
        if self.policy_ is None:
            raise NotFittedError(
                "there is no policy to abstain by: give the error rate to promise, say error=0.05, "
                "and call fit, or calibrate_on with data held out"
            )
        return self.policy_.decide(said)

    def predict_or_abstain(self, X: Any) -> tuple[Array, Array]:
        """Labels (N,), and which of them are accepted (N,) bool.

        The promised error rate is that of `labels[accepted]`; `decide` tells why others are not.
        """
        accepted = self.decide(X).accept.numpy()
        return self.predict(X), accepted

    def _said(self, X: Any) -> Prediction:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=FLOATS, allow_nd=True)
        self._check_shape(X, reset=False)
        return self._learner.said(X)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write a bundle: what `dubito predict`, `dubito export` and `dubito.bundle.load` read.

        Names of features become the columns of a table. A bundle runs no code, so one with a
        backbone of the user's own is loaded with `factory=` that backbone.
        """
        check_is_fitted(self)
        named = (
            {"name": self.backbone, **self._options()} if isinstance(self.backbone, str) else None
        )
        return save(
            folder, self._learner, classes=self.classes_.tolist(),
            features=getattr(self, "feature_names_in_", None), backbone=named,
            calibration=self.calibration_, policy=self.policy_,
        )  # fmt: skip

    # --- checks ----------------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_learner")

    def _labelled(self, X: Any, y: Any, *, reset: bool) -> tuple[Array, Array]:
        X, y = validate_data(self, X, y, reset=reset, dtype=FLOATS, allow_nd=True)
        check_classification_targets(y)
        self._check_shape(X, reset)
        return X, y

    def _check_shape(self, X: Array, reset: bool) -> None:
        if not reset and X.shape[1:] != self._learner.shape:
            raise ValueError(
                f"a sample of X has the shape {X.shape[1:]}, but {self._learner.shape} in fit"
            )

    def _coded(self, y: Array) -> Array:
        """Labels as places in `classes_`."""
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(
                f"y has the classes {unknown.tolist()}; known: {self.classes_.tolist()}"
            )
        codes: Array = np.searchsorted(self.classes_, y)
        return codes

    def _check_parameters(self) -> None:
        """What no other part checks, in the user's terms."""
        for name in ("error", "confidence", "false_alarms", "validation_fraction"):
            value = getattr(self, name)
            if not (name == "error" and value is None) and not 0 < value < 1:
                raise ValueError(f"{name} must be between 0 and 1, not {value!r}")
        _checks.one_of(MEASURES, self.measure, "measure")
        if isinstance(self.batch_size, str):
            _checks.one_of(("auto",), self.batch_size, "batch_size")
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay must be >= 0, not {self.weight_decay!r}")


def _place(name: str) -> torch.device:
    _checks.one_of(DEVICES, name, "device")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda' needs a GPU that torch can use, and finds none")
    return torch.device(name)


@contextmanager
def _progress(epochs: int, shown: bool) -> Iterator[Callable[[dict[str, Any]], None] | None]:
    """A bar that is told of each epoch, or None."""
    if not shown:
        yield None
        return
    from rich.progress import Progress

    with Progress() as bar:
        task = bar.add_task("training", total=epochs)
        yield lambda entry: bar.update(
            task, advance=1, description=f"training, loss {entry['loss']:.4g}"
        )
