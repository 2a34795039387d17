"""Fetch a published file once: from the first mirror that has it, checked, and never half.

Bytes arrive in `<file>.part` under a lock that the system drops when its holder dies, and the file
gets its name when its checksum is right. What a broken download left is continued by the next one.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["data_root", "fetch", "md5"]

log = logging.getLogger(__name__)

ROUNDS = 2  # times each mirror is tried
CHUNK = 1 << 16
TIMEOUT = 30.0  # seconds without a byte


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder of all data: `root`, else the variable DUBITO_DATA, else the user's cache folder.

    >>> data_root("downloads").name
    'downloads'
    """
    chosen = root or os.environ.get("DUBITO_DATA")
    if chosen:
        return Path(chosen).expanduser()
    import pooch

    return Path(pooch.os_cache("dubito"))


def md5(data: bytes) -> str:
    """The md5 of bytes, in hexadecimal; publishers give it, and it guards against accidents only.

    >>> md5(b"")
    'd41d8cd98f00b204e9800998ecf8427e'
    """
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def fetch(file: Path, md5: str, mirrors: tuple[str, ...], *, timeout: float = TIMEOUT) -> Path:
    """Download `file` by its name from one of the mirrors, unless it is there already.

    Each mirror is an address that the file's name is appended to. Several processes may ask for
    the same file: one downloads it and the others wait.
    """
    from filelock import FileLock, Timeout

    if file.exists():
        return file
    with _writable(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(file.parent / f".{file.name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            log.info("another process is downloading %s: waiting for it", file)
            lock.acquire()
    try:
        # It may have come while this process waited.
        return file if file.exists() else _from_mirrors(file, md5, mirrors, timeout)
    finally:
        lock.release()


@contextlib.contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(
            f"cannot write to {folder} ({error}); set DUBITO_DATA to a folder where you may"
        ) from error


def _from_mirrors(file: Path, md5: str, mirrors: tuple[str, ...], timeout: float) -> Path:
    from requests.exceptions import RequestException

    part = file.with_name(file.name + ".part")
    failures: dict[str, str] = {}
    for address in mirrors * ROUNDS:
        url = address + file.name
        try:
            if not (part.exists() and _file_md5(part) == md5):  # all but renamed, by a process gone
                _append(url, part, timeout)
        except RequestException as error:
            failures[url] = _reason(error)
            continue
        if (seen := _file_md5(part)) == md5:
            os.replace(part, file)
            return file
        # Nothing of it can be trusted, and a continued part would be wrong for ever.
        part.unlink()
        failures[url] = f"the file that came has md5 {seen}, but {md5} is published"
    tried = "\n".join(f"  {url}: {reason}" for url, reason in failures.items())
    raise FileNotFoundError(
        f"could not download {file.name}:\n{tried}\n"
        f"Put the file into {file.parent} by other means, or set DUBITO_DATA to a folder that "
        f"holds {file.parent.name}/{file.name}"
    )


def _append(url: str, part: Path, timeout: float) -> None:
    """Get the bytes of `url` that `part` does not have yet."""
    import pooch

    with part.open("ab") as file:
        start = file.tell()

        def begin(response: Any, **_: object) -> None:
            # A server may call a .gz file an encoding of its content; the file itself is wanted.
            response.raw.headers.pop("content-encoding", None)
            if response.status_code == 416:  # nothing follows `start`: not a part of this file
                file.truncate(0)
            if response.status_code == 200:  # the whole file, whatever range was asked for
                file.truncate(0)
                bar.start = 0

        headers = {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        log.info("downloading %s", url)
        with _Bar(part.stem, start) as bar:
            pooch.HTTPDownloader(
                progressbar=bar,
                chunk_size=CHUNK,
                timeout=timeout,
                headers=headers,
                hooks={"response": begin},
            )(url, file, None)


class _Bar:
    """What pooch asks of a progress bar, drawn by rich when the error stream is a terminal."""

    def __init__(self, label: str, start: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        console = Console(stderr=True)
        self.start = start
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task(label, total=None)

    def __enter__(self) -> _Bar:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    @property
    def total(self) -> int:
        return 0

    @total.setter
    def total(self, remaining: int) -> None:
        total = self.start + remaining if remaining else None
        self.progress.update(self.task, total=total, completed=self.start)

    def update(self, count: int) -> None:
        self.progress.advance(self.task, count)

    def reset(self) -> None:
        self.progress.update(self.task, completed=self.start)

    def close(self) -> None:
        self.progress.refresh()


def _file_md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _reason(error: Exception) -> str:
    """The first line of what went wrong, without the chain of wrappers below it."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason'}"
