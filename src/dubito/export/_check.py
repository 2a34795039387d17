"""Whether a file says what torch says, on random and on extreme inputs."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dubito import _checks
from dubito._legacy import Prediction
from dubito.bundle import Bundle
from dubito.distributions import Dirichlet
from dubito.export._file import INPUT, ExportError, needed
from dubito.export._graph import INVALID, chosen, takes_bytes, thresholds
from dubito.policy import Threshold

__all__ = ["TOLERANCE", "Differences", "check", "samples"]

#: the most that a file may differ from torch, relative to values above one
TOLERANCE = 1e-4
SEED = 0
EACH = 8  # samples of a kind
SPREADS = (0.0, 1.0, 10.0, 1000.0)  # in deviations from the mean


@dataclass(frozen=True)
class Differences:
    """The largest differences of a file from torch on some samples, relative to values above one.

    `network` is that of the network's outputs, relative to a sample's largest; `measures` that of
    all else, where torch is given the file's own outputs of the network; `overall` is that from
    inputs to all else, to which rounding in the network adds. The first two must be within
    `TOLERANCE`.
    """

    samples: int
    network: float
    measures: float
    overall: float


def samples(bundle: Bundle, floats: bool) -> Tensor:
    """Random and extreme inputs (n, *shape) of the kind that a file takes."""
    draw = torch.Generator().manual_seed(SEED)
    size = (EACH, *bundle.shape)
    if bundle.preprocessing.pixels:
        noise = torch.randint(256, size, generator=draw)
        black_or_white = 255 * torch.randint(2, size, generator=draw)
        levels = torch.tensor([0, 1, 127, 255]).view(-1, *(1,) * len(bundle.shape))
        pixels = torch.cat([noise, black_or_white, levels.expand(-1, *bundle.shape)])
        return pixels.to(torch.uint8) if takes_bytes(bundle, floats) else pixels / 255
    prepared = bundle.preprocessing
    further = (1,) * (len(bundle.shape) - 1)
    mean, scale = (
        torch.tensor(default if values is None else values).view(-1, *further)
        for values, default in ((prepared.mean, (0.0,)), (prepared.scale, (1.0,)))
    )
    spread = [deviations * torch.randn(size, generator=draw) for deviations in SPREADS]
    return (mean + scale * torch.cat(spread)).float()


def check(
    content: bytes, bundle: Bundle, floats: bool, measures: Sequence[str] | None = None
) -> Differences:
    """The differences of a file's content from torch; an `ExportError` where they are too large."""
    session = _session(content)
    x = samples(bundle, floats)
    found = [_compared(session, bundle, x[:count], measures) for count in (1, 2, len(x))]
    if x.is_floating_point():
        _check_invalid(session, bundle, x[:3])
    worst = [max(values) for values in zip(*found, strict=True)]
    return Differences(len(x), *worst)


def _session(content: bytes) -> Any:
    _, runtime = needed()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _run(session: Any, x: Tensor) -> dict[str, Tensor]:
    names = [one.name for one in session.get_outputs()]
    values: list[np.ndarray[Any, Any]] = session.run(names, {INPUT: x.numpy()})
    return {name: torch.from_numpy(value) for name, value in zip(names, values, strict=True)}


def _compared(
    session: Any, bundle: Bundle, x: Tensor, measures: Sequence[str] | None
) -> tuple[float, float, float]:
    told, outputs = _run(session, x), _network(bundle, x)
    usable, refused = _judged(bundle, outputs)
    answered = told["label"] != INVALID
    if bool((answered & refused).any()) or bool((usable & ~answered).any()):
        raise ExportError(
            f"no file was written: the label {INVALID} in it is not where torch fails"
        )
    if not bool(usable.any()):
        raise ExportError("torch can't tell anything of ordinary inputs: outputs are not finite")
    outputs = outputs[usable]
    held = {name: value[usable] for name, value in told.items()}
    ours = held.pop("outputs")
    scale = outputs.abs().amax(-1, keepdim=True).clamp_min(1)
    network = _largest(((ours - outputs) / scale).abs(), "outputs")
    exact = _of_outputs(bundle, ours, held, measures, strict=True)
    return network, exact, _of_outputs(bundle, outputs, held, measures, strict=False)


