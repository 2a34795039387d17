import numpy as np
import pytest
import torch

from dubito import data
from dubito.errors import DubitoError
from dubito.formats import Encoded


@pytest.fixture
def source() -> data.Source:
    return data.open((torch.arange(30.0).reshape(10, 3), ["a", "b"] * 5))


def test_items_are_those_of_load(source):
    assert len(source) == 10
    assert torch.equal(torch.stack([source[index] for index in range(10)]), source.load())
    assert torch.equal(source[-1], source.load()[-1])
    with pytest.raises(IndexError):
        source[10]


def test_input_of_a_batch_that_cannot_be_read_is_named(source, monkeypatch):
    monkeypatch.setattr(source, "encode", lambda _: Encoded(torch.zeros(2, 3), {1: "bad"}, {}))
    with pytest.raises(DubitoError, match=r"1 of 2 inputs cannot be read: data\[7\]: bad"):
        source.__getitems__([3, 7])


def test_subset_keeps_inputs_targets_and_items_together(source):
    part = source.subset([7, 2, 2]).subset(torch.tensor([2, 0]))
    assert torch.equal(part.load(), source.load()[[2, 7]])
    assert part.target.tolist() == ["a", "b"]
    assert part.item(1) == source.item(7) == "data[7]"


def test_fingerprint_depends_on_inputs_targets_and_subset(source):
    x, y = source.load(), ["a", "b"] * 5
    assert data.open((x, y)).fingerprint() == source.fingerprint()
    prints = {
        source.fingerprint(),
        data.open((x + 1, y)).fingerprint(),
        data.open((x, y[::-1])).fingerprint(),
        data.open(x).fingerprint(),
        source.subset([0, 1]).fingerprint(),
        source.subset([1, 0]).fingerprint(),
    }
    assert len(prints) == 6


def test_checked_lists_at_most_ten_problems():
    encoded = Encoded(torch.zeros(20, 1), dict.fromkeys(range(12), "bad"), {})
    with pytest.raises(DubitoError, match=r"^12 of 20 inputs.*row 0: bad; .*row 9: bad \(and 2 mo"):
        encoded.checked()


def test_split_is_stratified_and_complete():
    target = np.repeat(["a", "b", "c"], [10, 20, 71])
    source = data.open((torch.arange(101.0)[:, None], target))
    first, second = data.split(source, 0.8, seed=3, stratify=True)
    assert len(first) == 81
    assert dict(zip(*np.unique(first.target, return_counts=True), strict=True)) == {
        "a": 8, "b": 16, "c": 57,
    }  # fmt: skip
    values = torch.cat([first.load(), second.load()]).flatten()
    assert values.sort().values.tolist() == list(range(101))


def test_split_order_follows_from_the_seed():
    # Published results name their split by its seed.
    source = data.open((torch.arange(6.0)[:, None], list("ababab")))
    first, other = (data.split(source, 0.5, seed=seed)[0].load().flatten() for seed in (0, 1))
    assert first.tolist() == [2.0, 5.0, 3.0]
    assert not torch.equal(first, other)


@pytest.mark.parametrize("fraction", [0.0, 1.0, 0.01, float("nan")])
def test_split_rejects_empty_parts(source, fraction):
    with pytest.raises(DubitoError, match="of 10 samples leaves a part empty"):
        data.split(source, fraction, seed=0)
