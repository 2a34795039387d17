"""What results are written with: folders, whole files, JSON."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from dubito._whole import whole

__all__ = ["folder", "json_text", "plain", "write"]


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
    with whole(path) as part:
        part.write_bytes(data)
    return path


def json_text(value: Any) -> str:
    """Plain values as JSON, which has no infinity: it is written as "inf". A NaN is an error.

    >>> json_text({"nll": math.inf})
    '{\\n  "nll": "inf"\\n}\\n'
    """
    return json.dumps(plain(value), indent=2, allow_nan=False) + "\n"


def plain(value: Any, where: str = "result") -> Any:
    """The same with infinities as the words that json lacks; a NaN is an error that says where.

    Numbers of numpy's, as a search over parameters draws them, become Python's.

    >>> plain({"nll": [1.0, float("inf")]})
    {'nll': [1.0, 'inf']}
    """
    if isinstance(value, Mapping):
        return {key: plain(inner, f"{where}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, f"{where}[{i}]") for i, inner in enumerate(value)]
    if isinstance(value, Real) and not isinstance(value, int | float):  # numpy's
        value = int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, float) and math.isnan(value):
        raise ValueError(f"{where} is not a number")
    return str(value) if isinstance(value, float) and math.isinf(value) else value
