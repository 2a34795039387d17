"""Texts, as indices of words."""

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch
from pydantic import Field, Strict
from torch import Tensor

from dubito.errors import DubitoError
from dubito.formats.base import FORMATS, Encoded, InputFormat, each
from dubito.formats.tables import as_frame

__all__: list[str] = []

WORD = re.compile(r"\w+|[^\w\s]")
#: index of a word that is not in the vocabulary
UNKNOWN = 1
#: most words in a vocabulary, and most tokens of a text by default
MOST_WORDS, MOST_TOKENS = 20_000, 256
#: share of the training texts that are not cut
WHOLE = 0.95


class Texts(InputFormat):
    """Texts as indices of their tokens, as many of each."""

    extensions: ClassVar[tuple[str, ...]] = (".txt",)
    dtype: ClassVar[str] = "int64"
    length: Annotated[int, Field(ge=1)]
    """Tokens of a text; longer texts are cut, shorter ones filled up."""
    padding: Annotated[int, Field(ge=0)] = 0
    """Index that fills up short texts."""
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

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of tokens."""
        return (self.length,)

    @property
    def json_type(self) -> Any:
        """A text."""
        return Annotated[str, Strict()]

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of indices, for an embedding."""

    @abstractmethod
    def tokens(self, texts: list[str]) -> list[list[int]]:
        """Return the indices of the tokens of each text, at most `length`.

        Args:
            texts: Texts; some may be empty.
        """

    def encode(self, items: Any) -> Encoded:
        """Convert texts to indices, int64 (N, length); see `InputFormat.encode`.

        Args:
            items: List of texts or of .txt files; or, of a format with a column, a table.
        """
        contents = read_texts(items, self.column)
        errors = {}
        for row, content in enumerate(contents):
            if not isinstance(content, str):
                errors[row] = " ".join(str(content).split())
            elif not content.strip():
                errors[row] = "it has no words"
        texts = [content if isinstance(content, str) else "" for content in contents]
        inputs = np.full((len(texts), self.length), self.padding, np.int64)
        for row, indices in enumerate(self.tokens(texts)):
            if row not in errors:
                inputs[row, : len(indices)] = indices
        return Encoded(torch.from_numpy(inputs), errors, {})

    def __str__(self) -> str:
        return f"texts of at most {self.length} tokens"


@FORMATS.register("text")
class TextFormat(Texts):
    """Texts: lower-cased words and punctuation marks, as indices of a vocabulary.

    Index 0 fills up short texts and 1 is any other word; the vocabulary follows.

    >>> format = TextFormat(vocabulary=("a", "film"), length=4)
    >>> format.encode(["A dull film"]).inputs
    tensor([[2, 1, 3, 0]])
    """

    vocabulary: tuple[str, ...] = Field(min_length=1)
    """Words, the most frequent first."""

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
        words = [_words(content) for content in training_texts(items, text, rows)]
        counts = Counter(word for part in words for word in part)
        if not counts:
            raise DubitoError("the texts have no words")
        most = sorted(counts, key=lambda word: (-counts[word], word))[:MOST_WORDS]
        length = common_length(map(len, words), MOST_TOKENS)
        return cls(vocabulary=tuple(most), length=length, column=text, target=tuple(target))

    @property
    def size(self) -> int:
        """Number of words, of the padding and of others."""
        return 2 + len(self.vocabulary)

    def tokens(self, texts: list[str]) -> list[list[int]]:
        """Return the indices of words; see `Texts.tokens`."""
        words = (_words(text)[: self.length] for text in texts)
        return [[self._indices.get(word, UNKNOWN) for word in part] for part in words]

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.vocabulary, UNKNOWN + 1)}

    def describe(self, inputs: Tensor) -> dict[str, str | float | None]:
        """Return the words of a text; those that are not in the vocabulary are "?"."""
        words = ["", "?", *self.vocabulary]
        return {"text": " ".join(words[index] for index in inputs.tolist() if index)}


def training_texts(items: Any, column: str | None, rows: Sequence[int] | None) -> list[str]:
    """Return the texts that a format is fitted to; those that cannot be read are left out.

    Args:
        items: Texts, .txt files, or a table.
        column: Column of the table.
        rows: Positions of the training texts; None: all.
    """
    texts = read_texts(items, column)
    chosen = texts if rows is None else [texts[row] for row in rows]
    return [text for text in chosen if isinstance(text, str)]


def common_length(lengths: Iterable[int], most: int) -> int:
    """Return a number of tokens that few texts exceed.

    Args:
        lengths: Number of tokens of each text.
        most: Largest number that is returned.
    """
    length = int(np.quantile([*lengths], WHOLE, method="higher"))
    return min(max(length, 1), most)


def read_texts(items: Any, column: str | None) -> list[str | Exception]:
    """Return the content of texts and files, or the errors of files that cannot be read.

    Args:
        items: Texts, .txt files, or a table.
        column: Column of the table.
    """
    has_rows = isinstance(items, list) and bool(items) and isinstance(items[0], Mapping)
    if hasattr(items, "iloc") or has_rows:
        frame = as_frame(items)
        if column is None:
            columns = ", ".join(map(repr, frame.columns))
            raise DubitoError(f"a table needs text=..., its column of texts: one of {columns}")
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
