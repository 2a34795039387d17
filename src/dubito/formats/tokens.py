"""Texts, as tokens of a pretrained encoder."""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

from pydantic import Field
from torch import Tensor

from dubito._extras import need
from dubito.errors import DubitoError
from dubito.formats.base import FORMATS
from dubito.formats.text import MOST_TOKENS, Texts, common_length, training_texts

__all__: list[str] = []


@FORMATS.register("tokens")
class TokensFormat(Texts):
    """Texts, as tokens of a tokenizer of the package `tokenizers`."""

    tokenizer: str = Field(min_length=2, repr=False)
    """Content of a tokenizer.json."""

    @classmethod
    def fit(  # type: ignore[override]
        cls,
        items: Any,
        rows: Sequence[int] | None = None,
        *,
        tokenizer: str,
        text: str | None = None,
        target: Sequence[str] = (),
    ) -> Self:
        """Choose a length that few of the training texts exceed.

        Padding and greatest length are those of the tokenizer.

        Args:
            items: Texts, .txt files, or a table.
            rows: Positions of the training texts; None: all.
            tokenizer: Content of a tokenizer.json.
            text: Column of the table.
            target: Target columns of the table.
        """
        texts, own = training_texts(items, text, rows), read_tokenizer(tokenizer)
        most = (own.truncation or {}).get("max_length", MOST_TOKENS)
        padding = (own.padding or {}).get("pad_id", 0)
        own.no_truncation()
        own.no_padding()
        length = common_length([len(one.ids) for one in own.encode_batch(texts)] or [1], most)
        options: Any = {"column": text, "target": tuple(target)}
        return cls(tokenizer=tokenizer, length=length, padding=padding, **options)

    @property
    def size(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def tokens(self, texts: list[str]) -> list[list[int]]:
        return [encoded.ids for encoded in self._tokenizer.encode_batch(texts)]

    @cached_property
    def _tokenizer(self) -> Any:
        tokenizer = read_tokenizer(self.tokenizer)
        tokenizer.enable_truncation(self.length)
        tokenizer.no_padding()
        return tokenizer

    def describe(self, inputs: Tensor) -> dict[str, str | float | None]:
        """Return the text of the tokens, without special ones."""
        return {"text": self._tokenizer.decode(inputs.tolist())}


def read_tokenizer(content: str) -> Any:
    """Build a tokenizer.

    Args:
        content: Content of a tokenizer.json.
    """
    kind = need("tokenizers", "transformers").Tokenizer
    try:
        json.loads(content)
        return kind.from_str(content)
    except Exception as error:  # of any kind
        raise DubitoError(f"tokenizer is no content of a tokenizer.json: {error}") from None
