"""Figures over the epochs of a training: every seed, their mean, and where each was stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dubito.report.figures.style import COLOURS, FAINT, INK, panels, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Trajectory", "trajectories"]


@dataclass(frozen=True)
class Trajectory:
    """One seed's values at epochs, and the epoch whose weights were kept."""

    epochs: Sequence[int]
    values: Sequence[float]
    kept: int


def trajectories(
    given: Mapping[str, Sequence[Trajectory]], ylabels: Sequence[str], *, narrow: bool = False
) -> Figure:
    """A panel for each quantity: a thin line a seed, their mean as a thick one, dots where kept.

    The mean ends where the first seed does: beyond, it would be one of others.
    """
    figure, axes = panels(len(given), 1 if narrow else 3, (4.6, 3.1))
    for ax, ylabel, (title, seeds) in zip(axes, ylabels, given.items(), strict=True):
        plain(ax, title)
        for seed in seeds:
            ax.plot(seed.epochs, seed.values, color=FAINT, linewidth=0.7, alpha=0.8)
        least = min(len(seed.values) for seed in seeds)
        mean = np.mean([seed.values[:least] for seed in seeds], axis=0)
        ax.plot(seeds[0].epochs[:least], mean, color=COLOURS[0], linewidth=2.2, label="mean")
        kept = [(s.kept, s.values[list(s.epochs).index(s.kept)]) for s in seeds]
        ax.plot(*zip(*kept, strict=True), "D", color=COLOURS[1], markersize=5, label="kept")
        ax.set_xlabel("epoch", fontsize=9, color=INK)
        ax.set_ylabel(ylabel, fontsize=9, color=INK)
    axes[0].legend(frameon=False, fontsize=9, loc="lower right")
    return figure
