"""A bundle as it is served: its versions, what it tells of itself, and its answers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dubito import bundle as bundles
from dubito._legacy import Prediction, promise_of
from dubito.bundle import Bundle
from dubito.policy import REASONS, Policy, Threshold

__all__ = ["Answers", "Served", "load"]

Floats = npt.NDArray[np.float64]
Sentence = Callable[[Sequence[str], Mapping[str, Any]], str]
VERSION = 12  # hexadecimal digits
DIGITS = 7  # significant ones, which is what float32 has
#: kind of uncertainty -> the measure that it is
UNCERTAINTY = {
    "data": "expected_entropy",
    "distributional": "mutual_information",
    "total": "entropy_of_mean",
}
#: keys of an answer that `lean` leaves out
LONG = ("probabilities", "belief", "alpha")


@dataclass(frozen=True, eq=False)
class Answers:
    """What is said of N inputs, as plain values, with the measures (N,) that are counted."""

    rows: list[dict[str, Any]]
    labels: npt.NDArray[np.int64]
    codes: npt.NDArray[np.int64] | None
    shares: dict[str, Floats]


@dataclass(frozen=True, eq=False)
class Served:
    """A loaded bundle with its name and versions; made by `load`."""

    bundle: Bundle
    name: str
    version: str
    policy_version: str | None
    columns: tuple[str, ...] = field(repr=False, default=())

    @property
    def kind(self) -> str:
        """What it takes: image, table or array."""
        prepared = self.bundle.preprocessing
        if prepared.columns is not None:
            return "table"
        return "image" if prepared.mode is not None else "array"

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the K classes."""
        return self.bundle.classes

    @cached_property
    def scales(self) -> dict[str, float]:
        """Upper bounds of the three uncertainties."""
        return dict.fromkeys(UNCERTAINTY, math.log(len(self.classes)))

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.bundle.config["method"]["name"])

    def about(self) -> dict[str, Any]:
        """What GET /v1/model tells, the service's limits apart."""
        prepared, policy = self.bundle.preprocessing, self.bundle.policy
        table = prepared.columns
        return {
            "name": self.name,
            "version": self.version,
            "method": self.method,
            "classes": list(self.classes),
            "kind": self.kind,
            "shape": list(self.bundle.shape),
            "mode": prepared.mode,
            "pixels": prepared.pixels,
            "columns": None if table is None else table.as_dict()["columns"],
            "calibrated": self.bundle.calibration is not None,
            "evidential": "vacuity" in self.columns,
            "policy": None if policy is None else _policy(policy, self.policy_version),
            "versions": dict(self.bundle.config["versions"]),
            "scales": self.scales,
        }

    @cached_property
    def _why(self) -> Mapping[str | None, Sentence]:
        policy = self.bundle.policy
        if policy is None or not policy.accepts_nothing:
            return WHY
        # Here even the surest prediction misses the bound, so nothing is said of the input.
        text = f"I don't know: my policy {_abstains(policy)}"
        return {**WHY, "ambiguous": lambda classes, row: text}

    def answer(self, inputs: npt.NDArray[Any]) -> Answers:
        """What is said of inputs (N, *shape) float32; a ValueError where the network can't say."""
        said = self.bundle.predict(torch.from_numpy(inputs), max(len(inputs), 1))
        labels = said.label
        probs = self.bundle.calibrated(said).probs
        codes = None if self.bundle.policy is None else self.bundle.decide(said).codes.numpy()
        measured = _measured(said)
        rows = _rows(self.classes, labels, probs, said, measured, codes, self._why)
        shares = {name: measured[of] / self.scales[name] for name, of in UNCERTAINTY.items()
                  if of in measured}  # fmt: skip
        if "vacuity" in measured:
            shares["vacuity"] = measured["vacuity"]
        return Answers(rows, labels.numpy(), codes, shares)


def load(
    folder: Path, device: torch.device | str = "cpu", factory: bundles.Factory | None = None
) -> Served:
    """The bundle in a folder, tried once so that what does not fit together shows now."""
    manifest = (folder / bundles.MANIFEST).read_bytes() if folder.is_dir() else b""
    loaded = bundles.load(folder, factory=factory, device=device)
    columns = bundles.row_columns(loaded)
    if (folder / bundles.MANIFEST).read_bytes() != manifest:
        raise bundles.BundleError(f"{folder} was changed while it was read")
    policy = None if loaded.policy is None else _digest((folder / "policy.json").read_bytes())
    return Served(loaded, folder.resolve().name, _digest(manifest), policy, columns)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:VERSION]


def _measured(said: Prediction) -> dict[str, Floats]:
    """The measures that are told, (N,) each, where the prediction has them."""
    wanted = (*UNCERTAINTY.values(), "vacuity")
    return {n: said.measure(n).double().numpy() for n in wanted if n in said.available}


