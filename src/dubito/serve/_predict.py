"""POST /v1/predict: read, decode, ask the model, answer.

It speaks ASGI itself, since nearly all of the work is here: what a framework does for a request
costs as much as all that this does.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

from dubito.serve._batcher import Job
from dubito.serve._inputs import JSON, MULTIPART, Parsed, parse_images, parse_json
from dubito.serve._model import LONG, Served
from dubito.serve._problem import Problem
from dubito.serve._service import Service

__all__ = ["GONE", "Gone", "Receive", "Scope", "answered"]

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
#: a key of the scope: what is to be called once the client has gone
GONE = "dubito.gone"
AT_ONCE = 16 << 10  # bytes of JSON that are parsed in the event loop: a fraction of a millisecond
FLAGS = {b"": False, b"lean=0": False, b"lean=false": False, b"lean=1": True, b"lean=true": True}


class Gone(Exception):
    """The client has gone, so nobody is to be answered."""


async def answered(scope: Scope, receive: Receive, service: Service) -> bytes:
    """The answer to one request, as JSON; a Problem where there is none."""
    lean = _lean(scope["query_string"])
    kind, length = _headers(scope)
    parser = _parser(kind)
    served = service.served  # this one to the end, whatever is loaded meanwhile
    with service.admitted(), service.buffer() as take:
        body = await _body(receive, length, service, take)
        until = asyncio.get_running_loop().time() + service.settings.timeout_s
        parsed = await parser(body, kind, served, service)
        rows = await _rows(scope, service.batcher.submit(served, parsed.inputs, until))
    return _answer(served, rows, parsed, lean)


def _lean(query: bytes) -> bool:
    if query not in FLAGS:
        known = ", ".join(flag.decode() or "empty" for flag in FLAGS)
        raise Problem("bad_input", f"the query may be {known}")
    return FLAGS[query]


def _headers(scope: Scope) -> tuple[str, int]:
    """The content type, and the length of the body where it is told, else 0."""
    kind, length = "", 0
    for name, value in scope["headers"]:
        if name == b"content-type":
            kind = value.decode("latin-1")
        elif name == b"content-length":
            length = int(value)  # the server has seen to it that it is a number
    return kind, length


# --- reading -------------------------------------------------------------------------------------


async def _body(
    receive: Receive, length: int, service: Service, take: Callable[[int], None]
) -> bytes:
    """The whole body, counted while it comes: what is too large is not even held."""
    most = service.settings.max_body_bytes
    if length > most:
        raise _too_large(most)
    body, more = await _piece(receive, most, take)
    if not more:
        return body
    pieces = [body]
    try:
        async with asyncio.timeout(service.settings.read_s):
            while more:
                left = most - sum(map(len, pieces))
                body, more = await _piece(receive, left, take, most)
                pieces.append(body)
    except TimeoutError:
        message = f"the body did not arrive within {service.settings.read_s:g} s"
        raise Problem("slow", message, headers={"connection": "close"}) from None
    return b"".join(pieces)


async def _piece(
    receive: Receive, left: int, take: Callable[[int], None], most: int | None = None
) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Gone
    body = message.get("body", b"")
    if len(body) > left:
        raise _too_large(left if most is None else most)
    take(len(body))
    return body, message.get("more_body", False)


def _too_large(most: int) -> Problem:
    return Problem("too_large", f"the body is too large: a request may have {most} bytes")


# --- parsing -------------------------------------------------------------------------------------

Parser = Callable[[bytes, str, Served, Service], Awaitable[Parsed]]


async def _json(body: bytes, kind: str, served: Served, service: Service) -> Parsed:
    if len(body) <= AT_ONCE:
        return parse_json(body, served, service.settings)
    return await _elsewhere(service, lambda: parse_json(body, served, service.settings))


async def _form(body: bytes, kind: str, served: Served, service: Service) -> Parsed:
    return await _elsewhere(service, lambda: parse_images(body, kind, served, service.settings))


async def _elsewhere(service: Service, call: Callable[[], T]) -> T:
    """In a thread, so that the event loop goes on."""
    try:
        async with asyncio.timeout(service.settings.timeout_s):
            return await asyncio.get_running_loop().run_in_executor(service.pool, call)
    except TimeoutError:
        message = f"the inputs were not decoded within {service.settings.timeout_s:g} s"
        raise Problem("timeout", message) from None


#: content type -> parser
PARSERS: dict[str, Parser] = {JSON: _json, MULTIPART: _form}


def _parser(kind: str) -> Parser:
    found = PARSERS.get(kind.partition(";")[0].strip().lower())
    if found is None:
        raise Problem("unsupported", f"the content type must be {' or '.join(PARSERS)}")
    return found


# --- answering -----------------------------------------------------------------------------------


async def _rows(scope: Scope, job: Job) -> list[dict[str, Any]]:
    """What the model says; the work is dropped when nobody waits for it any more."""
    scope[GONE] = job.drop
    try:
        return await job.future
    except asyncio.CancelledError:
        job.dropped = True
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise Gone from None


def _answer(served: Served, rows: list[dict[str, Any]], parsed: Parsed, lean: bool) -> bytes:
    if parsed.extras:
        rows = [{**row, **extra} for row, extra in zip(rows, parsed.extras, strict=True)]
    if lean:
        rows = [{key: value for key, value in row.items() if key not in LONG} for row in rows]
    answer = {
        "model": {"name": served.name, "version": served.version},
        "policy": served.policy_version,
        "predictions": rows,
    }
    return json.dumps(answer, allow_nan=False, ensure_ascii=False).encode("utf-8", "replace")
