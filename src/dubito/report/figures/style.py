"""What all figures share: colours, lines and marks that tell apart without colour, and files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "FAINT", "INK", "LINES", "MARKS", "drawn", "panels", "plain", "style"]

#: colours that the colour-blind tell apart (Okabe and Ito; grey); names stand beside them as well
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#888888")
INK, FAINT = "#222222", "#8a8a8a"
LINES: tuple[Any, ...] = (
    "-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)), (0, (3, 1, 1, 1))
)  # fmt: skip
MARKS = ("o", "s", "^", "D", "v", "P", "X", "<")


def style(index: int, marks: bool = True) -> dict[str, Any]:
    """How the curve of that number is drawn; those after the last begin anew with other lines.

    >>> style(1)["color"], style(1)["linestyle"], style(1)["marker"]
    ('#D55E00', '--', 's')
    """
    turn, place = divmod(index, len(COLOURS))
    chosen = {"color": COLOURS[place], "linestyle": LINES[(place + 3 * turn) % len(LINES)]}
    return chosen | ({"marker": MARKS[(place + 3 * turn) % len(MARKS)]} if marks else {})


def panels(
    count: int, across: int, size: tuple[float, float], **shared: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels, `across` in a row, each of a size in inches."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    across = max(1, min(across, count))
    down = -(-count // across)
    figure = Figure(
        figsize=(size[0] * across, size[1] * down),
        layout=ConstrainedLayoutEngine(wspace=0.05, hspace=0.06),
    )
    axes = list(figure.subplots(down, across, squeeze=False, **shared).flat)
    for left_over in axes[count:]:
        left_over.remove()
    return figure, axes[:count]


def plain(ax: Axes, title: str = "", note: str = "", size: float = 11) -> None:
    """Light axes with a heading, and a line below it where there is one to say."""
    ax.set_title(title + "\n" * bool(note), fontsize=size, fontweight="bold", loc="left", color=INK)
    ax.text(0, 1.03, note, transform=ax.transAxes, fontsize=8.5, color=INK)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(FAINT)
    ax.tick_params(labelsize=9, color=FAINT)


def drawn(figure: Figure, forms: Sequence[str] = ("png",)) -> dict[str, bytes]:
    """The figure in each form, "png" or "pdf"; the same figure always gives the same bytes.

    There are no formulas in it: a $ in a name is a sign like others.
    """
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    written = {}
    for form in forms:
        buffer = io.BytesIO()
        dateless = {"CreationDate": None} if form == "pdf" else None
        figure.savefig(buffer, format=form, dpi=150, metadata=dateless)
        written[form] = buffer.getvalue()
        figure.set_layout_engine("none")  # the panels have found their places, which takes long
    return written
