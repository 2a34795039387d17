"""Read request bodies: JSON, files and forms of files.

Bodies are not trusted. Their cost is bounded before they are parsed: the brackets and commas of
JSON, the number of files, and what their format says about each.
"""

import math
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import torch
from pydantic import FailFast, Field, Strict, ValidationError, create_model
from starlette.exceptions import HTTPException

from dubito._extras import need
from dubito.errors import DubitoError
from dubito.formats import ArrayFormat, Encoded, InputFormat
from dubito.serve.config import ServeConfig
from dubito.types import Array

__all__: list[str] = []

JSON, FORM = "application/json", "multipart/form-data"
#: Values from which files are decoded one at a time.
LARGE = 1 << 20
#: an encoded input, the array of one, or JSON as `InputFormat.json_type` describes it
Item = Array | str | dict[str, object]


class _File(Protocol):
    """File of a form."""

    file_object: Any


@lru_cache
def media_type(content_type: str) -> str:
    """Return the media type in a header."""
    return content_type.partition(";")[0].strip().lower()


class InputReader:
    """Reads the inputs of requests for one model.

    Formats of files encode each request, in the thread that reads it. The others encode the inputs
    of a whole batch, which takes less time.

    Args:
        format: Inputs of the model.
        config: Limits.
    """

    def __init__(self, format: InputFormat, config: ServeConfig) -> None:
        self.format, self.config, self.key = format, config, format.json_key
        self.media_types = (JSON, *((FORM, *format.media_types) if format.media_types else ()))
        several = Field(min_length=1, max_length=config.max_inputs)
        item = format.json_type or _numbers(format)
        fields: Any = {self.key: (Annotated[list[item], several, FailFast()], ...)}  # type: ignore[valid-type]
        self.body = create_model("PredictionRequest", **fields)
        self._large = threading.Lock()

    def read(self, content_type: str, body: bytes) -> Sequence[Item]:
        """Return the inputs of a request.

        Args:
            content_type: Header of the request, with one of `media_types`.
            body: Body of the request.
        """
        kind = media_type(content_type)
        if kind == JSON:
            return self._read_json(body)
        return self._decode(self._files(content_type, body) if kind == FORM else [body])

    def encode(self, items: Sequence[Item]) -> Encoded:
        """Encode inputs of several requests.

        Args:
            items: Inputs as `read` returns them.
        """
        if self.format.media_types:
            return Encoded(torch.from_numpy(np.stack(items)), {}, {})  # type: ignore[arg-type]
        values: Any = list(items) if self.format.json_type else np.stack(items)  # type: ignore[arg-type]
        return self.format.encode(values)

    # --- JSON ---

    def _read_json(self, body: bytes) -> Sequence[Item]:
        marks = sum(map(body.count, (b"[", b"{", b",")))
        # Rows may have further columns, and texts with commas.
        allowed = self.config.max_inputs * (4 * math.prod(self.format.shape) + 64)
        if marks > allowed:
            raise HTTPException(413, f"{marks} brackets and commas; at most {allowed} are allowed")
        try:
            values: list[Any] = getattr(self.body.model_validate_json(body), self.key)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "body"
            raise HTTPException(422, f"{place}: {first['msg']}") from None
        if self.format.json_type is None:
            values = list(np.array(values, np.uint8 if self.format.is_pixels else np.float64))
        if not self.format.media_types:
            return values
        format = self.format
        if format.json_type is None:
            dtype: Literal["uint8", "float32"] = "uint8" if format.is_pixels else "float32"
            format = ArrayFormat(shape=format.shape, dtype=dtype)
        encoded = format.encode(values if self.format.json_type else np.stack(values))
        for row, problem in encoded.errors.items():
            raise HTTPException(422, f"{self.key}.{row}: {problem}")
        return list(encoded.inputs.numpy())

    # --- files ---

    def _files(self, content_type: str, body: bytes) -> list[bytes]:
        """Return the files of a form; fields of other kinds are ignored."""
        multipart = need("python_multipart", "serve")
        files: list[bytes] = []

        def add(file: _File) -> None:
            if len(files) == self.config.max_inputs:
                raise HTTPException(422, f"at most {self.config.max_inputs} files are allowed")
            files.append(file.file_object.getvalue())

        headers = {"Content-Type": content_type.encode("latin-1")}
        in_memory = {"MAX_MEMORY_FILE_SIZE": self.config.max_body + 1}  # as the body is already
        try:
            parser = multipart.create_form_parser(headers, None, add, config=in_memory)
            parser.write(body)
            parser.finalize()
        except need("python_multipart.exceptions", "serve").FormParserError:
            raise HTTPException(422, "the form cannot be read") from None
        if not files:
            raise HTTPException(422, "the form has no files")
        return files

    def _decode(self, files: Sequence[bytes]) -> list[Item]:
        """Open all files, and decode them if they are not too large together."""
        opened, total, allowed = [], 0, self.config.max_pixels
        for index, content in enumerate(files):
            try:
                item, values = self.format.open(content)
            except DubitoError as error:
                raise HTTPException(422, f"file {index}: {error}") from None
            opened.append((item, values))
            total += values
        if total > allowed:
            raise HTTPException(413, f"{total} pixels; at most {allowed} are allowed")
        rows: list[Item] = []
        for index, (item, values) in enumerate(opened):
            with self._large if values >= LARGE else nullcontext():
                encoded = self.format.encode([item])
            if encoded.errors:
                raise HTTPException(422, f"file {index}: {encoded.errors[0]}")
            rows.append(encoded.inputs[0].numpy())
        return rows


def _numbers(format: InputFormat) -> Any:
    """Return the type of an encoded input in JSON, which validates and describes it."""
    pixel = Annotated[int, Strict(), Field(ge=0, le=255)]
    number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
    kind: Any = pixel if format.is_pixels else number
    for size in reversed(format.shape):
        kind = Annotated[list[kind], Field(min_length=size, max_length=size), FailFast()]
    return kind
