"""Ctrl+C, in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

__all__ = ["STOPPED", "stoppable"]

STOPPED = 130  # the exit status of a command that was interrupted
GOES_ON = "the same command goes on from the last checkpoint"


@contextmanager
def stoppable(console: Console, words: str = GOES_ON) -> Iterator[None]:
    """Tell an interrupted command's user how it goes on, and end with its status."""
    try:
        yield
    except KeyboardInterrupt:
        console.print(f"stopped; {words}")
        raise typer.Exit(STOPPED) from None
