"""Standalone pages: the report of a training or of an evaluation, and parts of other pages.

The words are in templates/report.html.
"""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dubito import sanity
from dubito._extras import need
from dubito._files import atomic_write, json_text
from dubito.backbones import BACKBONES
from dubito.data import Source
from dubito.evaluation import chosen_scores, risk_coverage
from dubito.methods import METHODS, Method
from dubito.model import Model, Prediction, card
from dubito.model.card import PERCENT, metric_name
from dubito.policy import SanityCheck
from dubito.report import figures
from dubito.targets import known_rows
from dubito.training import TrainConfig
from dubito.types import Json

__all__: list[str] = []

#: records of the epochs, `History.records`
Records = Sequence[Mapping[str, Any]]
#: foreign inputs by name, with their prediction
Foreign = Mapping[str, tuple[Source, Prediction]]

REPORT = "report.html"
#: samples in a group
MAX_EXAMPLES = 6
#: metrics of a detection, in the order of the table
DETECTION = ("auroc", "fpr95", "aupr")
#: classes up to which a report has a confusion matrix, and rows of the table of classes
MAX_CLASSES = 20
MAX_TARGETS = 4
#: samples that a frequency needs
MIN_COUNT = 5
#: kind of a task -> axes of its reliability diagram
RELIABILITY_AXES = {
    "classification": ("probability of the prediction", "share correct"),
    "regression": ("level of central intervals", "share of targets inside"),
}
TEMPLATES = Path(__file__).with_name("templates")
#: pixels of the longer side: larger images are compressed, and still larger ones reduced
SMALL, LARGE = 64, 192
#: values of an input that are shown beside its prediction, and letters of a text
MAX_VALUES, MAX_LETTERS = 4, 300
#: letters of the name of a sample
MAX_NAME = 20
#: decision in words
DECISIONS = {
    "accepted": "answered",
    "ambiguous": "abstains: not certain enough",
    "unfamiliar": "abstains: unlike the training data",
    "out_of_range": "abstains: a value is out of range",
}


# --- parts of pages ---


class Example(NamedTuple):
    """A sample to look at.

    Attributes:
        name: Name for users, such as that of its file.
        image: Data URL, if it is an image.
        facts: Truth, answer, or guess if the policy abstains, probability or interval, and scores.
        values: Values of an input that is no image.
        decision: Decision of the policy in words; empty without a policy.
        wrong: Name of the fact that is a wrong class; else empty.
    """

    name: str
    image: str | None
    facts: dict[str, str]
    values: dict[str, str]
    decision: str
    wrong: str


def percent(share: float) -> str:
    """Format a share.

    >>> percent(0.9731)
    '97.3%'
    """
    return f"{share:.1%}"


