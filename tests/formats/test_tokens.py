"""Texts as tokens, compared with tokenizers of transformers."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from dubito import data
from dubito.errors import DubitoError
from dubito.formats import FORMATS, Preprocessing

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "good", "bad", "film", "day", "!", "what"]
TEXTS = ["A good film!", "Bad, bad film", "what a good day"]


@pytest.fixture(scope="module")
def tokenizer() -> str:
    model = tokenizers.models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]")
    built = tokenizers.Tokenizer(model)
    built.normalizer = tokenizers.normalizers.Lowercase()
    built.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    built.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return built.to_str()


def test_tokens_are_those_of_transformers(tokenizer: str) -> None:
    reference = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(tokenizer), pad_token="[PAD]"
    )
    texts = [*TEXTS, "a " * 9, "unheard of"]
    for length in (3, 6, 20):
        format = FORMATS.build("tokens", tokenizer=tokenizer, length=length)
        options = {"padding": "max_length", "truncation": True, "max_length": length}
        expected = reference(texts, return_tensors="pt", **options)["input_ids"]
        assert torch.equal(format.encode(texts).inputs, expected)


def test_padding_and_greatest_length_are_those_of_the_tokenizer(tokenizer: str) -> None:
    built = tokenizers.Tokenizer.from_str(tokenizer)
    built.enable_padding(pad_id=10)
    built.enable_truncation(7)
    source = data.open(([*TEXTS, "a " * 50], ["x", "y", "x", "y"]), tokenizer=built.to_str())
    assert source.format.shape == (7,)
    assert source.load()[1].tolist() == [2, 6, 1, 6, 7, 3, 10]


def test_length_comes_from_training_texts(tokenizer: str) -> None:
    source = data.open(([*TEXTS, "a " * 50], ["x", "y", "x", "y"]), tokenizer=tokenizer)
    assert source.format.shape == (52,)
    assert source.refit([0, 1]).load().shape == (4, 6)


def test_column_of_a_table(tokenizer: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"review": [*TEXTS, "  "], "stars": ["5", "1", "4", "2"]})
    frame.to_csv(path := tmp_path / "reviews.csv", index=False)
    source = data.open(path, text="review", target="stars", tokenizer=tokenizer, on_error="report")
    assert source.target.tolist() == [5, 1, 4, 2]
    assert source.encode([0, 3]).errors == {1: "it has no words"}
    with pytest.raises(DubitoError, match=r"column of reviews.csv 'text'; known: 'review'"):
        data.open(path, text="text", tokenizer=tokenizer)
    with pytest.raises(DubitoError, match=r"a table needs text=.*its column of texts: one of 'rev"):
        data.open(path, tokenizer=tokenizer)


def test_format_survives_json(tokenizer: str) -> None:
    format = FORMATS.build("tokens", tokenizer=tokenizer, length=6, padding=0)
    again = FORMATS.build(json.loads(json.dumps(FORMATS.to_dict(format))))
    assert again == format
    assert again.size == len(WORDS)
    row = again.encode(TEXTS[:1]).inputs
    assert again.describe(row[0]) == {"text": "[CLS] a good film ! [SEP]"}
    assert Preprocessing.fit(format, row) == Preprocessing(inputs=format)
    assert "Lowercase" not in repr(format)


def test_wrong_tokenizers(tokenizer: str) -> None:
    with pytest.raises(DubitoError, match="tokenizer is no content"):
        data.open((TEXTS, ["x", "y", "x"]), tokenizer="{}")
    with pytest.raises(DubitoError, match=r"tokenizer=.{,40} is for the format 'tokens', but"):
        data.open(torch.rand(4, 3), tokenizer=tokenizer)
