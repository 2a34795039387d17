"""What a model says of a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dubito import _checks, dirichlet, kernels
from dubito._lazy import lazy
from dubito.evidence import alpha_from_logits
from dubito.measures import MEASURES, Measure
from dubito.special import log_gap

__all__ = ["Prediction"]


class Prediction:
    """Probabilities, beliefs and uncertainties of a batch; each is computed once, when asked for.

    Every measure of `dubito.measures` that `available` names is an attribute: all of them for a
    Dirichlet,
    fewer for plain probabilities, which have no evidence.

    >>> said = Prediction.from_logits(torch.tensor([[9.0, -9.0, -9.0], [-9.0, -9.0, -9.0]]))
    >>> said.label, said.vacuity
    (tensor([0, 0]), tensor([0.2500, 0.9999]))
    >>> said
    Prediction(2 samples, 3 classes: mean max_prob 0.58, mean vacuity 0.62)
    >>> Prediction.from_probs(torch.tensor([[0.9, 0.1]])).available
    ('max_prob', 'entropy_of_mean')
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

    def __init__(
        self,
        values: Tensor,
        kind: str,
        prior: float = 1.0,
        measured: Callable[[], dict[str, Tensor]] | None = None,
    ) -> None:
        """Use one of the `from_` constructors. `measured` gives several measures at once."""
        self._values, self._kind, self.prior, self._measured = values, kind, prior, measured

    @classmethod
    def from_alpha(cls, alpha: Tensor, *, prior: float = 1.0, class_dim: int = -1) -> Prediction:
        """From Dirichlet parameters (..., K), or with the classes at `class_dim`.

        `prior` is what alpha holds before any evidence; without one (0) there is no vacuity.
        """
        alpha = _checks.classes_last(alpha, class_dim, "alpha")
        return cls(_checks.concentration(alpha), "alpha", prior)

    @classmethod
    def from_logits(
        cls, logits: Tensor, evidence: str = "softplus", *, prior: float = 1.0, class_dim: int = -1
    ) -> Prediction:
        """From a network's logits (..., K) and the evidence function it was trained with."""
        logits = _checks.classes_last(logits, class_dim, "logits")
        measured = None
        if prior == 1 and kernels.measurable(logits, evidence):
            measured = partial(kernels.fused_measures, logits, evidence)
        return cls(alpha_from_logits(logits, evidence, prior), "alpha", prior, measured)

    @classmethod
    def from_probs(cls, probs: Tensor, *, class_dim: int = -1) -> Prediction:
        """From class probabilities (..., K), as a softmax gives them."""
        probs = _checks.classes_last(probs, class_dim, "probs")
        return cls(_checks.probabilities(probs), "probs")

    @classmethod
    def from_samples(cls, probs: Tensor) -> Prediction:
        """From S sampled or ensembled probabilities (S, ..., K): mean and disagreement."""
        return cls(_checks.probabilities(probs), "samples")

    @property
    def available(self) -> tuple[str, ...]:
        """The measures that this prediction has."""
        lacking = _OF_BELIEF if self.prior == 0 else ()
        return tuple(n for n in MEASURES if n in _AVAILABLE[self._kind] and n not in lacking)

    @property
    def alpha(self) -> Tensor:
        """Dirichlet parameters: (..., K)."""
        if self._kind != "alpha":
            raise AttributeError("alpha")  # worded in __getattr__
        return self._values

    @property
    def samples(self) -> Tensor:
        """Sampled probabilities: (S, ..., K)."""
        if self._kind != "samples":
            raise AttributeError("samples")
        return self._values

    @lazy
    def probs(self) -> Tensor:
        """Expected probabilities: (..., K)."""
        if self._kind == "alpha":
            return dirichlet.mean(self._values)
        return self._values.mean(0) if self._kind == "samples" else self._values

    @lazy
    def label(self) -> Tensor:
        """The most probable class: (...)."""
        return self.probs.argmax(-1)

    @lazy
    def belief(self) -> Tensor:
        """Belief masses; with `vacuity` they sum to one: (..., K)."""
        return dirichlet.belief(self.alpha, self.prior)

    def __getattr__(self, name: str) -> Tensor:
        if name in ("alpha", "belief", "samples"):
            raise AttributeError(f"this prediction is made of {self._kind} and has no {name}")
        if name.startswith("_") or name not in MEASURES:
            raise AttributeError(f"a Prediction has no {name!r}")
        if name not in self.available:
            have = _checks.listed(self.available)
            raise AttributeError(f"this prediction has no measure {name!r}; it has {have}")
        if self._measured is not None:
            self.__dict__.update(self._measured())
            self._measured = None
        if name not in self.__dict__:
            self.__dict__[name] = _AVAILABLE[self._kind][name](self)
        value: Tensor = self.__dict__[name]
        return value

    def measure(self, name: str) -> Tensor:
        """The named measure: (...)."""
        _checks.one_of(self.available, name, "measure")
        value: Tensor = getattr(self, name)
        return value

    def confidence(self, name: str) -> Tensor:
        """The named measure, its sign such that higher means more confident: (...)."""
        value = self.measure(name)
        return MEASURES[name].as_confidence(value)

    def __getitem__(self, index: Any) -> Prediction:
        """The prediction of some samples: `index` applies to the leading axes."""
        places = index if isinstance(index, tuple) else (index,)
        if self._kind == "samples":
            places = (slice(None), *places)
        # an ellipsis stands for leading axes, and would take the classes for one of them
        ends = (slice(None),) if any(place is ... for place in places) else ()
        values = self._values[(*places, *ends)]
        if self._values[..., 0][places].ndim < values.ndim:
            return Prediction(values, self._kind, self.prior)
        raise IndexError(f"index {index!r} leaves no axis of classes of {tuple(self.probs.shape)}")

    def __len__(self) -> int:
        return len(self.probs)

    def __repr__(self) -> str:
        *leading, classes = self.probs.shape
        size = "one sample" if not leading else f"{'x'.join(map(str, leading))} samples"
        shown = [name for name in ("max_prob", "vacuity") if name in self.available]
        means = ", ".join(f"mean {name} {self.measure(name).mean().item():.2f}" for name in shown)
        return f"Prediction({size}, {classes} classes: {means})"


