"""The log: a JSON object a line, about requests and never with what they hold."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import traceback
from typing import IO, Any

__all__ = ["Handler", "Log"]

HELD = 256  # lines about requests that are written together


class Log:
    """Writes events to a stream, by default to the standard output of the moment.

    Lines about requests are held until `flush`, or until there are many: writing each of them alone
    would hand the interpreter to another thread each time.

    >>> log = Log(sys.stdout)
    >>> log.request("GET", "/v1/model", 200, 0.0012)
    >>> log.info("ready", port=8000)
    {"time": ..., "level": "info", "event": "request", "method": "GET", "route": "/v1/model", ...}
    {"time": ..., "level": "info", "event": "ready", "port": 8000}
    """

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._held: list[str] = []

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request that was answered."""
        name = method if method in METHODS else "other"
        self._held.append(
            f'{{"time": {time.time():.3f}, "level": "info", "event": "request", '
            f'"method": "{name}", "route": "{route}", "status": {status}, '
            f'"ms": {1000 * seconds:.2f}}}\n'
        )
        if len(self._held) >= HELD:
            self.flush()

    def flush(self) -> None:
        """Write what is held."""
        self._write("")

    def info(self, event: str, **facts: Any) -> None:
        """What happened."""
        self._event("info", event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        """What somebody should know of."""
        self._event("warning", event, facts)

    def error(self, event: str, **facts: Any) -> None:
        """What somebody should see to."""
        self._event("error", event, facts)

    def exception(self, event: str, error: BaseException, **facts: Any) -> None:
        """The same with the error and its trace: for the log alone, never for a client."""
        trace = "".join(traceback.format_exception(error))
        self.error(event, error=f"{type(error).__name__}: {error}", trace=trace, **facts)

    def _event(self, level: str, event: str, facts: dict[str, Any]) -> None:
        entry = {"time": round(time.time(), 3), "level": level, "event": event, **facts}
        self._write(json.dumps(entry, default=str) + "\n")

    def _write(self, line: str) -> None:
        with self._lock:
            held, self._held = self._held, []
            text = "".join(held) + line
            if not text:
                return
            stream = self._stream or sys.stdout
            try:
                stream.write(text)
                stream.flush()
            except (OSError, ValueError):  # who read the log is gone; requests go on
                pass


METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Handler(logging.Handler):
    """What libraries log, in the same form."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.INFO)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        facts: dict[str, Any] = {"logger": record.name, "message": record.getMessage().strip()}
        if record.exc_info and record.exc_info[1] is not None:
            facts["trace"] = "".join(traceback.format_exception(record.exc_info[1]))
        level = "error" if record.levelno >= logging.ERROR else "warning"
        level = "info" if record.levelno < logging.WARNING else level
        getattr(self._log, level)("library", **facts)