def _rows(
    classes: Sequence[str],
    labels: Tensor,
    probs: Tensor,
    said: Prediction,
    measured: Mapping[str, Floats],
    codes: npt.NDArray[np.int64] | None,
    why: Mapping[str | None, Sentence],
) -> list[dict[str, Any]]:
    chosen = labels.tolist()
    probabilities = _plain(probs)
    nothing: list[Any] = [None] * len(chosen)
    belief = _plain(said.belief) if "vacuity" in measured else nothing
    alpha = _plain(said.alpha) if hasattr(said, "alpha") else nothing
    vacuity = _plain(measured["vacuity"]) if "vacuity" in measured else nothing
    kinds = [_plain(measured[n]) if n in measured else nothing for n in UNCERTAINTY.values()]
    rows = []
    for i, label in enumerate(chosen):
        code = None if codes is None else int(codes[i])
        row = {
            "label": classes[label],
            "probability": probabilities[i][label],
            "probabilities": probabilities[i],
            "belief": belief[i],
            "vacuity": vacuity[i],
            "alpha": alpha[i],
            "uncertainty": dict(zip(UNCERTAINTY, (kind[i] for kind in kinds), strict=True)),
            "decision": None if code is None else "abstain" if code else "accept",
            "reason": None if code is None else REASONS[code],
        }
        row["why"] = why[row["reason"]](classes, row)
        rows.append(row)
    return rows


def _plain(values: Tensor | Floats) -> list[Any]:
    """Numbers with as many digits as float32 has, so that json shows no more."""
    x = values.double().numpy() if isinstance(values, Tensor) else values
    with np.errstate(divide="ignore"):
        places = DIGITS - 1 - np.floor(np.log10(np.abs(x)))
    scale = 10.0 ** np.clip(np.where(np.isfinite(places), places, 0), -300, 300)
    plain: list[Any] = (np.round(x * scale) / scale).tolist()
    return plain


# --- sentences -----------------------------------------------------------------------------------


def _accepted(classes: Sequence[str], row: Mapping[str, Any]) -> str:
    return f"I am sure enough that this is {row['label']}, and the input looks familiar."


def _ambiguous(classes: Sequence[str], row: Mapping[str, Any]) -> str:
    probs = row["probabilities"]
    first, second = sorted(range(len(probs)), key=lambda k: -probs[k])[:2]
    return (
        f"I don't know: this looks familiar, but it may be {classes[first]} ({probs[first]:.0%}) "
        f"or {classes[second]} ({probs[second]:.0%})."
    )


def _unfamiliar(classes: Sequence[str], row: Mapping[str, Any]) -> str:
    return "I don't know: I found too little of what I was trained on in this input."


def _undecided(classes: Sequence[str], row: Mapping[str, Any]) -> str:
    return f"My best guess is {row['label']}; no policy decides whether it is good enough."


#: reason -> what a person is told
WHY: dict[str | None, Sentence] = {
    "accepted": _accepted,
    "ambiguous": _ambiguous,
    "unfamiliar": _unfamiliar,
    None: _undecided,
}


def _policy(policy: Policy, version: str | None) -> dict[str, Any]:
    seen = {} if policy.validation is None else policy.validation.model_dump(exclude_none=True)
    names = {"coverage": "accepted", "upper_bound": "upper"}
    ood = policy.ood_threshold
    return {
        "version": version,
        "sure": _bound(policy.threshold),
        "familiar": None if ood is None else _bound(ood),
        "promise": promise_of(policy),
        "seen": {names.get(name, name): value for name, value in seen.items()},
        "text": _sentence(policy),
    }


def _bound(threshold: Threshold) -> dict[str, Any]:
    plain = threshold.model_dump(mode="json")
    return {"measure": plain["score"], "value": plain["value"]}


def _sentence(policy: Policy) -> str:
    """A policy in a sentence."""
    if policy.accepts_nothing:
        return f"It {_abstains(policy)}"
    samples = _samples(policy)
    bounds = [b for b in (policy.threshold, policy.ood_threshold) if b and math.isfinite(b.value)]
    when = " and ".join(map(repr, bounds)) or "asked"
    promise = ""
    asked = promise_of(policy)
    if "error" in asked:
        promise = (
            f": at most {asked['error']:.3g} of its answers are wrong, with confidence "
            f"{asked.get('confidence', math.nan):.3g}, for inputs like {samples}"
        )
    elif "coverage" in asked:
        promise = f": at least {asked['coverage']:.3g} of inputs like {samples} are"
        promise += " answered"
    return f"It answers when {when}{promise}."


def _abstains(policy: Policy) -> str:
    return f"abstains on everything: {_samples(policy)} could not show what was to be promised."


def _samples(policy: Policy) -> str:
    count = 0 if policy.validation is None else policy.validation.samples
    return f"{count} validation samples"
