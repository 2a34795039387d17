"""Read request bodies: JSON, images and forms of images.

Bodies are not trusted. Their cost is bounded before they are parsed: the brackets and commas of
JSON, the number of files, the pixels and sides of images.
"""

import io
import math
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from pydantic import FailFast, Field, Strict, ValidationError, create_model
from starlette.exceptions import HTTPException
from typing_extensions import TypedDict

from dubito._extras import need
from dubito.data.base import InputFormat
from dubito.serve.config import ServeConfig

JSON, FORM = "application/json", "multipart/form-data"
#: media type -> Pillow's name of the format; other formats are refused
IMAGES = {f"image/{name}": name.upper() for name in ("jpeg", "png", "webp", "gif", "bmp")}
FORMATS = tuple(IMAGES.values())
START_OF_SCAN = b"\xff\xda"
#: A decoder passes over all pixels for each scan of a JPEG: a small file could take hours.
MAX_SCANS = 100
#: Pixels from which images are decoded one at a time and reduced first.
LARGE = 1 << 20
REDUCIBLE = ("L", "LA", "RGB", "RGBA")


@lru_cache
def media_type(content_type: str) -> str:
    """Return the media type in a header."""
    return content_type.partition(";")[0].strip().lower()


class InputReader:
    """Reads the inputs of requests for one model.

    Args:
        format: Inputs of the model.
        config: Limits.
    """

    def __init__(self, format: InputFormat, config: ServeConfig) -> None:
        self.format, self.config = format, config
        self.media_types = (JSON, FORM, *IMAGES) if format.kind == "image" else (JSON,)
        self.columns = [column.name for column in getattr(format, "columns", ())]
        self.key = "rows" if self.columns else "inputs"
        several, item = Field(min_length=1, max_length=config.max_inputs), self._item_type()
        fields: Any = {self.key: (Annotated[list[item], several, FailFast()], ...)}  # type: ignore[valid-type]
        self.body = create_model("PredictionRequest", **fields)
        self._large = threading.Lock()

    def read(self, content_type: str, body: bytes) -> Sequence[Any]:
        """Return the inputs of a request, as `InputFormat.encode` takes them.

        Args:
            content_type: Header of the request, with one of `media_types`.
            body: Body of the request.
        """
        kind = media_type(content_type)
        if kind == JSON:
            return self._read_json(body)
        return self._decode(self._files(content_type, body) if kind == FORM else [body])

    def join(self, items: list[Any]) -> Any:
        """Return inputs of several requests as one argument of `InputFormat.encode`."""
        return items if self.columns else np.stack(items)

    # --- JSON ---

    def _item_type(self) -> Any:
        """Return the type of one input in JSON, which validates and describes it."""
        number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
        if self.columns:
            whole = Annotated[int, Strict(), Field(ge=-(2**63), lt=2**63)]
            text = Annotated[str, Strict()]
            cell = Annotated[whole | number | text | None, Field(union_mode="left_to_right")]
            return TypedDict("Row", dict.fromkeys(self.columns, cell))  # type: ignore[operator]
        pixel = Annotated[int, Strict(), Field(ge=0, le=255)]
        kind: Any = pixel if self.format.is_pixels else number
        for size in reversed(self.format.shape):
            kind = Annotated[list[kind], Field(min_length=size, max_length=size), FailFast()]
        return kind

    def _read_json(self, body: bytes) -> Sequence[Any]:
        marks = sum(map(body.count, (b"[", b"{", b",")))
        # Rows may have further columns, and texts with commas.
        each = 4 * len(self.columns) + 64 if self.columns else 2 * math.prod(self.format.shape) + 2
        allowed = self.config.max_inputs * each
        if marks > allowed:
            raise HTTPException(413, f"{marks} brackets and commas; at most {allowed} are allowed")
        try:
            values: list[Any] = getattr(self.body.model_validate_json(body), self.key)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "body"
            raise HTTPException(422, f"{place}: {first['msg']}") from None
        dtype = np.uint8 if self.format.is_pixels else np.float64
        return values if self.columns else list(np.array(values, dtype))

    # --- images ---

    def _files(self, content_type: str, body: bytes) -> list[bytes]:
        """Return the files of a form; fields of other kinds are ignored."""
        multipart = need("python_multipart", "serve")
        files: list[bytes] = []

        def add(file: Any) -> None:
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

    def _decode(self, files: list[bytes]) -> list[Any]:
        """Decode images to arrays (C, H, W)."""
        images = [self._open(content, index) for index, content in enumerate(files)]
        pixels, allowed = sum(math.prod(image.size) for image in images), self.config.max_pixels
        if pixels > allowed:
            raise HTTPException(413, f"{pixels} pixels; at most {allowed} are allowed")
        return [self._pixels(image, index) for index, image in enumerate(images)]

    def _open(self, content: bytes, index: int) -> Any:
        """Read the header of an image."""
        side, allowed = 2 * max(self.format.shape[1:]), self.config.max_side
        try:
            image = need("PIL.Image", "data").open(io.BytesIO(content), formats=FORMATS)
            largest = max(image.size)
            image.draft(None, (side, side))  # a JPEG is decoded at a fraction of its size
        except Exception:  # decoders raise errors of many kinds
            raise _unreadable(index) from None
        if largest > allowed:
            raise HTTPException(413, f"image {index} has a side of more than {allowed} pixels")
        if image.format in ("JPEG", "MPO") and content.count(START_OF_SCAN) > MAX_SCANS:
            raise HTTPException(422, f"image {index} has more than {MAX_SCANS} scans")
        return image

    def _pixels(self, image: Any, index: int) -> Any:
        """Decode an image; large ones are reduced first, without copies at their full size."""
        height, width = self.format.shape[1:]
        factor = min(image.width // (2 * width), image.height // (2 * height))
        large = math.prod(image.size) >= LARGE
        with self._large if large else nullcontext():
            try:
                if large and factor > 1 and image.mode in REDUCIBLE:
                    image = image.reduce(factor)
                return self.format.encode([image]).checked()[0].numpy()
            except Exception:
                raise _unreadable(index) from None


def _unreadable(index: int) -> HTTPException:
    return HTTPException(422, f"image {index} is damaged, or not one of {', '.join(FORMATS)}")
