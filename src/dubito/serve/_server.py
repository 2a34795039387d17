"""Run the service: socket, signals and logging."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

import torch
import uvicorn

from dubito.errors import DubitoError
from dubito.model import Model
from dubito.serve import _gallery as galleries
from dubito.serve._app import create_app
from dubito.serve._config import TOKEN, ServeConfig

__all__ = ["serve"]

#: Seconds for the next request on a connection; longer than a proxy keeps idle connections.
KEEP_ALIVE = 65
#: Seconds that a stopping service may take to answer what it has accepted.
DRAIN = 30


def serve(
    model: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    gallery: str | os.PathLike[str] | None = None,
    config: ServeConfig | None = None,
    on_start: Callable[[str], None] | None = None,
) -> None:
    """Serve a model over HTTP until SIGTERM or SIGINT.

    SIGTERM stops after every accepted request is answered. SIGHUP loads the model again.

    Args:
        model: Folder of the model.
        host: Address to listen on; "0.0.0.0" for all.
        port: Port to listen on; 0 chooses a free one.
        gallery: Folder with samples to try on the page.
        config: Engine, limits and access rules.
        on_start: Called with the address when the service listens.
    """
    config = config or ServeConfig()
    if token := os.environ.get("DUBITO_TOKEN"):
        config = config.model_copy(update={"token": token})
        if not re.fullmatch(TOKEN, token):
            raise DubitoError("DUBITO_TOKEN must be at least 16 visible ASCII characters")
    torch.set_num_threads(config.threads)
    samples = None if gallery is None else galleries.read(gallery, Model.load(model).task.names)
    app = create_app(model, config, gallery=samples)
    settings = uvicorn.Config(
        app,
        ws="none",
        log_config=_log_config(config),
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=config.max_connections,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=DRAIN,
    )
    reload = app.state.service.reload
    signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=reload).start())
    listener = _listen(host, port)
    gc.collect()
    gc.freeze()  # collections need not look at what stays until the end
    if on_start is not None:
        on_start(f"http://{host}:{listener.getsockname()[1]}/")
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(settings).run([listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise DubitoError(f"cannot listen on {host}:{port}: {error.strerror}") from error


def _log_config(config: ServeConfig) -> dict[str, Any]:
    """Return the configuration of the standard library's logging."""
    formatter = {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}
    if config.log_json:
        formatter["()"] = "pythonjsonlogger.json.JsonFormatter"
    logger = {"handlers": ["log"], "level": "INFO", "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"log": formatter},
        "handlers": {"log": {"class": "logging.StreamHandler", "formatter": "log"}},
        "loggers": {"dubito": logger, "uvicorn": logger},
    }
