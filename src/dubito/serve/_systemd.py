"""What systemd is told, where it started the service with Type=notify: ready, alive, stopping."""

from __future__ import annotations

import os
import socket

__all__ = ["notify", "watched"]


def notify(state: str) -> bool:
    """Send a state as sd_notify(3) does; False where nobody listens.

    >>> notify("READY=1") if "NOTIFY_SOCKET" not in os.environ else False
    False
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    place = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
        try:
            line.sendto(state.encode(), place)
        except OSError:
            return False
    return True


def watched() -> bool:
    """Whether systemd restarts the service unless it says now and then that it is well."""
    return "WATCHDOG_USEC" in os.environ and "NOTIFY_SOCKET" in os.environ
