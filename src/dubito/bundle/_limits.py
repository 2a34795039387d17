"""What a trained network's words are worth: calibration and policy, from validation samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from torch import Tensor

from dubito import _checks, metrics
from dubito._legacy import MEASURES, UNFAMILIAR, Prediction, calibration_metrics
from dubito.calibration import Calibration
from dubito.policy import Policy

__all__ = ["Limits", "Promise", "limits"]

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What a policy is to keep: an error rate among what it accepts, with a confidence.

    `false_alarms` is the share of ordinary inputs that may be refused as unfamiliar.
    """

    error: float = 0.05
    confidence: float = 0.95
    false_alarms: float = 0.05

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < 1:
                raise ValueError(f"{name} must be between 0 and 1, not {value!r}")


@dataclass(frozen=True)
class Limits:
    """A calibration, a policy, and what both did on the samples that they were fitted on."""

    calibration: Calibration | None = None
    policy: Policy | None = None
    effect: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in policy.json."""
        return {
            "calibration": None if self.calibration is None else _plain(self.calibration),
            "policy": None if self.policy is None else _plain(self.policy),
            "effect": dict(self.effect),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Limits:
        """What `as_dict` described."""
        known = {"calibration", "policy", "effect"}
        if set(values) != known:
            raise ValueError(f"it should have the keys {sorted(known)}, and has {sorted(values)}")
        scaled, policy, effect = (values[key] for key in ("calibration", "policy", "effect"))
        if not isinstance(effect, Mapping):
            raise ValueError(f"'effect' must hold figures by name, but is {effect!r}")
        return cls(
            None if scaled is None else _read(Calibration, scaled, "calibration"),
            None if policy is None else _known(_read(Policy, policy, "policy")),
            {name: _figure(value, name) for name, value in effect.items()},
        )


def _read(kind: type[M], values: Any, name: str) -> M:
    """Validate a section; an error says in one line what is wrong."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        details = error.errors()[0]
        where = ".".join(map(str, (name, *details["loc"])))
        raise ValueError(f"{where}: {details['msg']}") from None


def _known(policy: Policy) -> Policy:
    for threshold in (policy.threshold, policy.ood_threshold):
        if threshold is not None:
            _checks.one_of(MEASURES, threshold.score, "measure")
    return policy


def _plain(model: Calibration | Policy) -> dict[str, Any]:
    return model.model_dump(mode="json")


def _figure(value: Any, name: str) -> float:
    if value in ("inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name!r} in 'effect' must be a number, not {value!r}")
    return value


def limits(said: Prediction, labels: Tensor, promise: Promise | None = None) -> Limits:
    """Calibration and policy from what a network says of validation samples (N, K), labels (N,).

    The policy looks at what is said before calibration: evidence that a factor has moved is no
    measure of what was seen, and labels that shaped the confidences could not keep a promise.

    >>> import torch
    >>> alpha = 1 + torch.eye(2).repeat(100, 1) * torch.linspace(1, 9, 200)[:, None]
    >>> limits(Prediction.from_alpha(alpha), torch.arange(200) % 2).policy
    Policy(max_prob >= 0.7... and vacuity <= 0.5...: error <= 0.05 with confidence 0.95, ...)
    """
    asked = promise or Promise()
    scaled = Calibration.fit(said.distribution, labels)
    unfamiliar = next((name for name in UNFAMILIAR if name in said.available), None)
    policy = Policy.control_error(
        said.distribution, said.label != labels.long(), asked.error, asked.confidence,
        ood_score=unfamiliar, false_alarms=asked.false_alarms,
    )  # fmt: skip
    return Limits(scaled, policy, _effect(said, labels, scaled, policy))


def _effect(
    said: Prediction, labels: Tensor, scaled: Calibration, policy: Policy
) -> dict[str, float]:
    before = calibration_metrics(said, labels)
    after = calibration_metrics(said.calibrated(scaled), labels)
    accepted = policy.decide(said.distribution).accepted
    wrong = (said.label != labels.long()) & accepted
    return {
        "samples": len(labels),
        "accuracy": metrics.accuracy(said.probs, labels).item(),
        "ece_before": before["ece"],
        "ece_after": after["ece"],
        "nll_before": before["nll"],
        "nll_after": after["nll"],
        "accepted": accepted.double().mean().item(),
        "accepted_wrong": int(wrong.sum()),
    }
