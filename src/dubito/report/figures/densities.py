"""Densities of samples, a row for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from dubito.report.figures.style import COLOURS, FAINT, INK, drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Panel", "densities", "density"]

Array = np.ndarray[Any, np.dtype[np.floating[Any]]]

OVERLAP = 0.92  # height of the tallest curve of a row; rows are 1 apart


@dataclass(frozen=True)
class Panel:
    """One panel: its title, a line below it, and samples in [0, 1] by name."""

    title: str
    note: str
    samples: Mapping[str, Array]


def density(sample: Array, grid: Array) -> Array:
    """Density of a sample in [0, 1] at the grid's points: Gaussian kernels, mirrored at both ends.

    Mirrored, because a kernel that leaks over an end takes mass away where most of it may lie.
    The width is Silverman's, of the lesser of deviation and quartiles, and no less than 1/200.

    Shapes: (N,), (G,) -> (G,).

    >>> grid = np.linspace(0, 1, 1001)
    >>> round(float(density(np.array([0.0, 0.01, 0.02]), grid).mean()), 2)
    1.0
    """
    quartiles = np.subtract(*np.percentile(sample, [75, 25])) / 1.349
    spread = min(float(sample.std()), float(quartiles)) or float(sample.std())
    width = max(0.9 * spread * len(sample) ** -0.2, 1 / 200)
    mirrored = np.concatenate([sample, -sample, 2 - sample])
    kernels = np.exp(-0.5 * ((grid[:, None] - mirrored) / width) ** 2)
    total: Array = kernels.sum(1) / (len(sample) * width * np.sqrt(2 * np.pi))
    return total


def densities(
    panels: Sequence[Panel], xlabel: str, ends: tuple[str, str] = ("", ""), *, stacked: bool = False
) -> bytes:
    """The density of every sample in a row with its name, a panel beside (or below) the other.

    `ends` says what the two ends of the axis mean. An upright line marks each sample's median.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    count, rows = len(panels), max(len(panel.samples) for panel in panels)
    across, down = (1, count) if stacked else (count, 1)
    # Below each other they are for narrow screens, where only less width leaves text readable.
    size = ((3 if stacked else 4.4) * across + 1, (0.85 * rows + 1) * down + 0.4)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(wspace=0.05, hspace=0.06))
    axes = figure.subplots(down, across, sharey=True, squeeze=False).flat
    for panel, ax in zip(panels, axes, strict=True):
        _rows(ax, panel)
        _heading(ax, panel.title, fill(panel.note, 38) if stacked else panel.note)
        _ends(ax, ends)
    figure.supxlabel(xlabel, fontsize=10, color=INK)
    return drawn(figure)["png"]


def _rows(ax: Axes, panel: Panel) -> None:
    grid = np.linspace(0, 1, 401)
    curves = [density(np.asarray(sample), grid) for sample in panel.samples.values()]
    for i, (sample, curve) in enumerate(zip(panel.samples.values(), curves, strict=True)):
        base, colour = len(curves) - 1 - i, COLOURS[i]
        # Each row has its own height: areas are equal, so a narrow peak would flatten the others.
        height = base + OVERLAP * curve / curve.max()
        ax.fill_between(grid, base, height, color=colour, alpha=0.35, linewidth=0)
        ax.plot(grid, height, color=colour, linewidth=1.6)
        ax.axhline(base, color=FAINT, linewidth=0.6, zorder=0)
        middle = float(np.median(sample))
        ax.plot([middle, middle], [base, np.interp(middle, grid, height)], color=INK, linewidth=1)
    ax.set_yticks(range(len(curves) - 1, -1, -1), panel.samples, fontsize=10.5, va="bottom")
    ax.set_xlim(0, 1)
    ax.set_ylim(-0.02, len(curves))
    ax.tick_params(length=0)
    ax.set_frame_on(False)


def _heading(ax: Axes, title: str, note: str) -> None:
    room = "\n" * (note.count("\n") + 1) if note else ""
    ax.set_title(title + room, fontsize=13, fontweight="bold", loc="left", color=INK)
    ax.text(0, 1.03, note, transform=ax.transAxes, fontsize=9.5, color=INK)


def _ends(ax: Axes, ends: tuple[str, str]) -> None:
    ax.set_xticks([0, 0.5, 1], [f"0\n{ends[0]}", "0.5", f"1\n{ends[1]}"], fontsize=9)
    first, _, last = ax.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")
