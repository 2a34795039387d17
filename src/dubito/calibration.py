r"""Calibrate a trained model on validation data: probabilities that mean what they say.

Evidential models order their predictions well and are far off in their probabilities: the losses
hold evidence down. Two numbers, fitted by the likelihood of held-out labels, mend that.

>>> alpha = torch.tensor([[3.0, 1.0], [1.0, 4.0], [3.0, 1.0], [1.0, 3.0], [3.0, 1.0]])
>>> scaling = EvidenceScaling.fit(alpha, torch.tensor([0, 1, 0, 1, 1]))
>>> before, after = alpha / alpha.sum(-1, keepdim=True), scaling.apply(alpha)
>>> bool((after.argmax(-1) == before.argmax(-1)).all())
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from dubito import _checks, dirichlet
from dubito.evidence import EXP_BOUND
from dubito.prediction import Prediction

__all__ = ["CALIBRATIONS", "Calibration", "EvidenceScaling", "Temperature", "fit", "from_dict"]

#: how far the logarithms of a factor and a power may go
BOUNDS = (12.0, 3.0)
#: how many rows a first look needs, and how many entries it may have beyond that
ROWS, ENTRIES = 500, 1 << 19
Values = TypeVar("Values", Tensor, Prediction)
#: which of the samples
Rows = slice | Tensor


@dataclass(frozen=True)
class EvidenceScaling:
    r"""Evidence times one factor, to one power.

    .. math:: \alpha' = \lambda + c\,(\alpha - \lambda)^{p}, \quad c, p > 0

    with lambda the `prior` that alpha holds before any evidence. More evidence is never less, and
    the label of a sample never changes. With the power 1 alpha0 moves monotonically: `alpha0` and
    `vacuity` rank samples as before and detect as well as before. Another power may reorder them.
    Other measures, max_prob among them, mix amount and shape, and their ranks may move in any case.
    What it can't do is to make a wrong label right, or to tell apart two samples with the same
    evidence. Where the prior weighs little, the factor hardly matters to probabilities, and alpha0
    after calibration is no measure of what was seen.

    >>> EvidenceScaling(factor=3.0).apply(torch.tensor([3.0, 1.0]))
    tensor([7., 1.])
    """

    factor: float = 1.0
    power: float = 1.0
    prior: float = 1.0

    kind: ClassVar[str] = "evidence_scaling"

    def __post_init__(self) -> None:
        for name in ("factor", "power", "prior"):
            _positive(getattr(self, name), name)

    @classmethod
    def fit(
        cls, alpha: Tensor | Prediction, labels: Tensor, *, prior: float = 1.0, power: bool = True
    ) -> EvidenceScaling:
        """The scaling whose expected probabilities make the labels most likely.

        Shapes: alpha (N, K), all at least `prior`; labels (N,). Computed in float64 and from a
        fixed start, so that equal data gives equal numbers. Without `power` it stays 1, which
        calibrates less well and keeps the ranks of alpha0. The factor is held within e^-12 and
        e^12 and the power within e^-3 and e^3: labels without an error would send them further.

        >>> sure = torch.tensor([[9.0, 1.0], [1.0, 9.0]]).repeat(10, 1)
        >>> wrong_half = torch.arange(20) // 10  # what it says is worth nothing
        >>> EvidenceScaling.fit(sure, wrong_half).apply(sure).max() < 1.1
        tensor(True)
        """
        if isinstance(alpha, Prediction):
            prior, alpha = alpha.prior, alpha.alpha
        _positive(prior, "prior")
        evidence = _evidence(alpha, prior)
        target = _labels(labels, evidence)
        held = evidence > 0  # elsewhere a power has nothing to act on, and no gradient
        log_evidence = torch.where(held, evidence, 1.0).log()
        log_prior = evidence.new_tensor(prior).log()

        def nll(log_factor: Tensor, log_power: Tensor, rows: Rows) -> Tensor:
            # in logarithms: a density's evidence to a power leads out of float64
            log_scaled = log_factor + log_power.exp() * log_evidence[rows]
            log_alpha = torch.where(held[rows], torch.logaddexp(log_prior, log_scaled), log_prior)
            return -_picked(log_alpha.log_softmax(-1), target[rows]).mean()

        found = _minimised(nll, evidence.shape, free=2 if power else 1)
        return cls(math.exp(found[0]), math.exp(found[1]), prior)

    def apply(self, alpha: Values) -> Values:
        """Calibrated alpha (..., K), or the calibrated prediction.

        Computed in float64 and rounded to the type of alpha. Where a class would get more than
        e^60, the bound of `dubito.evidence`, all of the sample's evidence is less by one factor.
        """
        if isinstance(alpha, Prediction):
            if alpha.prior != self.prior:
                raise ValueError(
                    f"this scaling is for the prior {self.prior:g}, but the prediction's is "
                    f"{alpha.prior:g}"
                )
            return Prediction.from_alpha(self.apply(alpha.alpha), prior=self.prior)
        logs = math.log(self.factor) + self.power * _evidence(alpha, self.prior).log()
        excess = (logs.amax(-1, keepdim=True) - EXP_BOUND).clamp_min(0)
        scaled = (self.prior + (logs - excess).exp()).to(_checks.floating(alpha, "alpha").dtype)
        before, now = (dirichlet.mean(one).argmax(-1) for one in (alpha, scaled))
        return _keeping(before, scaled, now)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a file; `from_dict` makes it again."""
        return {"kind": self.kind, "parameters": asdict(self)}


