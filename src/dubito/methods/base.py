"""What a method is, and what the evidential ones share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dubito import _checks, kernels
from dubito.evidence import alpha_from_logits
from dubito.losses import terms, weighted
from dubito.losses.functions import _GROW_WITH_CLASSES, _SCALES, growth
from dubito.prediction import Prediction
from dubito.schedules import Constant, Linear

Counts = Sequence[int] | Tensor
Ramp = int | Literal["all"]


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A way to train a classifier and to read its outputs; its fields are its hyperparameters.

    A loop needs `outputs` and `dropout` to build a backbone, `model` to make of it what is trained,
    `weights` and `terms` for the loss sum_i weights[i] mean(terms[i]), and `predict`. Most of what
    tells methods apart is a function of outputs alone (`terms_of`, `prediction`), with free leading
    axes: the model runs once a batch, whatever wraps it.
    """

    @property
    def dropout(self) -> float | None:
        """The dropout that the backbone must have; None leaves the backbone's own."""
        return None

    def outputs(self, classes: int) -> int:
        """How many units the backbone's last layer must have."""
        return classes

    def model(
        self, backbone: nn.Module, classes: int, class_counts: Counts | None = None
    ) -> nn.Module:
        """What is trained: a module from (N, *shape) to outputs (N, K)."""
        return backbone

    def caution(self, classes: int) -> str | None:
        """What to know before a training on that many classes; most have nothing to say."""
        return None

    def inputs(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """What goes through the model for a training batch x (N, *shape)."""
        return x

    @abstractmethod
    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """The weight of each term in `epoch` (from 0) of `epochs`."""

    @abstractmethod
    def terms_of(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The unweighted terms of each sample, of the model's outputs: {name: (..., N)}."""

    def outputs_for(self, model: nn.Module, x: Tensor) -> Tensor:
        """What the model, in evaluation mode, gives to `prediction` for x (N, *shape)."""
        outputs: Tensor = model(x)
        return outputs

    def seeded(self, seed: int) -> AbstractContextManager[None]:
        """In it, what `outputs_for` draws follows from the seed; most methods draw nothing."""
        return nullcontext()

    @abstractmethod
    def prediction(self, outputs: Tensor) -> Prediction:
        """What the model's outputs (..., N, K) say."""

    def terms(
        self, model: nn.Module, x: Tensor, target: Tensor, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """The unweighted terms of each sample, with the names of `weights`: {name: (N,)}.

        `generator` draws what a method draws besides its dropout.
        """
        return self.terms_of(model(self.inputs(x, generator)), target)

    def loss_of(self, outputs: Tensor, target: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The batch's summed loss and summed terms (T,), for weights (T,) in their order."""
        terms = self.terms_of(outputs, target)
        sums = torch.stack([terms[name].sum() for name in self.weights(0, 1)])
        return (weights * sums).sum(), sums

    def predict(self, model: nn.Module, x: Tensor) -> Prediction:
        """What the model, in evaluation mode, says of x (N, *shape)."""
        return self.prediction(self.outputs_for(model, x))

    def hyperparameters(self) -> dict[str, Any]:
        """The fields that make an equal method again; given data is left out."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.repr}


def ramped(weight: float, ramp: Ramp, epoch: int, epochs: int) -> float:
    """The weight in `epoch`, which rises from 0 over `ramp` epochs, or over "all" `epochs`.

    >>> ramped(1.0, 10, epoch=5, epochs=200), ramped(1.0, "all", epoch=5, epochs=200)
    (0.5, 0.025)
    >>> ramped(1.0, 0, epoch=0, epochs=200)
    1.0
    """
    rise = epochs if ramp == "all" else ramp
    schedule = Linear(rise, weight) if rise else Constant(weight)
    return schedule(epoch)


def check_kl(weight: float, ramp: Ramp) -> None:
    """An error unless the weight is >= 0 and the ramp a number of epochs or "all"."""
    _checks.non_negative(weight, "kl_weight")
    if ramp != "all" and not (isinstance(ramp, int) and ramp >= 0):
        raise ValueError(f"kl_ramp must be a number of epochs >= 0 or 'all', not {ramp!r}")


def check_scale(scale: str) -> None:
    """An error that lists the known scales, unless this is one; see `dubito.losses`."""
    _checks.one_of(_SCALES, scale, "scale")


def scaled(terms: dict[str, Tensor], classes: int, scale: str) -> dict[str, Tensor]:
    """The terms, those that grow with the classes times 10/K where the scale is "per_class"."""
    if scale == "paper":
        return terms
    return {
        name: term * (10 / classes) if name in _GROW_WITH_CLASSES else term
        for name, term in terms.items()
    }


class EvidenceMethod(Method):
    """What I-EDL and EDL share: alpha = evidence + 1, and terms that a kernel may have."""

    fisher_weight: float
    evidence: str
    scale: str

    def fisher_limit(self, classes: int) -> float:
        """The `fisher_weight` from which on a network that knows nothing is left no evidence.

        Such a network says the same of all samples. Then the mean gradient over the labels, at
        alpha = 1, where the KL has none, either gives it evidence for all classes or takes it away.
        """
        alpha = torch.ones(classes, dtype=torch.float64, requires_grad=True)
        weights = {name: w for name, w in self.weights(0, 1).items() if name != "fisher_penalty"}
        rise = {}
        for name, value in terms((*weights, "fisher_penalty"), alpha, torch.tensor(0)).items():
            (gradient,) = torch.autograd.grad(value, alpha, retain_graph=True)
            rise[name] = gradient.sum().item()
        given = -sum(weight * rise[name] for name, weight in weights.items())
        return max(given, 0.0) / (rise["fisher_penalty"] * growth(self.scale, classes))

    def caution(self, classes: int) -> str | None:
        """Where `fisher_weight` is beyond its limit."""
        limit = self.fisher_limit(classes)
        if self.fisher_weight == 0 or self.fisher_weight < limit:
            return None
        return (
            f"fisher_weight={self.fisher_weight:g} takes all evidence from a network that knows "
            f"nothing yet, which may then learn nothing; with {classes} classes the limit is "
            f"{round(limit, 9):.2g}"
        )

    def terms_of(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The terms that `weights` names: {name: (..., N)}."""
        alpha = alpha_from_logits(outputs, self.evidence)
        values = terms(tuple(self.weights(0, 1)), alpha, target)
        return scaled(values, alpha.shape[-1], self.scale)

    def loss_of(self, outputs: Tensor, target: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """By a kernel where there is one."""
        found = kernels.fused_terms(
            tuple(self.weights(0, 1)),
            weights,
            outputs,
            target,
            evidence=self.evidence,
            growth=growth(self.scale, outputs.shape[-1]),
        )
        if found is not None:
            return found
        if not kernels.available(outputs):
            return super().loss_of(outputs, target, weights)
        named = dict(zip(self.weights(0, 1), weights.unbind(), strict=True))
        alpha = alpha_from_logits(outputs, self.evidence)
        loss = weighted(named, alpha, target, reduction="sum", scale=self.scale)
        with torch.no_grad():
            sums = [
                weighted({name: 1.0}, alpha, target, reduction="sum", scale=self.scale)
                for name in named
            ]
        return loss, torch.stack(sums)

    def prediction(self, outputs: Tensor) -> Prediction:
        """Dir(evidence + 1)."""
        return Prediction.from_logits(outputs, self.evidence)


class Delegate(Method):
    """What methods around another one share: all that is about the network is the other's."""

    method: Method

    @property
    def dropout(self) -> float | None:
        """The other's."""
        return self.method.dropout

    def outputs(self, classes: int) -> int:
        """The other's."""
        return self.method.outputs(classes)

    def model(
        self, backbone: nn.Module, classes: int, class_counts: Counts | None = None
    ) -> nn.Module:
        """The other's."""
        return self.method.model(backbone, classes, class_counts)

    def caution(self, classes: int) -> str | None:
        """The other's."""
        return self.method.caution(classes)

    def inputs(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The other's."""
        return self.method.inputs(x, generator)

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """The other's weight of each term."""
        return self.method.weights(epoch, epochs)

    def terms_of(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The other's: {name: (..., N)}."""
        return self.method.terms_of(outputs, target)

    def outputs_for(self, model: nn.Module, x: Tensor) -> Tensor:
        """The other's."""
        return self.method.outputs_for(model, x)

    def seeded(self, seed: int) -> AbstractContextManager[None]:
        """The other's."""
        return self.method.seeded(seed)

    def prediction(self, outputs: Tensor) -> Prediction:
        """The other's."""
        return self.method.prediction(outputs)
