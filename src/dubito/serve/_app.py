"""The application: its routes, and their description in OpenAPI."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from dubito import __version__
from dubito.serve import _schema
from dubito.serve._guard import FAILED, Application, Guard
from dubito.serve._inputs import JSON
from dubito.serve._metrics import CONTENT_TYPE
from dubito.serve._model import Served
from dubito.serve._openapi import document, predict_responses, refused
from dubito.serve._predict import answered
from dubito.serve._problem import Problem
from dubito.serve._service import Service

__all__ = ["PAGE", "create_app"]

PAGE = Path(__file__).with_name("page")
TITLE = "dubito"
ABOUT = "A classifier that says what it believes, and when it does not know."
#: suffix -> type of the page's files; no others are served
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
}


def create_app(service: Service) -> Application:
    """The ASGI application of a service, for uvicorn or any other server."""

    @asynccontextmanager
    async def life(_app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    app = FastAPI(
        title=TITLE, description=ABOUT, version=__version__, lifespan=life,
        docs_url=None, redoc_url=None, redirect_slashes=False,
    )  # fmt: skip
    for kind in (Problem, HTTPException, Exception):
        app.add_exception_handler(kind, lambda _, error: _refusal(service, error))
    _api(app, service)
    _health(app, service)
    _page(app, service)
    app.openapi = _documented(app, service)  # type: ignore[method-assign]
    return Guard(app, service)


def _documented(app: FastAPI, service: Service) -> Callable[[], dict[str, Any]]:
    """The document of the model that is served, made once for each."""
    # Weakly, or the model before a reload would stay in memory until somebody asks again.
    made: WeakKeyDictionary[Served, dict[str, Any]] = WeakKeyDictionary()

    def found() -> dict[str, Any]:
        served = service.served
        if served not in made:
            made[served] = document(app, service)
        return made[served]

    return found


def _refusal(service: Service, error: Exception) -> Response:
    """The answer to a request that failed, always in the same form; the guard logs failures."""
    problem = _as_problem(error)
    service.metrics.refused[problem.code] += 1
    headers = {"content-type": "application/json", **problem.headers}
    return Response(problem.body(), problem.status, headers)


def _as_problem(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        code, words = FRAMEWORK.get(error.status_code, ("bad_request", "the request is wrong"))
        return Problem(code, words, headers=dict(error.headers or {}))
    return Problem("internal", FAILED)


#: what the framework itself refuses: its status -> our code and words
FRAMEWORK = {
    404: ("not_found", "there is nothing here"),
    405: ("not_allowed", "this method is not allowed here"),
}


def _api(app: FastAPI, service: Service) -> None:
    @app.post(
        "/v1/predict", operation_id="predict", summary="Predict images, arrays or rows",
        response_class=Response, responses=predict_responses(), tags=["model"],
    )  # fmt: skip
    async def predict(request: Request) -> Response:
        # The guard answers before it comes to this; here it is described, and works without one.
        return Response(await answered(request.scope, request.receive, service), media_type=JSON)

    @app.get(
        "/v1/model", operation_id="model", summary="What is served", tags=["model"],
        response_model=_schema.Model, responses=refused("unauthorized"),
    )  # fmt: skip
    async def model() -> Response:
        limits = {name: getattr(service.settings, name) for name in _schema.Limits.model_fields}
        about = {**service.served.about(), "drawing": service.gallery.drawing}
        return JSONResponse({**about, "limits": limits})

    @app.get(
        "/v1/gallery", operation_id="gallery", summary="Samples to try", tags=["page"],
        response_model=_schema.Gallery, responses=refused("unauthorized"),
    )  # fmt: skip
    async def gallery() -> Response:
        return JSONResponse(service.gallery.as_dict())


def _health(app: FastAPI, service: Service) -> None:
    @app.get(
        "/healthz", operation_id="health", summary="The process lives", tags=["operation"],
        response_model=_schema.State,
    )  # fmt: skip
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get(
        "/readyz", operation_id="ready", summary="Requests are answered", tags=["operation"],
        response_model=_schema.State, responses=refused("not_ready"),
    )  # fmt: skip
    async def readyz() -> Response:
        lacking = service.ready
        if lacking is not None:
            raise Problem("not_ready", lacking)
        return JSONResponse({"status": "ready"})

    @app.get(
        "/metrics", operation_id="metrics", summary="Counts, for Prometheus", tags=["operation"],
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
                   **refused("unauthorized")},
    )  # fmt: skip
    async def metrics() -> Response:
        return Response(service.metrics_text(), headers={"content-type": CONTENT_TYPE})


def _page(app: FastAPI, service: Service) -> None:
    files = page_files(PAGE)
    pictures = service.gallery.pngs()
    fresh = {"cache-control": "no-cache"}

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return _file(files, "index.html", fresh)

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        return _file(files, name, fresh)

    @app.get("/gallery/{name}", include_in_schema=False)
    async def picture(name: str) -> Response:
        content = pictures.get(name.removesuffix(".png"))
        if content is None or not name.endswith(".png"):
            raise Problem("not_found", "there is no such sample")
        return Response(content, media_type="image/png", headers=fresh)


def page_files(folder: Path) -> dict[str, Path]:
    """The files of the page by name: those of the folder itself that have a known type."""
    if not folder.is_dir():
        return {}
    found = {path.name: path for path in sorted(folder.iterdir()) if path.is_file()}
    return {name: path for name, path in found.items() if path.suffix in TYPES}


def _file(files: dict[str, Path], name: str, headers: dict[str, str]) -> Response:
    if name not in files:
        raise Problem("not_found", "there is no such file")
    path = files[name]
    return Response(path.read_bytes(), headers={**headers, "content-type": TYPES[path.suffix]})
