"""A figure of the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Drawing"]


@dataclass(frozen=True)
class Drawing:
    """A figure named for its files, its section, words for those who see it and who do not."""

    key: str
    section: str
    title: str
    caption: str
    alt: str
    draw: Callable[..., Figure]
    narrow: bool = True
