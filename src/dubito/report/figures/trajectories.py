"""Figures over the epochs of a training: every seed, their mean, and where each was stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dubito.report.figures.style import COLOURS, FAINT, INK, panels, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LOSS", "Trajectory", "trajectories"]

#: the title of the panel whose first values are out of sight
LOSS = "validation loss"


@dataclass(frozen=True)
class Trajectory:
    """One seed's values at epochs, the epoch whose weights were kept, and that of least loss."""

    epochs: Sequence[int]
    values: Sequence[float]
    kept: int
    least_loss: int | None = None

    def at(self, epoch: int) -> tuple[int, float]:
        """The epoch and its value."""
        return epoch, self.values[list(self.epochs).index(epoch)]


def trajectories(
    given: Mapping[str, Sequence[Trajectory]],
    ylabels: Sequence[str],
    other: Mapping[str, Sequence[Trajectory]] | None = None,
    names: tuple[str, str] = ("", ""),
    *,
    narrow: bool = False,
) -> Figure:
    """A panel for each quantity: a thin line a seed, their mean as a thick one, dots where kept.

    The mean ends where the first seed does: beyond, it would be one of others. `other` has what
    another measure says in some of the panels, drawn as its mean; `names` are those of the two.
    """
    across = 2 if len(given) == 4 else 3
    figure, axes = panels(len(given), 1 if narrow else across, (4.6, 3.1))
    for ax, ylabel, (title, seeds) in zip(axes, ylabels, given.items(), strict=True):
        plain(ax, title)
        for seed in seeds:
            ax.plot(seed.epochs, seed.values, color=FAINT, linewidth=0.7, alpha=0.8)
        epochs, mean = _mean(seeds)
        (thick,) = ax.plot(epochs, mean, color=COLOURS[0], linewidth=2.2, label="mean")
        low = [s.at(s.least_loss) for s in seeds if s.least_loss is not None]
        if low:
            style: dict[str, Any] = {"markerfacecolor": "none", "markersize": 9, "zorder": 4}
            ax.plot(*zip(*low, strict=True), "o", color=COLOURS[2], label="least loss", **style)
        kept = [s.at(s.kept) for s in seeds]
        ax.plot(*zip(*kept, strict=True), "D", color=COLOURS[1], markersize=5, label="kept")
        if other and title in other:
            (dashed,) = ax.plot(*_mean(other[title]), "--", color=COLOURS[3], linewidth=1.6)
            ax.legend([thick, dashed], names, frameon=False, fontsize=9)
        settled = mean[len(mean) // 4 :]  # the first epochs would leave the rest no room
        room = 0.5 * (settled.max() - settled.min())
        if title == LOSS and room > 0:
            ax.set_ylim(settled.min() - room, settled.max() + room)
        ax.set_xlabel("epoch", fontsize=9, color=INK)
        ax.set_ylabel(ylabel, fontsize=9, color=INK)
    rising = axes[1] if LOSS in given else axes[0]
    rising.legend(frameon=False, fontsize=9, loc="lower right")
    return figure


def _mean(seeds: Sequence[Trajectory]) -> tuple[Sequence[int], np.ndarray]:
    least = min(len(seed.values) for seed in seeds)
    return seeds[0].epochs[:least], np.mean([seed.values[:least] for seed in seeds], axis=0)
