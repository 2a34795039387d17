"""Files that are whole whenever they have their name."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["folder", "write"]


def folder(path: Path) -> Path:
    """Make the folder if need be, and an error that says why if files can't be written there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        if isinstance(error, FileExistsError | NotADirectoryError):
            reason = "a file is in the way"
        raise OSError(f"cannot write to the folder {str(path)!r}: {reason}") from error
    return path


def write(path: Path, content: str | bytes) -> Path:
    """Write a file under another name, then give it its own: no half of it is ever seen."""
    data = content.encode() if isinstance(content, str) else content
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path
