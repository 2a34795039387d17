"""Figures of reports."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from dubito.report import _figures
from dubito.report._figures import Curve

DRAWN = np.random.default_rng(0)
TRUTH = DRAWN.normal(size=900)
FIGURES = {
    "curves": _figures.curves(
        {"$a & <b>": Curve([1, 2], [3, 4]), "one point": Curve([1], [2])},
        "x", "y", percent="x", point=(1, 2, "here"), span=(1, 2, "span"), at=1,
    ),
    "reliability": _figures.curves({"a": Curve([0.2, 0.9], [0.3, 1])}, "x", "y", diagonal=True),
    "histogram": _figures.histogram({"a": DRAWN.normal(size=50), "b": np.zeros(2)}, "x"),
    "one value": _figures.histogram({"a": np.ones(3)}, "x"),
    "predicted": _figures.predicted("y", TRUTH, TRUTH + 0.1, TRUTH - 0.2, TRUTH + 0.3),
    "points": _figures.predicted("y", TRUTH, TRUTH + 0.1),
}  # fmt: skip


@pytest.mark.parametrize("name", FIGURES)
def test_svg_is_well_formed(name: str) -> None:
    text = _figures.svg(FIGURES[name], "A <label>")
    root = ElementTree.fromstring(text.replace("xlink:href", "href"))
    assert root.attrib["aria-label"] == "A <label>"
    assert len(text) < 150_000


@pytest.mark.parametrize("name", FIGURES)
def test_colors_follow_the_page(name: str) -> None:
    text = _figures.svg(FIGURES[name], name)
    rest = re.sub(r"var\(--[a-z0-9-]+, #[0-9a-f]{6}\)", "", text)
    assert not re.findall(r"(?:fill|stroke): #", rest)
    assert "font-family" not in text


def test_text_is_not_a_formula() -> None:
    assert "$a &amp; &lt;b&gt;" in _figures.svg(FIGURES["curves"], "x")


def test_histogram_shares_add_up() -> None:
    figure: Figure = _figures.histogram({"a": np.arange(10.0), "b": np.arange(3.0)}, "x")
    heights = [bar.get_height() for bar in figure.axes[0].patches]  # type: ignore[attr-defined]
    assert sum(h for h in heights if h > 0) == pytest.approx(1)
    assert sum(h for h in heights if h < 0) == pytest.approx(-1)
