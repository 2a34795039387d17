"""Files that are whole whenever they have their name."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["left_over", "whole"]


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to: it becomes `path` if all went well, and goes away if not.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with whole(Path(folder) / "a.txt") as part:
    ...         _ = part.write_text("all of it")
    ...     os.listdir(folder)
    ['a.txt']
    """
    # Containers that share a folder may share the number of their process as well.
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        yield part
        os.replace(part, path)
    except OSError as error:
        if error.filename is None and error.errno is not None:  # as of a disk that is full
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        part.unlink(missing_ok=True)


def left_over(path: Path) -> list[Path]:
    """What processes left beside `path` that were killed while they wrote."""
    return sorted(path.parent.glob(f".{path.name}.*-*.part"))
