"""The heads: what a linear classifier on frozen features is trained with, and how it is read.

| name | loss | prediction |
| --- | --- | --- |
| iedl | I-MSE, -log det of the Fisher information, KL | Dirichlet |
| i_mse | the ablation's first half: I-MSE and KL, without log det | Dirichlet |
| mse_logdet | its second half: MSE, -log det and KL | Dirichlet |
| edl | MSE and KL | Dirichlet |
| redl | squared error under a free prior weight, and KL | Dirichlet |
| kl_pn, rkl_pn | KL to or from a sharp Dirichlet at the label | Dirichlet |
| softmax | cross entropy | probabilities |
| label_smoothing | cross entropy with smoothed labels | probabilities |

The weight of the KL term rises from 0 by rounds: `kl_weight` times round/`kl_ramp`, as published.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from dubito import _checks
from dubito._legacy import Prediction
from dubito.distributions import Categorical, _closed_forms
from dubito.kernels.spec import LossSpec, loss_spec
from dubito.methods.base import ramp

__all__ = ["HEADS", "Evidential", "Head", "head"]

Evaluated = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Head(ABC):
    """A loss on logits with its gradient, and the reading of logits; fields are hyperparameters."""

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold `evaluate`: it looks at no value and needs no autograd."""
        return False

    def ramp(self, rounds: int) -> tuple[float, ...]:
        """What the KL term weighs in each round."""
        return (0.0,) * rounds

    @abstractmethod
    def evaluate(self, logits: Tensor, y: Tensor, kl: Tensor) -> Evaluated:
        """Each sample's loss (E, N) and its gradient by the logits (E, N, K).

        Shapes: logits (E, N, K); one-hot y (N, K); what the KL term weighs, kl (E, 1).
        """

    @abstractmethod
    def prediction(self, logits: Tensor) -> Prediction:
        """What logits (..., K) say."""

    def hyperparameters(self) -> dict[str, Any]:
        """The fields that make an equal head again."""
        return asdict(self)


def _evaluated(
    spec: LossSpec, weights: Sequence[float | Tensor], logits: Tensor, y: Tensor
) -> Evaluated:
    """The weighted sum of closed forms and its gradient; a weight is a number, or (E, 1)."""
    fast, one_hot = _closed_forms._is_fast(spec, logits), True
    # new_full: a copy from the host cannot be captured in a CUDA graph
    each = [w.unsqueeze(-1) if isinstance(w, Tensor) else logits.new_full((), w) for w in weights]
    found, gradient = _closed_forms._value_and_gradient(
        spec, fast, one_hot, each, logits, y.expand_as(logits)
    )
    parts = [w * value for w, value in zip(weights, found.unbind(-1), strict=True)]
    return torch.stack(parts).sum(0), gradient


@dataclass(frozen=True, kw_only=True)
class Ramped(Head):
    """What the heads with a KL term share."""

    kl_weight: float = 1.0
    kl_ramp: int = 10

    def __post_init__(self) -> None:
        _checks.non_negative(self.kl_weight, "kl_weight")
        if not (isinstance(self.kl_ramp, int) and self.kl_ramp >= 0):
            raise ValueError(f"kl_ramp must be a number of rounds >= 0, not {self.kl_ramp!r}")

    def ramp(self, rounds: int) -> tuple[float, ...]:
        """`kl_weight` min(1, round/`kl_ramp`)."""
        return tuple(ramp(self.kl_weight, self.kl_ramp, i, rounds) for i in range(rounds))


@dataclass(frozen=True, kw_only=True)
class Evidential(Ramped):
    """alpha = softplus(logits) + 1 under a sum of closed forms and the KL."""

    @property
    def capturable(self) -> bool:
        """Closed forms alone."""
        return True

    def terms(self) -> dict[str, float]:
        """The weight of each form but the KL."""
        raise NotImplementedError

    def evaluate(self, logits: Tensor, y: Tensor, kl: Tensor) -> Evaluated:
        """From the closed forms; forms that share a part compute it once."""
        terms = self.terms()
        spec = loss_spec((*terms, "label_removed_kl"))
        return _evaluated(spec, [*terms.values(), kl], logits, y)

    def prediction(self, logits: Tensor) -> Prediction:
        """Dir(softplus(logits) + 1)."""
        return Prediction.from_logits(logits, "softplus")


@dataclass(frozen=True, kw_only=True)
class _LogDet(Evidential):
    fisher_weight: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.non_negative(self.fisher_weight, "fisher_weight")


@dataclass(frozen=True, kw_only=True)
class IEDLHead(_LogDet):
    """I-EDL; the paper's `fisher_weight` in its few-shot settings is from 0.005 to 0.1.

    >>> IEDLHead(fisher_weight=0.05).terms()
    {'fisher_bias': 1.0, 'fisher_variance': 1.0, 'fisher_penalty': 0.05}
    >>> IEDLHead(kl_ramp=4).ramp(6)
    (0.0, 0.25, 0.5, 0.75, 1.0, 1.0)
    """

    def terms(self) -> dict[str, float]:
        """I-MSE and -log det."""
        return {"fisher_bias": 1.0, "fisher_variance": 1.0, "fisher_penalty": self.fisher_weight}


@dataclass(frozen=True, kw_only=True)
class IMSEHead(Evidential):
    """I-EDL without the log-determinant."""

    def terms(self) -> dict[str, float]:
        """I-MSE."""
        return {"fisher_bias": 1.0, "fisher_variance": 1.0}


