"""How one training went, and what it confuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dubito.report.figures.style import COLOURS, FAINT, INK, panels, plain, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["confusion", "learning"]

DARK = 0.55  # a share from which its number is written in white


def learning(history: Sequence[Mapping[str, Any]], kept: int, *, narrow: bool = False) -> Figure:
    """Loss and validation accuracy over the epochs, and a line at the epoch that was kept."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = panels(2, 1 if narrow else 2, (4.6, 2.9))
    checked = [entry for entry in history if entry.get("validation_accuracy") is not None]
    lines = {"training": "loss", "validation": "validation_loss"}
    for number, (name, key) in enumerate(lines.items()):
        points = [(e["epoch"], e[key]) for e in history if e.get(key) is not None]
        if points:
            axes[0].plot(
                *zip(*points, strict=True), label=name, linewidth=1.6, markersize=3.5,
                markevery=max(1, len(points) // 12), **style(number),
            )  # fmt: skip
    axes[0].legend(frameon=False, fontsize=8.5)
    axes[1].plot(
        [e["epoch"] for e in checked], [100 * e["validation_accuracy"] for e in checked],
        linewidth=1.6, markersize=3.5, markevery=max(1, len(checked) // 12), **style(1),
    )  # fmt: skip
    for ax, title in zip(axes, ("Loss", "Validation accuracy (%)"), strict=True):
        ax.axvline(kept, color=FAINT, linewidth=1, linestyle=":")
        ax.set_xlabel("epoch", fontsize=9, color=INK)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.grid(True, axis="y", color=FAINT, alpha=0.25, linewidth=0.6)
        plain(ax, title)
    return figure


def confusion(counts: np.ndarray[Any, Any], names: Sequence[str]) -> Figure:
    """Which class (a row) was taken for which, counts (K, K); colour is the share of the row."""
    from matplotlib.colors import LinearSegmentedColormap

    size = max(3.4, 0.32 * len(names) + 1.4)
    figure, (ax,) = panels(1, 1, (size, size))
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    shades = LinearSegmentedColormap.from_list("shades", ["#ffffff", COLOURS[0]])
    ax.imshow(shares, cmap=shades, vmin=0, vmax=1)
    for row, column in zip(*counts.nonzero(), strict=True):
        ax.text(
            column, row, f"{counts[row, column]}", ha="center", va="center", fontsize=8,
            color="white" if shares[row, column] > DARK else INK,
        )  # fmt: skip
    ax.set_xticks(range(len(names)), names, rotation=60, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(names)), names)
    ax.set_xlabel("answer", fontsize=9, color=INK)
    ax.set_ylabel("truth", fontsize=9, color=INK)
    ax.tick_params(length=0, labelsize=8)
    ax.spines[:].set_visible(False)
    return figure
