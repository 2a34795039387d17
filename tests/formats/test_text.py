"""Texts as indices of words."""

import re
from collections import Counter

import pandas as pd
import pytest
import torch

from dubito import data
from dubito.errors import DubitoError
from dubito.formats import FORMATS, ArrayFormat, Preprocessing
from dubito.formats.text import TextFormat
from dubito.model import Model
from dubito.tasks import Classification

TEXTS = ["A good film.", "Bad, bad film!", "what a good day"]


def test_vocabulary_has_the_most_frequent_words():
    format = TextFormat.fit(TEXTS)
    counts = Counter(word for text in TEXTS for word in re.findall(r"\w+|[.,!]", text.lower()))
    assert {*format.vocabulary} == {*counts}
    assert [counts[word] for word in format.vocabulary] == sorted(counts.values(), reverse=True)
    assert format.length == 5


def test_texts_are_cut_and_filled_up():
    format = TextFormat(vocabulary=("a", "film"), length=3)
    encoded = format.encode(["A film", "film: a dull one", "?!"])
    assert encoded.inputs.tolist() == [[2, 3, 0], [3, 1, 2], [1, 1, 0]]
    assert encoded.inputs.dtype == torch.int64
    assert format.describe(encoded.inputs[1]) == {"text": "film ? a"}


def test_length_leaves_few_texts_cut():
    texts = ["w " * count for count in range(1, 101)]
    assert TextFormat.fit(texts).length == 96
    assert TextFormat.fit(["w " * 1000]).length == 256


def test_vocabulary_comes_from_training_texts():
    source = data.open((TEXTS, ["good", "bad", "good"]))
    fitted = source.refit([1])
    assert fitted.format.vocabulary == ("bad", "!", ",", "film")
    assert fitted.subset([1]).load().tolist() == [[2, 4, 2, 5, 3]]
    assert fitted.load()[2].tolist() == [1, 1, 1, 1, 0]


def test_column_of_a_table():
    frame = pd.DataFrame({"stars": ["5", "1", "4"], "review": TEXTS, "id": [1, 2, 3]})
    source = data.open(frame, text="review", target="stars")
    assert source.target.tolist() == [5, 1, 4]
    assert torch.equal(source.load(), data.open(TEXTS, labeled=False).load())
    rows = data.open(frame.drop(columns="stars"), format=source.format, labeled=False)
    assert torch.equal(rows.load(), source.load())
    with pytest.raises(DubitoError, match="unknown column of table 'text'"):
        data.open(frame, text="text")
    with pytest.raises(DubitoError, match=r"'review'.*pass text="):
        source.format.encode(frame[["id"]])


@pytest.mark.parametrize("stream", [False, True])
def test_folder_of_text_files(tmp_path, stream):
    for name, content in zip(("good/a", "bad/a", "good/b"), TEXTS, strict=True):
        (path := tmp_path / f"{name}.txt").parent.mkdir(exist_ok=True)
        path.write_text(content)
    source = data.open(tmp_path, stream=stream)
    assert source.target.tolist() == ["bad", "good", "good"]
    expected = data.open([TEXTS[1], TEXTS[0], TEXTS[2]], labeled=False)
    assert torch.equal(source.load(), expected.load())
    before = source.fingerprint()
    path.write_text("what a day")
    assert data.open(tmp_path, stream=stream).fingerprint() != before


def test_text_without_words_is_an_error_of_its_row():
    format = TextFormat.fit(TEXTS)
    assert format.encode(["a film", "  "]).errors == {1: "it has no words"}
    frame = pd.DataFrame({"review": ["a film", None], "stars": [1, 2]})
    with pytest.raises(DubitoError, match="row 1: it has no words"):
        data.open(frame, text="review")


def test_indices_are_not_normalized():
    format = TextFormat.fit(TEXTS)
    prepare = Preprocessing.fit(format, format.encode(TEXTS).inputs)
    assert prepare == Preprocessing(inputs=format)
    indices = torch.tensor([[2**40, 1, 0, 0, 0]])
    assert torch.equal(prepare.normalize(indices), indices)
    taken = ArrayFormat(shape=(5,), dtype="int64").encode(indices)
    assert torch.equal(taken.inputs, indices)
    assert FORMATS.build(FORMATS.to_dict(format)) == format


def test_noise_cannot_be_added_to_texts():
    inputs, task = Preprocessing(inputs=TextFormat.fit(TEXTS)), Classification(classes=("a", "b"))
    model = Model.build("edl", task, inputs)
    with pytest.raises(DubitoError, match=r"noise=0\.5 is for numbers and pixels, .*: drop noise"):
        model.evaluate(TEXTS, ["a", "b", "a"], noise=[0.5])
