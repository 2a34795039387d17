"""What the routes share: the model, its batches, the limits, and the counts."""

from __future__ import annotations

import asyncio
import hmac
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dubito.serve import _images, _model
from dubito.serve._batcher import Batcher
from dubito.serve._gallery import Gallery
from dubito.serve._log import Log
from dubito.serve._metrics import Metrics
from dubito.serve._model import Served
from dubito.serve._problem import Problem
from dubito.serve._settings import Settings

__all__ = ["Service"]

Load = Callable[[], Served]
LAST_S = 2.0  # for the thread to end, once all requests have been answered
FLUSH_S = 0.25  # how long lines about requests are held


class Service:
    """A model that answers requests; `load` reads it, now and when it is asked to again.

    `gallery` makes the page's samples, given the classes.
    """

    def __init__(
        self,
        load: Load,
        settings: Settings,
        *,
        gallery: Callable[[tuple[str, ...]], Gallery | None] = lambda classes: None,
        log: Log | None = None,
    ) -> None:
        self.settings, self.log, self.metrics = settings, log or Log(), Metrics()
        self._load = load
        self.served = load()
        self.gallery = gallery(self.served.classes) or Gallery()
        self.stopping = False
        self.failed = threading.Event()
        self.connections = 0
        self._active = self._buffered = 0
        self._reloading = asyncio.Lock()
        self.pool = ThreadPoolExecutor(settings.decoders, thread_name_prefix="dubito-decode")
        self.batcher = Batcher(
            batch_size=settings.batch_size, gather_ms=settings.gather_ms, most=settings.queue,
            timeout_s=settings.timeout_s,
            metrics=self.metrics, log=self.log, failed=self.failed.set,
        )  # fmt: skip
        _images.prepare()

    @classmethod
    def of_folder(cls, folder: Path, settings: Settings | None = None, **options: Any) -> Service:
        """The service of a bundle in a folder."""
        return cls(lambda: _model.load(folder), settings or Settings(), **options)

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to answer; in the event loop."""
        self.batcher.start()
        self._flush()
        self.log.info("started", model=self.served.name, version=self.served.version)

    def _flush(self) -> None:
        self.log.flush()
        self._flusher = asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    async def stop(self) -> None:
        """Finish what was accepted, and end."""
        self.stopping = True
        await self.batcher.stop(LAST_S)
        self._flusher.cancel()
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.log.info("stopped")

    @property
    def ready(self) -> str | None:
        """None if requests are answered, else why not."""
        if self.stopping:
            return "the service is stopping"
        if not self.batcher.alive:
            return "the model's thread is not running"
        stuck = self.batcher.busy_for()
        if stuck > 3 * self.settings.timeout_s:
            return f"the model has been at one batch for {stuck:.0f} s"
        return None

    async def reload(self) -> bool:
        """Read the bundle again; a bad one is refused, and the old one goes on."""
        async with self._reloading:
            before = self.served
            try:
                found = await asyncio.to_thread(self._load)
            except Exception as error:  # whatever is wrong with it, the old one still answers
                self.metrics.reloads["refused"] += 1
                reason = f"{type(error).__name__}: {error}"
                self.log.error("reload_refused", reason=reason, kept=before.version)
                return False
            self.served = found
            self.metrics.reloads["done"] += 1
            self.log.info("reloaded", before=before.version, version=found.version)
            return True

    # --- requests --------------------------------------------------------------------------------

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """A place among the requests that are worked on."""
        if self._active >= self.settings.max_requests:
            raise Problem("busy", f"{self._active} requests are worked on; try again soon")
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1

    @contextmanager
    def buffer(self) -> Iterator[Callable[[int], None]]:
        """Memory for a body: a function that takes some more, until it is given back."""
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            if self._buffered + count > self.settings.max_buffered_bytes:
                raise Problem("busy", "too much is being sent at the moment; try again soon")
            self._buffered += count
            taken += count

        try:
            yield take
        finally:
            self._buffered -= taken

    def allows(self, authorization: bytes) -> bool:
        """Whether a header holds the token, where there is one; in constant time."""
        token = self.settings.token
        if token is None:
            return True
        scheme, _, given = authorization.partition(b" ")
        right = hmac.compare_digest(given.strip(), token.encode())
        return right and scheme.lower() == b"bearer"

    def metrics_text(self) -> str:
        """What GET /metrics answers."""
        served = self.served
        info = {
            "name": served.name,
            "version": served.version,
            "policy": served.policy_version or "",
            "method": served.method,
        }
        gauges = {
            "ready": ("1 if requests are answered.", float(self.ready is None)),
            "queue_inputs": ("Inputs that wait for the model.", self.batcher.waiting),
            "requests_in_progress": ("Requests that have no answer.", self.metrics.in_progress),
            "connections": ("Connections that are open.", self.connections),
            "buffered_bytes": ("Bodies that are held in memory.", self._buffered),
        }
        return self.metrics.text(gauges, info)
