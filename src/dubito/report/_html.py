"""Standalone pages: templates of this package, numbers as text, and images inside the page."""

from __future__ import annotations

import base64
import io
from typing import Any

from torch import Tensor

from dubito._extras import need
from dubito.methods.base import name_of
from dubito.model import _card

__all__ = ["image", "number", "percent", "render"]

#: pixels of the longer side: larger images are compressed, and still larger ones reduced
SMALL, LARGE = 64, 192


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

    >>> duration(8.31), duration(605), duration(7300)
    ('8.3 s', '10 min', '2.0 h')
    """
    if seconds < 120:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def render(template: str, **content: Any) -> str:
    """Fill in a template; text is escaped.

    Args:
        template: Name of a file in `templates`.
        **content: Values for the template.
    """
    jinja2 = need("jinja2", "cli")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dubito.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (percent, number, duration, _card.guarantee_text, name_of)
    environment.filters |= {function.__name__: function for function in filters}
    environment.filters |= {"metric_name": _card.metric_name, "metric": _card.format_metric}
    page: str = environment.get_template(template).render(**content)
    return page


def image(pixels: Tensor) -> str:
    """Convert an image to a data URL; a large one becomes a thumbnail.

    Args:
        pixels: uint8 or floating point, (1, H, W) or (3, H, W). Floats outside of [0, 1] are shown
            over their own range.
    """
    pillow = need("PIL.Image", "data")
    if pixels.is_floating_point():
        low, high = (float(value) for value in pixels.aminmax())
        if low < 0 or high > 1:
            pixels = (pixels - low) / (high - low)
        pixels = (255 * pixels).round().byte()
    rows = pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)
    picture = pillow.fromarray(rows.contiguous().cpu().numpy())
    kind = "png" if max(picture.size) <= SMALL else "jpeg"
    picture.thumbnail((LARGE, LARGE))
    buffer = io.BytesIO()
    picture.save(buffer, kind)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
