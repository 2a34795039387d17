"""The OpenAPI document: what may be asked of the model that is served, and what is answered."""

from __future__ import annotations

import math
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from dubito.serve._inputs import JSON, MULTIPART
from dubito.serve._model import Served
from dubito.serve._multipart import FIELD
from dubito.serve._problem import CODES
from dubito.serve._schema import Answer, Refusal
from dubito.serve._service import Service

__all__ = ["document", "predict_responses", "refused"]

# --- answers -------------------------------------------------------------------------------------

SAID = {
    "label": "3",
    "probability": 0.97,
    "probabilities": [0.03, 0.97],
    "belief": [0.02, 0.9],
    "vacuity": 0.08,
    "alpha": [1.5, 23.5],
    "uncertainty": {"data": 0.11, "distributional": 0.02, "total": 0.13},
    "decision": "accept",
    "reason": "accepted",
    "why": "I am sure enough that this is 3, and the input looks familiar.",
}
EXAMPLE = {
    "model": {"name": "digits", "version": "0f1e2d3c4b5a"},
    "policy": "a5b4c3d2e1f0",
    "predictions": [SAID],
}
PREDICT = (
    "bad_request", "unauthorized", "slow", "too_large", "unsupported", "bad_input", "internal",
    "busy", "timeout",
)  # fmt: skip
WORDS = {
    400: "The body is damaged.",
    401: "The token is missing or wrong.",
    408: "The body came too slowly.",
    413: "The body or its images are too large.",
    415: "The content type is not taken.",
    422: "An input is wrong; the error says which and why.",
    500: "The service failed.",
    503: "Busy or not ready; try again after Retry-After seconds.",
    504: "There was no answer in time.",
}


def refused(*codes: str) -> dict[int | str, dict[str, Any]]:
    """The responses of a route that may refuse with these codes."""
    found: dict[int | str, dict[str, Any]] = {}
    for status in sorted({CODES[code] for code in codes}):
        entry: dict[str, Any] = {"model": Refusal, "description": WORDS[status]}
        if status == 503:
            seconds = {"schema": {"type": "integer"}, "description": "Seconds to wait."}
            entry["headers"] = {"Retry-After": seconds}
        found[status] = entry
    return found


def predict_responses() -> dict[int | str, dict[str, Any]]:
    """The responses of POST /v1/predict."""
    said = {
        "model": Answer,
        "description": "What is said of each input, in order.",
        "content": {JSON: {"example": EXAMPLE}},
    }
    return {200: said, **refused(*PREDICT)}


# --- the document --------------------------------------------------------------------------------


def document(app: FastAPI, service: Service) -> dict[str, Any]:
    """The OpenAPI document; the request is described for the model that is served now."""
    made = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    operation = made["paths"]["/v1/predict"]["post"]
    operation["requestBody"] = _request(service.served, service.settings.max_batch)
    operation["parameters"] = [
        {
            "name": "lean", "in": "query", "required": False,
            "description": "Leave out probabilities, belief and alpha.",
            "schema": {"type": "string", "enum": ["0", "1", "false", "true"]},
        }
    ]  # fmt: skip
    if service.settings.token is not None:
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, operations in made["paths"].items():
            if path.startswith(("/v1/", "/metrics")):
                for one in operations.values():
                    one["security"] = [{"token": []}]
    return made


def _request(served: Served, most: int) -> dict[str, Any]:
    content: dict[str, Any] = {JSON: _json_body(served, most)}
    if served.kind == "image":
        file = {"type": "string", "format": "binary"}
        content[MULTIPART] = {
            "schema": {
                "type": "object",
                "properties": {FIELD: {"type": "array", "items": file, "minItems": 1,
                                       "maxItems": most}},
                "required": [FIELD],
                "additionalProperties": False,
            }
        }  # fmt: skip
    return {"required": True, "content": content}


def _json_body(served: Served, most: int) -> dict[str, Any]:
    shape = served.bundle.shape
    limits = {"minimum": 0, "maximum": 1} if served.bundle.preprocessing.pixels else {}
    number: dict[str, Any] = {"type": "number", **limits}
    one = _nested(number, shape)
    flat = math.prod(shape)
    either = one if len(shape) == 1 else {"oneOf": [_nested(number, (flat,)), one]}
    bodies = [_body("inputs", either, most)]
    example: dict[str, Any] = {"inputs": [[0.0] * flat]}
    columns = served.bundle.preprocessing.columns
    if columns is not None:
        kinds = {c.name: {"type": ["number", "string"]} for c in columns.columns}
        row = {"type": "object", "properties": kinds, "required": list(kinds)}
        bodies.insert(0, _body("rows", row, most))
        values = [c.span[0] if c.span else (c.categories or ("",))[0] for c in columns.columns]
        example = {"rows": [dict(zip(kinds, values, strict=True))]}
    schema = bodies[0] if len(bodies) == 1 else {"oneOf": bodies}
    return {"schema": schema, "example": example}


def _body(key: str, item: dict[str, Any], most: int) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {key: {"type": "array", "items": item, "minItems": 1, "maxItems": most}},
        "required": [key],
        "additionalProperties": False,
    }


def _nested(inner: dict[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
    for side in reversed(shape):
        inner = {"type": "array", "items": inner, "minItems": side, "maxItems": side}
    return inner
