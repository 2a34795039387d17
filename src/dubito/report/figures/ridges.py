"""Densities that are already counted: histograms over [0, 1], a row for each set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dubito.report.figures.style import COLOURS, FAINT, INK, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Ridge", "median", "ridges"]

TALLEST = 0.9  # rows are 1 apart
HATCHES = ("", "////", "....", "xxxx")


@dataclass(frozen=True)
class Ridge:
    """One panel: its title, a line below it, and histograms of equal bins over [0, 1] by name."""

    title: str
    note: str
    rows: Mapping[str, Sequence[float]]
    ends: tuple[str, str] = ("", "")


def median(counts: npt.ArrayLike) -> float:
    """The median of a histogram (B,) of equal bins over [0, 1].

    >>> median([1.0, 1.0, 0.0, 0.0])
    0.25
    """
    shares = np.asarray(counts, dtype=np.float64)
    below = np.concatenate([[0], shares.cumsum()]) / shares.sum()
    # where nothing lies between two bins, their inner end is the first point that halves
    at = int(np.searchsorted(below, 0.5))
    inside = (0.5 - below[at - 1]) / (below[at] - below[at - 1])
    return float((at - 1 + inside) / len(shares))


def ridges(given: Sequence[Ridge], across: int, xlabel: str, *, narrow: bool = False) -> Figure:
    """A panel for each ridge, `across` in a row; sets have the same colour in all of them."""
    rows = max(len(ridge.rows) for ridge in given)
    size = (1.95 if narrow else 2.6, 0.42 * rows + 0.85)
    figure, axes = panels(len(given), across, size)
    for i, (ridge, ax) in enumerate(zip(given, axes, strict=True)):
        _ridge(ax, ridge, names=i % across == 0)
    figure.supxlabel(xlabel, fontsize=8.5 if narrow else 9.5, color=INK)
    return figure


def _ridge(ax: Axes, ridge: Ridge, names: bool) -> None:
    count = len(ridge.rows)
    for i, histogram in enumerate(ridge.rows.values()):
        heights = np.asarray(histogram, dtype=np.float64)
        edges = np.linspace(0, 1, len(heights) + 1)
        base = count - 1 - i
        # Each row has its own height: areas are equal, so a narrow peak would flatten the others.
        top = base + TALLEST * heights / heights.max()
        ax.stairs(
            top, edges, baseline=base, fill=True, facecolor=(COLOURS[i], 0.4),
            edgecolor=COLOURS[i], linewidth=0.8, hatch=HATCHES[i % len(HATCHES)],
        )  # fmt: skip
        ax.axhline(base, color=FAINT, linewidth=0.6, zorder=0)
        middle = median(heights)
        ax.plot([middle, middle], [base, base + TALLEST], color=INK, linewidth=1.1)
    labels = list(ridge.rows) if names else [""] * count
    ax.set_yticks(range(count - 1, -1, -1), labels, fontsize=9, va="bottom")
    ax.set(xlim=(0, 1), ylim=(-0.02, count))
    ax.set_xticks([0, 1], [f"0\n{ridge.ends[0]}", f"1\n{ridge.ends[1]}"], fontsize=8)
    first, last = ax.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")
    ax.tick_params(length=0)
    ax.set_frame_on(False)
    lines = ridge.note.count("\n") + 1 if ridge.note else 0
    ax.set_title(
        ridge.title, fontsize=10, fontweight="bold", loc="left", color=INK, pad=5 + 9.5 * lines
    )
    ax.text(0, 1.04, ridge.note, transform=ax.transAxes, fontsize=7.5, color=INK)