def number(value: float) -> str:
    """Format a number with at least four digits.

    >>> number(3.14159), number(123456.7)
    ('3.142', '123,457')
    """
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def shortened(name: str) -> str:
    """Leave out folders, and the middle of a long name: its end says more than its beginning.

    >>> shortened("dog/1.jpg"), shortened("dog/a_very_long_name_of_a_photo_0012.jpg")
    ('1.jpg', 'a_very_lo…o_0012.jpg')
    """
    name = Path(name).name
    if len(name) <= MAX_NAME:
        return name
    end = (MAX_NAME + 1) // 2
    return f"{name[: MAX_NAME - 1 - end]}…{name[-end:]}"


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(8.31), duration(7300)
    ('0:00:08', '2:01:40')
    """
    return str(timedelta(seconds=round(seconds)))


def render(template: Path, **content: Any) -> str:
    """Fill in a template; text is escaped.

    Args:
        template: File; it can extend and import those of `TEMPLATES`.
        **content: Values for the template.
    """
    jinja2 = need("jinja2", "cli")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, TEMPLATES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    texts = (percent, number, duration, shortened, json_text)
    environment.filters |= {function.__name__: function for function in texts}
    environment.globals |= {"card": card, "METHODS": METHODS, "BACKBONES": BACKBONES}
    page: str = environment.get_template(template.name).render(**content)
    return page


def image(pixels: Tensor) -> str:
    """Convert an image to a data URL; a large one becomes a thumbnail.

    Args:
        pixels: uint8, (1, H, W) or (3, H, W).
    """
    pillow = need("PIL.Image", "data")
    rows = pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)
    picture = pillow.fromarray(rows.contiguous().cpu().numpy())
    kind = "png" if max(picture.size) <= SMALL else "jpeg"
    picture.thumbnail((LARGE, LARGE))
    buffer = io.BytesIO()
    picture.save(buffer, kind)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def examples(
    source: Source, prediction: Prediction, rows: Sequence[int], scores: Sequence[str] = ()
) -> list[Example]:
    """Return samples to look at, each with its image if it is one.

    Args:
        source: Samples; the truth is shown if they have targets.
        prediction: Prediction of these samples.
        rows: Positions of the samples to show.
        scores: Further scores to show.
    """
    if not len(rows):
        return []
    shown, task, found = source.subset(rows), prediction.task, []
    predicted = prediction[rows].rows(scores, probs=False)
    truth = None if shown.target is None else task.decode(task.encode(shown.target)).tolist()
    for index, (inputs, row) in enumerate(zip(shown.load(), predicted, strict=True)):
        facts = {} if truth is None else {"true": _text(truth[index])}
        answer = "answer" if row.get("accepted", True) else "guess"
        facts |= _facts(row, answer, scores)
        picture, values = source.format.picture(inputs), source.format.describe(inputs)
        is_wrong = truth is not None and "probability" in row and truth[index] != row["prediction"]
        found.append(
            Example(
                name=shown.item(index),
                image=None if picture is None else image(picture),
                facts=facts,
                values={k: _text(value) for k, value in islice(values.items(), MAX_VALUES)},
                decision=DECISIONS.get(row.get("reason", ""), ""),
                wrong=answer if is_wrong else "",
            )
        )
    return found


def _facts(row: Json, answer: str, scores: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what a row of a prediction says, by name; that of several targets has their names."""
    for name, value in row.items():
        column, _, target = name.partition(".")
        if column == "prediction":
            yield f"{answer} {target}".strip(), _text(value)
        elif name in scores:
            yield name, _text(value)
        elif column == "probability":
            yield name, percent(value)
        elif column == "set":
            yield column, ", ".join(value)
        elif column == "lower":
            upper = row[f"upper.{target}" if target else "upper"]
            yield f"interval {target}".strip(), f"{number(value)} to {number(upper)}"


def _text(value: Any) -> str:
    """Format a value; a list has one for each target."""
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, float):
        return number(value)
    text = "(unseen)" if value is None else str(value) or "(missing)"
    return text if len(text) <= MAX_LETTERS else f"{text[: MAX_LETTERS - 1]}…"


# --- the report ---


def training_losses(method: Method, history: Records, epochs: int) -> list[float]:
    """Return the loss of each epoch with the weights of the last one.

    The validation loss has these weights too. A rising KL weight would make epochs incomparable.

    Args:
        method: Method that was trained.
        history: Records of the epochs.
        epochs: Maximum number of epochs.
    """
    weights = method.weights(epochs - 1, epochs)
    return [sum(weights[name] * v for name, v in epoch["terms"].items()) for epoch in history]


