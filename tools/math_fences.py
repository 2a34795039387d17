"""Render fenced `math` blocks as MathML in the built documentation (a hook of mkdocs.yml).

Browsers display MathML without a script, so pages need no network. GitHub renders the same blocks.
"""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert


def render(source: str, *_: Any, **__: Any) -> str:
    """Return an equation as HTML, called by pymdownx.superfences."""
    if "&" in source and r"\begin" not in source:
        source = rf"\begin{{align*}}{source}\end{{align*}}"
    equation = convert(source, display="block")
    # Browsers set no space between a function and its argument, as in "log x".
    equation = re.sub(r"(<mi>(?:log|ln)</mi>)(?!<mo)", r'\1<mspace width="0.17em" />', equation)
    return f'<div class="math">{equation}</div>'


def on_config(config: Any) -> Any:
    """Add the fence, called by MkDocs before it reads the pages."""
    options = config.mdx_configs.setdefault("pymdownx.superfences", {})
    options["custom_fences"] = [{"name": "math", "class": "math", "format": render}]
    return config
