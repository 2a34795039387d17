"""Ray Serve deployment: for models that are large, or that must scale over several machines.

    pip install 'dubito[serve,ray]'
    DUBITO_MODEL=runs/a serve run deploy.ray_serve:app

For small models several instances behind nginx are about ten times faster.
"""

from __future__ import annotations

import os
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from dubito.serve import ServeConfig, create_app


@serve.deployment(
    max_ongoing_requests=256,
    autoscaling_config={"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 64},
)
class Deployment:
    """One replica: the application of `dubito serve`.

    Args:
        folder: Folder of the model, which every machine can read.
        options: Fields of `ServeConfig`.
    """

    def __init__(self, folder: str, options: dict[str, Any] | None = None) -> None:
        self.app = create_app(folder, ServeConfig(**{"allowed_hosts": ("*",), **(options or {})}))

    async def __call__(self, request: Request) -> Response:
        """Answer a request."""
        answer: dict[str, Any] = {"status": 500, "headers": [], "body": b""}

        async def send(message: Any) -> None:
            answer["body"] += message.get("body", b"")
            answer.update({k: message[k] for k in ("status", "headers") if k in message})

        await self.app(request.scope, request.receive, send)
        response = Response(answer["body"], answer["status"])
        response.raw_headers = answer["headers"]
        return response


app = Deployment.bind(os.environ.get("DUBITO_MODEL", "/model"))
