"""Standalone pages: templates of this package, numbers as text, samples with their images."""

import base64
import io
from collections.abc import Sequence
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from dubito._extras import need
from dubito._files import json_text
from dubito.backbones import BACKBONES
from dubito.data import Source
from dubito.methods import METHODS
from dubito.model import Prediction
from dubito.model.card import format_metric, interval_text, metric_name, policy_text
from dubito.types import Json

__all__: list[str] = []

#: image, and texts by name: truth, prediction and further columns
Example = tuple[str | None, dict[str, str]]

TEMPLATES = Path(__file__).with_name("templates")
#: pixels of the longer side: larger images are compressed, and still larger ones reduced
SMALL, LARGE = 64, 192
#: values of an input that are shown beside its prediction
MAX_VALUES = 4
#: columns of a prediction that a sample shows
COLUMNS = ("prediction", "probability", "lower", "upper", "reason")


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
    texts = (
        percent,
        number,
        duration,
        json_text,
        metric_name,
        format_metric,
        policy_text,
        interval_text,
    )
    environment.filters |= {function.__name__: function for function in texts}
    environment.filters |= {"method_name": METHODS.name_of, "method_dict": METHODS.to_dict}
    environment.filters |= {"backbone_name": BACKBONES.name_of, "backbone_dict": BACKBONES.to_dict}
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
    columns, predicted = (*COLUMNS, *scores), prediction[rows].rows(scores, probs=False)
    truth = None if shown.target is None else task.decode(task.encode(shown.target)).tolist()
    for index, (inputs, row) in enumerate(zip(shown.load(), predicted, strict=True)):
        cells: Json = {"sample": shown.item(index)}
        if truth is not None:
            cells["true"] = truth[index]
        cells |= {name: value for name, value in row.items() if name.split(".")[0] in columns}
        cells |= islice(source.format.describe(inputs).items(), MAX_VALUES)
        picture = source.format.picture(inputs)
        texts = {name: _text(value) for name, value in cells.items()}
        found.append((None if picture is None else image(picture), texts))
    return found


def _text(value: Any) -> str:
    """Format a cell; a list has a value for each target."""
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, float):
        return number(value)
    return "(unseen)" if value is None else str(value)
