"""Connections with time limits: clients that are slow on purpose can't hold them for ever.

uvicorn ends idle connections between requests. Here a connection also ends when the headers of a
request, or its body, take too long to arrive or are too large, and when an answer is not read.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dubito.serve._predict import GONE
from dubito.serve._problem import Problem
from dubito.serve._service import Service

__all__ = ["protocol_of"]

MOST_HEADERS = 32 << 10  # bytes of a request's line and headers
SPARE_S = 2.0  # after the application's own limit for a body, so that it can answer first


def protocol_of(service: Service) -> type[HttpToolsProtocol]:
    """The protocol of connections to a service, for uvicorn's configuration."""

    class Limited(LimitedProtocol):
        served_by = service

    return Limited


class LimitedProtocol(HttpToolsProtocol):
    """An HTTP/1.1 connection whose every wait has an end."""

    served_by: Service
    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _in_headers = True
    draining = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or refuse it when there are too many."""
        super().connection_made(transport)
        service = self.served_by
        service.connections += 1
        if service.connections > service.settings.max_connections:
            self._answer(Problem("busy", "too many connections; try again soon"))
            return
        self._until(service.settings.header_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection, and tell who works for it."""
        self.served_by.connections -= 1
        self._until(None)
        self.resume_writing()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            forget: Any = cycle.scope.get(GONE)
            if forget is not None:
                forget()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read some more of a request."""
        if self.transport.is_closing():
            return
        if self._in_headers:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._in_headers and self._header_bytes > MOST_HEADERS:
            self._answer(Problem("bad_request", f"the headers have more than {MOST_HEADERS} bytes"))

    def on_message_begin(self) -> None:
        """A request begins; its headers have a while to arrive."""
        super().on_message_begin()
        self._in_headers = True
        self._until(self.served_by.settings.header_s)

    def on_headers_complete(self) -> None:
        """The body has a while, too."""
        self._in_headers, self._header_bytes = False, 0
        self._until(self.served_by.settings.read_s + SPARE_S)
        super().on_headers_complete()
        if self.draining and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """The request is here; how long its answer takes is the application's to limit."""
        self._until(None)
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The client does not read: it has a while."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.served_by.settings.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads again."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def drain(self) -> None:
        """Answer what has come or is coming, and say that the connection ends with it."""
        self.draining = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        for cycle, _ in self.pipeline:
            cycle.keep_alive = False

    @property
    def idle(self) -> bool:
        """Whether nothing of a request is here that has no answer."""
        answered = self.cycle is None or self.cycle.response_complete
        return answered and not self.pipeline and not (self._in_headers and self._header_bytes)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, in the form of all errors."""
        self._answer(Problem("bad_request", msg))

    def _until(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        """Too slow: told so where no answer has begun, and cut off in any case."""
        if self.cycle is None or self.cycle.response_complete or self.cycle.response_started:
            self.served_by.metrics.refused["slow"] += 1
            self.transport.abort()
        else:
            self._answer(Problem("slow", "the body did not arrive in time"))

    def _answer(self, problem: Problem) -> None:
        """Answer without the application, and close."""
        self.served_by.metrics.refused[problem.code] += 1
        body = problem.body()
        headers: dict[str, Any] = {
            "content-type": "application/json",
            "content-length": len(body),
            "connection": "close",
            **problem.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 {problem.status} Refused\r\n{lines}\r\n".encode()
        self.transport.write(head + body)
        self.transport.close()
