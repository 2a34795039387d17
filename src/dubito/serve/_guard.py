"""Around all routes: who may ask, what is counted and logged, and what a failure looks like."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from dubito.serve._predict import Gone, Receive, Scope, answered
from dubito.serve._problem import Problem
from dubito.serve._service import Service

__all__ = ["HEADERS", "Application", "Guard"]

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
#: headers of every answer
HEADERS: list[tuple[bytes, bytes]] = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
PREDICT = "/v1/predict"
#: paths that are counted under their own name; others under that of their beginning, or "other"
ROUTES = frozenset(
    (
        *("/", "/healthz", "/metrics", "/openapi.json", "/readyz"),
        *("/v1/gallery", "/v1/model", PREDICT),
    )
)
BEGINNINGS = ("/static/", "/gallery/")
GUARDED = ("/v1/", "/metrics", "/openapi.json")  # the last tells columns and their values
NOT_LOGGED = frozenset({"/healthz", "/readyz", "/metrics"})  # asked every few seconds
GONE_STATUS = 499  # for the log: nobody is there to be told


class Guard:
    """An ASGI application around another; predictions it answers itself."""

    def __init__(self, app: Application, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._other(scope, receive, send)
            return
        started, metrics = time.perf_counter(), self.service.metrics
        seen = Seen(send)
        metrics.in_progress += 1
        try:
            await self._guarded(scope, receive, seen)
        finally:
            metrics.in_progress -= 1
            seconds = time.perf_counter() - started
            route = route_of(scope["path"])
            metrics.request(route, seen.status, seconds)
            if self.service.settings.log_requests and route not in NOT_LOGGED:
                self.service.log.request(scope["method"], route, seen.status, seconds)

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})

    async def _guarded(self, scope: Scope, receive: Receive, seen: Seen) -> None:
        try:
            self._check(scope)
            if scope["path"] == PREDICT and scope["method"] == "POST":
                await seen.whole(200, await answered(scope, receive, self.service))
            else:
                await self.app(_as_get(scope), receive, seen)
        except Gone:
            seen.status = GONE_STATUS
        except Problem as problem:
            await self.refuse(problem, seen)
        except Exception as error:
            self.service.log.exception("failed", error, route=route_of(scope["path"]))
            if not seen.begun:
                await self.refuse(Problem("internal", FAILED), seen)
            elif not seen.ended:
                raise  # the connection is cut: half an answer must not look whole

    def _check(self, scope: Scope) -> None:
        if self.service.settings.token is None or not scope["path"].startswith(GUARDED):
            return
        given = next((v for k, v in scope["headers"] if k == b"authorization"), b"")
        if not self.service.allows(given):
            message = "this needs the service's token: Authorization: Bearer ..."
            raise Problem("unauthorized", message, headers={"www-authenticate": "Bearer"})

    async def refuse(self, problem: Problem, seen: Seen) -> None:
        """Answer with an error."""
        self.service.metrics.refused[problem.code] += 1
        await seen.whole(problem.status, problem.body(), problem.headers)


FAILED = "this failed; the reason is in the log"


class Seen:
    """Sends, remembers the status, and adds the headers that all answers have."""

    def __init__(self, send: Send) -> None:
        self._send, self.status, self.begun, self.ended = send, 500, False, False

    async def __call__(self, message: Message) -> None:
        """Send one message."""
        if message["type"] == "http.response.start":
            self.status, self.begun = message["status"], True
            message["headers"] = [*message.get("headers", ()), *HEADERS]
        else:
            self.ended = not message.get("more_body", False)
        await self._send(message)

    async def whole(self, status: int, body: bytes, more: dict[str, str] | None = None) -> None:
        """Send a whole answer in JSON."""
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            *((name.encode(), value.encode()) for name, value in (more or {}).items()),
        ]
        await self({"type": "http.response.start", "status": status, "headers": headers})
        await self({"type": "http.response.body", "body": body})


def _as_get(scope: Scope) -> Scope:
    """HEAD is answered as GET, by the same routes; the server leaves the body out."""
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope


def route_of(path: str) -> str:
    """The name that a path is counted by; what else clients make up is one name.

    >>> route_of("/v1/model"), route_of("/static/draw.js"), route_of("/.env")
    ('/v1/model', '/static/', 'other')
    """
    if path in ROUTES:
        return path
    return next((start for start in BEGINNINGS if path.startswith(start)), "other")
