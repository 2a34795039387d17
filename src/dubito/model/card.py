"""Model cards: data, results and limits of a model in Markdown.

The words are in card.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from dubito.backbones import BACKBONES
from dubito.evaluation import neglected
from dubito.methods import METHODS

if TYPE_CHECKING:
    from dubito.model.folder import TrainingRecord
    from dubito.model.model import Model
    from dubito.policy import Guarantee, Policy

__all__: list[str] = []

MAX_NAMES, MAX_WORST = 20, 5
SPECIAL = "\\`*_[]<>#|"
#: metric -> its name in tables
METRICS = {
    "accuracy": "Accuracy",
    "ece": "Calibration error (ECE)",
    "nll": "Negative log-likelihood",
    "brier": "Brier score",
    "rmse": "Root mean squared error",
    "mae": "Mean absolute error",
    "crps": "Continuous ranked probability score",
    "coverage90": "Coverage of central 90% intervals",
    "loss": "Loss",
}
#: what promises assume
EXACT = "for inputs like the calibration samples, if these served no other purpose."
CROSS_FITTED = (
    "This is approximate: each calibration sample was predicted by the network that was not "
    "trained on it, and there is no finite-sample proof for the ensemble of these networks."
)
PERCENT = ("accuracy", "ece", "coverage90")


def card(model: Model) -> str:
    """Return the card of a model in Markdown.

    Args:
        model: Any model; training record, calibration and policy are optional.
    """
    task = model.task
    what = f"{task.size} classes" if task.kind == "classification" else _names(task.names)
    backbone = model.backbone
    network = "a custom network" if backbone is None else f"`{BACKBONES.name_of(backbone)}`"
    return Path(__file__).with_name("card.md").read_text("utf-8").format(
        title=f"{task.kind.capitalize()}: {what}",
        method=METHODS.name_of(model.method),
        network=network,
        data="\n".join(_data(model)),
        results="\n\n".join(_results(model)),
    )  # fmt: skip


def metric_name(name: str) -> str:
    """Return the name of a metric for tables."""
    return METRICS.get(name, name)


def format_metric(name: str, value: float) -> str:
    """Format the value of a metric.

    >>> format_metric("accuracy", 0.9731), format_metric("rmse", 53.20817)
    ('97.31%', '53.21')
    """
    return f"{value:.2%}" if name in PERCENT else f"{value:.4g}"


def recall_text(recall: Mapping[str, float]) -> str:
    """Name the classes that are hardly recognized; empty if there are none.

    >>> recall_text({"cat": 0.9, "dog": 0.8, "ship": 0.1})
    'hardly recognized: ship (10.0%); the mean recall is 60.0%'
    """
    found = neglected(recall)
    if not found:
        return ""
    names = ", ".join(f"{name} ({share:.1%})" for name, share in [*found.items()][:MAX_WORST])
    more = f" and {len(found) - MAX_WORST} more" if len(found) > MAX_WORST else ""
    return f"hardly recognized: {names}{more}; the mean recall is {fmean(recall.values()):.1%}"


def policy_text(policy: Policy | None) -> str:
    """Word when a model answers, and what it guarantees."""
    if policy is None:
        return "The model has no policy: it answers every input."
    guarantee = "" if policy.guarantee is None else _guarantee_text(policy.guarantee)
    if policy.accepts_nothing and policy.max_width is not None:
        return "The model abstains from every input: no interval is narrow enough."
    if policy.accepts_nothing:
        return f"The model abstains from every input: it cannot guarantee {guarantee}."
    conditions: list[object] = [policy.threshold, policy.ood_threshold]
    if policy.max_width is not None:
        conditions[0] = f"the interval is at most {policy.max_width:g} wide"
    answers = " and ".join(str(condition) for condition in conditions if condition)
    text = f"The model answers if {answers} (before calibration) and abstains otherwise."
    if policy.guarantee is None:
        return text
    if policy.guarantee.approximate:
        return f"{text} It aims at {guarantee}. {CROSS_FITTED}"
    return f"{text} It guarantees {guarantee}, {EXACT}"


def weights_text(record: TrainingRecord) -> str:
    """Say where the weights are from."""
    if record.frozen:
        return f"a head on features of a pretrained backbone, seed {record.seed}"
    if record.epochs:
        return f"epoch {record.best_epoch} of {record.epochs}, seed {record.seed}"
    return "trained elsewhere; promises hold if none of these samples trained or selected them"


def coverage_text(model: Model) -> str:
    """Word what intervals or prediction sets promise; empty without these."""
    calibration = model.calibration
    if calibration is None or not calibration.levels:
        return ""
    classifies = model.task.kind == "classification"
    names = [f"{100 * level:g}%" for level in calibration.levels]
    what, truth = ("Prediction sets", "true class") if classifies else ("Intervals", "target")
    text = f"{what} of {_joined(names)} contain the {truth} with at least this probability"
    text += f", approximately. {CROSS_FITTED}" if calibration.of_members else f", {EXACT}"
    pairs = zip(names, calibration.quantiles, strict=True)
    if few := [name for name, quantile in pairs if math.inf in quantile]:
        all_of_it = "have every class" if classifies else "are infinite"
        text += f" Those of {_joined(few)} {all_of_it}: the calibration samples are too few."
    return text


def sanity_text(policy: Policy) -> str:
    """Word what is answered of the images of the sanity check."""
    shares = [
        f"{name} {part.accepted:.0%}"
        + ("" if part.wrong == part.accepted else f" ({part.wrong:.0%} wrongly)")
        for name, part in policy.sanity.items()
    ]
    text = f"Share answered of images made from the data: {', '.join(shares)}."
    failed = [name for name, part in policy.sanity.items() if part.fails]
    return f"{text} {failure_text(failed)}" if failed else text


def failure_text(names: Sequence[str]) -> str:
    """Word what to do about images that should not be answered."""
    return (
        f"More than 5% wrong answers to {_joined(names)}: choose another score for them (dubito "
        "calibrate --ood-score) or let it reject more ordinary inputs (--false-alarms), and "
        "measure with inputs that can occur (dubito evaluate --ood)."
    )


def _joined(parts: Sequence[str]) -> str:
    """Join parts in words."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def _guarantee_text(guarantee: Guarantee) -> str:
    if guarantee.controls == "coverage":
        return f"that at least {100 * guarantee.level:.4g}% of the inputs are answered, on average"
    text = f"an error rate of at most {100 * guarantee.level:.4g}% among the answers"
    confidence = guarantee.confidence
    return text if confidence is None else f"{text}, with confidence {100 * confidence:.4g}%"


