"""Atomic writes, and numbers in JSON."""

import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, PlainSerializer

from dubito.errors import DubitoError


def _not_nan(value: float) -> float:
    if math.isnan(value):
        raise ValueError("must be a number, not NaN")
    return value


def _json_float(value: float) -> float | str:
    return str(value) if math.isinf(value) else value


#: a number or an infinity, which is "inf" or "-inf" in JSON
ExtendedFloat = Annotated[
    float, AfterValidator(_not_nan), PlainSerializer(_json_float, when_used="json")
]


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` that replaces it on success and is removed on failure.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_path(Path(folder) / "a.txt") as partial:
    ...         _ = partial.write_text("complete")
    ...     os.listdir(folder)
    ['a.txt']
    """
    # Containers that share a folder may share process ids as well.
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        # Some writers create files that only their owner can read.
        partial.chmod(0o666 & ~_umask())
        os.replace(partial, path)
    except OSError as error:
        raise DubitoError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def atomic_write(path: Path, content: str | bytes) -> Path:
    """Write a file so that readers see the old content or the new one, never a part."""
    with atomic_path(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def remove_partial(path: Path) -> None:
    """Remove files that killed processes left while they wrote `path`."""
    for partial in path.parent.glob(f".{path.name}.*-*.part"):
        partial.unlink(missing_ok=True)


def make_folder(path: Path) -> Path:
    """Create a folder and its parents."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "a file is in the way" if in_the_way else error.strerror or error
        raise DubitoError(f"cannot create the folder {path}: {reason}") from error
    return path


def json_text(value: Any) -> str:
    """Convert to JSON; infinities become "inf" and "-inf", a NaN is an error.

    >>> json_text({"nll": math.inf})
    '{\\n  "nll": "inf"\\n}\\n'
    """
    return json.dumps(_plain(value, "result"), indent=2, allow_nan=False) + "\n"


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner, f"{where}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, f"{where}[{i}]") for i, inner in enumerate(value)]
    if isinstance(value, Real) and not isinstance(value, int | float):  # numpy scalars
        value = int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, float) and math.isnan(value):
        raise ValueError(f"{where} is NaN")
    return _json_float(value) if isinstance(value, float) else value


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
