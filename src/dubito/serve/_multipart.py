"""The files of a form (RFC 7578), from a body of known size."""

from __future__ import annotations

from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from dubito.serve._problem import Problem

__all__ = ["FIELD", "files_of"]

FIELD = "images"
MOST_HEADER = 4096  # bytes of the headers of a part


def files_of(body: bytes, content_type: str, most: int) -> list[bytes]:
    """The contents of the fields called `images`, in order; a Problem for any other field.

    >>> lines = ["--x", 'content-disposition: form-data; name="images"', "", "GIF", "--x--", ""]
    >>> files_of("\\r\\n".join(lines).encode(), "multipart/form-data; boundary=x", 8)
    [b'GIF']
    """
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if not 1 <= len(boundary) <= 70:
        raise Problem("bad_request", "the content type lacks a boundary of 1 to 70 characters")
    found = _Parts(most)
    parser = MultipartParser(boundary, found.callbacks())
    try:
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise Problem("bad_request", "the form is damaged") from None
    if not found.ended:
        raise Problem("bad_request", "the form breaks off before its end")
    if not found.files:
        raise Problem("bad_input", f"the form has no field {FIELD!r}")
    return [bytes(content) for content in found.files]


class _Parts:
    """Gathers the parts that a parser finds."""

    def __init__(self, most: int) -> None:
        self.most, self.ended = most, False
        self.files: list[bytearray] = []
        self._name, self._value = b"", b""
        self._headers: dict[bytes, bytes] = {}
        self._size = 0

    def callbacks(self) -> Any:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._field,
            "on_header_value": self._text,
            "on_header_end": self._header,
            "on_headers_finished": self._checked,
            "on_part_data": self._data,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        if len(self.files) >= self.most:
            raise Problem("too_many", f"more than {self.most} images; a request may have so many")
        self._headers, self._size = {}, 0

    def _field(self, data: bytes, start: int, end: int) -> None:
        self._name += self._limited(data[start:end])

    def _text(self, data: bytes, start: int, end: int) -> None:
        self._value += self._limited(data[start:end])

    def _limited(self, piece: bytes) -> bytes:
        self._size += len(piece)
        if self._size > MOST_HEADER:
            raise Problem("bad_request", f"a part's headers have more than {MOST_HEADER} bytes")
        return piece

    def _header(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def _checked(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        if options.get(b"name") != FIELD.encode():
            raise Problem("bad_input", f"the form may have the field {FIELD!r} alone")
        if self._headers.get(b"content-transfer-encoding", b"binary").lower() not in PLAIN:
            raise Problem("bad_request", "the form's files must be sent as they are, not encoded")
        self.files.append(bytearray())

    def _data(self, data: bytes, start: int, end: int) -> None:
        self.files[-1] += data[start:end]

    def _end(self) -> None:
        self.ended = True


PLAIN = (b"binary", b"8bit", b"7bit")
