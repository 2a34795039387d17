"""What a file computes, as a torch module: from decoded inputs to all that a bundle says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from dubito import _checks
from dubito._legacy import METHODS, Method, Prediction
from dubito.bundle import Bundle
from dubito.distributions._dissonance import _inverse_rest as inverse_rest
from dubito.distributions._dissonance import _ratios as ratios
from dubito.methods import Ensemble, MCDropout
from dubito.policy import Policy, Threshold

__all__ = ["INVALID", "Graph", "check_method", "chosen", "takes_bytes", "thresholds"]

INVALID = -1  # the label of an input that is not finite, or overflows
PAIRS = 1 << 16  # of classes at once, for each sample
MOST_BLOCKS = 16


def check_method(method: Method) -> None:
    """An error for a method whose predictions are drawn, which a file could not repeat."""
    inner = method.core.member if isinstance(method.core, Ensemble) else method.core
    if isinstance(inner, MCDropout):
        drawn = "mc_dropout"
        others = _checks.listed(name for name in METHODS if name != drawn)
        raise ValueError(
            f"the method {drawn!r} draws its predictions, which no file can repeat; these export: "
            f"{others}"
        )


def takes_bytes(bundle: Bundle, floats: bool) -> bool:
    """Whether a file takes bytes 0 to 255; else it takes float32 numbers."""
    return bundle.preprocessing.pixels and not floats


class Graph(nn.Module):
    """Inputs (N, *shape), bytes or float32 -> what `outputs` names, in that order.

    A sample with an input or an output of the network that is not finite, or an alpha of zero,
    where `Bundle` raises, has the label -1 and NaN for all else, and is never accepted.
    """

    def __init__(self, bundle: Bundle, measures: Sequence[str] | None = None) -> None:
        super().__init__()
        self.bundle, self.measures = bundle, measures
        self.model = deepcopy(bundle.model).cpu().eval().requires_grad_(False)

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """{name: (N, ...)}; `outputs` of several members are (N, M, K)."""
        bundle = self.bundle
        x = bundle.preprocessing.standardised(inputs)
        outputs = bundle.method.outputs_for(self.model, x)
        said = bundle.method.prediction(outputs)
        valid = _finite(x) & _finite(outputs)
        if said.prior == 0:  # there exp may underflow, and measures need float64, as in torch
            valid = valid & (said.alpha > 0).all(-1)
            said = bundle.method.prediction(outputs.double())
        found = {"probs": bundle.calibrated(said).probs}
        if "vacuity" in said.available:
            found["belief"] = said.belief
        found |= {name: _measure(said, name) for name in chosen(bundle, said, self.measures)}
        found = {name: _spoilt(value.to(outputs), valid) for name, value in found.items()}
        label = torch.where(valid, said.label, INVALID)
        return {"label": label, **found, **_decided(bundle.policy, found), "outputs": outputs}


def chosen(bundle: Bundle, said: Prediction, measures: Sequence[str] | None) -> tuple[str, ...]:
    """The measures that a file gives: those asked for and those of the policy, or all."""
    if measures is None:
        return said.available
    for name in measures:
        _checks.one_of(said.available, name, "measure of this bundle")
    needed = {*measures, *(threshold.score for threshold in thresholds(bundle.policy))}
    return tuple(name for name in said.available if name in needed)


def thresholds(policy: Policy | None) -> list[Threshold]:
    """The thresholds of a policy."""
    both = () if policy is None else (policy.threshold, policy.ood_threshold)
    return [threshold for threshold in both if threshold is not None]


def _finite(values: Tensor) -> Tensor:
    """Which samples are finite throughout: (N, ...) -> (N,)."""
    return values.isfinite().flatten(1).all(1)


def _spoilt(values: Tensor, valid: Tensor) -> Tensor:
    """NaN where a sample is not valid: some runtimes lose it on the way."""
    return torch.where(valid if values.ndim == 1 else valid[:, None], values, torch.nan)


def _decided(policy: Policy | None, measures: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`Policy.decide`, but what is not a number does not pass, where that raises."""
    if policy is None:
        return {}
    reason = torch.where(_passes(policy.threshold, measures), 0, 1)
    if policy.ood_threshold is not None:
        reason = torch.where(_passes(policy.ood_threshold, measures), reason, 2)
    return {"accept": reason == 0, "reason": reason}


def _passes(threshold: Threshold, measures: Mapping[str, Tensor]) -> Tensor:
    values = _checks.entry(measures, threshold.score, "measure of the policy")
    rises = threshold.higher == "confidence"
    return values >= threshold.value if rises else values <= threshold.value


def _measure(said: Prediction, name: str) -> Tensor:
    return _dissonance(said.belief) if name == "dissonance" else said.measure(name)


def _dissonance(belief: Tensor) -> Tensor:
    """As `Dirichlet.dissonance`, in blocks that do not depend on the batch."""
    inverse = inverse_rest(belief)
    parts = []
    for block in _blocks(belief.shape[-1]):
        ratio, _ = ratios(belief, block)
        shares = belief.unsqueeze(-2) * inverse[..., block].unsqueeze(-1)
        parts.append((shares * (2 * ratio / (1 + ratio))).sum(-1))
    return (belief * torch.cat(parts, -1)).sum(-1)


def _blocks(classes: int) -> Iterator[slice]:
    size = max(1, PAIRS // classes, -(-classes // MOST_BLOCKS))
    return (slice(start, min(start + size, classes)) for start in range(0, classes, size))
