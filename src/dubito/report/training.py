"""report.html of a training: how it went, what it is right about, and when it abstains.

All figures are of the validation samples, which also chose the epoch, the calibration and the
policy: the page says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dubito import evaluation
from dubito._legacy import MEASURES, Prediction, reliability
from dubito.bundle import Limits
from dubito.data import as_floats
from dubito.report import figures, files, html
from dubito.report.figures.pictures import Image, as_image
from dubito.report.figures.style import drawn
from dubito.report.tables import Cell, Table

__all__ = ["REPORT", "Trained", "write"]

REPORT = "report.html"
SHOWN = ("max_prob", "vacuity", "mutual_information", "entropy_of_mean")
MANY = 20  # classes from which on only the worst are shown
PICTURES = 8


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a report is made of: validation inputs (N, *shape), labels (N,), and what was said."""

    title: str
    classes: Sequence[str]
    inputs: Tensor
    labels: Tensor
    said: Prediction
    limits: Limits
    history: Sequence[Mapping[str, Any]]
    epoch: int
    facts: Sequence[str]


def write(folder: Path, trained: Trained) -> Path:
    """Write the page; it needs nothing but itself."""
    charts = {name: _charts(trained, name) for name in _DRAWINGS}
    policy = trained.limits.policy
    both = () if policy is None else (policy.threshold, policy.ood_threshold)
    text = html.page(
        "training.html",
        trained=trained,
        effect=trained.limits.effect,
        policy=policy,
        thresholds=[None if one is None else repr(one) for one in both],
        charts={name: pair for name, pair in charts.items() if pair},
        tables=list(_tables(trained)),
        sheet=_sheet(trained),
    )
    return files.write(folder / REPORT, text)


# --- figures -------------------------------------------------------------------------------------


def _charts(trained: Trained, name: str) -> dict[str, str] | None:
    """A figure for wide and for narrow pages."""
    if name == "confusion" and len(trained.classes) > MANY:
        return None
    widths = ("wide",) if name == "confusion" else ("wide", "narrow")
    found = {
        width: html.picture(drawn(_DRAWINGS[name](trained, width == "narrow"))["png"])
        for width in widths
    }
    return {"narrow": found["wide"], **found}


def _learning(trained: Trained, narrow: bool) -> Any:
    return figures.learning(trained.history, trained.epoch, narrow=narrow)


def _reliability(trained: Trained, narrow: bool) -> Any:
    scaled = trained.limits.calibration
    kinds = {"before": trained.said}
    if scaled is not None:
        kinds["after"] = trained.said.calibrated(scaled)
    curves = {}
    for name, said in kinds.items():
        bins = reliability(said, trained.labels)
        seen = [
            (x, y, n)
            for x, y, n in zip(bins["confidence"], bins["accuracy"], bins["count"], strict=True)
            if n
        ]
        x, y, count = zip(*seen, strict=True)
        curves[name] = figures.Curve(x, y, samples=count)
    effect = trained.limits.effect
    note = f"ECE {effect['ece_before']:.1%} -> {effect['ece_after']:.1%}" if effect else ""
    return figures.reliability({"Calibration": (note, curves)}, 1, narrow=narrow, side=4.1)


def _risk(trained: Trained, narrow: bool) -> Any:
    said = trained.said
    right = said.label == trained.labels
    shown = [name for name in SHOWN if name in said.available]
    found = evaluation.risk_coverage(said.distribution, ~right, shown)
    curves = {
        MEASURES[name].label: figures.Curve(one["coverage"], one["risk"])
        for name, one in found.items()
    }
    figure = figures.risk_coverage({"Errors among the answers": curves}, narrow=narrow)
    policy = trained.limits.policy
    if policy is not None and not policy.accepts_nothing:
        accept = policy.decide(said.distribution).accepted
        wrong = float((~right[accept]).double().mean())
        if wrong > 0:
            figure.axes[0].plot(
                100 * float(accept.double().mean()), 100 * wrong, "*", color="#000000",
                markersize=13, zorder=5,
            )  # fmt: skip
    return figure


def _confusion(trained: Trained, _: bool) -> Any:
    count = len(trained.classes)
    pairs = torch.bincount(trained.labels * count + trained.said.label, minlength=count * count)
    return figures.confusion(pairs.reshape(count, count).numpy(), trained.classes)


_DRAWINGS = {
    "learning": _learning,
    "reliability": _reliability,
    "risk": _risk,
    "confusion": _confusion,
}


# --- tables and pictures -------------------------------------------------------------------------


def _tables(trained: Trained) -> Iterator[Table]:
    said, labels = trained.said, trained.labels
    right = said.label == labels
    policy = trained.limits.policy
    accept = (
        right.new_ones(len(right)) if policy is None else policy.decide(said.distribution).accepted
    )
    rows = []
    for number, name in enumerate(trained.classes):
        own = labels == number
        if own.any():
            answered = own & accept
            wrong = int((~right & answered).sum())
            share = (right[own].double().mean().item(), accept[own].double().mean().item())
            texts = (f"{int(own.sum())}", f"{share[0]:.1%}", f"{share[1]:.1%}", f"{wrong}")
            rows.append((share[0], (str(name), tuple(Cell(text) for text in texts))))
    worst = sorted(rows, key=lambda row: row[0])[:MANY] if len(rows) > MANY else rows
    title = f"The {MANY} worst of {len(rows)} classes" if len(rows) > MANY else "Class by class"
    columns = ("", "samples", "right", "answered", "wrong among the answered")
    yield Table(title, columns, tuple(row for _, row in worst))
    if len(trained.classes) > MANY:
        yield _confused(trained)


def _confused(trained: Trained) -> Table:
    """The pairs that are confused most often."""
    wrong = trained.said.label != trained.labels
    pairs = torch.stack([trained.labels[wrong], trained.said.label[wrong]], 1)
    found, counts = pairs.unique(dim=0, return_counts=True)
    order = counts.argsort(descending=True, stable=True)[:MANY]
    names = trained.classes
    rows = tuple(
        (f"{names[a]} taken for {names[b]}", (Cell(f"{n}"),))
        for (a, b), n in zip(found[order].tolist(), counts[order].tolist(), strict=True)
    )
    return Table("What is confused most", ("", "times"), rows)


def _sheet(trained: Trained) -> str | None:
    """Images that are wrong or refused, the most telling first."""
    x = trained.inputs
    if x.ndim != 4 or x.shape[1] not in (1, 3):
        return None
    said, labels = trained.said, trained.labels
    wrong = said.label != labels
    kinds: dict[str, tuple[Tensor, Tensor]] = {"sure, wrong": (wrong, said.max_prob)}
    policy = trained.limits.policy
    codes = None if policy is None else policy.decide(said.distribution).codes
    if codes is not None:
        kinds["ambiguous"] = (codes == 1, said.distribution.total)
        if policy is not None and policy.ood_threshold is not None:
            kinds["unfamiliar"] = (codes == 2, -said.confidence(policy.ood_threshold.score))
    rows = {}
    for name, (which, by) in kinds.items():
        places = which.nonzero().flatten()
        places = places[by[places].argsort(descending=True, stable=True)][:PICTURES]
        if len(places):
            rows[name] = {"": [_image(x[i]) for i in places]}
    return html.picture(drawn(figures.pictures("Wrong, or refused", rows))["png"]) if rows else None


def _image(x: Tensor) -> Image:
    values = as_floats(x)
    low, high = values.min(), values.max()
    if low < 0 or high > 1:  # not pixels: shown over their own range
        values = (values - low) / (high - low if high > low else 1)
    return as_image(values)
