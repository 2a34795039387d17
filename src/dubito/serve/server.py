"""Run the service: socket, signals and logging."""

import contextlib
import gc
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial

import torch
import uvicorn

from dubito._extras import need
from dubito.api import AnyPath, Factory
from dubito.errors import DubitoError
from dubito.serve.app import create_app
from dubito.serve.config import TOKEN, ServeConfig
from dubito.serve.service import Service

__all__: list[str] = []

log = logging.getLogger(__name__)
#: Seconds for the next request on a connection; longer than a proxy keeps idle connections.
KEEP_ALIVE = 65
#: Seconds that a stopping service may take to answer accepted requests.
DRAIN = 30


def serve(
    model: AnyPath,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    network: Factory | None = None,
    gallery: AnyPath | None = None,
    config: ServeConfig | None = None,
    on_start: Callable[[str], None] | None = None,
) -> None:
    """Serve a model over HTTP until SIGTERM or SIGINT.

    SIGTERM stops after every accepted request is answered. SIGHUP loads the model again.

    Args:
        model: Folder of the model.
        host: Address to listen on; "0.0.0.0" for all.
        port: Port to listen on; 0 chooses a free one.
        network: Factory of a custom network: a function, "module:function" or "file.py:function".
        gallery: Folder with samples to try on the page.
        config: Engine, limits and access rules.
        on_start: Called with the address when the service listens.
    """
    config = config or ServeConfig()
    if token := os.environ.get("DUBITO_TOKEN"):
        config = config.model_copy(update={"token": token})
        if not re.fullmatch(TOKEN, token):
            raise DubitoError("DUBITO_TOKEN must be at least 16 visible ASCII characters")
    _configure_logging(config.log_json)
    torch.set_num_threads(config.threads)
    log.info("loading %s", model)
    app = create_app(model, config, network=network, gallery=gallery)
    service = app.state.service
    log.info("engine: %s", service.loaded.engine.name)
    settings = uvicorn.Config(
        app,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(config.trusted_proxies),
        forwarded_allow_ips=list(config.trusted_proxies),
        limit_concurrency=config.max_connections,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=DRAIN,
    )
    again = partial(reload, service)
    signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=again).start())
    listener = _listen(host, port)
    _freeze()
    gc.set_threshold(20_000)  # each collection visits the objects of all open requests
    if on_start is not None:
        on_start(f"http://{host}:{listener.getsockname()[1]}/")
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(settings).run([listener])


def reload(service: Service) -> None:
    """Load the model of the service of this process again.

    Args:
        service: Service.
    """
    gc.unfreeze()  # the present model is in cycles
    service.reload()
    _freeze()


def _freeze() -> None:
    """Let collections skip the objects that stay until the end."""
    gc.collect()
    gc.freeze()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise DubitoError(f"cannot listen on {host}:{port}: {error.strerror}") from error


def _configure_logging(json: bool) -> None:
    """Log to the standard error, unless the application has configured logging already."""
    text = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    formatter = need("pythonjsonlogger.json", "serve").JsonFormatter if json else logging.Formatter
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(text))
    logging.basicConfig(handlers=[handler])
    for name in ("dubito", "uvicorn"):
        logging.getLogger(name).setLevel(logging.INFO)
