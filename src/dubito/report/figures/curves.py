"""Curves: risk against coverage, accuracy against confidence, figures against a hyperparameter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dubito.report.figures.style import COLOURS, FAINT, INK, panels, plain, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Curve", "reliability", "risk_coverage", "sweep"]

STEP = 0.03  # decades between curves that have points at the same place
LONG = 16  # letters in a heading that a small panel has room for


@dataclass(frozen=True)
class Curve:
    """Points, how far each may be off where several runs say so, and how many samples it is of."""

    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] | None = None
    samples: Sequence[float] | None = None


def risk_coverage(given: Mapping[str, Mapping[str, Curve]], *, narrow: bool = False) -> Figure:
    """The error among the answered against the share that is answered: {panel: {name: curve}}.

    The error has a logarithmic axis, on which there is no place for none at all: a curve begins
    where its first error is made.
    """
    across = 1 if narrow else len(given)
    figure, axes = panels(len(given), across, (4.1, 4.0) if narrow else (5.2, 4.0))
    order = list(dict.fromkeys(name for curves in given.values() for name in curves))
    for (title, curves), ax in zip(given.items(), axes, strict=True):
        for name, curve in curves.items():
            risk = np.asarray(curve.y, dtype=np.float64)
            ax.plot(
                100 * np.asarray(curve.x), np.where(risk > 0, 100 * risk, np.nan), label=name,
                linewidth=1.6, markersize=4, markevery=0.12 if risk.any() else None,
                **style(order.index(name)),
            )  # fmt: skip
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        # between powers of ten there is room for some
        ax.yaxis.set_minor_formatter(lambda v, _: f"{v:g}" if f"{v:e}"[0] in "25" else "")
        ax.set(xlim=(0, 100), xlabel="answered (%)", ylabel="wrong among them (%)")
        ax.grid(True, which="major", color=FAINT, alpha=0.25, linewidth=0.6)
        plain(ax, title)
    _legend(figure, axes, 3 if narrow else 5)
    return figure


def reliability(
    given: Mapping[str, tuple[str, Mapping[str, Curve]]],
    across: int,
    *,
    narrow: bool = False,
    side: float | None = None,
) -> Figure:
    """Accuracy against confidence: {panel: (a line to say, {"before" | "after": curve})}.

    A point's area goes with its share of the samples: few of them say little. `side` is that of a
    panel in inches, where there are not many.
    """
    size = (2.05, 2.35) if narrow else (2.15, 2.4)
    figure, axes = panels(len(given), across, size if side is None else (side, side))
    for (title, (note, curves)), ax in zip(given.items(), axes, strict=True):
        ax.plot([0, 1], [0, 1], color=FAINT, linewidth=0.9, zorder=1)
        for name, curve in curves.items():
            after = name == "after"
            colour, mark = COLOURS[0 if after else 1], "o" if after else "s"
            ax.plot(
                curve.x, curve.y, label=name, color=colour, linewidth=1.3,
                linestyle="-" if after else "--", marker=mark, markersize=1.5,
            )  # fmt: skip
            if curve.samples is not None:
                shares = np.asarray(curve.samples) / np.sum(curve.samples)
                ax.scatter(curve.x, curve.y, 90 * shares, color=colour, marker=mark, alpha=0.8)
        ax.set(xlim=(0, 1.02), ylim=(0, 1.02), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
        ax.set_aspect("equal")
        plain(ax, title, note, 10 if len(title) <= LONG else 7.5)
        ax.texts[0].set_fontsize(7 if narrow else 7.5)
    figure.supxlabel("probability given to the answer", fontsize=9.5, color=INK)
    figure.supylabel("share that is right", fontsize=9.5, color=INK)
    handles = {str(h.get_label()): h for ax in axes for h in ax.get_lines()[1:]}
    figure.legend(
        handles.values(), [f"{name} calibration" for name in handles],
        loc="outside upper right", ncols=2, frameon=False, fontsize=8.5,
    )  # fmt: skip
    return figure


def sweep(
    given: Mapping[str, Mapping[str, Curve]],
    xlabel: str,
    ylabels: Sequence[str],
    marked: float | None = None,
    *,
    narrow: bool = False,
) -> Figure:
    """Figures against a hyperparameter on a logarithmic axis, with error bars.

    A value of 0 has its place left of the others, and `marked` has an upright line.
    """
    across = 1 if narrow else min(3, len(given))
    figure, axes = panels(len(given), across, (4.1, 2.9) if narrow else (3.9, 3.4))
    values = sorted({x for curves in given.values() for curve in curves.values() for x in curve.x})
    place = _places(values)
    for (title, curves), ax, ylabel in zip(given.items(), axes, ylabels, strict=True):
        for i, (name, curve) in enumerate(curves.items()):
            aside = STEP * (i - (len(curves) - 1) / 2)  # bars beside each other can be told apart
            ax.errorbar(
                [place[x] + aside for x in curve.x], curve.y, yerr=curve.spread, label=name,
                capsize=2, linewidth=1.4, markersize=4.5, elinewidth=0.9, **style(i),
            )  # fmt: skip
        if marked in place:
            ax.axvline(place[marked], color=FAINT, linewidth=1, linestyle=":", zorder=0)
        ax.set_xticks(list(place.values()), [f"{x:g}" for x in place], rotation=40)
        ax.set(xlabel=xlabel, ylabel=ylabel)
        ax.grid(True, axis="y", color=FAINT, alpha=0.25, linewidth=0.6)
        plain(ax, title)
        ax.tick_params(axis="x", labelsize=8)
    _legend(figure, axes[-1:], 4)
    return figure


def _legend(figure: Figure, axes: Sequence[Axes], across: int) -> None:
    """One legend for the curves of all axes, below them."""
    found: dict[str, Any] = {}
    for ax in axes:
        found |= {
            name: handle for handle, name in zip(*ax.get_legend_handles_labels(), strict=True)
        }
    if len(found) > 1:
        figure.legend(
            list(found.values()), list(found), loc="outside lower center", ncols=across,
            frameon=False, fontsize=8.5, handlelength=3.2,
        )  # fmt: skip


def _places(values: Sequence[float]) -> dict[float, float]:
    """Where each value stands: its logarithm, and 0 half a decade left of the least.

    >>> _places([0, 0.01, 0.1])
    {0: -2.5, 0.01: -2.0, 0.1: -1.0}
    """
    logs = {value: math.log10(value) for value in values if value > 0}
    zero = min(logs.values(), default=0.5) - 0.5
    return {value: logs.get(value, zero) for value in values}
