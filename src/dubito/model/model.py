"""The model: trained, saved, loaded, evaluated, exported and served."""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from dubito import _checks, evaluation
from dubito import data as datasets
from dubito.backbones import BACKBONES, Backbone
from dubito.backbones.base import BackboneLike
from dubito.backbones.default import for_method, resolve
from dubito.calibration import Calibration
from dubito.data import Source
from dubito.data.base import Items
from dubito.data.sources import is_dataset
from dubito.distributions import Distribution
from dubito.distributions.base import COMMON
from dubito.errors import DubitoError
from dubito.formats import FORMATS, Encoded, Preprocessing
from dubito.formats.preprocessing import unit_range
from dubito.methods import METHODS, Method
from dubito.methods.features import Pass, forward_with_features, linear_head
from dubito.model.check import check_outputs
from dubito.model.folder import TrainingRecord, fill, read, write
from dubito.model.prediction import Collector, Prediction, batch_size, name_of, names_of
from dubito.policy import Policy
from dubito.scores import SCORES, Score
from dubito.scores.base import check, fit
from dubito.targets import Target, known_rows, values_and_weight
from dubito.tasks import Task
from dubito.types import Json

__all__ = ["Model"]

#: inputs that tell which layer is the head
HEAD_ROWS = 64
#: score of features that ranks inputs by familiarity in place of that of the method
FAMILIARITY = "mahalanobis"
#: in the names of weights of a network that torch.compile wraps
COMPILED = "_orig_mod."


