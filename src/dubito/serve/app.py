"""The application and its routes."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request, Response, Security
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse, JSONResponse
from fastapi.security import HTTPBearer
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from dubito import __version__
from dubito.api import AnyModel, AnyPath
from dubito.serve.config import ServeConfig
from dubito.serve.gallery import Gallery, read
from dubito.serve.inputs import media_type
from dubito.serve.schema import ModelInfo, Refusal, describe_prediction
from dubito.serve.service import BUSY_DELAY, Lease, Service

log = logging.getLogger(__name__)
PAGE = Path(__file__).with_name("page")
PREDICT = "/v1/predict"
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
    network: str | Callable[[], Any] | None = None,
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
    app.add_middleware(_Predict, service=service)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=service.config.allowed_hosts)
    return app


class _Predict:
    """Middleware that answers POST /v1/predict.

    A route would be slower: FastAPI's routing takes longer than model and parsing together.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))  # it may be mounted
        if scope["type"] != "http" or path != PREDICT:
            return await self.app(scope, receive, send)
        metrics, start = self.service.metrics, time.perf_counter()
        try:
            response = Response(await self._respond(scope, receive), media_type="application/json")
        except HTTPException as error:
            response = JSONResponse({"detail": error.detail}, error.status_code, error.headers)
        except ConnectionError:
            response = Response(status_code=499)  # as in nginx; nobody receives it
        except Exception:
            log.exception("the model failed")
            response = JSONResponse({"detail": "the model failed"}, 500)
        metrics.seconds.observe(time.perf_counter() - start)
        metrics.requests(response.status_code).inc()
        if response.status_code == 503:
            await asyncio.sleep(BUSY_DELAY)
        await response(scope, receive, send)

    async def _respond(self, scope: Scope, receive: Receive) -> bytes:
        """Read the whole body, then take a slot, read the inputs and predict them."""
        service, loaded = self.service, self.service.loaded
        if scope["method"] != "POST":
            raise HTTPException(405, "Method Not Allowed", {"allow": "POST"})
        headers = dict(scope["headers"])
        service.authorize(headers.get(b"authorization", b"").decode("latin-1"))
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise HTTPException(415, "encoded bodies are not supported")
        content_type = headers.get(b"content-type", b"").decode("latin-1")
        if media_type(content_type) not in loaded.reader.media_types:
            known = ", ".join(loaded.reader.media_types)
            raise HTTPException(415, f"the type of the body must be one of {known}")
        evidence = b"evidence=true" in scope["query_string"]
        length, config, body = int(headers.get(b"content-length", 0)), service.config, None
        try:
            with Lease(service) as memory:
                async with asyncio.timeout(config.body_timeout) as deadline:
                    body = await self._read_body(receive, length, memory)
                    deadline.reschedule(asyncio.get_running_loop().time() + config.timeout)
                    async with service.slots:
                        items = await service.read(loaded.reader, content_type, body)
                        memory.take(len(items) * loaded.input_bytes)
                        is_gone = Request(scope, receive).is_disconnected
                        rows = await loaded.predict(items, evidence, is_gone)
        except TimeoutError:
            if body is not None:
                raise HTTPException(504, "the model did not answer in time") from None
            raise HTTPException(408, f"the body took more than {config.body_timeout:g} s") from None
        return to_json({"model": loaded.version, "predictions": rows}, inf_nan_mode="strings")

    async def _read_body(self, receive: Receive, length: int, memory: Lease) -> bytes:
        """Read a body within its limits; memory is taken as it arrives."""
        most, body, more = self.service.config.max_body, bytearray(), True
        while more and length <= most:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError
            chunk, more = message.get("body", b""), message.get("more_body", False)
            memory.take(len(chunk))
            body += chunk
            length = max(length, len(body))
        if length > most:
            raise HTTPException(413, f"a body may have at most {most} bytes")
        return bytes(body)


def _add_routes(app: FastAPI, service: Service, gallery: Gallery) -> None:
    bearer = Security(HTTPBearer(auto_error=False, description="If the service has a token."))
    guarded: dict[str, Any] = {
        "dependencies": [bearer, Depends(service.authorize)],
        "responses": {401: {"model": Refusal}},
    }

    @app.get("/v1/model", summary="Describe the model", **guarded)
    async def model() -> ModelInfo:
        return service.loaded.info(gallery.drawing)

    @app.get("/v1/gallery", summary="List samples to try", **guarded)
    async def samples() -> dict[str, Any]:
        return {"groups": gallery.groups}

    @app.get("/healthz", summary="Whether the process runs")
    @app.get("/readyz", summary="Whether the service answers requests")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics", summary="Metrics for Prometheus", response_class=Response, **guarded)
    async def metrics() -> Response:
        content = generate_latest(service.metrics.registry)
        return Response(content, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    @app.get("/openapi.json", include_in_schema=False, **guarded)
    async def openapi() -> dict[str, Any]:
        predict = describe_prediction(PREDICT, service.loaded.reader, bearer)
        return get_openapi(title=app.title, version=app.version, routes=[predict, *app.routes])


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