class View:
    """What the page shows: charts, tables and samples.

    Args:
        model: Any model; training record, calibration and policy are optional.
        source: Labeled samples.
        prediction: Prediction of these samples.
        history: Records of the epochs, for the report of a training.
        evaluation: Result of `dubito.evaluate`, for the report of an evaluation.
        foreign: Inputs unlike the training data by name, with their predictions.
    """

    def __init__(
        self,
        model: Model,
        source: Source,
        prediction: Prediction,
        history: Records = (),
        evaluation: Json | None = None,
        foreign: Foreign | None = None,
    ) -> None:
        self.model, self.record, self.history = model, model.record, history
        self.part = None if evaluation is None else evaluation["part"]
        self.evaluation = model.evaluate(prediction, source) if evaluation is None else evaluation
        task, policy = model.task, model.policy
        self.foreign, self.sanity = dict(foreign or {}), {} if policy is None else policy.sanity
        failed = [name for name, part in self.sanity.items() if part.fails]
        if failed and evaluation is None:
            made = sanity.sources(model, source)
            self.foreign |= {name: (made[name], model.predict(made[name])) for name in failed}
        # Charts and examples are of samples of which no target is missing.
        rows = known_rows(task.target(source.target)).tolist()
        if len(rows) < len(source):
            source, prediction = source.subset(rows), prediction[rows]
        self.source, self.prediction = source, prediction
        self.dist, self.target = prediction.distribution, task.encode(source.target)
        self.errors = task.errors(prediction.point, self.target) if task.defines_errors else None
        self.score = model.method.error_score if policy is None else policy.threshold.score

    def write(self, folder: Path) -> Path:
        """Write report.html to a folder, a page that needs no other file."""
        return atomic_write(folder / REPORT, render(TEMPLATES / "report.html", view=self))

    # --- charts ---

    def reliability(self) -> str:
        """Return the chart of observed against expected frequencies."""
        task, lines = self.model.task, {}
        raw, calibrated = self.dist.predictive, self.prediction.predictive
        for name, predictive in {"not calibrated": raw, "calibrated": calibrated}.items():
            curve = task.reliability(predictive, self.target)
            expected, observed, count = map(np.asarray, curve.values())
            kept = count >= min(MIN_COUNT, count.max())
            lines[name] = expected[kept], observed[kept]
        axes = RELIABILITY_AXES[task.kind]
        chart = figures.curves(lines, *axes, percent="xy", diagonal=True)
        return figures.svg(chart, "Observed against expected frequency")

    def risk(self) -> str:
        """Return the chart of the error rate among the most confident samples."""
        assert self.errors is not None
        curve = risk_coverage(self.dist, self.errors, [self.score])[self.score]
        accepted, point = self.prediction.accepted, None
        if accepted is not None and bool(accepted.any()):
            rate = self.errors[accepted].double().mean().item()
            point = (accepted.double().mean().item(), rate, "policy")
        lines = {self.score: (curve["coverage"], curve["risk"])}
        axes = "share answered", "errors among the answers"
        chart = figures.curves(lines, *axes, percent="xy", point=point)
        return figures.svg(chart, "Error rate among the answers by share answered")

    def predicted(self) -> Iterator[str]:
        """Yield the charts of predicted against true numbers."""
        columns = self.target, self.prediction.point, *self.prediction.interval()
        for index, name in enumerate(self.model.task.names[:MAX_TARGETS]):
            chart = figures.predicted(name, *(column[:, index].numpy() for column in columns))
            yield figures.svg(chart, f"Predicted against true {name}")

    def learning_curves(self) -> Iterator[tuple[str, str]]:
        """Yield charts of the loss and, if one selects the weights, of that metric, by name."""
        assert self.record is not None
        config = TrainConfig.model_validate(self.record.config["training"])
        epochs = config.for_samples(self.record.samples["training"]).num_epochs
        losses = training_losses(self.model.method, self.history, epochs)
        training = {"training": ([epoch["epoch"] for epoch in self.history], losses)}
        validated = [epoch for epoch in self.history if "validation" in epoch]
        numbers = [epoch["epoch"] for epoch in validated]
        for metric in ("loss", self.model.task.monitor) if validated else ("loss",):
            lines = training if metric == "loss" else {}
            if validated:
                values = [epoch["validation"][metric] for epoch in validated]
                lines |= {"selection": (numbers, values)}
            percent, name = "y" if metric in PERCENT else "", metric_name(metric)
            chart = figures.curves(lines, "epoch", "", percent=percent, at=self.record.best_epoch)
            yield name, figures.svg(chart, f"{name} by epoch")

    # --- numbers ---

    def parameters(self) -> int:
        """Return the number of weights of the network."""
        return sum(parameter.numel() for parameter in self.model.network.parameters())

    def spread(self) -> float:
        """Return the standard deviation of the targets, the error of predicting their mean."""
        return self.target.std(0, correction=0).mean().item()

    # --- classes ---

    def matrix(self) -> list[list[int]] | None:
        """Return the confusion matrix, true classes in rows; None if it would be too large."""
        size = self.model.task.size
        if size > MAX_CLASSES:
            return None
        pairs = torch.bincount(self.target * size + self.prediction.point, minlength=size**2)
        return pairs.reshape(size, size).tolist()

    def classes(self) -> list[tuple[str, int, float, float, int]]:
        """Return name, samples, accuracy, share answered and errors among the answers.

        Of many classes the worst. Without a policy everything is answered.
        """
        accepted, rows = self.prediction.accepted, []
        if accepted is None:
            accepted = torch.ones(len(self.target), dtype=torch.bool)
        for index, name in enumerate(self.model.task.names):
            own = self.target == index
            correct, answered = (self.prediction.point == index)[own], accepted[own]
            if len(correct):
                accuracy, share = correct.double().mean().item(), answered.double().mean().item()
                errors = int((answered & ~correct).sum())
                rows.append((name, len(correct), accuracy, share, errors))
        is_large = self.model.task.size > MAX_CLASSES
        return sorted(rows, key=lambda row: row[2])[:MAX_CLASSES] if is_large else rows

    # --- samples to look at ---

    def surprising(self) -> list[Example]:
        """Return the most confident errors, or the largest errors for their uncertainty."""
        if self.model.task.kind == "classification":
            assert self.errors is not None
            probability = self.prediction.tensors()["probability"]
            return self._examples(probability.masked_fill(~self.errors, -torch.inf))
        dist: Any = self.dist
        deviations: Tensor = (self.target - dist.mean).abs() / dist.variance.sqrt()
        return self._examples(deviations.amax(-1))

    def uncertain(self) -> list[Example]:
        """Return the least confident samples."""
        return self._examples(-self.dist.confidence(self.score))

    def _examples(self, ranking: Tensor) -> list[Example]:
        """Return the samples with the largest values; -inf excludes a sample."""
        return examples(self.source, self.prediction, _largest(ranking))

    # --- foreign inputs ---

    def accepted(self) -> dict[str, SanityCheck]:
        """Return what the policy accepts of foreign inputs, by their kind."""
        found = dict(self.sanity)
        for name, (_, prediction) in self.foreign.items():
            is_made = self.part is None and name in found  # an answer to it may be right
            if not is_made and prediction.accepted is not None:
                share = prediction.accepted.double().mean().item()
                found[name] = SanityCheck(accepted=share, wrong=share)
        return found

    def detection(self) -> dict[str, list[tuple[str, str, list[float]]]]:
        """Return scores, what they are, and how well they tell foreign inputs apart, by kind."""
        found: dict[str, list[tuple[str, str, list[float]]]] = {}
        for name, part in self.evaluation.get("ood", {}).items():
            detected = part["detection"]
            for score, what in chosen_scores(detected, self.evaluation["declared"]).items():
                values = [detected[score][key] for key in DETECTION]
                found.setdefault(name, []).append((score, what, values))
        return found

    def accepted_foreign(self) -> Iterator[tuple[str, list[Example]]]:
        """Yield the most confident of the foreign inputs that the policy accepts, by their kind."""
        for name, (source, prediction) in self.foreign.items():
            accepted = prediction.accepted
            if accepted is not None and bool(accepted.any()):
                confidence = prediction.distribution.confidence(self.score)
                rows = _largest(confidence.masked_fill(~accepted, -torch.inf))
                yield name, examples(source, prediction, rows)


def _largest(ranking: Tensor) -> list[int]:
    """Return the rows with the largest values; -inf excludes a row."""
    largest = ranking.argsort(descending=True, stable=True)[:MAX_EXAMPLES]
    rows: list[int] = largest[ranking[largest] > -torch.inf].tolist()
    return rows