def _judged(bundle: Bundle, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Which samples torch can tell something of, and which it refuses; at the edge it is neither.

    Shapes: outputs (N, ..., K) -> (N,), (N,).
    """
    finite = outputs.isfinite().flatten(1).all(1)
    usable, refused = finite.clone(), ~finite
    if bool(finite.any()):
        dist = bundle.method.core.distribution(outputs[finite])
        if isinstance(dist, Dirichlet):
            least = dist.alpha.amin(-1)
            usable[finite] = least >= torch.finfo(least.dtype).tiny
            refused[finite] = least == 0
    if bool(usable.any()):  # a policy raises where its measure is not a number
        said = bundle.method.prediction(outputs[usable])
        lost = [said.measure(one.score).isnan() for one in thresholds(bundle.policy)]
        usable[usable.clone()] = ~torch.stack(lost).any(0) if lost else True
    return usable, refused


def _network(bundle: Bundle, x: Tensor) -> Tensor:
    model = bundle.model if bundle.device.type == "cpu" else deepcopy(bundle.model).cpu()
    with torch.no_grad():
        return bundle.method.outputs_for(model, bundle.preprocessing.standardised(x))


def _of_outputs(
    bundle: Bundle,
    outputs: Tensor,
    told: dict[str, Tensor],
    measures: Sequence[str] | None,
    *,
    strict: bool,
) -> float:
    """The largest difference of what is told from what torch says of the network's outputs."""
    said = bundle.method.prediction(outputs)
    wanted = {"probs": bundle.calibrated(said).probs}
    wanted |= {name: said.measure(name) for name in chosen(bundle, said, measures)}
    if "vacuity" in said.available:
        wanted["belief"] = said.belief
    if strict:
        _check_names(told, {*wanted, "label", *(("accept", "reason") if bundle.policy else ())})
        _check_choices(bundle, said, told)
    return max(
        _largest(_difference(told[name], value), name if strict else None)
        for name, value in wanted.items()
    )


def _difference(ours: Tensor, theirs: Tensor) -> Tensor:
    """Relative for values above one; none where both are the same infinity, or not a number."""
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    return torch.where(same, 0.0, (ours - theirs).abs() / theirs.abs().clamp_min(1))


def _largest(differences: Tensor, name: str | None) -> float:
    """The largest of them; an error where that is too large for what has a name."""
    worst = differences.max().item()
    if name is not None and not worst <= TOLERANCE:
        raise ExportError(
            f"no file was written: {name!r} in it would differ from torch by {worst:.2g}, and "
            f"{TOLERANCE:g} is the most that may be"
        )
    return worst


def _check_names(told: dict[str, Tensor], wanted: set[str]) -> None:
    if set(told) != wanted:
        seen = _checks.listed(sorted(told))
        raise ExportError(f"the file gives {seen}, not {_checks.listed(sorted(wanted))}")


def _check_choices(bundle: Bundle, said: Prediction, told: dict[str, Tensor]) -> None:
    """An error where labels or decisions differ by more than rounding at a tie or a bound."""
    theirs = said.probs.gather(-1, told["label"][:, None])[:, 0]
    if bool(((said.max_prob - theirs) > TOLERANCE).any()):
        raise ExportError("no file was written: labels in it would differ from torch")
    if bundle.policy is None:
        return
    close = torch.zeros_like(told["accept"])
    for threshold in thresholds(bundle.policy):
        close |= _at(threshold, said)
    wrong = told["reason"] != bundle.decide(said).codes
    if bool((wrong & ~close).any()) or not torch.equal(told["accept"], told["reason"] == 0):
        raise ExportError("no file was written: decisions in it would differ from torch")


def _at(threshold: Threshold, said: Prediction) -> Tensor:
    values = said.measure(threshold.score)
    return (values - threshold.value).abs() <= TOLERANCE * values.abs()


def _check_invalid(session: Any, bundle: Bundle, x: Tensor) -> None:
    """An error where a file answers what `Bundle.predict` refuses."""
    spoilt = x.clone().flatten(1)
    spoilt[0, 0], spoilt[1, -1] = torch.nan, torch.inf
    told = _run(session, spoilt.view_as(x))
    wrong = [
        name
        for name, value in told.items()
        if value.is_floating_point() and name != "outputs" and not bool(value[:2].isnan().all())
    ]
    if not bool((told["label"][:2] == INVALID).all()):
        wrong.append("label")
    if bundle.policy is not None and bool(told["accept"][:2].any()):
        wrong.append("accept")
    if wrong:
        raise ExportError(
            f"no file was written: {wrong[0]!r} in it hides inputs that are not finite"
        )
