"""HTTP service of a bundle, and a page to look at it: `dubito serve BUNDLE`.

Requests of many clients become batches for one thread that has the model. Everything a client can
send has a limit, and whatever is wrong with it is said in a sentence. It needs the extra `serve`.
"""

from __future__ import annotations

try:
    import fastapi  # noqa: F401
    import httptools  # noqa: F401
    import python_multipart  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"dubito serve needs {error.name}: pip install 'dubito[serve]'", name=error.name
    ) from error

from dubito.serve._app import create_app
from dubito.serve._demo import demo
from dubito.serve._gallery import Gallery
from dubito.serve._gallery import read as read_gallery
from dubito.serve._model import Served, load
from dubito.serve._server import run
from dubito.serve._service import Service
from dubito.serve._settings import Settings, token_from
from dubito.serve._sockets import bound
from dubito.serve._supervisor import supervise

__all__ = [
    "Gallery",
    "Served",
    "Service",
    "Settings",
    "bound",
    "create_app",
    "demo",
    "load",
    "read_gallery",
    "run",
    "supervise",
    "token_from",
]
