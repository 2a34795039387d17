"""Figures as inline SVG that follows the color scheme of the page.

Colors of a figure become CSS variables of the page (`templates/style.css`), and text stays text in
the font of the page. Each function returns a matplotlib figure; `svg` converts it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from dubito._extras import need
from dubito.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__: list[str] = []

#: coordinates x and y of the points of a line
Curve = tuple[Sequence[float] | Array, Sequence[float] | Array]

#: distinguishable with color blindness (Okabe and Ito, 2008)
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
INK, SOFT, LINE = "#1d2126", "#5a6470", "#d8dde3"
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)), "-", (0, (5, 2)))
DOTS = (0, (2, 2))
#: color -> variable of the page
VARIABLES = {INK: "--ink", SOFT: "--soft", LINE: "--line"}
VARIABLES |= {color: f"--color-{index}" for index, color in enumerate(COLORS)}
#: inches; a page shows two such figures side by side
WIDTH, HEIGHT = 4.6, 3.3
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
# Points of a scatter plot: more are slow to draw and hide each other.
MAX_POINTS = 400


def new(
    xlabel: str, ylabel: str, *, width: int = 1, columns: int = 1, percent: str = ""
) -> tuple[Figure, list[Axes]]:
    """Create a figure with axes side by side.

    Args:
        xlabel: Label of the horizontal axes.
        ylabel: Label of the vertical axis.
        width: Width in columns of the page.
        columns: Number of axes.
        percent: Axes whose values are shares, shown in percent: "x", "y" or "xy".
    """
    matplotlib = need("matplotlib.figure", "cli")
    figure: Figure = matplotlib.Figure(figsize=(width * WIDTH, HEIGHT), layout="constrained")
    axes = figure.subplots(1, columns, sharey=True, squeeze=False)[0].tolist()
    axes[0].set_ylabel(ylabel, fontsize=9, color=SOFT)
    for ax in axes:
        ax.set_xlabel(xlabel, fontsize=9, color=SOFT)
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.spines["bottom"].set_color(LINE)
        ax.tick_params(labelsize=8.5, color=LINE, labelcolor=SOFT, length=3)
        ax.tick_params(axis="y", length=0)
        ax.grid(True, axis="y", color=LINE, linewidth=0.7)
        ax.set_axisbelow(True)
        for name in percent:
            axis = ax.xaxis if name == "x" else ax.yaxis
            axis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")
    return figure, axes


def svg(figure: Figure, label: str) -> str:
    """Convert a figure to an `<svg>` element.

    Args:
        figure: The figure.
        label: Description for readers who cannot see it.
    """
    import matplotlib
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a $ in a name is not a formula
    buffer = io.StringIO()
    # The salt makes ids, and with them the page, reproducible.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": label}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=NO_METADATA)
    box, rest = re.findall(r'<svg[^>]*(viewBox="[^"]*")[^>]*(>.*)', buffer.getvalue(), re.DOTALL)[0]
    body = f'<svg {box} role="img" aria-label="{escape(label)}"{rest}'
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)  # that of the page
    used = set(re.findall(r'#([^")\s;]+)', body))
    body = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", body)
    for color, variable in VARIABLES.items():
        body = body.replace(color, f"var({variable}, {color})")
    return body


def curves(
    lines: Mapping[str, Curve],
    xlabel: str,
    ylabel: str,
    *,
    percent: str = "",
    point: tuple[float, float, str] | None = None,
    at: float | None = None,
    diagonal: bool = False,
) -> Figure:
    """Draw lines with a legend.

    Args:
        lines: Curves by name.
        xlabel: Label of the horizontal axis.
        ylabel: Label of the vertical axis.
        percent: Axes in percent; see `new`.
        point: A point to mark, with its name.
        at: A horizontal position to mark.
        diagonal: Draw the line from (0, 0) to (1, 1).
    """
    figure, (ax,) = new(xlabel, ylabel, percent=percent)
    if at is not None:
        ax.axvline(at, color=SOFT, linewidth=1, linestyle=DOTS)
    for (name, line), color, dash in zip(lines.items(), COLORS, DASHES, strict=False):
        marker = "o" if len(line[0]) == 1 else None
        ax.plot(*line, label=name, linewidth=1.8, marker=marker, color=color, linestyle=dash)
    if point is not None:
        x, y, name = point
        ax.plot([x], [y], "o", color=INK, markersize=6, label=name, zorder=4, clip_on=False)
    if diagonal:
        ax.plot([0, 1], [0, 1], color=SOFT, linewidth=0.9, linestyle=DOTS)
    ax.margins(x=0.02)
    if "y" in percent:
        ax.set_ylim(bottom=max(0.0, ax.get_ylim()[0]))
    _legend(ax)
    return figure


def predicted(name: str, truth: Array, mean: Array, lower: Array, upper: Array) -> Figure:
    """Draw predictions of a number against its true values, with intervals.

    Args:
        name: Name of the number.
        truth: True values, (N,).
        mean: Predictions, (N,).
        lower: Lower ends of intervals, (N,); infinite ones are not drawn.
        upper: Upper ends of intervals, (N,).
    """
    figure, (ax,) = new(f"true {name}", f"predicted {name}", width=2)
    step = len(truth) // MAX_POINTS + 1
    truth, mean, lower, upper = (values[::step] for values in (truth, mean, lower, upper))
    ends = [truth.min(), truth.max()]
    ax.plot(ends, ends, color=SOFT, linewidth=0.9, linestyle=DOTS)
    inside = (lower <= truth) & (truth <= upper)
    groups = {"in the interval": inside, "outside": ~inside}
    for color, (label, rows) in zip(COLORS, groups.items(), strict=False):
        ax.vlines(truth[rows], lower[rows], upper[rows], color=color, alpha=0.3, linewidth=1.1)
        ax.scatter(truth[rows], mean[rows], 9, color=color, linewidths=0, zorder=3, label=label)
    _legend(ax)
    return figure


def _legend(ax: Axes) -> None:
    """Add a legend above the axes."""
    ax.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False,
        fontsize=8.5, labelcolor=INK, borderaxespad=0.2, handlelength=1.8, columnspacing=1.4,
    )  # fmt: skip
