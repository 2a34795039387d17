"""HTTP service for a model: predictions, metrics and a page.

One process serves one model. Several processes behind a proxy serve many clients: deploy/ has the
configuration of nginx, which also withstands attacks that no Python process does.
"""

from dubito._extras import need

try:
    from dubito.serve.app import create_app
    from dubito.serve.config import ServeConfig
    from dubito.serve.server import serve
except ModuleNotFoundError as error:
    need(error.name or "fastapi", "serve")  # says what to install
    raise

__all__ = ["ServeConfig", "create_app", "serve"]
