"""Figures of reports."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from dubito.report import figures

TRUTH = np.random.default_rng(0).normal(size=900)
FIGURES = {
    "curves": figures.curves(
        {"$a & <b>": ([1, 2], [3, 4]), "one point": ([1], [2])},
        "x", "y", percent="x", point=(1, 2, "here"), at=1,
    ),
    "reliability": figures.curves({"a": ([0.2, 0.9], [0.3, 1])}, "x", "y", diagonal=True),
    "predicted": figures.predicted("y", TRUTH, TRUTH + 0.1, TRUTH - 0.2, TRUTH + 0.3),
    "infinite": figures.predicted("y", TRUTH, TRUTH + 0.1, TRUTH - np.inf, TRUTH + np.inf),
}  # fmt: skip


@pytest.mark.parametrize("name", FIGURES)
def test_svg_is_well_formed_and_has_the_colors_of_the_page(name):
    text = figures.svg(FIGURES[name], "A <label>")
    root = ElementTree.fromstring(text.replace("xlink:href", "href"))
    assert root.attrib["aria-label"] == "A <label>"
    assert len(text) < 150_000
    rest = re.sub(r"var\(--[a-z0-9-]+, #[0-9a-f]{6}\)", "", text)
    assert not re.findall(r"(?:fill|stroke): #", rest)
    assert "font-family" not in text


def test_text_is_not_a_formula():
    assert "$a &amp; &lt;b&gt;" in figures.svg(FIGURES["curves"], "x")
