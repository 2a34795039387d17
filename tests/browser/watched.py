"""A page under watch, and what the tests share."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Page, Request

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or ""
TOKEN = "token-of-the-browser-tests"


@dataclass
class Watched:
    """A page, every request it made, and every error it showed."""

    page: Page
    url: str
    requests: list[Request] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    #: texts of errors that a test provokes
    expected: list[str] = field(default_factory=list)

    def asked(self) -> int:
        """How many predictions were asked for."""
        return sum(urlsplit(one.url).path == "/v1/predict" for one in self.requests)

    def console(self, message: ConsoleMessage) -> None:
        """Keep what is written as an error, such as a breach of the content security policy."""
        if message.type == "error":
            self.errors.append(message.text)

    def check(self) -> None:
        """Every request stayed with the service, and nothing failed that was not meant to."""
        home = urlsplit(self.url).netloc
        places = {urlsplit(one.url).netloc for one in self.requests if one.url.startswith("http")}
        assert places == {home}
        schemes = {urlsplit(one.url).scheme for one in self.requests}
        assert schemes <= {"http", "blob", "data"}
        assert not [e for e in self.errors if not any(text in e for text in self.expected)]
