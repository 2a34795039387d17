"""What the service allows, and where it listens."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, fields
from pathlib import Path

__all__ = ["Settings", "token_from"]

LEAST_TOKEN = 16  # characters; a shorter one can be guessed


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The limits of a service; each has a default that is safe on a small machine.

    `max_pixels` counts the images of a request together, before any is decoded;
    `max_buffered_bytes` the bodies of all requests together, and is never less than one of them may
    have. A body has `read_s` to arrive, and a request `timeout_s` from there to its answer. Up to
    `queue` inputs wait for the model, which takes up to `batch_size` of them at once, and waits
    `gather_ms` for others to come; a `batch_size` of 1 gathers nothing.

    >>> Settings(max_batch=8).max_batch
    8
    >>> Settings(max_body_bytes=1 << 30).max_buffered_bytes == 1 << 30
    True
    >>> Settings(gather_ms=-1)
    Traceback (most recent call last):
    ValueError: gather_ms must be a number >= 0, not -1
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = field(default=None, repr=False)
    max_body_bytes: int = 8 << 20
    max_buffered_bytes: int = 128 << 20
    max_pixels: int = 16_000_000
    max_batch: int = 256
    max_requests: int = 256
    max_connections: int = 1024
    queue: int = 1024
    batch_size: int = 64
    gather_ms: float = 2.0
    timeout_s: float = 10.0
    read_s: float = 30.0
    header_s: float = 10.0
    write_s: float = 30.0
    keep_alive_s: float = 30.0
    drain_s: float = 30.0
    decoders: int = 2
    log_requests: bool = True

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name in ("host", "token", "log_requests"):
                continue
            _check(one.name, value, 0 if one.name in ("port", "gather_ms") else None)
        if self.queue < self.max_batch:
            raise ValueError(
                f"queue must be at least max_batch={self.max_batch}, not {self.queue}: a full "
                "request would never be taken"
            )
        if self.token is not None:
            check_token(self.token, "token")
        # With less the largest body that is allowed would find the service busy for ever.
        least = max(self.max_buffered_bytes, self.max_body_bytes)
        object.__setattr__(self, "max_buffered_bytes", least)


def _check(name: str, value: float, least: int | None) -> None:
    wanted = "a number > 0" if least is None else f"a number >= {least}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be {wanted}, not {value!r}")
    if value < (least or 0) or (least is None and value == 0):
        raise ValueError(f"{name} must be {wanted}, not {value!r}")


def check_token(token: str, source: str) -> str:
    """The token, or an error that does not tell it."""
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(
            f"{source} must hold at least {LEAST_TOKEN} printable ASCII characters without spaces, "
            f"and holds {len(token)} characters"
        )
    return token


def token_from(variable: str | None, file: Path | None) -> str | None:
    """The bearer token of an environment variable or a file: arguments are seen by all users.

    >>> token_from(None, None) is None
    True
    """
    if variable is not None and file is not None:
        raise ValueError("give --token-env or --token-file, not both")
    if variable is not None:
        if variable not in os.environ:
            raise ValueError(f"--token-env: there is no environment variable {variable}")
        return check_token(os.environ[variable].strip(), f"the variable {variable}")
    if file is not None:
        return check_token(file.read_text("utf-8").strip(), f"the file {file}")
    return None
