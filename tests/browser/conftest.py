"""Services, a browser, and pages that are watched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.hands import NOTE, PATIENCE
from tests.browser.watched import CHROMIUM, Watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SERVICE = Path(__file__).with_name("service.py")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return the system's Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the extra 'browser' is absent")
    if not CHROMIUM:
        pytest.skip("there is no chromium; name one with CHROMIUM=...")
    with playwright.sync_playwright() as driver:
        # Chromium has no sandbox for root, and the page is our own.
        options = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def address(
    browser: Browser, source_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], str]]:
    """Return a function from the name of a model to the address of its service.

    It starts a service when it is first needed. The browser comes first: without one nothing is
    trained.
    """
    folder = tmp_path_factory.mktemp("models")
    path = os.pathsep.join([str(SERVICE.parents[2]), source_env["PYTHONPATH"]])
    running: dict[str, tuple[subprocess.Popen[str], str]] = {}

    def find(name: str) -> str:
        if name not in running:
            process = subprocess.Popen(
                [sys.executable, str(SERVICE), name, str(folder)],
                env={**source_env, "PYTHONPATH": path},
                stdout=subprocess.PIPE,
                text=True,
            )
            assert process.stdout is not None
            running[name] = process, process.stdout.readline().strip()
        process, url = running[name]
        assert url, f"the service {name} has not started; its log is in the captured output"
        return url

    yield find
    for process, _ in running.values():
        process.terminate()
    for process, _ in running.values():
        process.communicate()


@pytest.fixture
def opened(browser: Browser, address: Callable[[str], str]) -> Iterator[Callable[..., Watched]]:
    """Return a function that opens the page of a service; all pages are checked at the end."""
    with ExitStack() as stack:

        def open_page(name: str = "demo", *, ready: bool = True, **options: Any) -> Watched:
            url = address(name)
            context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
            stack.callback(context.close)
            context.set_default_timeout(PATIENCE)
            page = context.new_page()
            page.add_init_script(NOTE)
            watched = Watched(page, url)
            page.on("request", lambda request: watched.requests.append(request))
            page.on("pageerror", lambda error: watched.errors.append(str(error)))
            page.on("console", watched.console)
            stack.callback(watched.check)
            page.goto(url)
            if ready:
                page.wait_for_selector("body[data-ready]")
            return watched

        yield open_page


@pytest.fixture
def demo(opened: Callable[..., Watched]) -> Watched:
    """Return the page of the demo with its gallery."""
    watched = opened()
    watched.page.wait_for_selector(".sample")
    return watched