@dataclass(frozen=True)
class Temperature:
    r"""Probabilities to one power, for models that have no evidence (Guo et al., ICML 2017).

    .. math:: p'_k \propto p_k^{1/T}

    which for a softmax divides the logits by T. The label of a sample never changes; ranks of
    samples by max_prob may. A mean of samples keeps nothing of their disagreement.

    >>> Temperature(0.5).apply(torch.tensor([0.8, 0.2]))
    tensor([0.9412, 0.0588])
    """

    temperature: float = 1.0

    kind: ClassVar[str] = "temperature"

    def __post_init__(self) -> None:
        _positive(self.temperature, "temperature")

    @classmethod
    def fit(cls, probs: Tensor | Prediction, labels: Tensor) -> Temperature:
        """The temperature that makes the labels most likely.

        Shapes: probs (N, K); labels (N,).

        >>> probs = torch.tensor([[0.99, 0.01]]).repeat(10, 1)
        >>> half_right = torch.arange(10) // 5
        >>> Temperature.fit(probs, half_right).apply(probs)[0]
        tensor([0.5000, 0.5000])
        """
        checked = _probs(probs).detach().double()
        target = _labels(labels, checked)
        logits = _log(checked)

        def nll(log_inverse: Tensor, _: Tensor, rows: Rows) -> Tensor:
            scaled = logits[rows] * log_inverse.exp()
            return -_picked(scaled.log_softmax(-1), target[rows]).mean()

        return cls(math.exp(-_minimised(nll, logits.shape, free=1)[0]))

    def apply(self, probs: Values) -> Values:
        """Calibrated probabilities (..., K), or a prediction that consists of them."""
        checked = _probs(probs)
        scaled = (_log(checked.double()) / self.temperature).softmax(-1).to(checked.dtype)
        scaled = _keeping(checked.argmax(-1), scaled, scaled.argmax(-1))
        return Prediction.from_probs(scaled) if isinstance(probs, Prediction) else scaled

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a file; `from_dict` makes it again."""
        return {"kind": self.kind, "parameters": asdict(self)}


Calibration = EvidenceScaling | Temperature
#: kind -> calibration
CALIBRATIONS: dict[str, type[EvidenceScaling] | type[Temperature]] = {
    one.kind: one for one in (EvidenceScaling, Temperature)
}


def fit(said: Prediction, labels: Tensor) -> Calibration:
    """What suits a prediction, fitted: evidence scaling where it has evidence, else a temperature.

    One error more is imagined, at the median confidence: as in the rule of succession, samples that
    are all right do not ask for certainty then. Among thousands of samples it hardly counts.

    >>> said = Prediction.from_probs(torch.tensor([[0.9, 0.1], [0.1, 0.9]]))
    >>> fit(said, torch.tensor([0, 0])).kind
    'temperature'
    """
    target = _labels(labels, said.probs)
    middle = said.max_prob.argsort()[len(said) // 2]
    runner_up = said.probs[middle].topk(2).indices[1]
    places = torch.cat([torch.arange(len(said), device=middle.device), middle[None]])
    more, right = said[places], torch.cat([target, runner_up[None]])
    evidential = hasattr(said, "alpha") and said.prior > 0
    return EvidenceScaling.fit(more, right) if evidential else Temperature.fit(more, right)


def from_dict(values: Mapping[str, Any]) -> Calibration:
    """What `as_dict` described.

    >>> from_dict(Temperature(2.0).as_dict())
    Temperature(temperature=2.0)
    """
    if set(values) != {"kind", "parameters"}:
        raise ValueError(f"a calibration has the keys 'kind', 'parameters', not {sorted(values)}")
    chosen = _checks.entry(CALIBRATIONS, values["kind"], "calibration")
    try:
        return chosen(**values["parameters"])
    except TypeError as error:
        raise ValueError(f"parameters of {values['kind']!r}: {error}") from None


def _positive(value: float, name: str) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be a finite number > 0, not {value!r}")


def _evidence(alpha: Tensor, prior: float) -> Tensor:
    """alpha - prior in float64; the prior in alpha may be rounded to a number just below it."""
    checked = _checks.concentration(alpha, least=prior).detach().double()
    return (checked - prior).clamp_min(0)


def _labels(labels: Tensor, values: Tensor) -> Tensor:
    """Labels (N,) that fit values (N, K)."""
    if values.ndim != 2 or not len(values):
        raise ValueError(f"predictions have shape {tuple(values.shape)}; expected (N, K), N >= 1")
    target, count = _checks.tensor(labels, "labels"), len(values)
    need = f"{count} predictions need ({count},)"
    return _checks.labels(target, values.shape[:1], values.shape[-1], need).to(values.device)


def _probs(given: Tensor | Prediction) -> Tensor:
    """A prediction's have been checked already, in the precision that they came in."""
    return given.probs if isinstance(given, Prediction) else _checks.probabilities(given)


