"""Services that run, a browser, and pages that are watched: no other host, no error."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from browser.hands import NOTE
from browser.watched import CHROMIUM, TOKEN, Watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PATIENCE = 10_000  # ms for anything on the page; far more than it takes


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return the system's Chromium; without it or without Playwright there is nothing to test."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the extra 'browser' is absent")
    if not CHROMIUM:
        pytest.skip("there is no chromium; name one with CHROMIUM=...")
    with playwright.sync_playwright() as driver:
        # Root can't have Chromium's sandbox, and the page under test is our own.
        options = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield launched
        launched.close()


# --- services ------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@dataclass
class Running:
    """A service in a process of its own."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    ready: bool = False

    def wait(self, seconds: float = 120) -> None:
        """Return when it answers; the demo trains first."""
        if self.ready:
            return
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text("utf-8")
            try:
                with urllib.request.urlopen(f"{self.url}readyz", timeout=5):
                    self.ready = True
                    return
            except OSError:
                time.sleep(0.1)
        raise AssertionError(f"no answer within {seconds} s: {self.log.read_text('utf-8')}")


@pytest.fixture(scope="session")
def started(
    source_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Running]]:
    """Start `dubito serve` with some words, and end it with the session."""
    processes: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:

        def start(*words: str, **env: str) -> Running:
            port = free_port()
            log = tmp_path_factory.mktemp("service") / "log"
            stream = stack.enter_context(log.open("wb"))
            command = ["serve", *words, "--port", str(port), "--no-open"]
            process = subprocess.Popen(
                [sys.executable, "-m", "dubito", *command],
                env={**source_env, **env},
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
            processes.append(process)
            return Running(process, f"http://127.0.0.1:{port}/", log)

        yield start
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(20)


@pytest.fixture(scope="session")
def services(
    browser: Browser, started: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Running]:
    """Start the demo, a model of many classes and a table behind a token, all at once.

    They come after the browser, so that nothing is trained where there is none.
    """
    from browser.bundles import many, table

    folder = tmp_path_factory.mktemp("bundles")
    made = {"demo": started("--demo")}
    made["many"] = started(str(many(folder / "many")), "--max-body-bytes", "200000")
    secret = {"DUBITO_TOKEN": TOKEN}
    made["table"] = started(str(table(folder / "table")), "--token-env", "DUBITO_TOKEN", **secret)
    return made


# --- pages ---------------------------------------------------------------------------------------


@pytest.fixture
def opened(browser: Browser, services: dict[str, Running]) -> Iterator[Callable[..., Watched]]:
    """Open the page of a service in a context of its own, and check it at the end."""
    with ExitStack() as stack:

        def open_page(name: str = "demo", *, ready: bool = True, **options: Any) -> Watched:
            options = {"viewport": {"width": 1280, "height": 900}, **options}
            context = browser.new_context(**options)
            stack.callback(context.close)
            context.set_default_timeout(PATIENCE)
            page = context.new_page()
            page.add_init_script(NOTE)
            services[name].wait()
            watched = Watched(page, services[name].url)
            page.on("request", lambda one: watched.requests.append(one))
            page.on("pageerror", lambda error: watched.errors.append(str(error)))
            page.on("console", watched.console)
            stack.callback(watched.check)
            page.goto(watched.url)
            if ready:
                page.wait_for_selector("body[data-ready]")
            return watched

        yield open_page


@pytest.fixture
def demo(opened: Callable[..., Watched]) -> Watched:
    """Return the demo's page, gallery included."""
    watched = opened()
    watched.page.wait_for_selector(".sample")
    return watched
