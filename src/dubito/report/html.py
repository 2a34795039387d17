"""Pages that stand alone: templates, and pictures within the page."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np

__all__ = ["page", "picture", "png"]


def page(template: str, **content: Any) -> str:
    """The page made of a template of this package; what is filled in is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("dubito.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**content)


def picture(data: bytes) -> str:
    """A PNG as an address that holds the picture itself.

    >>> picture(b"abc")
    'data:image/png;base64,YWJj'
    """
    return "data:image/png;base64," + base64.b64encode(data).decode()


def png(grey: np.ndarray[Any, Any]) -> bytes:
    """A grey image (height, width) in [0, 1] as PNG.

    >>> png(np.zeros((8, 8)))[:4]
    b'\\x89PNG'
    """
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.rint(255 * grey).astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()
