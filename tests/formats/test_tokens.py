"""Texts as tokens, compared with tokenizers of transformers."""

import json

import pandas as pd
import pytest
import torch

from dubito import data
from dubito.errors import DubitoError
from dubito.formats import FORMATS, Preprocessing
from tests.backbones import checkpoints

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

TEXTS = ["a very good film", "bad, bad film", "a good day"]


@pytest.fixture(scope="module")
def tokenizer() -> str:
    return checkpoints.tokenizer().backend_tokenizer.to_str()


def test_tokens_are_those_of_transformers(tokenizer):
    reference = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(tokenizer), pad_token="[PAD]"
    )
    texts = [*TEXTS, "a " * 9, "unheard of"]
    for length in (3, 6, 20):
        format = FORMATS.build("tokens", tokenizer=tokenizer, length=length)
        options = {"padding": "max_length", "truncation": True, "max_length": length}
        expected = reference(texts, return_tensors="pt", **options)["input_ids"]
        assert torch.equal(format.encode(texts).inputs, expected)


def test_padding_and_greatest_length_are_those_of_the_tokenizer(tokenizer):
    built = tokenizers.Tokenizer.from_str(tokenizer)
    built.enable_padding(pad_id=10)
    built.enable_truncation(7)
    source = data.open(([*TEXTS, "a " * 50], ["x", "y", "x", "y"]), tokenizer=built.to_str())
    assert source.format.shape == (7,)
    assert source.load()[1].tolist() == [2, 5, 1, 5, 8, 3, 10]


def test_length_comes_from_training_texts(tokenizer):
    source = data.open(([*TEXTS, "a " * 50], ["x", "y", "x", "y"]), tokenizer=tokenizer)
    assert source.format.shape == (52,)
    assert source.refit([0, 1]).load().shape == (4, 6)


def test_column_of_a_table(tokenizer, tmp_path):
    frame = pd.DataFrame({"review": [*TEXTS, "  "], "stars": ["5", "1", "4", "2"]})
    frame.to_csv(path := tmp_path / "reviews.csv", index=False)
    source = data.open(path, text="review", target="stars", tokenizer=tokenizer, on_error="report")
    assert source.target.tolist() == [5, 1, 4, 2]
    assert source.encode([0, 3]).errors == {1: "it has no words"}
    with pytest.raises(DubitoError, match=r"column of reviews.csv 'text'; known: 'review'"):
        data.open(path, text="text", tokenizer=tokenizer)
    with pytest.raises(DubitoError, match=r"a table needs text=.*its column of texts: one of 'rev"):
        data.open(path, tokenizer=tokenizer)


def test_format_survives_json(tokenizer):
    format = FORMATS.build("tokens", tokenizer=tokenizer, length=6, padding=0)
    again = FORMATS.build(json.loads(json.dumps(FORMATS.to_dict(format))))
    assert again == format
    assert again.size == len(checkpoints.WORDS)
    row = again.encode(TEXTS[:1]).inputs
    assert again.describe(row[0]) == {"text": "a very good film"}
    assert Preprocessing.fit(format, row) == Preprocessing(inputs=format)
    assert "PreTokenizer" not in repr(format)


def test_wrong_tokenizers(tokenizer):
    with pytest.raises(DubitoError, match="tokenizer is no content"):
        data.open((TEXTS, ["x", "y", "x"]), tokenizer="{}")
    with pytest.raises(DubitoError, match=r"tokenizer=.{,40} is for the format 'tokens', but"):
        data.open(torch.rand(4, 3), tokenizer=tokenizer)
