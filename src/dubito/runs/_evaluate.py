"""Judge a run: on its test samples, against out-of-distribution sets, against noise."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from dubito import bundle, data, metrics
from dubito._legacy import (
    Prediction,
    calibration_metrics,
    misclassification,
    ood_figures,
    promise_of,
)
from dubito.bundle import Limits
from dubito.data import Arrays, as_floats
from dubito.policy import REASONS, Policy
from dubito.report import files
from dubito.report.tables import deviation
from dubito.runs import _folder
from dubito.runs._data import is_table, training_data
from dubito.runs._folder import Run, joined, versions
from dubito.runs._outside import adapted, inputs_of, part_of, reader_options
from dubito.training import CheckpointError

__all__ = ["HELD_OUT", "RESULT", "Evaluation", "averaged", "evaluate", "noisy"]

RESULT, ARRAYS = "result.json", "arrays.npz"
HELD_OUT = "held-out validation"
AT_ONCE = 4096  # samples that get their noise together


@dataclass(frozen=True)
class Evaluation:
    """The figures, as fractions and plain values, and the arrays that they came from.

    `said` holds what was said of the samples ("test") and of each OOD set.
    """

    result: dict[str, Any]
    arrays: dict[str, Any] = field(repr=False)
    said: dict[str, Prediction] = field(repr=False)

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Write result.json and arrays.npz into a folder."""
        place = files.folder(Path(folder))
        _folder.write_arrays(place / ARRAYS, self.arrays)
        return files.write(place / RESULT, files.json_text(self.result))


def averaged(results: Sequence[Any]) -> Any:
    """Several results as one: each number its mean and deviation, all else as in the first.

    A figure that one of them lacks is left out; a count that all agree on stays itself. Where a
    figure is infinite its deviation is None.

    >>> averaged([{"accuracy": 0.5, "samples": 9}, {"accuracy": 1.0, "samples": 9}])
    {'accuracy': {'mean': 0.75, 'deviation': 0.353...}, 'samples': 9}
    """
    first = results[0]
    if isinstance(first, Mapping):
        shared = [key for key in first if all(key in other for other in results)]
        return {key: averaged([other[key] for other in results]) for key in shared}
    if isinstance(first, float):
        alone = len(results) == 1
        return {"mean": fmean(results), "deviation": 0.0 if alone else deviation(results)}
    return first


def evaluate(
    run: Run,
    *,
    source: str | None = None,
    ood: Iterable[str] = (),
    noise: Iterable[float] = (),
    resize: bool = False,
    batch_size: int = 1024,
    seed: int = 0,
) -> Evaluation:
    """How right a run is, how well it knows when it is wrong, and what it can tell from its own.

    The samples are the test part of the run's data, where there is none the validation samples that
    were held out, or those of another `source` with the same classes. `ood` are sources of inputs;
    each `noise` is the deviation of a normal that is added to the samples, without clipping, from
    `seed`. `resize` lets images of other sizes and channels be converted.

    Figures are of what the network says before calibration; those under `limits`, where the run has
    any, are of its calibration and of its policy. What was fitted on the samples that were held out
    is not judged by them.
    """
    start = time.perf_counter()
    sigmas = list(noise)
    for sigma in sigmas:
        if not 0 < sigma < math.inf:
            raise ValueError(f"noise must be a finite number > 0, not {sigma!r}")
    samples, part = _samples(run, source, resize)
    sources = _keys(ood)
    outside = {key: inputs_of(run.config, one, resize) for key, one in sources.items()}
    said = run.predict(samples.inputs, batch_size)
    result = _described(run, samples, part) | _judged(said, samples.labels)
    arrays: dict[str, Any] = {"labels": samples.labels.numpy(), **_arrays("test", said)}
    limits = bundle.read_limits(run.folder)
    kept = _limited(limits, said, samples.labels, part)
    predictions = {"test": said}
    result["ood"], result["noise"] = {}, {}
    for (key, x), place in zip(outside.items(), sources.values(), strict=True):
        other = predictions[key] = run.predict(x, batch_size)
        result["ood"][key] = {"source": place} | _told_apart(said, other)
        if limits.policy is not None:
            kept["ood"][key] = _decided(limits.policy, other)
        arrays |= _arrays(f"ood/{key}", other)
    for sigma in sigmas:
        other = _predict_noisy(run, samples.inputs, sigma, seed, batch_size)
        result["noise"][f"{sigma:g}"] = {"seed": seed} | _told_apart(said, other)
        if limits.policy is not None:
            kept["noise"][f"{sigma:g}"] = _decided(limits.policy, other, samples.labels)
        arrays |= _arrays(f"noise/{sigma:g}", other)
    if sigmas and not _in_unit_range(samples.inputs):
        result["notes"].append("noise was added to inputs that are not confined to [0, 1]")
    if kept:
        result["limits"] = kept
    result |= {"seconds": time.perf_counter() - start, "versions": versions()}
    return Evaluation(result, arrays, predictions)


