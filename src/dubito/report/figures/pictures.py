"""Sheets of small images, in rows with a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dubito.report.figures.style import COLOURS, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

__all__ = ["Image", "as_image", "pictures"]

Image = np.ndarray[Any, np.dtype[Any]]
#: colours of the first and the second block of columns
FRAMES = (COLOURS[2], COLOURS[1])
SIDE, GAP, LABEL, HEAD = 0.42, 0.16, 0.95, 0.62  # inches


def as_image(pixels: Tensor) -> Image:
    """Values (1, height, width) or (3, height, width) in [0, 1] as `pictures` takes them."""
    shown: Image = (pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)).numpy()
    return shown


def pictures(title: str, rows: Mapping[str, Mapping[str, Sequence[Image]]]) -> Figure:
    """Images (height, width) or (height, width, 3) in [0, 1]: {row: {block: images}}.

    Blocks stand beside each other, and every row has the same ones, two at most.
    """
    from matplotlib.figure import Figure

    first = next(iter(rows.values()))
    wide = {block: max(len(row[block]) for row in rows.values()) for block in first}
    width = LABEL + SIDE * sum(wide.values()) + GAP * len(wide)
    height = SIDE * len(rows) + HEAD
    figure = Figure(figsize=(width, height))
    ax = figure.add_axes((0, 0, 1, 1))  # one unit is an inch
    ax.text(0.06, height - 0.06, title, va="top", weight="bold", size=11, color=INK)
    top = height - HEAD + 0.04
    for r, (name, blocks) in enumerate(rows.items()):
        low, left = top - SIDE * (r + 1), LABEL
        ax.text(LABEL - 0.08, low + SIDE / 2, name, ha="right", va="center", size=8.5, color=INK)
        for block, frame in zip(wide, FRAMES, strict=False):
            if r == 0:
                ax.text(left, top + 0.05, block, size=9, weight="bold", color=frame)
            for i, image in enumerate(blocks[block]):
                _image(ax, image, left + SIDE * i, low, frame)
            left += SIDE * wide[block] + GAP
    ax.set(xlim=(0, width), ylim=(0, height), aspect="auto")
    ax.set_axis_off()
    return figure


def _image(ax: Axes, image: Image, left: float, low: float, frame: str) -> None:
    from matplotlib.patches import Rectangle

    side = 0.91 * SIDE
    box = (left, left + side, low, low + side)
    ax.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest", extent=box)
    ax.add_patch(Rectangle((left, low), side, side, fill=False, edgecolor=frame, linewidth=1.2))
