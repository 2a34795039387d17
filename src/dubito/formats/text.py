"""Texts, as indices of words."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch
from pydantic import Field, Strict
from torch import Tensor

from dubito.errors import DubitoError
from dubito.formats.base import FORMATS, Encoded, InputFormat
from dubito.formats.tables import as_frame
from dubito.formats.threads import each

__all__ = ["TextFormat"]

WORD = re.compile(r"\w+|[^\w\s]")
#: indices of the end of a short text and of a word that is not in the vocabulary
PADDING, UNKNOWN = 0, 1
#: most words in a vocabulary, and most tokens of a text by default
MOST_WORDS, MOST_TOKENS = 20_000, 256
#: share of the training texts that are not cut
WHOLE = 0.95


@FORMATS.register("text")
class TextFormat(InputFormat):
    """Texts: lower-cased words and punctuation marks, as indices of a vocabulary.

    Index 0 fills up short texts and 1 is any other word; the vocabulary follows.

    >>> format = TextFormat(vocabulary=("a", "film"), length=4)
    >>> format.encode(["A dull film"]).inputs
    tensor([[2, 1, 3, 0]])
    """

    extensions: ClassVar[tuple[str, ...]] = (".txt",)
    dtype: ClassVar[str] = "int64"
    vocabulary: tuple[str, ...] = Field(min_length=1)
    """Words, the most frequent first."""
    length: Annotated[int, Field(ge=1)]
    """Tokens of a text; longer texts are cut, shorter ones filled up."""
    column: str | None = None
    """Column of a table with the texts."""
    target: tuple[str, ...] = ()
    """Target columns of that table."""

    @classmethod
    def accepts(cls, items: object) -> bool:
        """Return whether the format reads such inputs: texts, .txt files, or rows of a table."""
        if hasattr(items, "iloc"):
            return True
        texts = items if isinstance(items, list) else [items]
        return all(isinstance(text, str | Mapping) for text in texts) or super().accepts(items)

    @classmethod
    def fit(
        cls,
        items: Any,
        rows: Sequence[int] | None = None,
        *,
        text: str | None = None,
        target: Sequence[str] = (),
    ) -> Self:
        """Take the most frequent words of the training texts, and a length that few exceed.

        Args:
            items: Texts, .txt files, or a table.
            rows: Positions of the training texts; None: all.
            text: Column of the table.
            target: Target columns of the table.
        """
        texts = _texts(items, text)
        chosen = range(len(texts)) if rows is None else rows
        contents = (texts[row] for row in chosen)
        words = [_words(content) for content in contents if isinstance(content, str)]
        counts = Counter(word for part in words for word in part)
        if not counts:
            raise DubitoError("the texts have no words")
        most = sorted(counts, key=lambda word: (-counts[word], word))[:MOST_WORDS]
        length = int(np.quantile([len(part) for part in words], WHOLE, method="higher"))
        length = min(max(length, 1), MOST_TOKENS)
        return cls(vocabulary=tuple(most), length=length, column=text, target=tuple(target))

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of tokens."""
        return (self.length,)

    @property
    def json_type(self) -> Any:
        """A text."""
        return Annotated[str, Strict()]

    @property
    def size(self) -> int:
        """Number of indices, for an embedding."""
        return 2 + len(self.vocabulary)

    def encode(self, items: Any) -> Encoded:
        """Convert texts to indices, int64 (N, length); see `InputFormat.encode`.

        Args:
            items: List of texts or of .txt files; or, of a format with a column, a table.
        """
        contents = _texts(items, self.column)
        inputs = np.full((len(contents), self.length), PADDING, np.int64)
        errors = {}
        for row, content in enumerate(contents):
            words = _words(content) if isinstance(content, str) else []
            indices = [self._indices.get(word, UNKNOWN) for word in words[: self.length]]
            inputs[row, : len(indices)] = indices
            if not words:
                reason = "it has no words" if isinstance(content, str) else content
                errors[row] = " ".join(str(reason).split())
        return Encoded(torch.from_numpy(inputs), errors, {})

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.vocabulary, UNKNOWN + 1)}

    def describe(self, inputs: Tensor) -> dict[str, str | float | None]:
        """Return the words of a text; those that are not in the vocabulary are "?"."""
        words = ["", "?", *self.vocabulary]
        return {"text": " ".join(words[index] for index in inputs.tolist() if index != PADDING)}

    def __str__(self) -> str:
        return f"texts of at most {self.length} tokens"


def _texts(items: Any, column: str | None) -> list[str | Exception]:
    """Return the content of texts and files, or the errors of files that cannot be read."""
    has_rows = isinstance(items, list) and bool(items) and isinstance(items[0], Mapping)
    if hasattr(items, "iloc") or has_rows:
        frame = as_frame(items)
        if column not in frame.columns:
            raise DubitoError(f"the table has no column {column!r} with texts: pass text=...")
        return ["" if cell is None or cell != cell else str(cell) for cell in frame[column]]
    if isinstance(items, str) or not isinstance(items, list):
        items = [items]
    return each(_content, items)


def _content(item: Any) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, Path):
        return item.read_text("utf-8")
    raise DubitoError(f"expected a text, not {type(item).__name__}")


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())
