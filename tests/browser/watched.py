"""A page whose requests and errors are recorded."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Page, Request

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or ""


@dataclass
class Watched:
    """A page, its requests and its errors."""

    page: Page
    url: str
    requests: list[Request] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    #: texts of errors that a test provokes
    expected: list[str] = field(default_factory=list)

    def console(self, message: ConsoleMessage) -> None:
        """Record errors, such as violations of the content security policy."""
        if message.type == "error":
            self.errors.append(message.text)

    def check(self) -> None:
        """Check that all requests went to the service, and that no error was unexpected."""
        home = urlsplit(self.url).netloc
        urls = [request.url for request in self.requests]
        assert {urlsplit(url).netloc for url in urls if url.startswith("http")} == {home}
        schemes = {urlsplit(url).scheme for url in urls}
        assert schemes <= {"http", "blob", "data"}
        assert not [e for e in self.errors if not any(text in e for text in self.expected)]
