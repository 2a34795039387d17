"""A parent that holds the socket and starts the service again whenever it dies.

Connections that come meanwhile wait in the socket's queue, so only what was in flight is lost.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType

from dubito.serve._log import Log

__all__ = ["supervise"]

SOON_S = 5.0  # a service that dies sooner than this is started again after a while only
LONGEST_S = 30.0
Ready = Callable[[], None]


def supervise(
    serve: Callable[[Ready], None],
    listening: socket.socket,
    ready: Ready = lambda: None,
    log: Log | None = None,
) -> None:
    """Run `serve` in a child process until a signal says to stop; SystemExit with its status.

    `serve` gets a function to call once requests are answered. If the first child ends before
    that, there is nothing to keep alive, and this ends with it. SIGHUP is passed on.
    """
    if not hasattr(os, "fork"):
        raise ValueError("there is no fork on this system, so nothing can be supervised")
    Supervisor(serve, listening, ready, log or Log()).run()


class Supervisor:
    """The parent's side."""

    def __init__(
        self, serve: Callable[[Ready], None], listening: socket.socket, ready: Ready, log: Log
    ) -> None:
        self.serve, self.listening, self.ready, self.log = serve, listening, ready, log
        self.child, self.stopping = 0, False

    def run(self) -> None:
        """Start children one after the other."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._pass_on)
        wait, known = 0.0, False
        while True:
            started = time.monotonic()
            answered = self._begin()
            if answered and not known:
                known = True
                self.ready()
            status = os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])
            self.child = 0
            if self.stopping or not known:
                # Who was killed has the status that shells give; told to stop, it has done well.
                killed = 0 if self.stopping else 128 - status
                sys.exit(status if status >= 0 else killed)
            short = time.monotonic() - started < SOON_S
            wait = min(max(2 * wait, 0.5), LONGEST_S) if short else 0.0
            self.log.error("service_died", status=status, again_in_s=wait)
            self._sleep(wait)

    def _begin(self) -> bool:
        """Fork; True once the child answers requests, False if it ends before."""
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.child = os.fork()
        if self.child == 0:
            os.close(reading)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            # It reads its bundle now; what it does by default is to die.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            self.serve(lambda: _told(writing))
            sys.exit(0)
        os.close(writing)
        if self.stopping:  # the signal came between
            os.kill(self.child, signal.SIGTERM)
        answered = os.read(reading, 1)
        os.close(reading)
        return bool(answered)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        if number != signal.SIGHUP:
            self.stopping = True
            self.listening.close()  # the child closes its own; nobody is to wait for either
        if self.child:
            os.kill(self.child, number)

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.stopping:
            time.sleep(0.05)
        if self.stopping:
            sys.exit(0)


def _told(writing: int) -> None:
    os.write(writing, b"1")
    os.close(writing)
