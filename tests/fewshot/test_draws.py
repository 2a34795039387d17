"""Draws: uniform, without repetition, and independent of what is drawn beside them."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from scipy.stats import chisquare

from dubito.fewshot.draws import choices, keys

PARENT = np.array([7], np.uint64)


def test_every_ordered_choice_is_as_likely() -> None:
    drawn = choices(keys(PARENT, np.arange(60_000)), np.full(60_000, 5), 3)
    codes = drawn @ np.array([25, 5, 1])
    wanted = [a * 25 + b * 5 + c for a, b, c in permutations(range(5), 3)]
    counts = np.array([(codes == code).sum() for code in wanted])
    assert counts.sum() == 60_000
    assert chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(("size", "count"), [(1, 1), (600, 40), (40, 40), (100_000, 7)])
def test_numbers_differ_and_are_in_range(size: int, count: int) -> None:
    drawn = choices(keys(PARENT, np.arange(500)), np.full(500, size), count)
    ordered = np.sort(drawn, axis=1)
    assert ordered.min() >= 0
    assert ordered.max() < size
    assert (np.diff(ordered) > 0).all()


def test_sizes_may_differ_by_row() -> None:
    sizes = np.array([3, 1000] * 200)
    drawn = choices(keys(PARENT, np.arange(400)), sizes, 3)
    assert (drawn < sizes[:, None]).all()
    assert drawn[1::2].max() > 900


def test_more_draws_leave_the_first_as_they_are() -> None:
    parents, sizes = keys(PARENT, np.arange(300)), np.full(300, 50)
    assert (choices(parents, sizes, 50)[:, :8] == choices(parents, sizes, 8)).all()


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    parents = keys(PARENT, np.arange(40_000))  # more than one block
    all_rows = choices(parents, np.full(40_000, 30), 5)
    for row in (0, 16_383, 16_384, 39_999):
        alone = choices(parents[row : row + 1], np.array([30]), 5)
        assert (alone[0] == all_rows[row]).all()


def test_keys_are_as_on_every_machine() -> None:
    # SplitMix64 of the seed 0, as its author's code gives it
    assert keys(np.zeros(1, np.uint64), np.arange(3)).tolist() == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
