"""Single runs beside an interval that was published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import mean
from typing import TYPE_CHECKING

from dubito.report.figures.style import COLOURS, FAINT, INK, panels, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Interval", "intervals"]


@dataclass(frozen=True)
class Interval:
    """A number for each run, and the published mean and deviation where there are such."""

    runs: Sequence[float]
    published: tuple[float, float] | None = None


def intervals(
    given: Mapping[str, Mapping[str, Interval]], xlabel: str, *, narrow: bool = False
) -> Figure:
    """A row for each name: bar and tick are published, dots are runs, and a diamond their mean.

    Panels beside each other have the same rows; one that neither has is left out.
    """
    across = 1 if narrow else min(2, len(given))
    beside = [list(given.values())[i - i % across :][:across] for i in range(len(given))]
    shared = [list(dict.fromkeys(chain.from_iterable(rows))) for rows in beside]
    height = 0.3 * max(map(len, shared)) + 0.75
    figure, axes = panels(len(given), across, (4.1 if narrow else 5.2, height))
    for i, ((title, rows), names, ax) in enumerate(zip(given.items(), shared, axes, strict=True)):
        for name, interval in rows.items():
            _row(ax, len(names) - 1 - names.index(name), interval)
        shown = names if i % across == 0 else [""] * len(names)
        ax.set_yticks(range(len(names) - 1, -1, -1), shown)
        ax.set_ylim(-0.6, len(names) - 0.4)
        ax.grid(True, axis="x", color=FAINT, alpha=0.25, linewidth=0.6)
        plain(ax, title)
        ax.tick_params(axis="y", length=0)
    figure.supxlabel(xlabel, fontsize=9.5, color=INK)
    _key(figure, narrow)
    return figure


def _key(figure: Figure, narrow: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = {
        "published mean": Line2D([], [], color=COLOURS[1], linewidth=2),
        "± deviation": Patch(color=COLOURS[4], alpha=0.45),
        "our runs": Line2D([], [], color=COLOURS[0], marker="o", linestyle="", markersize=4),
        "their mean": Line2D(
            [], [], color=INK, marker="D", linestyle="", markersize=5, fillstyle="none"
        ),
    }
    figure.legend(
        list(handles.values()), list(handles), loc="outside upper right",
        ncols=2 if narrow else 4, frameon=False, fontsize=8.5,
    )  # fmt: skip


def _row(ax: Axes, place: float, interval: Interval) -> None:
    if interval.published is not None:
        centre, off = interval.published
        ax.barh(place, 2 * off, left=centre - off, height=0.55, color=COLOURS[4], alpha=0.45)
        ax.plot([centre, centre], [place - 0.34, place + 0.34], color=COLOURS[1], linewidth=2)
    if interval.runs:
        ax.plot(
            interval.runs, [place] * len(interval.runs), "o", color=COLOURS[0], markersize=4,
            alpha=0.65, markeredgewidth=0,
        )  # fmt: skip
        ax.plot(mean(interval.runs), place, "D", color=INK, markersize=5, fillstyle="none")
