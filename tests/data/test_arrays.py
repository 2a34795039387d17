from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dubito.data import Arrays, join, split
from dubito.data.arrays import as_floats


def arrays(labels: list[int], classes: int = 3) -> Arrays:
    names = tuple("abcdefghij"[:classes])
    return Arrays(
        torch.arange(len(labels)).float()[:, None], torch.tensor(labels), names, "letters"
    )


def test_bytes_are_divided_by_255_and_floats_kept() -> None:
    every = torch.arange(256, dtype=torch.uint8)
    torch.testing.assert_close(as_floats(every), torch.arange(256) / 255, rtol=0, atol=0)
    negative = torch.tensor([-2.0, 300.0])
    assert as_floats(negative) is negative


def test_floats_are_float32_whatever_the_default() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert as_floats(torch.zeros(2, dtype=torch.uint8)).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_properties() -> None:
    data = Arrays(torch.zeros(4, 1, 2, 3), torch.tensor([0, 2, 2, 0]), ("a", "b", "c"))
    assert (len(data), data.shape, data.device) == (4, (1, 2, 3), torch.device("cpu"))
    assert data.class_counts.tolist() == [2, 0, 2]
    assert data.nbytes == 4 * 6 * 4 + 4 * 8
    assert data.to("cpu") is data
    assert data.to("meta").device.type == "meta"


def test_subset_keeps_order_and_names() -> None:
    part = arrays([0, 1, 2, 1]).subset([3, 0])
    assert part.inputs.flatten().tolist() == [3, 0]
    assert part.labels.tolist() == [1, 0]
    assert (part.classes, part.name) == (("a", "b", "c"), "letters")


def test_small_integer_labels_become_int64() -> None:
    labels = torch.tensor([1, 0], dtype=torch.uint8)
    assert Arrays(torch.zeros(2, 1), labels, ("a", "b")).labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("inputs", "labels", "classes", "error", "message"),
    [
        (torch.zeros(2, 1), torch.tensor([0, 2]), "ab", ValueError, r"0 to 1 .*\[2\].*index 1"),
        (torch.zeros(2, 1), torch.tensor([-1, 0]), "ab", ValueError, r"1 are not: \[-1\]"),
        (torch.zeros(2, 1), torch.tensor([0.0, 1]), "ab", TypeError, "integers"),
        (torch.zeros(2, 1), torch.tensor([0]), "ab", ValueError, r"2 inputs need \(2,\)"),
        (torch.zeros(2, 1).double(), torch.tensor([0, 1]), "ab", TypeError, "float64"),
        (torch.zeros(2), torch.tensor([0, 1]), "ab", ValueError, r"\(N, \*shape\)"),
        (torch.zeros(0, 1), torch.zeros(0).long(), "ab", ValueError, "at least one sample"),
        (torch.zeros(2, 1), torch.tensor([0, 1]), "aa", ValueError, r"\['a'\] occur twice"),
    ],
)
def test_bad_arrays_are_refused(
    inputs: torch.Tensor, labels: torch.Tensor, classes: str, error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        Arrays(inputs, labels, tuple(classes), "letters")


def test_join_wants_alike_parts() -> None:
    one = arrays([0, 1])
    assert join([one, one]).labels.tolist() == [0, 1, 0, 1]
    with pytest.raises(ValueError, match="only alike data"):
        join([one, arrays([0, 1], classes=4)])


def test_the_papers_splits() -> None:
    for count, fraction, wanted in [(60_000, 0.8, 48_000), (50_000, 0.95, 47_500)]:
        first, second, _ = split(arrays([0] * count), fraction, seed=322)
        assert (len(first), len(second)) == (wanted, count - wanted)


def test_split_is_seeded_and_restored_from_its_order() -> None:
    data = arrays([0, 1, 2] * 20)
    first, second, order = split(data, 0.7, seed=5)
    again, _, _ = split(data, 0.7, seed=5)
    other, _, _ = split(data, 0.7, seed=6)
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, other.inputs)
    assert torch.equal(data.subset(order[: len(first)]).inputs, first.inputs)
    assert torch.equal(data.subset(order[len(first) :]).inputs, second.inputs)


@given(
    labels=st.lists(st.integers(0, 3), min_size=4, max_size=60),
    fraction=st.floats(0.2, 0.8),
    seed=st.integers(0, 99),
    stratified=st.booleans(),
)
def test_split_divides(labels: list[int], fraction: float, seed: int, stratified: bool) -> None:
    data = arrays(labels, classes=4)
    first, second, order = split(data, fraction, seed, stratified=stratified)
    assert len(first) == round(fraction * len(data))
    assert sorted(order.tolist()) == list(range(len(data)))
    assert sorted(torch.cat([first.inputs, second.inputs]).flatten().tolist()) == sorted(
        data.inputs.flatten().tolist()
    )
    if stratified:
        share = data.class_counts * len(first) / len(data)
        assert (first.class_counts - share).abs().max() < 1


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5, 0.01, float("nan")])
def test_a_split_with_an_empty_side_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match="leaves a part empty"):
        split(arrays([0, 1, 2]), fraction, seed=0)