class Model(nn.Module):
    """A network with its method, task and preprocessing.

    Args:
        network: Module from normalized inputs (N, *shape) to outputs (N, M), or (N, S, M) for S
            members or samples.
        method: How the outputs are read.
        task: What is predicted.
        preprocessing: How inputs are read and normalized.
        backbone: Backbone that the network was built from; None for a custom network.

    Attributes:
        calibration: Calibration of the predictive, or None.
        policy: When to accept a prediction, or None.
        scores: Post-hoc scores by name.
        record: How the model was trained, or None.
    """

    def __init__(
        self,
        network: nn.Module,
        method: Method,
        task: Task,
        preprocessing: Preprocessing,
        *,
        backbone: Backbone | None = None,
    ) -> None:
        super().__init__()
        if task.kind not in method.tasks:
            raise DubitoError(
                f"{type(method).__name__} is for {' and '.join(method.tasks)}, not for {task.kind}"
            )
        self.network, self.method, self.task = network, method, task
        self.preprocessing, self.backbone = preprocessing, backbone
        self.scores = nn.ModuleDict()
        self.calibration: Calibration | None = None
        self.policy: Policy | None = None
        self.record: TrainingRecord | None = None

    @classmethod
    def build(
        cls,
        method: Method | str | Mapping[str, object],
        task: Task,
        preprocessing: Preprocessing,
        backbone: BackboneLike = "auto",
        *,
        seed: int = 0,
        pretrained: bool = False,
    ) -> Self:
        """Build an untrained model.

        Args:
            method: Method, its name, or a dict with its name and hyperparameters.
            task: What is predicted.
            preprocessing: How inputs are read and normalized.
            backbone: Backbone, its name or "auto", a dict with its name and options, or a function
                from the shape of an input to a module with `out_features`.
            seed: Seed of the initial weights; the global random state does not change.
            pretrained: Whether the backbone loads weights from elsewhere, if it has any.
        """
        method, shape, entry = METHODS.build(method), preprocessing.shape, None
        if isinstance(backbone, Backbone | str | Mapping):
            entry = resolve(backbone, shape, FORMATS.name_of(preprocessing.inputs), task.kind)
            entry = for_method(entry, method)
            backbone = partial(entry.network, pretrained=pretrained)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            network = method.network(partial(backbone, shape), task)
        return cls(network, method, task, preprocessing, backbone=entry)

    @classmethod
    def from_network(
        cls,
        network: nn.Module,
        method: Method | str | Mapping[str, object],
        task: Task,
        preprocessing: Preprocessing,
        *,
        check: tuple[object, object],
    ) -> Self:
        """Wrap a network that was trained elsewhere.

        The check saves the model, loads it again and predicts. A wrong guess about preprocessing
        or the order of the classes would otherwise go unnoticed.

        Args:
            network: Module from normalized inputs (N, *shape) to outputs (N, M).
            method: How the outputs are read.
            task: What is predicted.
            preprocessing: How inputs are read and normalized.
            check: Some inputs as users will pass them (paths, arrays, rows), and the results of the
                network where it was trained: outputs (N, M), or labels (N,).
        """
        model = cls(network, METHODS.build(method), task, preprocessing)
        device = next(network.parameters(), torch.empty(0)).device
        with tempfile.TemporaryDirectory() as folder:
            model.save(folder)
            check_outputs(cls.load(folder, network=network, device=device), *check)
        return model.eval()

    # --- prediction ---

    def forward(self, inputs: Tensor) -> Distribution:
        """Return the distribution before calibration, in units of the target.

        Args:
            inputs: Encoded inputs, (N, *shape).
        """
        return self.distribution(*self.run(inputs))

    def features(self, items: object, *, progress: Callable[[int], None] | None = None) -> Tensor:
        """Return the features, inputs of the last layer: (N, D).

        Args:
            items: Inputs; see `predict`.
            progress: Function that is called with the number of inputs of each batch.
        """
        features, _ = self.outputs(items, with_features=True, progress=progress)
        assert features is not None
        return features

    def run(self, inputs: Tensor, *, with_features: bool = False) -> Pass:
        """Run the network once, on its device and in its floating-point type.

        Args:
            inputs: Encoded inputs, (N, *shape).
            with_features: Return features even if there are no scores that read them.

        Returns:
            Features (N, D), None without these; and outputs (N, M), or (N, S, M) for S members or
            samples.
        """
        needed = with_features or any(score.needs_features for score in self._scores())
        parts = self.network, self.preprocessing, inputs
        features, outputs = run_network(*parts, with_features=needed)
        size = self.method.outputs(self.task)
        if not isinstance(outputs, Tensor) or outputs.shape[-1] != size:
            shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise DubitoError(f"the network returns {shape}, but its method needs (N, {size})")
        if needed and features is None:
            raise DubitoError(
                f"{type(self.network).__name__} has no features: its last layer is no nn.Linear; "
                "give it a method forward_with_features(x) that returns features (N, D) and outputs"
            )
        return features, outputs

    @property
    def ood_score(self) -> str:
        """Score that ranks inputs by familiarity: mahalanobis if it was added, or the method's."""
        return FAMILIARITY if FAMILIARITY in self.scores else self.method.ood_score

    def _scores(self) -> list[Score]:
        return [score for score in self.scores.values() if isinstance(score, Score)]

    def distribution(self, features: Tensor | None, outputs: Tensor) -> Distribution:
        """Read the result of `run`.

        Args:
            features: Features (N, D), or None.
            outputs: Outputs of the network.
        """
        dist: Distribution = self.task.to_user_units(self.method.distribution(outputs))
        scores = zip(self.scores, self._scores(), strict=True)
        return dist.with_scores({name: (s(features, outputs), s.higher) for name, s in scores})

    def prediction(self, dist: Distribution, in_range: Tensor | None = None) -> Prediction:
        """Add point prediction, calibration and decision to a distribution.

        A pure function of tensors, which torch.export can trace.

        Args:
            dist: Result of `forward`.
            in_range: Which inputs are in the range of the training data, bool (N,); default: all.
        """
        codes = None
        if self.policy is not None:
            codes = self.policy.decide(dist, in_range, calibration=self.calibration)
        point = self.task.point(dist)
        return Prediction(self.task, dist, point, self.calibration, codes, in_range)

    def predict(
        self,
        items: object,
        *,
        batch_size: int | None = None,
        on_error: Literal["raise", "report"] = "raise",
    ) -> Prediction:
        """Predict inputs.

        Args:
            items: Inputs as users have them: a list of paths or images, arrays, rows, a DataFrame;
                a `datasets.Dataset`; a `Source`; or an encoded tensor (N, *shape).
            batch_size: Inputs per batch; None: as many as fit into memory.
            on_error: "raise" stops at an input that cannot be read or predicted; "report" adds the
                reason to `Prediction.errors` and continues.
        """
        _checks.one_of(("raise", "report"), on_error, "on_error")
        (prediction,) = self._predict(items, batch_size=batch_size, stop=on_error == "raise")
        return prediction

    def _predict(
        self,
        items: object,
        changes: Sequence[Callable[[Tensor], Tensor]] = (),
        *,
        batch_size: int | None = None,
        stop: bool = True,
    ) -> list[Prediction]:
        """Predict inputs, and these after each of several changes, reading them once."""
        names = names_of(items)
        collectors = [Collector(self, names, stop) for _ in range(1 + len(changes))]
        with self._evaluating():
            for batch in self._batches(items, batch_size, stop=stop):
                collectors[0].add(batch)
                for collector, change in zip(collectors[1:], changes, strict=True):
                    collector.add(Encoded(change(batch.inputs), {}, {}))
        return [collector.prediction() for collector in collectors]

    def _batches(
        self, items: object, size: int | None = None, *, stop: bool = True
    ) -> Iterator[Encoded]:
        """Yield encoded inputs in batches, or stop at one that cannot be read."""
        source, start = self._source(items), 0
        device = next(self.network.parameters(), torch.empty(0)).device
        for batch in source.batches(size or batch_size(source, device)):
            if stop:
                batch.checked(lambda row: name_of(names_of(items), start + row))  # noqa: B023
            yield batch
            start += len(batch.inputs)

    def outputs(
        self,
        items: object,
        *,
        with_features: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> Pass:
        """Return features, None without these, and outputs of the network for all inputs.

        Args:
            items: Inputs; see `predict`.
            with_features: Return features even if there are no scores that read them.
            progress: Function that is called with the number of inputs of each batch.
        """
        parts = []
        with self._evaluating():
            for batch in self._batches(items):
                parts.append(self.run(batch.inputs, with_features=with_features))
                if progress is not None:
                    progress(len(batch.inputs))
        if not parts:
            raise DubitoError("there are no inputs")
        features = [part for part, _ in parts if part is not None]
        return torch.cat(features) if features else None, torch.cat([part for _, part in parts])

    def _source(self, items: object) -> Source:
        """Return inputs as a source in the format of the model."""
        format = self.preprocessing.inputs
        if isinstance(items, Source):
            if items.format.shape != format.shape:
                raise DubitoError(
                    f"inputs of {items.name} have shape {items.format.shape}, but the model takes "
                    f"{format.shape}: open the source with format=model.preprocessing.inputs"
                )
            return items
        if not isinstance(items, str | os.PathLike) and is_dataset(items):
            return datasets.open(items, "all", format=format, labeled=False, on_error="report")
        if isinstance(items, list | tuple | np.ndarray):  # encoded when they are needed
            return Items("inputs", format, list(items) if isinstance(items, tuple) else items)
        if isinstance(items, Tensor) and not format.accepts(items):  # encoded already
            encoded = FORMATS.build("array", shape=format.shape, dtype=format.dtype).encode(items)
        else:
            encoded = format.encode(items)
        return Items("inputs", format, encoded.inputs, encoded=encoded)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Switch to evaluation mode, without gradients, for a while."""
        training = [module for module in self.modules() if module.training]
        self.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for module in training:  # others, such as frozen batch norm, stay in evaluation mode
                module.training = True

    # --- fitting on held-out data ---

    def calibrate(
        self,
        items: object,
        target: object = None,
        *,
        levels: Sequence[float] | None = None,
        exponent: float = 0.5,
    ) -> Self:
        """Fit the calibration on held-out data.

        Args:
            items: Inputs, see `predict`; or their prediction.
            target: Targets as users have them; None: those of the source.
            levels: Coverage of intervals or prediction sets, one or several; None: 0.9 for numbers,
                no sets for classes.
            exponent: Power of the standard deviation that the width of intervals is proportional
                to; it must not be chosen on these samples.
        """
        predicted = self._predicted(items)
        dist, of_members = predicted.distribution, predicted.out_of_fold
        expected = self._target(items, target, len(dist))
        self.calibration = Calibration.fit(
            dist, expected, levels, exponent=exponent, of_members=of_members
        )
        return self

    def _predicted(self, items: object) -> Prediction:
        """Return the prediction of inputs, or a prediction if all of its inputs could be read."""
        if not isinstance(items, Prediction):
            return self.predict(items)
        for row, reason in items.errors.items():
            raise DubitoError(f"{name_of(items.inputs, row)}: {reason}")
        return items

    def fit_policy(
        self,
        items: object,
        target: object = None,
        *,
        error_rate: float = 0.05,
        confidence: float = 0.95,
        false_alarms: float = 0.05,
        coverage: float | None = None,
        max_width: float | None = None,
        score: str | None = None,
        ood_score: str | None = None,
    ) -> Self:
        """Fit the policy on held-out data.

        Inputs outside the range of the training data are never accepted, and the guarantee is
        about the others. Samples of which a target is missing are left out, and weights ignored.
        `Policy.table` has the coverage at other error rates.

        Args:
            items: Inputs, see `predict`; or their prediction.
            target: Targets as users have them; None: those of the source.
            error_rate: Largest error rate among accepted predictions.
            confidence: Probability that the guarantee holds.
            false_alarms: Share of inputs that may be rejected as unfamiliar.
            coverage: Accept this share of predictions instead of controlling the error rate.
            max_width: Accept predictions whose interval is at most so wide instead of controlling
                the error rate; for a calibrated regression of one number.
            score: Score that ranks predictions; None: that of the method.
            ood_score: Score that ranks inputs by familiarity; None: `Model.ood_score`.
        """
        predicted = self._predicted(items)
        in_range = predicted.in_range
        rows = torch.arange(len(predicted)) if in_range is None else in_range.nonzero().flatten()
        if not len(rows):
            raise DubitoError("all inputs are outside the range of the training data")
        dist, score = predicted.distribution[rows], score or self.method.error_score
        ood: Any = {"ood_score": ood_score or self.ood_score, "false_alarms": false_alarms}
        if coverage is not None:
            policy = Policy.control_coverage(dist, coverage, score, **ood)
        elif max_width is not None:
            if self.calibration is None or self.task.kind != "regression":
                raise DubitoError("max_width needs intervals: calibrate a regression first")
            policy = Policy.control_width(dist, self.calibration, max_width, **ood)
        else:
            expected = self._target(items, target, len(predicted))
            known = known_rows(expected)
            rows = rows[torch.isin(rows, known)]
            if not len(rows):
                raise DubitoError("no input in the range of the training data has a target")
            dist = predicted.distribution[rows]
            errors = self.task.errors(predicted.point, values_and_weight(expected)[0])[rows]
            policy = Policy.control_error(dist, errors, error_rate, confidence, score, **ood)
            policy = policy.with_table(dist, errors, len(known) - len(rows))
        self.policy = policy.as_approximate() if predicted.out_of_fold else policy
        return self

    def add_scores(
        self,
        scores: Iterable[str | Mapping[str, object] | Score],
        items: object = None,
        target: object = None,
    ) -> Self:
        """Add post-hoc scores, which are fitted to one pass over training data.

        Args:
            scores: Names, dicts with a name, or scores; these are copied.
            items: Inputs, see `predict`; None: for scores that need none.
            target: Targets as users have them; None: those of the source.
        """
        built = [deepcopy(SCORES.build(score)) for score in scores]
        added = {SCORES.name_of(score): score for score in built}
        present = (*self.scores, *self.method.scores(self.task))
        for name, score in added.items():
            if self.task.kind not in score.tasks:
                raise DubitoError(f"the score {name!r} is not for {self.task.kind}")
            if name in present:
                raise DubitoError(f"the model already has a score {name!r}")
        if to_fit := [score for score in built if score.needs_fit]:
            self._fit_scores(to_fit, items, target)
        device = next(self.network.parameters(), torch.empty(0)).device
        for name, score in added.items():
            self.scores[name] = score.to(device).train(self.training)
        return self

    def check_scores(self, scores: Iterable[Score]) -> None:
        """Raise if scores read what the network does not have, or need no fit and fail.

        Args:
            scores: Post-hoc scores.
        """
        scores = [*scores]
        if not scores:
            return
        needed = any(score.needs_features for score in scores)
        with self._evaluating():
            features, outputs = self.run(self.preprocessing.inputs.blank(2), with_features=needed)
            head = None if features is None else linear_head(self.network, features, outputs)
            for score in scores:
                score.check_head(head)
                if not score.needs_fit:
                    check(score.to(outputs.device), features, outputs)

    def _fit_scores(self, scores: Sequence[Score], items: object, target: object) -> None:
        if items is None:
            names = ", ".join(map(SCORES.name_of, scores))
            raise DubitoError(f"the scores {names} are fitted to training data: pass items")
        needed = any(score.needs_features for score in scores)
        features, outputs = self.outputs(items, with_features=needed)
        expected = self._target(items, target, len(outputs)).to(outputs.device)
        rows = known_rows(expected)
        if len(rows) < len(expected):
            features = None if features is None else features[rows]
            outputs, expected = outputs[rows], expected[rows]
        expected, _ = values_and_weight(expected)
        if features is not None and not bool(features.isfinite().all()):
            raise DubitoError(
                "the features of the training samples are not finite: has the training diverged?"
            )
        with torch.no_grad():
            head = None
            if features is not None:
                head = linear_head(self.network, features[:HEAD_ROWS], outputs[:HEAD_ROWS])
            for score in scores:
                fit(score.to(outputs.device), features, outputs, expected, head)

    def _target(self, items: object, target: object, count: int) -> Tensor | Target:
        """Return encoded targets, with the weights of a source."""
        source, weight = items if target is None else target, None
        if isinstance(source, Source):
            target, weight = source.target, source.weight
        if target is None:
            raise DubitoError("these inputs have no targets: pass target=...")
        encoded = self.task.target(target, weight)
        if len(encoded) != count:
            raise DubitoError(f"{len(encoded)} targets for {count} inputs")
        return encoded

    # --- evaluation ---

    def evaluate(
        self,
        items: object,
        target: object = None,
        *,
        ood: Mapping[str, object] | None = None,
        noise: Sequence[float] = (),
        seed: int = 0,
    ) -> Json:
        """Evaluate on samples with known targets.

        Args:
            items: Inputs, see `predict`; or their prediction, but not with noise.
            target: Targets as users have them, or the source that has them; None: those of the
                inputs.
            ood: Out-of-distribution inputs, or their predictions, by name.
            noise: Standard deviations of normal noise that is added to the inputs, pixels being in
                [0, 1]; nothing is clipped.
            seed: Seed of the noise.

        Returns:
            The result of `dubito.evaluation.evaluate`, and "policy" if there is one, "ood" and
            "noise": shares of the decisions, and how well each score detects these inputs;
            "declared": the scores that rank by the risk of an error and of a foreign input.
        """
        if isinstance(items, Prediction) and noise:
            raise DubitoError("noise is added to inputs: pass these, not their prediction")
        changes = [_noise(_checks.positive(sigma, "noise"), seed) for sigma in noise]
        if isinstance(items, Prediction):
            predicted, noisy = self._predicted(items).reread(self), list[Prediction]()
        else:
            predicted, *noisy = self._predict(items, changes)
        expected = self._target(items, target, len(predicted))
        dist = predicted.distribution
        result = evaluation.evaluate(self.task, dist, expected, calibration=self.calibration)
        result |= predicted.decisions(expected)
        result["declared"] = self._declared(dist)
        for name, inputs in (ood or {}).items():
            other = self._predicted(inputs)
            part = {"samples": len(other), **other.decisions()}
            part["detection"] = evaluation.ood_detection(dist, other.distribution)
            result.setdefault("ood", {})[name] = part
        for sigma, other in zip(noise, noisy, strict=True):
            part = {"metrics": self.task.metrics(other.distribution.predictive, expected)}
            part |= other.decisions(expected)
            part["detection"] = evaluation.ood_detection(dist, other.distribution)
            result.setdefault("noise", {})[f"{sigma:g}"] = part
        return result

    def _declared(self, dist: Distribution) -> dict[str, str]:
        """Return the scores of the policy, or of the method, as distributions name them."""
        policy, names = self.policy, dict(zip(COMMON, dist.decomposition, strict=True))
        error, ood = self.method.error_score, self.ood_score
        if policy is not None:
            error = policy.threshold.score
            ood = ood if policy.ood_threshold is None else policy.ood_threshold.score
        return {"errors": names.get(error, error), "ood": names.get(ood, ood)}

    # --- files ---

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Save to a folder; an interrupted save leaves an earlier model intact.

        Args:
            folder: Folder to write; see `dubito.model.folder`.
        """
        from dubito.model.card import card  # loading a model does not need it

        return write(
            Path(folder),
            {name.replace(COMPILED, ""): tensor for name, tensor in self.state_dict().items()},
            card(self),
            method=METHODS.to_dict(self.method),
            backbone=None if self.backbone is None else BACKBONES.to_dict(self.backbone.saved()),
            task=self.task,
            preprocessing=self.preprocessing,
            calibration=self.calibration,
            policy=self.policy,
            scores=[SCORES.to_dict(score) for score in self._scores()],
            training=self.record,
        )

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        network: nn.Module | Callable[..., nn.Module] | None = None,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Load a model, in evaluation mode.

        All weights come from the folder, and code that it names is never imported.

        Args:
            folder: Folder of the model.
            network: Custom network that the model was saved with: a module, or a function that
                builds it; for a backbone "module:...", the function that builds the backbone.
            device: Device of the network.
        """
        place = Path(folder)
        content, tensors = read(place)
        try:
            method = METHODS.build(content.method)
            entry: Any = None if content.backbone is None else BACKBONES.build(content.backbone)
            is_users = entry is not None and BACKBONES.name_of(entry) == "module"
            parts = (method, content.task, content.preprocessing)
            _check_network(entry, network, is_users)
            if entry is None:
                model = cls(network if isinstance(network, nn.Module) else network(), *parts)  # type: ignore[misc]
            elif is_users:
                model = cls.build(*parts, partial(entry.called, network))
                model.backbone = entry
            else:
                model = cls.build(*parts, entry)
            built = map(SCORES.build, content.scores)
            model.scores.update({SCORES.name_of(score): score for score in built})
        except DubitoError as error:
            raise DubitoError(f"cannot load {place}: {error}") from error
        model.calibration, model.policy = content.calibration, content.policy
        model.record = content.training
        fill(model, tensors, place)
        return model.to(device).eval()


def run_network(
    network: nn.Module, preprocessing: Preprocessing, inputs: Tensor, *, with_features: bool
) -> Pass:
    """Run a network once, on its device and in its floating-point type.

    Args:
        network: Any network.
        preprocessing: How inputs are normalized.
        inputs: Encoded inputs, (N, *shape).
        with_features: Return features.
    """
    parameter = next(network.parameters(), inputs)
    x = preprocessing.normalize(inputs.to(parameter.device))
    if x.is_floating_point() and parameter.is_floating_point():
        x = x.to(parameter.dtype)
    return forward_with_features(network, x) if with_features else (None, network(x))


def _check_network(entry: Any, network: Any, is_users: bool) -> None:
    """Raise unless there is a network, or a function that builds one, if the folder has none."""
    if entry is None and network is None:
        raise DubitoError("it has a custom network: pass network=... (--network file.py:function)")
    if is_users and (network is None or isinstance(network, nn.Module)):
        raise DubitoError(
            f"its backbone is built by your function {entry.path!r}: pass network=..., this "
            f"function (--network {entry.path})"
        )
    if network is not None and entry is not None and not is_users:
        raise DubitoError(
            f"it names its backbone, {BACKBONES.name_of(entry)!r}: load it without network"
        )


def _noise(sigma: float, seed: int) -> Callable[[Tensor], Tensor]:
    """Return a function that adds normal noise to the inputs of one batch after another."""
    generator = torch.Generator().manual_seed(seed)

    def add(inputs: Tensor) -> Tensor:
        if inputs.dtype == torch.int64:
            raise DubitoError(
                f"noise={sigma:g} is for numbers and pixels, but this model reads indices, as of "
                "words: drop noise"
            )
        x = unit_range(inputs)
        return x + sigma * torch.randn(x.shape, generator=generator)

    return add
