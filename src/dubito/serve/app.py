"""The application and its routes."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response, Security
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from dubito import __version__
from dubito.api import AnyModel, AnyPath, Factory
from dubito.serve.config import ServeConfig
from dubito.serve.gallery import Gallery, Group, read
from dubito.serve.inputs import JSON, media_type
from dubito.serve.schema import REFUSALS, ModelInfo, Predictions, Refusal, describe_request
from dubito.serve.service import BUSY_DELAY, Service
from dubito.types import Json, Options

__all__: list[str] = []

log = logging.getLogger(__name__)
PAGE = Path(__file__).with_name("page")
#: FastAPI would look for a configuration of OpenTelemetry in each request.
TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False}
#: The page uses nothing from other sites, and no other site may frame it.
PAGE_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'self'; img-src 'self' blob: data:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
}


def create_app(
    model: AnyModel,
    config: ServeConfig | None = None,
    *,
    network: Factory | None = None,
    gallery: AnyPath | None = None,
) -> FastAPI:
    """Create the application that serves a model.

    Args:
        model: Model, or its folder.
        config: Engine, limits and access rules.
        network: Factory of a custom network: a function, "module:function" or "file.py:function".
        gallery: Folder with samples to try on the page.

    Returns:
        An application for uvicorn or any other ASGI server, or to mount in another one. Its
        `state.service.reload()` loads the folder again.
    """
    service = Service(model, network, config or ServeConfig())
    samples = Gallery() if gallery is None else read(gallery, service.loaded.model.task.names)
    app = FastAPI(title="dubito", version=__version__, openapi_url=None, telemetry=TELEMETRY)
    app.state.service = service
    _add_routes(app, service, samples)
    _add_page(app, samples)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=service.config.allowed_hosts)
    return app


class Token(HTTPBearer):
    """Refuses requests without the token of the service, if it has one.

    Args:
        token: Token of the service.
    """

    def __init__(self, token: str | None) -> None:
        super().__init__(auto_error=False, description="If the service has a token.")
        self.token = token

    async def __call__(self, request: HTTPConnection) -> HTTPAuthorizationCredentials | None:
        """Check the header of a request."""
        if self.token is None:
            return None
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        same = secrets.compare_digest(token.encode(), self.token.encode())
        if scheme.lower() != "bearer" or not same:
            raise HTTPException(401, "no token, or a wrong one", {"www-authenticate": "Bearer"})
        return HTTPAuthorizationCredentials(scheme=scheme, credentials=token)


class PredictionRoute(APIRoute):
    """Route of predictions: calls the dependency `Token`, and the endpoint with the request.

    FastAPI's own handler takes a third longer for a small model. It runs where it is needed: for
    further dependencies, and for overrides.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.handler = self.app
        if all(isinstance(one.dependency, Token) for one in self.dependencies):
            self.app = self.answer

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; exceptions go to the handlers of the application."""
        if scope["app"].dependency_overrides:
            await self.handler(scope, receive, send)
            return
        request = Request(scope, receive, send)
        for one in self.dependencies:
            await one.dependency(request)  # type: ignore[misc]
        response = await self.endpoint(request)
        await response(scope, receive, send)


async def _answer(service: Service, request: Request) -> Response:
    """Answer a request for predictions, and count it."""
    start, status = time.perf_counter(), 499  # as in nginx: the client has left
    try:
        content = await _predict(service, request)
        status = 200
        return Response(content, media_type="application/json")
    except HTTPException as error:
        status = error.status_code
        raise
    except ConnectionError:
        return Response(status_code=status)  # nobody receives it
    except Exception as error:
        log.exception("the model failed")
        status = 500
        raise HTTPException(status, "the model failed") from error
    finally:
        service.metrics.seconds.observe(time.perf_counter() - start)
        service.metrics.requests(status).inc()
        if status == 503:
            await asyncio.sleep(BUSY_DELAY)


async def _predict(service: Service, request: Request) -> bytes:
    """Read the whole body, then take a slot, read the inputs and predict them."""
    loaded, config, body = service.loaded, service.config, None
    headers = dict(request.scope["headers"])
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise HTTPException(415, "encoded bodies are not supported")
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    kind = media_type(content_type)
    if kind not in loaded.reader.media_types:
        known = ", ".join(loaded.reader.media_types)
        raise HTTPException(415, f"the type of the body must be one of {known}")
    evidence = b"evidence=true" in request.scope["query_string"]
    most = min(config.max_json, config.max_body) if kind == JSON else config.max_body
    length = int(headers.get(b"content-length", 0))
    client, _ = request.scope.get("client") or ("", 0)
    try:
        with service.memory.lease(client) as take:
            async with asyncio.timeout(config.body_timeout) as deadline:
                body = await _read_body(request, length, most, take)
                deadline.reschedule(asyncio.get_running_loop().time() + config.timeout)
                async with service.slots.take(client):
                    items = await service.read(loaded.reader, content_type, body, client)
                    take(len(items) * loaded.input_bytes)
                    gone = request.is_disconnected
                    rows = await loaded.predict(items, evidence, client, gone)
    except TimeoutError:
        if body is not None:
            raise HTTPException(504, "the model did not answer in time") from None
        raise HTTPException(408, f"the body took more than {config.body_timeout:g} s") from None
    return to_json({"model": loaded.version, "predictions": rows}, inf_nan_mode="strings")


async def _read_body(
    request: Request, length: int, most: int, take: Callable[[int], None]
) -> bytes:
    """Read a body within its limits; memory is taken as it arrives."""
    body, more = bytearray(), True
    while more and length <= most:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError
        chunk, more = message.get("body", b""), message.get("more_body", False)
        take(len(chunk))
        body += chunk
        length = max(length, len(body))
    if length > most:
        raise HTTPException(413, f"such a body may have at most {most} bytes")
    return bytes(body)


def _add_routes(app: FastAPI, service: Service, gallery: Gallery) -> None:
    guarded: Options = {
        "dependencies": [Security(Token(service.config.token))],
        "responses": {401: {"model": Refusal}},
    }

    async def predict(request: Request) -> Response:
        return await _answer(service, request)

    app.router.add_api_route(
        "/v1/predict",
        predict,
        methods=["POST"],
        summary="Predict inputs",
        response_model=Predictions,
        dependencies=guarded["dependencies"],
        responses={status: {"model": Refusal} for status in REFUSALS},
        route_class_override=PredictionRoute,
    )
    route: Any = app.routes[-1]

    @app.get("/v1/model", summary="Describe the model", **guarded)
    async def model() -> ModelInfo:
        return service.loaded.info.model_copy(update={"drawing": gallery.drawing})

    @app.get("/v1/gallery", summary="List samples to try", **guarded)
    async def samples() -> dict[str, Sequence[Group]]:
        return {"groups": gallery.groups}

    @app.get("/healthz", summary="Whether the service answers requests")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics", summary="Metrics for Prometheus", response_class=Response, **guarded)
    async def metrics() -> Response:
        content = generate_latest(service.metrics.registry)
        return Response(content, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    @app.get("/openapi.json", include_in_schema=False, **guarded)
    async def openapi() -> Json:
        route.openapi_extra = describe_request(service.loaded.reader)
        return get_openapi(title=app.title, version=app.version, routes=app.routes)


def _add_page(app: FastAPI, gallery: Gallery) -> None:
    files = {path.name: path for path in PAGE.glob("*.*")}

    @app.get("/", include_in_schema=False)
    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str = "index.html") -> FileResponse:
        if name not in files:
            raise HTTPException(404)
        return FileResponse(files[name], headers=PAGE_HEADERS)

    @app.get("/gallery/{name}.png", include_in_schema=False)
    async def picture(name: str) -> Response:
        if name not in gallery.pictures:
            raise HTTPException(404)
        return Response(gallery.pictures[name], media_type="image/png", headers=PAGE_HEADERS)