def _data(model: Model) -> Iterator[str]:
    task, record = model.task, model.record
    yield f"- Inputs: {model.preprocessing.inputs}"
    yield f"- {'Classes' if task.kind == 'classification' else 'Targets'}: {_names(task.names)}"
    if record is not None:
        samples = (f"{count:,} for {purpose}" for purpose, count in record.samples.items())
        yield f"- Samples: {', '.join(samples)}"
        yield f"- Weights: {weights_text(record)}"


def _results(model: Model) -> Iterator[str]:
    record, policy = model.record, model.policy
    if record is not None and record.metrics:
        metrics = {metric_name(k): format_metric(k, v) for k, v in record.metrics.items()}
        yield _table({"Calibration samples, before calibration": "Value"} | metrics)
    if record is not None and (text := recall_text(record.recall)):
        yield f"**Classes {_escaped(text)}.**"
    if model.calibration is None:
        yield "The model is not calibrated."
    yield policy_text(policy)
    if policy is not None and policy.advice:
        yield f"Why so little is answered: {policy.advice}."
    if text := coverage_text(model):
        yield text
    if policy is not None and policy.table:
        rows = {f"at most {p.error_rate:.0%}": f"{p.coverage:.1%}" for p in policy.table}
        approximate = policy.guarantee is not None and policy.guarantee.approximate
        head = "Error rate, approximate" if approximate else "Guaranteed error rate"
        yield _table({head: "Share answered"} | rows)
    if policy is not None and policy.sanity:
        yield sanity_text(policy)


def _table(rows: dict[str, str]) -> str:
    """Return a table; the first row is its head."""
    head, *body = (f"| {name} | {value} |" for name, value in rows.items())
    return "\n".join([head, "| --- | ---: |", *body])


def _names(names: Iterable[str]) -> str:
    """Join names, without characters that Markdown interprets."""
    shown = [_escaped(" ".join(name.split())) for name in names]
    more = f" and {len(shown) - MAX_NAMES} more" if len(shown) > MAX_NAMES else ""
    return ", ".join(shown[:MAX_NAMES]) + more


def _escaped(text: str) -> str:
    """Escape characters that Markdown interprets."""
    return "".join(f"\\{c}" if c in SPECIAL else c for c in text)