def _samples(run: Run, source: str | None, resize: bool) -> tuple[Arrays, str]:
    """The samples to judge by, and which part of which data they are."""
    own = source is None
    place: str = run.config.data["source"] if source is None else source
    if own and part_of(place) != "test":
        return _held_out(run), HELD_OUT
    part, options = part_of(place), reader_options(run.config, place, resize)
    if place not in data.DATASETS:
        options["classes"] = run.classes
    columns = run.config.prepared().columns
    if columns is not None and is_table(place):
        samples = columns.read(Path(place).expanduser(), run.classes)
    else:
        samples = data.load(place, part, **options)
    if samples.classes != run.classes:
        raise ValueError(
            f"{place} has the classes {list(samples.classes[:10])}, but the run was trained for "
            f"{list(run.classes[:10])}"
        )
    inputs = adapted(samples.inputs, run.shape, place, resize)
    return Arrays(inputs, samples.labels, samples.classes, samples.name), part


def _held_out(run: Run) -> Arrays:
    """The validation samples, for data without a test part."""
    everything = training_data(run.config)
    if everything.fingerprint() != run.config.facts.fingerprint:
        raise CheckpointError(
            f"{run.config.data['source']} has changed since the run in {run.folder}, so the "
            "samples that were held out are not known; judge it by other data (--data)"
        )
    return everything.subset(_folder.read_split(run.folder, len(everything))[1])


def _keys(sources: Iterable[str]) -> dict[str, str]:
    """A short name for each source: its own if it is known, else its file's; none twice."""
    found: dict[str, str] = {}
    for source in sources:
        base = source if source in data.DATASETS else Path(source).expanduser().resolve().stem
        key, number = base, 2
        while key in found or key == "test":  # the samples' own
            key, number = f"{base}-{number}", number + 1
        found[key] = source
    return found


def _described(run: Run, samples: Arrays, part: str) -> dict[str, Any]:
    config = run.config
    return {
        "run": {
            "data": config.data["source"],
            "method": config.method["name"],
            "backbone": config.backbone["name"],
            "seed": config.training["seed"],
            "versions": dict(config.versions),
        },
        "test": {"data": samples.name, "part": part, "samples": len(samples)},
        "notes": [],
    }


def _judged(said: Prediction, labels: Tensor) -> dict[str, Any]:
    """Accuracy, calibration, and how well each measure knows the wrong predictions."""
    correct = said.label == labels
    right = int(correct.sum())
    judged: dict[str, Any] = {
        "accuracy": metrics.accuracy(said.probs, labels).item(),
        "calibration": calibration_metrics(said, labels),
        "aurc": {
            name: metrics.aurc(said.confidence(name), correct).item() for name in said.available
        },
        "misclassification": {},
    }
    if 0 < right < len(labels):
        judged["misclassification"] = misclassification(said, labels)
    else:  # a ranking of right and wrong needs some of both
        which = "right" if right else "wrong"
        judged["notes"] = [
            f"misclassification has no figures: all {len(labels)} predictions are {which}"
        ]
    return judged


def _limited(limits: Limits, said: Prediction, labels: Tensor, part: str) -> dict[str, Any]:
    """Calibration after the run's own, and what its policy decides and promised."""
    found: dict[str, Any] = {}
    if limits.calibration is not None and part != HELD_OUT:
        found["calibration"] = calibration_metrics(said.calibrated(limits.calibration), labels)
    if limits.policy is not None:
        found["promise"] = promise_of(limits.policy)
        if part != HELD_OUT:
            found["test"] = _decided(limits.policy, said, labels)
        found |= {"ood": {}, "noise": {}}
    return found


def _decided(policy: Policy, said: Prediction, labels: Tensor | None = None) -> dict[str, float]:
    """The shares that are accepted and refused; the share `wrong` is of the accepted, if any."""
    decision = policy.decide(said.distribution)
    counts = torch.bincount(decision.codes, minlength=len(REASONS)).tolist()
    found = {name: count / len(said) for name, count in zip(REASONS, counts, strict=True)}
    if labels is not None and bool(decision.accepted.any()):
        wrong = (said.label != labels)[decision.accepted]
        found["wrong"] = wrong.double().mean().item()
    return found


def _told_apart(said: Prediction, other: Prediction) -> dict[str, Any]:
    return {"samples": len(other), "detection": ood_figures(said, other)}


def _arrays(prefix: str, said: Prediction) -> dict[str, Any]:
    """alpha, or the expected probabilities where there is none, and every measure."""
    basis = {"alpha": said.alpha} if hasattr(said, "alpha") else {"probs": said.probs}
    values = basis | {name: said.measure(name) for name in said.available}
    return {f"{prefix}/{name}": value.numpy() for name, value in values.items()}


def noisy(inputs: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """Inputs as floats plus N(0, sigma), not clipped.

    >>> x = noisy(torch.zeros(4000, 1), 0.1, torch.Generator().manual_seed(0))
    >>> round(x.std().item(), 2)
    0.1
    """
    x = as_floats(inputs)
    return x + sigma * torch.randn(x.shape, generator=generator)


def _predict_noisy(
    run: Run, inputs: Tensor, sigma: float, seed: int, batch_size: int
) -> Prediction:
    # in portions of a fixed size: floats take four times the memory of bytes
    drawn = torch.Generator().manual_seed(seed)
    return joined(
        [run.predict(noisy(portion, sigma, drawn), batch_size) for portion in inputs.split(AT_ONCE)]
    )


def _in_unit_range(inputs: Tensor) -> bool:
    if inputs.dtype == torch.uint8:
        return True
    return bool(inputs.min() >= 0) and bool(inputs.max() <= 1)
