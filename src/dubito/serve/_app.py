"""The application and its routes."""

from __future__ import annotations

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
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from dubito import __version__
from dubito.api import AnyModel, AnyPath
from dubito.serve._config import ServeConfig
from dubito.serve._gallery import Gallery, read
from dubito.serve._inputs import media_type
from dubito.serve._schema import ModelInfo, Refusal, describe_prediction
from dubito.serve._service import BUSY_DELAY, Lease, Service

__all__ = ["create_app"]

log = logging.getLogger(__name__)
PAGE = Path(__file__).with_name("page")
PREDICT = "/v1/predict"
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
    samples = Gallery((), {}, None)
    if gallery is not None:
        samples = read(gallery, service.loaded.model.task.names)
    app = FastAPI(title="dubito", version=__version__, openapi_url=None)
    app.state.service = service

    # A plain route: FastAPI's routing takes longer than model and parsing together.
    app.add_route(PREDICT, _Predict(service), methods=["POST"])  # type: ignore[arg-type]
    _add_routes(app, service, samples)
    _add_page(app, samples)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=service.config.allowed_hosts)
    return app


class _Predict:
    """POST /v1/predict, as an ASGI application."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        metrics, start = self.service.metrics, time.perf_counter()
        try:
            response = await self._respond(Request(scope, receive))
        except HTTPException as error:
            response = JSONResponse({"detail": error.detail}, error.status_code, error.headers)
        except TimeoutError:
            response = JSONResponse({"detail": "the model did not answer in time"}, 504)
        except (ClientDisconnect, ConnectionError):
            response = Response(status_code=499)  # as in nginx; nobody receives it
        except Exception:
            log.exception("the model failed")
            response = JSONResponse({"detail": "the model failed"}, 500)
        metrics.seconds.observe(time.perf_counter() - start)
        metrics.requests.labels(response.status_code).inc()
        if response.status_code == 503:
            await asyncio.sleep(BUSY_DELAY)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        """Read the whole body, then take a slot, read the inputs and predict them."""
        service, loaded = self.service, self.service.loaded
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in request.headers.raw}
        service.authorize(request)
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise HTTPException(415, "encoded bodies are not supported")
        content_type, known = headers.get("content-type", ""), loaded.reader.media_types
        if media_type(content_type) not in known:
            raise HTTPException(415, f"the type of the body must be one of {', '.join(known)}")
        evidence = b"evidence=true" in request.scope["query_string"]
        with Lease(service) as memory:
            body = await self._read_body(request, int(headers.get("content-length", 0)), memory)
            async with service.slots, asyncio.timeout(service.config.timeout):
                items = await service.read(loaded.reader, content_type, body)
                memory.take(len(items) * loaded.input_bytes)
                rows = await loaded.predict(items, evidence, request.is_disconnected)
        content = to_json({"model": loaded.version, "predictions": rows}, inf_nan_mode="strings")
        return Response(content, media_type="application/json")

    async def _read_body(self, request: Request, length: int, memory: Lease) -> bytes:
        """Read a body within its limits; memory is taken as it arrives."""
        most, seconds = self.service.config.max_body, self.service.config.body_timeout
        body = bytearray()
        try:
            async with asyncio.timeout(seconds):
                stream = request.stream()
                while length <= most and (chunk := await anext(stream, None)) is not None:
                    memory.take(len(chunk))
                    body += chunk
                    length = max(length, len(body))
        except TimeoutError:
            raise HTTPException(408, f"the body took more than {seconds:g} s") from None
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
