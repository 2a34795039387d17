"""Formats of inputs, and the registry of them."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self, TypeVar

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from dubito.errors import DubitoError
from dubito.registry import Entry, Registry

__all__ = ["FORMATS", "Encoded", "InputFormat"]

T = TypeVar("T")
R = TypeVar("R")

#: threads that decode inputs, shared by a process
THREADS = min(8, os.cpu_count() or 1)
#: items that wait for a thread
QUEUED = 4096
#: problems that one message lists
LISTED = 10


class Encoded(NamedTuple):
    """Inputs as tensors, with errors and notes about some of them.

    Attributes:
        inputs: (N, *shape), of the format's `dtype`; zeros where an input cannot be read.
        errors: Why an input cannot be read, by row.
        notes: Values outside the range of the training data, by row.
    """

    inputs: Tensor
    errors: dict[int, str]
    notes: dict[int, str]

    def checked(self, item: Callable[[int], str] = "row {}".format) -> Tensor:
        """Return the inputs, or raise if one cannot be read.

        Args:
            item: Returns the name of a row in messages.
        """
        if self.errors:
            problems = [f"{item(row)}: {reason}" for row, reason in self.errors.items()]
            count = f"{len(problems)} of {len(self.inputs)} inputs cannot be read"
            raise DubitoError(f"{count}: {listing(problems)}")
        return self.inputs


class InputFormat(Entry, ABC):
    """How inputs become tensors.

    A subclass is registered in `FORMATS` and saved with the models that use it. Its fields hold all
    that prediction needs.

    Attributes:
        extensions: Extensions of files that hold one input each, such as ".png".
        media_types: Media types of files that `open` reads; the service accepts these.
        json_key: Name of the list of inputs in a request in JSON.
        resizes: Whether inputs of other shapes are converted.
        dtype: Type of encoded inputs: float32, uint8 for pixels, or int64 for indices.
    """

    extensions: ClassVar[tuple[str, ...]] = ()
    media_types: ClassVar[tuple[str, ...]] = ()
    json_key: ClassVar[str] = "inputs"
    resizes: ClassVar[bool] = False

    if TYPE_CHECKING:  # fields or properties of the subclasses

        @property
        def shape(self) -> tuple[int, ...]:
            """Shape of one encoded input."""

        @property
        def dtype(self) -> str:
            """Type of encoded inputs."""
    else:
        dtype: ClassVar[str] = "float32"

    @property
    def is_pixels(self) -> bool:
        """Whether inputs are encoded as pixels."""
        return self.dtype == "uint8"

    def blank(self, count: int) -> Tensor:
        """Return encoded inputs of zeros, (count, *shape).

        Args:
            count: Number of inputs.
        """
        return torch.zeros(count, *self.shape, dtype=getattr(torch, self.dtype))

    @classmethod
    def accepts(cls, items: object) -> bool:
        """Return whether the format reads such inputs; here, files with one of `extensions`.

        Args:
            items: Inputs as users have them, or a path.
        """
        items = items if isinstance(items, list) else [items]
        return all(
            isinstance(item, str | os.PathLike) and Path(item).suffix.lower() in cls.extensions
            for item in items
        )

    @classmethod
    @abstractmethod
    def fit(cls, items: Any) -> Self:
        """Create from inputs.

        Keyword arguments of a subclass are options of `dubito.data.open`. With a second parameter
        `rows`, positions of the training samples, a format is fitted again after a division.

        Args:
            items: Inputs as users have them; some may be damaged.
        """

    @property
    def json_type(self) -> Any:
        """Type of an input in JSON, for pydantic; None: nested lists of `shape`, as encoded."""
        return None

    def open(self, content: bytes) -> tuple[Any, int]:
        """Read the header of a file that is not trusted.

        Args:
            content: Content of a file of one of `media_types`.

        Returns:
            An item for `encode`, and the number of values that decoding it takes.
        """
        return content, len(content)

    @abstractmethod
    def encode(self, items: Any) -> Encoded:
        """Convert inputs to tensors; an error of one does not affect the others.

        Args:
            items: Inputs as users have them: paths, bytes, arrays, rows.
        """

    def picture(self, inputs: Tensor) -> Tensor | None:
        """Return an image of an encoded input, uint8 (1 or 3, H, W), or None.

        Args:
            inputs: Encoded input; floats outside of [0, 1] are shown over their own range.
        """
        if inputs.ndim != 3 or len(inputs) not in (1, 3) or inputs.dtype == torch.uint8:
            return inputs if inputs.ndim == 3 and len(inputs) in (1, 3) else None
        low, high = (float(value) for value in inputs.aminmax())
        if low < 0 or high > 1:
            inputs = (inputs - low) / max(high - low, torch.finfo(inputs.dtype).tiny)
        return (255 * inputs).round().byte()

    def describe(self, inputs: Tensor) -> dict[str, str | float | None]:
        """Return the values of an encoded input by name; None for one unseen in training.

        Args:
            inputs: Encoded input.
        """
        values = inputs.tolist() if inputs.ndim == 1 else []
        return {f"[{place}]": value for place, value in enumerate(values)}

    def in_range(self, inputs: Tensor) -> Tensor:
        """Return whether inputs are within the range of the training data: bool (N,).

        Args:
            inputs: Encoded inputs, (N, *shape).
        """
        return self._near(inputs).all(-1)

    def _near(self, inputs: Tensor) -> Tensor:
        """Return which columns of inputs are near their training range: bool (N, columns)."""
        return torch.ones(inputs.shape[0], 1, dtype=torch.bool, device=inputs.device)


def listing(problems: Sequence[str]) -> str:
    """Join the first problems for a message."""
    more = f" (and {len(problems) - LISTED} more)" if len(problems) > LISTED else ""
    return "; ".join(problems[:LISTED]) + more


def joined(outside: Tensor, text: Callable[[int, int], str]) -> dict[int, str]:
    """Return a text about each row with values outside the training range.

    Args:
        outside: Which values are outside: bool (N, columns).
        text: Describes the value of a row and column.
    """
    texts: dict[int, str] = {}
    for row, column in outside.nonzero().tolist():
        texts[row] = f"{texts[row]}; {text(row, column)}" if row in texts else text(row, column)
    return texts


def each(function: Callable[[T], R], items: Sequence[T]) -> list[R | Exception]:
    """Return function(item) or the error it raised; decoding releases the interpreter's lock.

    Workers of a `DataLoader` use no further threads.

    Args:
        function: Function of one item.
        items: Items.
    """

    def attempt(item: T) -> R | Exception:
        try:
            return function(item)
        except Exception as error:  # decoders raise errors of many kinds for a damaged file
            return error

    if len(items) == 1 or get_worker_info() is not None:
        return [attempt(item) for item in items]
    results: list[R | Exception] = []
    for start in range(0, len(items), QUEUED):
        results += _pool(os.getpid()).map(attempt, items[start : start + QUEUED])
    return results


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Return the threads of a process; those of its parent do not exist in it after a fork."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="dubito-decode")


FORMATS: Registry[InputFormat] = Registry("format", InputFormat)


#: field for a format: a format, or a dict with its name
AnyFormat = Annotated[InputFormat, FORMATS]
