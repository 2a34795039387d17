"""Points of several kinds in a plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dubito.report.figures.style import FAINT, INK, panels, plain, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Cloud", "clouds"]


@dataclass(frozen=True)
class Cloud:
    """Points (x, y) of one kind, and the one to circle."""

    name: str
    points: Sequence[tuple[float, float]]
    circled: tuple[float, float] | None = None


def clouds(
    given: Mapping[str, Sequence[Cloud]], xlabel: str, ylabel: str, *, narrow: bool = False
) -> Figure:
    """A panel for each title; a kind has the same colour and mark in all of them."""
    across = 1 if narrow else min(3, len(given))
    figure, axes = panels(len(given), across, (4.1, 3.2) if narrow else (3.7, 3.4))
    order = list(dict.fromkeys(cloud.name for found in given.values() for cloud in found))
    handles = {}
    for (title, found), ax in zip(given.items(), axes, strict=True):
        for cloud in found:
            look = style(order.index(cloud.name)) | {"linestyle": ""}
            x, y = zip(*cloud.points, strict=True)
            (handles[cloud.name],) = ax.plot(x, y, markersize=5, alpha=0.8, **look)
            if cloud.circled is not None:
                ax.plot(*cloud.circled, "o", markersize=12, fillstyle="none", color=INK)
        ax.grid(True, color=FAINT, alpha=0.25, linewidth=0.6)
        plain(ax, title)
    figure.supxlabel(xlabel, fontsize=9.5, color=INK)
    figure.supylabel(ylabel, fontsize=9.5, color=INK)
    figure.legend(
        [handles[name] for name in order], order, loc="outside upper center",
        ncols=2 if narrow else 4, frameon=False, fontsize=8.5,
    )  # fmt: skip
    return figure
