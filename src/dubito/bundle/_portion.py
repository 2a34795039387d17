"""Some inputs of a file, and how files and errors are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

__all__ = ["Portion", "in_one_line", "named"]


@dataclass(frozen=True)
class Portion:
    """Some inputs (n, *shape) and what they were called, with those that could not be read.

    `sources` has a name for each row of the output; `errors` says by row which of them have no
    input, and the others have theirs in `inputs`, in order. `notes` are by row too.
    """

    sources: Sequence[str]
    inputs: Tensor | None
    errors: dict[int, str] = field(default_factory=dict)
    notes: dict[int, str] = field(default_factory=dict)


def named(path: Path) -> str:
    """A path as text that any terminal and file takes."""
    text = str(path).encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def in_one_line(error: Exception | str) -> str:
    """What an error says, on one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    words = " ".join(str(error).split())
    return words or type(error).__name__
