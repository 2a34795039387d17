"""What is told to a client whose request can't be answered."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["CODES", "Problem"]

#: code -> HTTP status
CODES: dict[str, int] = {
    "bad_request": 400,
    "unauthorized": 401,
    "not_found": 404,
    "not_allowed": 405,
    "slow": 408,
    "too_large": 413,
    "unsupported": 415,
    "bad_input": 422,
    "bad_image": 422,
    "too_many": 422,
    "internal": 500,
    "busy": 503,
    "not_ready": 503,
    "timeout": 504,
}
RETRY_S = 1  # after which a client may try again


class Problem(Exception):
    """A request that gets an error: a code of `CODES`, a sentence, and which input is at fault.

    >>> Problem("too_many", "300 inputs; at most 256").status
    422
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        index: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.index = code, message, index
        self.status = CODES[code]
        self.headers = dict(headers or {})
        if self.status == 503:
            self.headers.setdefault("retry-after", str(RETRY_S))

    def as_dict(self) -> dict[str, Any]:
        """The body of the answer."""
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.index is not None:
            error["index"] = self.index
        return {"error": error}

    def body(self) -> bytes:
        """The body of the answer as bytes."""
        return json.dumps(self.as_dict(), ensure_ascii=False).encode("utf-8", "replace")