def _keeping(label: Tensor, values: Tensor, now: Tensor) -> Tensor:
    """Values (..., K) that keep their label (...) where rounding has made it another, `now`.

    No bound of a factor or a power prevents that: beside the prior little evidence rounds to none.
    The label's value is then the largest and four steps of its type more: quotients differ as well.
    """
    least = values.amax(-1, keepdim=True) * (1 + 4 * torch.finfo(values.dtype).eps)
    of_label = label.unsqueeze(-1) == torch.arange(values.shape[-1], device=values.device)
    return torch.where(of_label & (label != now).unsqueeze(-1), least, values)


def _picked(values: Tensor, target: Tensor) -> Tensor:
    return values.gather(-1, target[:, None])[:, 0]


def _log(probs: Tensor) -> Tensor:
    """ln p; a zero counts as the least positive number, which a temperature could not move else."""
    return probs.clamp_min(torch.finfo(torch.float32).tiny).log()


def _minimised(
    loss: Callable[[Tensor, Tensor, Rows], Tensor], shape: tuple[int, ...], free: int
) -> tuple[float, float]:
    """The logarithms of two parameters at the least loss; the second stays 0 unless two are free.

    The loss need not be convex: its best on a grid is the start for L-BFGS. Of large predictions
    (N, K) the grid sees some rows; they need not be many to tell about where the best is.
    """
    count, classes = shape
    every = max(1, min(count // ROWS, count * classes // ENTRIES))
    some: Rows = slice(None)
    if every > 1:  # drawn, whatever order they are in
        some = torch.randperm(count, generator=torch.Generator().manual_seed(0))[: count // every]
    limits = torch.tensor(BOUNDS, dtype=torch.float64)
    first = torch.linspace(-BOUNDS[0], BOUNDS[0], 25, dtype=torch.float64)
    second = torch.linspace(-BOUNDS[1], BOUNDS[1], 13, dtype=torch.float64)
    grid = torch.cartesian_prod(first, second if free == 2 else torch.zeros(1, dtype=second.dtype))
    start = grid[torch.stack([loss(point[0], point[1], some) for point in grid]).argmin()]
    place = start[:free].clone().requires_grad_()

    def bounded() -> tuple[Tensor, Tensor]:
        held = torch.minimum(torch.maximum(place, -limits[:free]), limits[:free])
        return held[0], held[1] if free == 2 else start[1]

    optimizer = torch.optim.LBFGS(
        [place], max_iter=200, tolerance_grad=1e-10, tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(*bounded(), slice(None))
        value.backward()
        return value

    optimizer.step(closure)
    found = bounded()
    return found[0].item(), found[1].item()