def _entropy(probs: Tensor) -> Tensor:
    return -torch.xlogy(probs, probs).sum(-1)


def _disagreement(said: Prediction) -> Tensor:
    """The mean divergence of the samples from their mean, of terms that are never negative.

    A sample far below the mean has its logarithm apart: the ratio may not be a number any more.
    """
    held = (said.samples > 0) & (said.probs > 0)  # the mean of the least numbers may be 0
    samples, mean = torch.where(held, said.samples, 1), torch.where(held, said.probs, 1)
    far = mean > 2 * samples
    close = torch.where(far, 1, mean) / torch.where(far, 1, samples)
    apart = mean - samples + samples * (samples.log() - mean.log())
    gaps = torch.where(far, apart, samples * log_gap(close - 1, close))
    return torch.where(held, gaps, said.probs).sum(-1).mean(0)


def _of_alpha(measure: Measure) -> Compute:
    return lambda said: measure(said.alpha)


Compute = Callable[[Prediction], Tensor]
_OF_PROBS: dict[str, Compute] = {
    "max_prob": lambda said: said.probs.amax(-1),
    "entropy_of_mean": lambda said: _entropy(said.probs),
}
#: without a prior there is no mass of uncertainty, and belief is probability
_OF_BELIEF = ("vacuity", "dissonance")
#: kind of prediction -> the measures it has
_AVAILABLE: dict[str, dict[str, Compute]] = {
    "alpha": {
        **{name: _of_alpha(measure) for name, measure in MEASURES.items()},
        "vacuity": lambda said: dirichlet.vacuity(said.alpha, said.prior),
        "dissonance": lambda said: dirichlet.dissonance(said.alpha, said.prior),
    },
    "probs": _OF_PROBS,
    "samples": {
        **_OF_PROBS,
        "expected_entropy": lambda said: _entropy(said.samples).mean(0),
        "mutual_information": _disagreement,
    },
}
