"""Run a service: sockets, signals, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from dubito.serve._app import create_app
from dubito.serve._log import Handler
from dubito.serve._protocol import LimitedProtocol, protocol_of
from dubito.serve._service import Service
from dubito.serve._sockets import close_door, open_door
from dubito.serve._systemd import notify, watched

__all__ = ["Server", "run"]

FAILED = 1  # the exit status of a service that could not go on
LINGER_S = 0.5  # for a client that was about to use its connection again
BACKLOG = 2048
TICK_S = 0.05
LAST_S = 2  # for what is not finished after drain_s
BEATS = 50  # tenths of a second between two signs of life


class Server(uvicorn.Server):
    """uvicorn's server with this service's signals and its way to stop."""

    def __init__(self, service: Service, on_ready: Callable[[], None] | None = None) -> None:
        self.service, self.on_ready = service, on_ready
        settings = service.settings
        super().__init__(
            uvicorn.Config(
                create_app(service),
                http=protocol_of(service),
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=int(settings.keep_alive_s) or 1,
                timeout_graceful_shutdown=LAST_S,  # after our own, which is drain_s
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT end the service, the second time at once; SIGHUP reloads."""
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[], Any]] = {
            signal.SIGTERM: self._end,
            signal.SIGINT: self._end,
        }
        if hasattr(signal, "SIGHUP"):
            handlers[signal.SIGHUP] = self._reload
        held = []
        for number, handler in handlers.items():
            # Not in the main thread, or not on this system: whoever embeds it decides.
            with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
                loop.add_signal_handler(number, handler)
                held.append(number)
        try:
            yield
        finally:
            for number in held:
                loop.remove_signal_handler(number)

    def _end(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    def _reload(self) -> None:
        task = asyncio.get_running_loop().create_task(self.service.reload())
        self._reloads = {*getattr(self, "_reloads", ()), task}
        task.add_done_callback(lambda done: self._reloads.discard(done))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and tell who waits for it."""
        for one in sockets or ():
            open_door(one)
        await super().startup(sockets)
        if self.started:
            notify("READY=1")
            if self.on_ready is not None:
                self.on_ready()

    async def main_loop(self) -> None:
        """Until it is told to stop, or the model's thread can't be kept alive."""
        beat = 0
        while not await self.on_tick(beat):
            if self.service.failed.is_set():
                self.service.log.error("giving_up", reason="the model's thread keeps dying")
                return
            beat = (beat + 1) % 864000
            if beat % BEATS == 0 and watched() and self.service.ready is None:
                notify("WATCHDOG=1")
            await asyncio.sleep(0.1)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no new connections, answer what comes on those there are, then close them."""
        self.service.stopping = True
        notify("STOPPING=1")
        self.service.log.info("stopping", connections=len(self.server_state.connections))
        for one in sockets or ():
            close_door(one)
        await asyncio.sleep(TICK_S)  # in which the event loop accepts what waits
        for server in self.servers:
            server.close()
        for one in sockets or ():
            one.close()
        await self._drain()
        await super().shutdown(None)

    async def _drain(self) -> None:
        """A connection is closed after its next answer, or once nothing has come for a while."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, LimitedProtocol):
                connection.drain()
        begun = time.monotonic()
        while self.server_state.connections and not self.force_exit:
            waited = time.monotonic() - begun
            held = [c for c in self.server_state.connections if isinstance(c, LimitedProtocol)]
            if waited > self.service.settings.drain_s:
                return
            if waited > LINGER_S and all(connection.idle for connection in held):
                return
            await asyncio.sleep(TICK_S)


def run(
    service: Service,
    listening: socket.socket,
    on_ready: Callable[[], None] | None = None,
) -> None:
    """Serve until a signal says to stop; SystemExit with 1 if the service could not go on."""
    logger = logging.getLogger("uvicorn")
    logger.handlers = [Handler(service.log)]
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    server = Server(service, on_ready)
    server.run([listening])
    if service.failed.is_set():
        sys.exit(FAILED)
