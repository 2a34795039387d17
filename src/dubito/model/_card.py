"""Model cards: data, results and limits of a model in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from dubito.methods.base import name_of

if TYPE_CHECKING:
    from dubito.model.model import Model
    from dubito.policy import Policy

MAX_NAMES = 20
SPECIAL = "\\`*_[]<>#|"
#: metric -> its name in tables
METRICS = {
    "accuracy": "Accuracy",
    "ece": "Calibration error (ECE)",
    "nll": "Negative log-likelihood",
    "brier": "Brier score",
    "rmse": "Root mean squared error",
    "mae": "Mean absolute error",
    "coverage90": "Coverage of central 90% intervals",
    "loss": "Loss",
}
PERCENT = ("accuracy", "ece", "coverage90")

MEANING = """\
## What the uncertainty means

- **Calibrated** probabilities and intervals match frequencies on data like the validation samples:
  of predictions with probability 80%, about 80% are correct.
- **Aleatoric** uncertainty remains with more data; **epistemic** uncertainty is lack of evidence.
  Both are computed before calibration and add up to the **total**.
- Use them to rank inputs, to abstain and to find unusual inputs. Their amount is not an estimate of
  what is unknown: an epistemic uncertainty of 0.2 is not a 20% chance of anything.
  No loss rewards a faithful report of it, it depends on the regularization, and it does not vanish
  with more data (Bengs et al., NeurIPS 2022 and ICML 2023; Jürgens et al., ICML 2024; Shen et al.,
  NeurIPS 2024).

## Limits

- Guarantees hold for inputs with the distribution of the validation samples, not for other cameras,
  clinics, years or populations.
- They hold over all inputs together. A rare class can have a higher error rate.
- An unusual input can still get a confident wrong answer.
"""
VALIDATION_NOTE = """\
- The validation samples also chose the epoch, so the guarantee is slightly optimistic. Evaluate the
  model on other labeled data before you rely on it.
"""


def card(model: Model) -> str:
    """Return the card of a model in Markdown.

    Args:
        model: Any model; training record, calibration and policy are optional.
    """
    sections = (_title(model), _data(model), _results(model))
    notes = MEANING + (VALIDATION_NOTE if model.record is not None else "")
    return "\n\n".join(["\n".join(lines).rstrip() for lines in sections] + [notes])


def metric_name(name: str) -> str:
    """Return the name of a metric for tables."""
    return METRICS.get(name, name)


def format_metric(name: str, value: float) -> str:
    """Format the value of a metric.

    >>> format_metric("accuracy", 0.9731), format_metric("rmse", 53.20817)
    ('97.31%', '53.21')
    """
    return f"{value:.2%}" if name in PERCENT else f"{value:.4g}"


def guarantee_text(policy: Policy | None) -> str:
    """Word the guarantee of a policy; "" if there is none."""
    if policy is None or policy.guarantee is None:
        return ""
    guarantee = policy.guarantee
    if guarantee.controls == "coverage":
        return f"that at least {100 * guarantee.level:.4g}% of the inputs are answered, on average"
    text = f"an error rate of at most {100 * guarantee.level:.4g}% among the answers"
    confidence = guarantee.confidence
    return text if confidence is None else f"{text}, with confidence {100 * confidence:.4g}%"


def _title(model: Model) -> Iterator[str]:
    task = model.task
    what = f"{task.size} classes" if task.kind == "classification" else _names(task.names)
    network = "a custom network" if model.backbone is None else f"`{model.backbone['name']}`"
    yield f"# {task.kind.capitalize()}: {what}"
    yield ""
    yield f"Made with dubito: method `{name_of(model.method)}`, {network}."


def _data(model: Model) -> Iterator[str]:
    task, record = model.task, model.record
    yield "## Data"
    yield ""
    yield f"- Inputs: {model.preprocessing.inputs}"
    yield f"- {'Classes' if task.kind == 'classification' else 'Targets'}: {_names(task.names)}"
    if record is not None:
        yield (
            f"- Training: {record.train_samples:,} samples; validation: "
            f"{record.validation_samples:,} samples"
        )
        yield f"- Weights: epoch {record.best_epoch} of {record.epochs}, seed {record.seed}"


def _results(model: Model) -> Iterator[str]:
    record, policy = model.record, model.policy
    yield "## Results"
    yield ""
    if record is not None and record.metrics:
        rows = ((metric_name(k), format_metric(k, v)) for k, v in record.metrics.items())
        yield from _table("Validation, before calibration", "Value", rows)
    if model.calibration is None:
        yield from ("The model is not calibrated.", "")
    if policy is None:
        yield "The model has no policy: it answers every input."
        return
    if policy.accepts_nothing:
        yield f"The model abstains from every input: it cannot guarantee {guarantee_text(policy)}."
    else:
        conditions = [policy.threshold, policy.ood_threshold]
        answers = " and ".join(f"`{threshold}`" for threshold in conditions if threshold)
        yield f"The model answers if {answers} (before calibration) and abstains otherwise."
        if policy.guarantee is not None:
            yield f"It guarantees {guarantee_text(policy)}, for inputs like the validation samples."
    if policy.table:
        yield ""
        rows = ((f"at most {p.error_rate:.0%}", f"{p.coverage:.1%}") for p in policy.table)
        yield from _table("Guaranteed error rate", "Share answered", rows)


def _table(name: str, value: str, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield f"| {name} | {value} |"
    yield "| --- | ---: |"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _names(names: Iterable[str]) -> str:
    """Join names, without characters that Markdown interprets."""
    shown = ["".join(f"\\{c}" if c in SPECIAL else c for c in " ".join(n.split())) for n in names]
    more = f" and {len(shown) - MAX_NAMES} more" if len(shown) > MAX_NAMES else ""
    return ", ".join(shown[:MAX_NAMES]) + more
