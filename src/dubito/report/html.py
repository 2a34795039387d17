"""Standalone pages: templates of this package, numbers as text, samples with their images."""

import base64
import io
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from dubito._extras import need
from dubito._files import json_text
from dubito.backbones import BACKBONES
from dubito.data import Source
from dubito.methods import METHODS
from dubito.model import Prediction, card
from dubito.types import Json

__all__: list[str] = []

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
