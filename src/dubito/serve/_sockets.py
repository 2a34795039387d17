"""Listening sockets: bound with a clear error, and closed without losing who is at the door."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import sys

__all__ = ["bound", "close_door", "open_door"]

# Linux's numbers, which Python has no names for.
ATTACH_FILTER, DETACH_FILTER = 26, 27
DROP = struct.pack("HBBI", 6, 0, 0, 0)  # a packet filter of one instruction: take nothing


def bound(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address, with a clear error where it can't be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise OSError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    return made


def close_door(listening: socket.socket) -> None:
    """Let no new connection come, while those that wait to be accepted still are.

    A socket that is closed resets what waits in its queue, where clients may have sent requests
    already. With this filter first the queue can be emptied; clients that come later try again
    after a second, and are refused. Elsewhere than on Linux nothing happens.
    """
    if sys.platform == "linux":
        code = ctypes.create_string_buffer(DROP)
        program = struct.pack("HL", 1, ctypes.addressof(code))
        with contextlib.suppress(OSError):
            listening.setsockopt(socket.SOL_SOCKET, ATTACH_FILTER, program)


def open_door(listening: socket.socket) -> None:
    """Undo `close_door`, for a socket that outlives who served on it."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # there is no filter
            listening.setsockopt(socket.SOL_SOCKET, DETACH_FILTER, 0)