@dataclass(frozen=True, kw_only=True)
class MSELogDetHead(_LogDet):
    """EDL with the log-determinant."""

    def terms(self) -> dict[str, float]:
        """MSE and -log det."""
        return {"mse_bias": 1.0, "mse_variance": 1.0, "fisher_penalty": self.fisher_weight}


@dataclass(frozen=True, kw_only=True)
class EDLHead(Evidential):
    """EDL."""

    def terms(self) -> dict[str, float]:
        """MSE."""
        return {"mse_bias": 1.0, "mse_variance": 1.0}


@dataclass(frozen=True, kw_only=True)
class REDLHead(Ramped):
    """R-EDL: alpha = evidence + prior, no variance term."""

    prior: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.prior < float("inf"):
            raise ValueError(f"prior must be a finite number > 0, not {self.prior!r}")

    def evaluate(self, logits: Tensor, y: Tensor, kl: Tensor) -> Evaluated:
        """The squared error and the KL to Dir(prior)."""
        spec = loss_spec(("mse_bias", "label_removed_kl"), prior=self.prior)
        return _evaluated(spec, [1.0, kl], logits, y)

    def prediction(self, logits: Tensor) -> Prediction:
        """Dir(softplus(logits) + prior)."""
        return Prediction.from_logits(logits, "softplus", prior=self.prior)


@dataclass(frozen=True, kw_only=True)
class _PriorNetwork(Head):
    beta: float = 100.0

    def __post_init__(self) -> None:
        if not 1 < self.beta < float("inf"):
            raise ValueError(f"beta must be a finite number > 1, not {self.beta!r}")

    @property
    @abstractmethod
    def form(self) -> str:
        """The closed form of the divergence."""

    def evaluate(self, logits: Tensor, y: Tensor, kl: Tensor) -> Evaluated:
        """The divergence from the label's Dirichlet: an episode has no OOD samples to train on."""
        spec = loss_spec((self.form,), "exp", prior=0.0, beta=self.beta)
        return _evaluated(spec, [1.0], logits, y)

    def prediction(self, logits: Tensor) -> Prediction:
        """Dir(exp(logits))."""
        return Prediction.from_logits(logits, "exp", prior=0.0)


@dataclass(frozen=True, kw_only=True)
class KLPNHead(_PriorNetwork):
    """Prior Network with the target first."""

    @property
    def form(self) -> str:
        """KL(Dir(target) || Dir(alpha))."""
        return "forward_kl"


@dataclass(frozen=True, kw_only=True)
class RKLPNHead(_PriorNetwork):
    """Prior Network with the model first."""

    @property
    def form(self) -> str:
        """KL(Dir(alpha) || Dir(target))."""
        return "reverse_kl"


@dataclass(frozen=True, kw_only=True)
class SoftmaxHead(Head):
    """Softmax cross entropy."""

    @property
    def capturable(self) -> bool:
        """Closed forms alone."""
        return True

    @property
    def share(self) -> float:
        """What of a label goes to all classes."""
        return 0.0

    def evaluate(self, logits: Tensor, y: Tensor, kl: Tensor) -> Evaluated:
        """The cross entropy, and softmax(logits) less the target."""
        smooth = y * (1 - self.share) + self.share / logits.shape[-1]
        logs = logits.log_softmax(-1)
        return -(smooth * logs).sum(-1), logs.exp() - smooth

    def prediction(self, logits: Tensor) -> Prediction:
        """softmax(logits)."""
        return Prediction(Categorical.from_logits(logits))


@dataclass(frozen=True, kw_only=True)
class LabelSmoothingHead(SoftmaxHead):
    """Cross entropy with `smoothing` of each label shared among all classes."""

    smoothing: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing must be in [0, 1), not {self.smoothing!r}")

    @property
    def share(self) -> float:
        """What of a label goes to all classes."""
        return self.smoothing


#: name -> head
HEADS: dict[str, type[Head]] = {
    "iedl": IEDLHead,
    "edl": EDLHead,
    "i_mse": IMSEHead,
    "mse_logdet": MSELogDetHead,
    "redl": REDLHead,
    "kl_pn": KLPNHead,
    "rkl_pn": RKLPNHead,
    "softmax": SoftmaxHead,
    "label_smoothing": LabelSmoothingHead,
}


def head(name: str, **hyperparameters: Any) -> Head:
    """The named head.

    >>> head("iedl", fisher_weight=0.1)
    IEDLHead(kl_weight=1.0, kl_ramp=10, fisher_weight=0.1)
    >>> head("edl", fisher_weight=0.1)
    Traceback (most recent call last):
    ValueError: unknown hyperparameter of the head 'edl': 'fisher_weight'; known: ...
    >>> head("softmax", kl_weight=0.1)
    Traceback (most recent call last):
    ValueError: the head 'softmax' has no hyperparameters: leave 'kl_weight' out
    """
    chosen = _checks.entry(HEADS, name, "head")
    known = [field.name for field in fields(chosen) if field.init]
    if hyperparameters and not known:
        given = _checks.listed(hyperparameters)
        raise ValueError(f"the head {name!r} has no hyperparameters: leave {given} out")
    for hyperparameter in hyperparameters:
        _checks.one_of(known, hyperparameter, f"hyperparameter of the head {name!r}:")
    return chosen(**hyperparameters)
