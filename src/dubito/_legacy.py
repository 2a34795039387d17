"""Private adapter: the old shape of predictions and methods, for callers not yet rewritten.

Training, bundles, runs, the estimator, Lightning, export, the service, few-shot and the experiments
read a `Prediction` and drive a `Method` of this module. Both wrap the core: a distribution, and a
method of `dubito.methods`. This file goes when these callers are rewritten.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, NamedTuple, get_type_hints

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from dubito import _checks, metrics
from dubito import methods as core
from dubito.backbones import Backbone
from dubito.calibration import Calibration
from dubito.distributions import Categorical, ClassDistribution, Dirichlet, Distribution
from dubito.distributions.classification import ClassMixture
from dubito.evaluation import error_detection, ood_detection
from dubito.methods.base import name_of
from dubito.methods.ensemble import Members, MixtureMethod
from dubito.methods.flows import RadialFlows
from dubito.methods.mc_dropout import Sampled
from dubito.methods.posterior_network import DensityHead
from dubito.policy import Policy
from dubito.tasks import Classification

__all__ = [
    "MEASURES",
    "METHODS",
    "UNFAMILIAR",
    "Measure",
    "Method",
    "Prediction",
    "balanced",
    "calibration_metrics",
    "joined",
    "method",
    "misclassification",
    "ood_figures",
    "promise_of",
    "redrawn",
    "reliability",
]

# --- measures and predictions ---


class Measure(NamedTuple):
    """A score: its name, its label in tables, and what a higher value means."""

    name: str
    label: str
    rises_with: Literal["confidence", "uncertainty"]

    def as_confidence(self, values: Tensor) -> Tensor:
        """Sign the values so that higher means more confident."""
        return values if self.rises_with == "confidence" else -values


#: name -> measure, of those that records and tables have
MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure("max_prob", "Max.P", "confidence"),
        Measure("max_alpha", "Max.α", "confidence"),
        Measure("alpha0", "α₀", "confidence"),
        Measure("differential_entropy", "D.Ent.", "uncertainty"),
        Measure("mutual_information", "M.I.", "uncertainty"),
        Measure("expected_entropy", "E.Ent.", "uncertainty"),
        Measure("entropy_of_mean", "Ent.", "uncertainty"),
        Measure("vacuity", "Vacuity", "uncertainty"),
        Measure("dissonance", "Dissonance", "uncertainty"),
    )
}
#: measures that detect unfamiliar inputs, the best first
UNFAMILIAR = ("vacuity", "mutual_information", "alpha0")


class Prediction:
    """A class distribution as the old callers read it; each measure is an attribute.

    Args:
        distribution: Distribution with batch shape (...).

    >>> said = Prediction.from_logits(torch.tensor([[9.0, -9.0, -9.0], [-9.0, -9.0, -9.0]]))
    >>> said.label, said.vacuity
    (tensor([0, 0]), tensor([0.2500, 0.9999]))
    >>> said
    Prediction(2 samples, 3 classes: mean max_prob 0.58, mean vacuity 0.62)
    """

    max_prob: Tensor
    max_alpha: Tensor
    alpha0: Tensor
    differential_entropy: Tensor
    mutual_information: Tensor
    expected_entropy: Tensor
    entropy_of_mean: Tensor
    vacuity: Tensor
    dissonance: Tensor

    def __init__(self, distribution: Any) -> None:
        self.distribution: ClassDistribution = distribution

    @classmethod
    def from_alpha(cls, alpha: Tensor, *, prior: float = 1.0) -> Prediction:
        """Create from concentrations (..., K)."""
        return cls(Dirichlet(_checks.concentration(alpha), prior))

    @classmethod
    def from_logits(
        cls, logits: Tensor, evidence: str = "softplus", *, prior: float = 1.0
    ) -> Prediction:
        """Create from logits (..., K) and an evidence function."""
        return cls(Dirichlet.from_logits(_checks.logits(logits), evidence, prior))

    @classmethod
    def from_probs(cls, probs: Tensor) -> Prediction:
        """Create from class probabilities (..., K)."""
        return cls(Categorical.from_probs(_checks.probabilities(probs)))

    @classmethod
    def from_samples(cls, probs: Tensor) -> Prediction:
        """Create from S sampled probabilities (S, ..., K)."""
        return cls.from_mixture(_checks.probabilities(probs).log().movedim(0, -2))

    @classmethod
    def from_mixture(cls, log_probs: Tensor) -> Prediction:
        """Create from the log probabilities of S members, (..., S, K)."""
        return cls(Categorical(log_probs).mixture())

    @property
    def available(self) -> tuple[str, ...]:
        """The measures that this prediction has."""
        return tuple(name for name in MEASURES if name in self.distribution.scores)

    @property
    def prior(self) -> float:
        """Prior of the Dirichlet."""
        return float(getattr(self.distribution, "prior", 1.0))

    @property
    def alpha(self) -> Tensor:
        """Concentrations: (..., K)."""
        if not isinstance(self.distribution, Dirichlet):
            raise AttributeError("alpha")
        return self.distribution.alpha

    @property
    def belief(self) -> Tensor:
        """Belief masses: (..., K)."""
        if not isinstance(self.distribution, Dirichlet):
            raise AttributeError("belief")
        if self.distribution.kernel_input().evidence is None:
            _checks.concentration(self.alpha, least=self.prior)
        return self.distribution.belief

    @property
    def samples(self) -> Tensor:
        """Probabilities of the members: (S, ..., K)."""
        if not isinstance(self.distribution, ClassMixture):
            raise AttributeError("samples")
        probs: Tensor = self.distribution.members.probs
        return probs.movedim(-2, 0)

    @property
    def probs(self) -> Tensor:
        """Expected probabilities: (..., K)."""
        return self.distribution.probs

    @property
    def label(self) -> Tensor:
        """The most probable class: (...)."""
        return self.probs.argmax(-1)

    def __getattr__(self, name: str) -> Tensor:
        if name in ("alpha", "belief", "samples"):
            raise AttributeError(f"a {type(self.distribution).__name__} has no {name}")
        if name not in MEASURES:
            raise AttributeError(f"a Prediction has no {name!r}")
        if name not in self.available:
            have = _checks.listed(self.available)
            raise AttributeError(f"this prediction has no measure {name!r}; it has {have}")
        return self.distribution.score(name)

    def measure(self, name: str) -> Tensor:
        """Compute a measure: (...)."""
        _checks.one_of(self.available, name, "measure")
        return self.distribution.score(name)

    def confidence(self, name: str) -> Tensor:
        """Compute a measure, signed so that higher means more confident: (...)."""
        return MEASURES[name].as_confidence(self.measure(name))

    def calibrated(self, calibration: Calibration | None) -> Prediction:
        """Return the prediction that consists of calibrated probabilities."""
        if calibration is None:
            return self
        predictive: Any = calibration(self.distribution)
        return Prediction(Categorical(predictive.logits.to(self.probs.dtype)))

    def __getitem__(self, index: Any) -> Prediction:
        return Prediction(self.distribution[index])

    def __len__(self) -> int:
        return len(self.distribution)

    def __repr__(self) -> str:
        *leading, classes = self.probs.shape
        size = "one sample" if not leading else f"{'x'.join(map(str, leading))} samples"
        shown = [name for name in ("max_prob", "vacuity") if name in self.available]
        means = ", ".join(f"mean {name} {self.measure(name).mean().item():.2f}" for name in shown)
        return f"Prediction({size}, {classes} classes: {means})"


def joined(parts: Sequence[Prediction]) -> Prediction:
    """Concatenate predictions of one kind, on the CPU.

    >>> one = Prediction.from_alpha(torch.tensor([[3.0, 1.0]]))
    >>> joined([one, one]).vacuity
    tensor([0.5000, 0.5000])
    """
    return Prediction(Distribution.cat([part.distribution.to("cpu") for part in parts]))


# --- evaluation ---


def calibration_metrics(said: Prediction, labels: Tensor) -> dict[str, float]:
    """Compute ece, brier and nll of the expected probabilities."""
    probs, target = said.probs, labels.long()
    return {
        "ece": metrics.ece(probs, target).item(),
        "brier": metrics.brier(probs, target).item(),
        "nll": metrics.nll(probs, target).item(),
    }


def ood_figures(
    inside: Prediction, outside: Prediction, measures: Iterable[str] | None = None
) -> dict[str, dict[str, float]]:
    """Compute how well each measure detects out-of-distribution samples."""
    names = inside.available if measures is None else tuple(measures)
    return ood_detection(inside.distribution, outside.distribution, names)


def misclassification(said: Prediction, labels: Tensor) -> dict[str, dict[str, float]]:
    """Compute how well each measure detects wrong labels."""
    return error_detection(said.distribution, said.label != labels.long(), said.available)


def reliability(said: Prediction, labels: Tensor) -> dict[str, list[float]]:
    """Compute mean confidence, accuracy and number of samples in the bins of the ECE."""
    task = _task(said.probs.shape[-1], None)
    curve = task.reliability(said.distribution.predictive, labels.long())
    keys = {"confidence": "expected", "accuracy": "observed", "count": "count"}
    return {name: curve[key] for name, key in keys.items()}


def promise_of(policy: Policy) -> dict[str, float]:
    """Return what a policy guarantees, by old names."""
    if policy.guarantee is None:
        return {}
    values = policy.guarantee.model_dump(exclude_none=True)
    return {values.pop("controls"): values.pop("level"), **values}


# --- methods ---

#: defaults of the reproduction, which its records rely on
OLD_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "iedl": {"fisher_weight": 0.05, "scale": "paper"},
    "edl": {"scale": "paper"},
    "redl": {"scale": "paper"},
}
#: hyperparameters that configs do not list, so that the ids of records stay
NEWER = ("kl_beta",)
Known = dict[str, tuple[Any, Any]]


def _known(name: str) -> Known:
    """Type and default of each hyperparameter."""
    if name == "ensemble":
        return {"member": (str, "iedl"), "size": (int, 5), "options": (Mapping[str, Any], {})}
    if name == "mc_dropout":
        return {"dropout": (float, 0.25), "passes": (int, 10)}
    kind = core.METHODS[name]
    hints, old = get_type_hints(kind), OLD_DEFAULTS.get(name, {})
    defaults = {f.name: ... if f.default is MISSING else f.default for f in fields(kind)}
    return {
        key: (hints[key], old.get(key, default))
        for key, default in defaults.items()
        if key not in NEWER
    }


#: name -> hyperparameters with type and default
METHODS: dict[str, Known] = {
    name: _known(name)
    for name in (
        "iedl",
        "edl",
        "redl",
        "kl_pn",
        "rkl_pn",
        "posterior_network",
        "mc_dropout",
        "softmax",
        "label_smoothing",
        "ensemble",
        "fedl",
    )
}


def _core(name: str, values: Mapping[str, Any]) -> core.Method:
    """Build a method of the core from old names."""
    known = (*METHODS[name], *(NEWER if name == "iedl" else ()))
    for key in values:
        if not (name == "mc_dropout" and key in ("member", "options")):
            _checks.one_of(known, key, f"hyperparameter of the method {name!r}:")
    try:
        if name == "ensemble":
            member = values.get("member", "iedl")
            _checks.one_of(METHODS, member, "member method")
            inner = _core(member, values.get("options", {}))
            return core.Ensemble(member=inner, size=values.get("size", 5))
        if name == "mc_dropout":
            inner = _core(values.get("member", "softmax"), values.get("options", {}))
            rest = {k: v for k, v in values.items() if k == "dropout"}
            return core.MCDropout(member=inner, samples=values.get("passes", 10), **rest)
        return core.METHODS[name](**{**OLD_DEFAULTS.get(name, {}), **values})
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else name
        expected = first["msg"].removeprefix("Input should be ")
        raise ValueError(f"{key} must be {expected}, not {first['input']!r}") from None


def _hyperparameters(method: core.Method) -> dict[str, Any]:
    """Return the values from which `_core` builds an equal method."""
    if isinstance(method, MixtureMethod):
        inner = {"member": name_of(method.member), "options": _hyperparameters(method.member)}
        if isinstance(method, core.Ensemble):
            return {"member": inner["member"], "size": method.size, "options": inner["options"]}
        if isinstance(method, core.MCDropout):
            known = {"dropout": method.dropout, "passes": method.samples}
            return known if method.member == core.Softmax() else {**known, **inner}
    values = {f.name: getattr(method, f.name) for f in fields(method)}
    return {k: v for k, v in values.items() if not (k in NEWER and v is None)}


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method of the core, driven as the old callers do.

    Args:
        core: The method.
        ood: Out-of-distribution inputs (M, *shape) to train with, if the method has terms for them;
            without any, uniform noise.
        class_weight: Weight of each class, (K,).
        before: Epochs trained before, for weights that rise.
        ood_share: Out-of-distribution inputs for each sample of a batch.
    """

    core: core.Method
    ood: Tensor | None = field(default=None, repr=False, compare=False)
    class_weight: Tensor | None = field(default=None, repr=False, compare=False)
    before: int = 0
    ood_share: float = 1.0

    @property
    def name(self) -> str | None:
        """Registered name, if the method is registered."""
        return next((n for n, kind in core.METHODS.items() if type(self.core) is kind), None)

    @property
    def dropout(self) -> float | None:
        """Dropout that the backbone needs; None leaves the backbone's."""
        inner: Any = self.core
        while isinstance(inner, core.Ensemble):
            inner = inner.member
        return inner.dropout if isinstance(inner, core.MCDropout) else None

    @property
    def trains_with_ood(self) -> bool:
        """Whether there are loss terms of out-of-distribution inputs."""
        return bool(self.core.ood_terms)

    def hyperparameters(self) -> dict[str, Any]:
        """Return what `method` takes to build an equal method."""
        return _hyperparameters(self.core)

    def identity(self) -> dict[str, Any]:
        """Return what a checkpoint must share with the run that resumes from it."""
        weights = None if self.class_weight is None else self.class_weight.tolist()
        return {"name": self.name, **self.hyperparameters(), "class_weight": weights}

    def __getattr__(self, name: str) -> Any:
        values = {} if name.startswith("_") or name == "core" else self.hyperparameters()
        if name not in values:
            raise AttributeError(f"a Method has no {name!r}")
        return values[name]

    # --- network ---

    def outputs(self, classes: int) -> int:
        """Return the number of outputs of the backbone."""
        inner: Any = self.core
        while isinstance(inner, MixtureMethod):
            inner = inner.member
        # Its latent layer is the head of the backbone.
        latent = isinstance(inner, core.PosteriorNetwork)
        return int(inner.latent_dim if latent else inner.outputs(_task(classes, None)))

    def read_outputs(self, classes: int) -> int:
        """Return the number of outputs of the model, the last axis of what `prediction` reads."""
        return self.core.outputs(_task(classes, None))

    def model(
        self, backbone: nn.Module, classes: int, class_counts: Sequence[int] | Tensor | None = None
    ) -> nn.Module:
        """Build the network that is trained from a backbone with `outputs` outputs."""
        return _network(self.core, backbone, _task(classes, class_counts))

    def caution(self, classes: int) -> str | None:
        """Return a warning about hyperparameters, or None."""
        return self.core.warning(_task(classes, None))

    # --- training ---

    def inputs(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Append as many out-of-distribution inputs to a batch, if the method trains with them."""
        if not self.trains_with_ood:
            return x
        if self.ood is None:
            noise = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
            return torch.cat([x, noise])
        if self.ood.shape[1:] != x.shape[1:]:
            raise ValueError(
                f"ood holds inputs of shape {tuple(self.ood.shape[1:])}, "
                f"but the batch of shape {tuple(x.shape[1:])}"
            )
        bank = self.ood.to(x.device)
        count = math.ceil(len(x) * self.ood_share)
        rows = torch.randint(len(bank), (count,), generator=generator, device=x.device)
        outside = bank[rows].to(x.dtype) / (1 if bank.is_floating_point() else 255)
        return torch.cat([x, outside])

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """Return the weight of each term, in the order of `loss_of`."""
        weights = self.core.weights(epoch + self.before, epochs + self.before)
        return {name: weights[name] for name in (*self.core.terms, *self.core.ood_terms)}

    def loss_of(self, outputs: Tensor, target: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the summed loss of a batch and the sum of each term, (T,)."""
        weight = None if self.class_weight is None else self.class_weight.to(outputs.device)
        if not self.trains_with_ood:
            dist = self.core.distribution(outputs)
            return self.core.loss(dist, target, weights, class_weight=weight)
        inside, outside = outputs[: len(target)], outputs[len(target) :]
        return self.core.loss(
            self.core.distribution(inside), target, weights,
            ood=self.core.distribution(outside), class_weight=weight,
        )  # fmt: skip

    # --- prediction ---

    def outputs_for(self, model: nn.Module, x: Tensor) -> Tensor:
        """Run the model in evaluation mode: (N, M), or (N, S, M)."""
        outputs: Tensor = model(x)
        return outputs

    def prediction(self, outputs: Tensor) -> Prediction:
        """Read outputs (..., M), or (..., S, M) of members.

        Members of an ensemble are kept as their expected probabilities.
        """
        dist: Any = self.core.distribution(outputs)
        dist.validate()
        if isinstance(dist, ClassMixture):
            return Prediction.from_mixture(dist.members.log_probs)
        if isinstance(dist, Dirichlet) and dist.prior == 0:
            _checks.concentration(dist.alpha)  # exp underflows
        return Prediction(dist)

    def predict(self, model: nn.Module, x: Tensor) -> Prediction:
        """Predict inputs (N, *shape) with a model in evaluation mode."""
        return self.prediction(self.outputs_for(model, x))


def method(
    name: str | core.Method | Method, /, ood: Tensor | None = None, **hyperparameters: Any
) -> Method:
    """Build a method by its name with the old defaults, or wrap one of the core.

    >>> method("edl", likelihood="marginal", kl_ramp=0).core
    EDL(likelihood='marginal', kl_weight=1.0, kl_ramp=0, ..., scale='paper')
    """
    if isinstance(name, Method):
        return name
    if isinstance(name, core.Method):
        return Method(core=name, ood=ood)
    _checks.one_of(METHODS, name, "method")
    made = Method(core=_core(name, hyperparameters), ood=ood)
    if ood is not None:
        if not made.trains_with_ood:
            _checks.one_of(METHODS[name], "ood", f"hyperparameter of the method {name!r}:")
        if ood.ndim < 2 or not len(ood):
            raise ValueError(f"ood has shape {tuple(ood.shape)}; expected (M, *shape), M >= 1")
    return made


def balanced(counts: Sequence[int]) -> list[float]:
    """Compute class weights (K,) that make all classes count alike, 1 on average over the samples.

    >>> balanced([30, 10])
    [0.666..., 2.0]
    """
    present = sum(count > 0 for count in counts)
    return [sum(counts) / (present * count) if count else 0.0 for count in counts]


def _task(classes: int, counts: Sequence[int] | Tensor | None) -> Classification:
    if isinstance(counts, Tensor):
        counts = counts.tolist()
    if counts is not None and len(counts) != classes:
        raise ValueError(f"class_counts has {len(counts)} numbers; expected one a class, {classes}")
    plain = None if counts is None else tuple(int(count) for count in counts)
    return Classification(classes=tuple(map(str, range(classes))), counts=plain)


def _network(method: core.Method, backbone: nn.Module, task: Classification) -> nn.Module:
    """Build a method's network around a backbone that ends in its own linear head."""
    if isinstance(method, core.Ensemble):
        backbones = [backbone, *(redrawn(backbone) for _ in range(method.size - 1))]
        return Members([_network(method.member, one, task) for one in backbones])
    if isinstance(method, core.MCDropout):
        return Sampled(_network(method.member, backbone, task), method.samples)
    if isinstance(method, core.PosteriorNetwork):
        if task.counts is None:
            raise ValueError("a Posterior Network needs class_counts, the samples of each class")
        flows = RadialFlows(task.size, method.latent_dim, method.flow_length)
        return core.Network(backbone, DensityHead(nn.Identity(), flows, task.counts))
    if type(method).head is not core.Method.head and isinstance(backbone, Backbone):
        backbone.head = method.head(backbone.feature_size, task)  # type: ignore[assignment]
    return backbone


def redrawn(network: nn.Module) -> nn.Module:
    """Copy a network and draw its parameters anew, by the `reset_parameters` of its modules."""
    copy = deepcopy(network)
    # The reset of a parent comes after its children's, so that it has the last word.
    for name, module in reversed(list(copy.named_modules())):
        reset = getattr(module, "reset_parameters", getattr(module, "_reset_parameters", None))
        if callable(reset):
            reset()
        elif any(True for _ in module.parameters(recurse=False)):
            raise TypeError(
                f"an ensemble draws the weights of each member anew, but {type(module).__name__} "
                f"({name or 'the backbone itself'}) has parameters and no reset_parameters()"
            )
    return copy
