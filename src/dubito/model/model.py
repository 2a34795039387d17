"""The model: trained, saved, loaded, evaluated, exported and served."""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from dubito import _checks, evaluation, scores
from dubito.backbones import BACKBONES, Backbone
from dubito.backbones.base import BackboneLike
from dubito.backbones.default import resolve
from dubito.backbones.module import UserModule
from dubito.calibration import Calibration
from dubito.data import ArrayFormat, Source
from dubito.data.base import Encoded, Items
from dubito.distributions import Distribution
from dubito.errors import DubitoError
from dubito.methods import METHODS, Method
from dubito.methods.base import Network
from dubito.model import _folder
from dubito.model._folder import TrainingRecord
from dubito.model.prediction import Prediction
from dubito.model.preprocessing import Preprocessing, unit_range
from dubito.policy import REASONS, Policy
from dubito.tasks import Task

__all__ = ["Model"]

BATCH = 1024
#: largest difference from the expected outputs, relative to the largest of these
OUTPUT_TOLERANCE = 1e-3
#: in the names of weights of a network that torch.compile wraps
COMPILED = "_orig_mod."
NOT_FINITE = "the outputs of the network are not finite"


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
        method: Method | str | Mapping[str, Any],
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
            entry = resolve(backbone, shape, preprocessing.inputs.kind)
            entry = _with_dropout(entry, _dropout(method))
            backbone = partial(entry.build, pretrained=pretrained)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            network = method.network(partial(backbone, shape), task)
        return cls(network, method, task, preprocessing, backbone=entry)

    @classmethod
    def from_network(
        cls,
        network: nn.Module,
        method: Method | str | Mapping[str, Any],
        task: Task,
        preprocessing: Preprocessing,
        *,
        check: tuple[Any, Any],
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
            cls.load(folder, network=network, device=device)._check_against(*check)
        return model.eval()

    def _check_against(self, inputs: Any, expected: Any) -> None:
        """Raise unless outputs or labels are the expected ones."""
        values = expected if hasattr(expected, "ndim") else np.asarray(expected)
        if values.ndim > 1 and values.shape[-1] == self.method.outputs(self.task):
            target = torch.as_tensor(values).detach().cpu()
            result = self._run_all(inputs)[1].cpu()
        else:
            target, result = self.task.encode(expected), self.predict(inputs).point
        if result.shape != target.shape:
            raise DubitoError(
                f"check: expected values have shape {tuple(target.shape)}, but the model returns "
                f"{tuple(result.shape)}"
            )
        hint = "do preprocessing and the order of the classes match those of the training?"
        if not target.is_floating_point():
            share = (result == target).double().mean().item()
            if share < 1:
                raise DubitoError(f"check: only {share:.1%} of the labels are as expected: {hint}")
            return
        gap, largest = (result - target).abs().max().item(), target.abs().max().item()
        if not gap <= OUTPUT_TOLERANCE * largest:
            raise DubitoError(
                f"check: values up to {largest:.4g} differ from the expected ones by up to "
                f"{gap:.2g}: {hint}"
            )

    # --- prediction ---

    def forward(self, inputs: Tensor) -> Distribution:
        """Return the distribution before calibration, in units of the target.

        Args:
            inputs: Encoded inputs, (N, *shape).
        """
        return self.distribution(*self.run(inputs))

    def features(self, inputs: Tensor) -> Tensor:
        """Return the features, inputs of the head: (N, D).

        Args:
            inputs: Encoded inputs, (N, *shape).
        """
        features, _ = self.run(inputs, with_features=True)
        if features is None:
            raise DubitoError(
                f"{type(self.network).__name__} does not expose features: give it a method "
                "features(x) that returns (N, D)"
            )
        return features

    def run(self, inputs: Tensor, *, with_features: bool = False) -> tuple[Tensor | None, Tensor]:
        """Run the network, on its device and in its floating-point type.

        Args:
            inputs: Encoded inputs, (N, *shape).
            with_features: Return features even if there are no scores that read them.

        Returns:
            Features (N, D), None without these or if the network does not expose them; and outputs
            (N, M), or (N, S, M) for S members or samples.
        """
        network: Any = self.network
        parameter = next(self.network.parameters(), inputs)
        x = self.preprocessing.normalize(inputs.to(parameter.device))
        x = x.to(parameter.dtype) if parameter.is_floating_point() else x
        exposed = (with_features or self.scores) and hasattr(network, "features")
        features = network.features(x) if exposed else None
        is_split = features is not None and isinstance(network, Network)
        outputs = network.head(features) if is_split else network(x)
        size = self.method.outputs(self.task)
        if not isinstance(outputs, Tensor) or outputs.shape[-1] != size:
            shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise DubitoError(f"the network returns {shape}, but its method needs (N, {size})")
        return features, outputs

    def distribution(self, features: Tensor | None, outputs: Tensor) -> Distribution:
        """Read the result of `run`.

        Args:
            features: Features (N, D), or None.
            outputs: Outputs of the network.
        """
        dist: Distribution = self.task.to_user_units(self.method.distribution(outputs))
        values = {name: (s(features, outputs), s.higher) for name, s in self.scores.items()}
        return dist.with_scores(values)  # type: ignore[arg-type]

    def prediction(self, dist: Distribution, in_range: Tensor | None = None) -> Prediction:
        """Add point prediction, calibration and decision to a distribution.

        A pure function of tensors, which torch.export can trace.

        Args:
            dist: Result of `forward`.
            in_range: Which inputs are in the range of the training data, bool (N,); default: all.
        """
        codes = None if self.policy is None else self.policy.decide(dist, in_range)
        point = self.task.point(dist)
        return Prediction(self.task, dist, point, self.calibration, codes, in_range)

    def predict(
        self, items: Any, *, batch_size: int = BATCH, on_error: Literal["raise", "report"] = "raise"
    ) -> Prediction:
        """Predict inputs.

        Args:
            items: Inputs as users have them: a list of paths or images, arrays, rows, a DataFrame;
                a `Source`; an encoded tensor (N, *shape); or an earlier prediction, to read it
                with the present calibration and policy.
            batch_size: Inputs per batch.
            on_error: "raise" stops at an input that cannot be read or predicted; "report" adds the
                reason to `Prediction.errors` and continues.
        """
        _checks.one_of(("raise", "report"), on_error, "on_error")
        stop = on_error == "raise"
        if not isinstance(items, Prediction):
            return self._predict(self._batches(items, batch_size), stop, _names(items))
        if stop and items.errors:
            row, reason = next(iter(items.errors.items()))
            raise DubitoError(f"{_name(items.inputs, row)}: {reason}")
        new = self.prediction(items.distribution, items.in_range)
        return replace(items, calibration=new.calibration, codes=new.codes)

    def _predict(
        self, batches: Iterable[Encoded], stop: bool, names: Sequence[str] | None
    ) -> Prediction:
        dists, ranges = [], []
        notes: dict[int, str] = {}
        errors: dict[int, str] = {}
        start = 0
        with self._evaluating():
            for batch in batches:
                if stop:
                    batch.checked(lambda row: _name(names, start + row))  # noqa: B023
                dist, bad = self._predict_batch(batch.inputs)
                if stop and bad:
                    raise DubitoError(f"{_name(names, start + bad[0])}: {NOT_FINITE}")
                reasons = batch.errors | dict.fromkeys(bad, NOT_FINITE)
                notes |= {start + row: text for row, text in batch.notes.items()}
                errors |= {start + row: text for row, text in reasons.items()}
                dists.append(dist.to("cpu"))
                ranges.append(self.preprocessing.inputs.in_range(batch.inputs))
                start += len(batch.inputs)
        if not start:
            raise DubitoError("there are no inputs to predict")
        in_range = torch.cat(ranges)
        for row in (~in_range).nonzero().flatten().tolist():
            notes.setdefault(row, "outside the range of the training data")
        in_range[list(errors)] = False  # never accept a row that could not be read
        prediction = self.prediction(Distribution.cat(dists), in_range)
        return replace(prediction, notes=notes, errors=errors, inputs=names)

    def _predict_batch(self, inputs: Tensor) -> tuple[Distribution, list[int]]:
        """Return the distribution, and the rows whose outputs are not finite."""
        features, outputs = self.run(inputs)
        dist = self.distribution(features, outputs)
        finite = outputs.flatten(1).isfinite().all(1) & dist.total.isfinite()
        if not bool(finite.all()):  # these rows become errors
            rows = finite.view(-1, *[1] * (outputs.ndim - 1))
            dist = self.distribution(features, torch.where(rows, outputs, 0))
        return dist, (~finite).nonzero().flatten().tolist()

    def _batches(self, items: Any, batch_size: int = BATCH) -> Iterator[Encoded]:
        """Yield encoded inputs in batches."""
        source = self._source(items)
        for start in range(0, len(source), batch_size):
            yield source.encode(range(len(source))[start : start + batch_size])

    def _source(self, items: Any) -> Source:
        """Return inputs as a source in the format of the model."""
        format = self.preprocessing.inputs
        if isinstance(items, Source):
            if items.format.shape != format.shape:
                raise DubitoError(
                    f"inputs of {items.name} have shape {items.format.shape}, but the model takes "
                    f"{format.shape}: open the source with format=model.preprocessing.inputs"
                )
            return items
        if isinstance(items, list | tuple | np.ndarray):  # encoded when they are needed
            return Items("inputs", format, list(items) if isinstance(items, tuple) else items)
        is_encoded = isinstance(items, Tensor) and format.kind == "table"
        encoded = (ArrayFormat(shape=format.shape) if is_encoded else format).encode(items)
        return Items("inputs", format, encoded.inputs, encoded=encoded)

    def _run_all(self, items: Any, *, with_features: bool = False) -> tuple[Tensor | None, Tensor]:
        """Return features, if the network exposes them, and outputs of all inputs; see `run`."""
        with self._evaluating():
            source = self._source(items)
            batches = map(source.subset, torch.arange(len(source)).split(BATCH))
            parts = [self.run(batch.load(), with_features=with_features) for batch in batches]
        features = [part for part, _ in parts if part is not None]
        return torch.cat(features) if features else None, torch.cat([part for _, part in parts])

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

    def calibrate(self, items: Any, target: Any = None) -> Self:
        """Fit the calibration on held-out data.

        Args:
            items: Inputs; see `predict`.
            target: Targets as users have them; None: those of the source.
        """
        dist = self.predict(items).distribution
        self.calibration = Calibration.fit(dist, self._target(items, target, len(dist)))
        return self

    def fit_policy(
        self,
        items: Any,
        target: Any = None,
        *,
        error_rate: float = 0.05,
        confidence: float = 0.95,
        false_alarms: float = 0.05,
        coverage: float | None = None,
        score: str | None = None,
        ood_score: str | None = None,
    ) -> Self:
        """Fit the policy on held-out data.

        Inputs outside the range of the training data are never accepted, and the guarantee is
        about the others. `Policy.table` has the coverage at other error rates.

        Args:
            items: Inputs; see `predict`.
            target: Targets as users have them; None: those of the source.
            error_rate: Largest error rate among accepted predictions.
            confidence: Probability that the guarantee holds.
            false_alarms: Share of inputs that may be rejected as unfamiliar.
            coverage: Accept this share of predictions instead of controlling the error rate.
            score: Score that ranks predictions; None: that of the method.
            ood_score: Score that ranks inputs by familiarity; None: that of the method.
        """
        predicted = self.predict(items)
        in_range = predicted.in_range
        rows = torch.arange(len(predicted)) if in_range is None else in_range.nonzero().flatten()
        if not len(rows):
            raise DubitoError("all inputs are outside the range of the training data")
        dist, score = predicted.distribution[rows], score or self.method.error_score
        ood: Any = {"ood_score": ood_score or self.method.ood_score, "false_alarms": false_alarms}
        if coverage is not None:
            self.policy = Policy.control_coverage(dist, coverage, score, **ood)
            return self
        expected = self._target(items, target, len(predicted))
        errors = self.task.errors(predicted.point, expected)[rows]
        policy = Policy.control_error(dist, errors, error_rate, confidence, score, **ood)
        self.policy = policy.with_table(dist, errors, len(predicted) - len(rows))
        return self

    def add_score(self, name: str, items: Any, target: Any = None, **options: Any) -> Self:
        """Add a post-hoc score, fitted on training data.

        Args:
            name: One of `dubito.scores.SCORES`.
            items: Inputs; see `predict`.
            target: Targets as users have them; None: those of the source.
            **options: Parameters of the score.
        """
        score = scores.build(name, **options)
        if self.task.kind not in score.tasks:
            raise DubitoError(f"the score {name!r} is not for {self.task.kind}")
        features, outputs = self._run_all(items, with_features=True)
        if name in self.method.distribution(outputs[:1]).scores:
            raise DubitoError(f"the model already has a score {name!r}")
        expected = self._target(items, target, len(outputs)).to(outputs.device)
        score.fit(features, outputs, expected)
        self.scores[name] = score.to(outputs.device)
        return self

    def _target(self, items: Any, target: Any, count: int) -> Tensor:
        """Return encoded targets."""
        if target is None:
            target = items.target if isinstance(items, Source) else None
        if target is None:
            raise DubitoError("these inputs have no targets: pass target=...")
        encoded = self.task.encode(target)
        if len(encoded) != count:
            raise DubitoError(f"{len(encoded)} targets for {count} inputs")
        return encoded

    # --- evaluation ---

    def evaluate(
        self,
        items: Any,
        target: Any = None,
        *,
        ood: Mapping[str, Any] | None = None,
        noise: Sequence[float] = (),
        seed: int = 0,
    ) -> dict[str, Any]:
        """Evaluate on samples with known targets.

        Args:
            items: Inputs; see `predict`. Noise needs the inputs, not an earlier prediction.
            target: Targets as users have them; None: those of the source.
            ood: Out-of-distribution inputs by name.
            noise: Standard deviations of normal noise that is added to the inputs, pixels being in
                [0, 1]; nothing is clipped.
            seed: Seed of the noise.

        Returns:
            The result of `dubito.evaluation.evaluate`, and "policy" if there is one, "ood" and
            "noise": shares of the decisions, and how well each score detects these inputs.
        """
        predicted = self.predict(items)
        expected = self._target(items, target, len(predicted))
        dist = predicted.distribution
        result = evaluation.evaluate(self.task, dist, expected, calibration=self.calibration)
        result |= self._decisions(predicted, expected)
        for name, inputs in (ood or {}).items():
            other = self.predict(inputs)
            part = {"samples": len(other), **self._decisions(other)}
            part["detection"] = evaluation.ood_detection(dist, other.distribution)
            result.setdefault("ood", {})[name] = part
        for sigma in noise:
            other = self._predict_noisy(items, _checks.positive(sigma, "noise"), seed)
            part = {"metrics": self.task.metrics(other.distribution.predictive, expected)}
            part |= self._decisions(other, expected)
            part["detection"] = evaluation.ood_detection(dist, other.distribution)
            result.setdefault("noise", {})[f"{sigma:g}"] = part
        return result

    def _decisions(self, predicted: Prediction, target: Tensor | None = None) -> dict[str, Any]:
        """Return the share of each decision and the error rate among accepted predictions."""
        if predicted.codes is None:
            return {}
        counts = torch.bincount(predicted.codes, minlength=len(REASONS)).tolist()
        shares = {name: n / len(predicted) for name, n in zip(REASONS, counts, strict=True)}
        if target is not None and self.task.defines_errors and counts[0]:
            errors = self.task.errors(predicted.point, target)[predicted.codes == 0]
            shares["error_rate"] = errors.double().mean().item()
        return {"policy": shares}

    def _predict_noisy(self, items: Any, sigma: float, seed: int) -> Prediction:
        generator = torch.Generator().manual_seed(seed)

        def noisy(batch: Encoded) -> Encoded:
            x = unit_range(batch.inputs)
            return Encoded(x + sigma * torch.randn(x.shape, generator=generator), {}, {})

        return self._predict(map(noisy, self._batches(items)), True, _names(items))

    # --- files ---

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Save to a folder; an interrupted save leaves an earlier model intact.

        Args:
            folder: Folder to write; see `dubito.model._folder`.
        """
        from dubito.model._card import card  # loading a model does not need it

        return _folder.write(
            Path(folder),
            {name.replace(COMPILED, ""): tensor for name, tensor in self.state_dict().items()},
            card(self),
            method=METHODS.to_dict(self.method),
            backbone=None if self.backbone is None else BACKBONES.to_dict(self.backbone),
            task=self.task,
            preprocessing=self.preprocessing,
            calibration=self.calibration,
            policy=self.policy,
            scores={name: score.options for name, score in self.scores.items()},
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
        content, tensors = _folder.read(place)
        try:
            method = METHODS.build(content.method)
            entry = None if content.backbone is None else BACKBONES.build(content.backbone)
            parts = (method, content.task, content.preprocessing)
            _check_network(entry, network)
            if entry is None:
                model = cls(network if isinstance(network, nn.Module) else network(), *parts)  # type: ignore[misc]
            elif isinstance(entry, UserModule):
                model = cls.build(*parts, partial(entry.call, network))  # type: ignore[arg-type]
                model.backbone = entry
            else:
                model = cls.build(*parts, entry)
            for name, options in content.scores.items():
                model.scores[name] = scores.build(name, **options)
        except DubitoError as error:
            raise DubitoError(f"cannot load {place}: {error}") from error
        model.calibration, model.policy = content.calibration, content.policy
        model.record = content.training
        _folder.fill(model, tensors, place)
        return model.to(device).eval()

    def export(self, path: str | os.PathLike[str], **options: Any) -> Any:
        """Export to ONNX; see `dubito.onnx.export`.

        Args:
            path: File to write.
            **options: Further arguments of `dubito.onnx.export`.
        """
        return import_module("dubito.onnx").export(self, path, **options)


def _check_network(entry: Backbone | None, network: Any) -> None:
    """Raise unless there is a network, or a function that builds one, if the folder has none."""
    if entry is None and network is None:
        raise DubitoError(
            "it has a custom network: pass network=..., a module or a function that builds it"
        )
    if isinstance(entry, UserModule) and (network is None or isinstance(network, nn.Module)):
        raise DubitoError(
            f"its backbone is built by your function {entry.path!r}: pass network=..., this "
            f"function (--network {entry.path})"
        )
    if network is not None and not isinstance(entry, UserModule | None):
        raise DubitoError(
            f"it names its backbone, {BACKBONES.name_of(entry)!r}: load it without network"
        )


def _with_dropout(entry: Backbone, rate: float | None) -> Backbone:
    """Return a backbone with the dropout rate of the method, if it has one."""
    if rate is None or entry.dropout == rate:
        return entry
    if entry.dropout is not None:
        raise DubitoError(
            f"the backbone has dropout {entry.dropout}, but the method {rate}: set only that of "
            "the method"
        )
    return replace(entry, dropout=rate)


def _dropout(method: Method) -> float | None:
    """Return the dropout rate of a method or of its members."""
    rate: float | None = getattr(method, "dropout", None)
    member = getattr(method, "member", None)
    return _dropout(member) if rate is None and member is not None else rate


def _names(items: Any) -> list[str] | None:
    """Return the names of inputs for users, such as paths; None if they only have numbers."""
    if isinstance(items, Source):
        return [items.item(row) for row in range(len(items))]
    if isinstance(items, list | tuple) and all(isinstance(i, str | os.PathLike) for i in items):
        return [os.fspath(item) for item in items]
    return None


def _name(names: Sequence[str] | None, row: int) -> str:
    return f"row {row}" if names is None else names[row]
