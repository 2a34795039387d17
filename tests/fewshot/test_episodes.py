"""Episodes: what is in them, that they are the same for everyone, and what is refused."""

from __future__ import annotations

import dataclasses
import re
from itertools import pairwise

import numpy as np
import pytest
import torch

from dubito.data import Arrays
from dubito.fewshot import Pool, Sampler, Setting
from fewshot.samples import arrays, pool


def labels_of(pool: Pool) -> np.ndarray:
    """The class of each sample."""
    labels = np.empty(len(pool.order), int)
    for i, (start, size) in enumerate(zip(pool.starts, pool.sizes, strict=True)):
        labels[pool.order[start : start + size]] = i
    return labels


def test_samples_belong_to_their_classes_and_differ() -> None:
    inside, outside = pool(), pool(classes=20, seed=1)
    sampler = Sampler(inside, outside, Setting(ways=4, shots=3))
    drawn = sampler.draw(0, 200)
    labels = labels_of(inside)
    support = labels[drawn.support].reshape(200, 4, 3)
    query = labels[drawn.query].reshape(200, 4, 15)
    assert (support == support[..., :1]).all()
    assert (query == support[..., :1]).all()  # in the order of the support's classes
    assert all(len(set(row)) == 4 for row in support[..., 0].tolist())
    every = np.sort(np.concatenate([drawn.support, drawn.query], 1))
    assert (np.diff(every) > 0).all()
    others = np.sort(drawn.outside)
    assert (np.diff(others) > 0).all()
    assert others.shape == (200, 60)
    assert sampler.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    counts = np.array([np.bincount(row, minlength=20) for row in labels_of(outside)[drawn.outside]])
    assert set(np.unique(counts)) == {0, 15}


def test_labels_are_those_of_the_data() -> None:
    data = arrays()
    held = Pool.of(data)
    assert (labels_of(held) == data.labels.numpy()).all()
    assert held.classes == data.classes


@pytest.mark.parametrize("cuts", [[0, 100], [0, 1, 100], [0, 33, 66, 100]])
def test_an_episode_follows_from_its_number(cuts: list[int]) -> None:
    sampler = Sampler(pool(), None, Setting(ways=3, shots=2))
    whole = dataclasses.astuple(sampler.draw(0, 100))
    parts = [sampler.draw(a, b) for a, b in pairwise(cuts)]
    for i, name in enumerate(("support", "query", "outside")):
        assert (np.concatenate([getattr(part, name) for part in parts]) == whole[i]).all()


def test_seeds_differ_and_fewer_shots_are_contained_in_more() -> None:
    one = Sampler(pool(), None, Setting(ways=3, shots=1)).draw(0, 50)
    other = Sampler(pool(), None, Setting(ways=3, shots=1, seed=1)).draw(0, 50)
    assert (one.support != other.support).any()
    five = Sampler(pool(), None, Setting(ways=3, shots=5)).draw(0, 50)
    assert (five.support.reshape(50, 3, 5)[:, :, 0] == one.support).all()


def test_classes_and_samples_are_drawn_evenly() -> None:
    inside = pool(classes=6, each=20)
    drawn = Sampler(inside, None, Setting(ways=2, shots=1)).draw(0, 6000)
    counts = np.bincount(drawn.support.reshape(-1), minlength=120)
    assert abs(counts.mean() - 100) < 1e-9
    # of a binomial; its deviation is 10
    assert 8.5 < counts.std() < 11.5


def test_without_another_pool_ood_queries_come_from_other_classes() -> None:
    inside = pool(classes=5)
    drawn = Sampler(inside, None, Setting(ways=3, shots=1)).draw(0, 100)
    labels = labels_of(inside)
    for support, outside in zip(labels[drawn.support], labels[drawn.outside], strict=True):
        assert set(support) & set(outside) == set()
        assert len(set(outside)) == 2  # all that are left, with more samples each
    assert drawn.outside.shape == (100, 45)


def test_protocols() -> None:
    assert [Setting(shots=k).queries for k in (1, 20)] == [15, 20]
    assert [Setting(shots=k, protocol="paper").queries for k in (1, 20)] == [1, 15]


def test_classes_of_any_size() -> None:
    sizes = [16, 30, 200]
    labels = torch.tensor([0] * 16 + [1] * 30 + [2] * 200 + [4] * 17)
    data = Arrays(torch.rand(263, 3), labels, tuple("abcde"))
    held = Pool.of(data)
    assert held.sizes.tolist() == [*sizes, 17]
    assert held.classes == ("a", "b", "c", "e")  # "d" has no samples
    drawn = Sampler(held, held, Setting(ways=4, shots=1)).draw(0, 300)
    found = np.unique(np.concatenate([drawn.support, drawn.query], 1))
    assert len(found) == 263


def broken(data: Arrays, **changes: object) -> Arrays:
    return dataclasses.replace(data, **changes)  # type: ignore[arg-type]


def test_more_ways_than_classes() -> None:
    with pytest.raises(ValueError, match=r"ways=9, but made-0 has 8 classes"):
        Sampler(pool(), None, Setting(ways=9))


def test_a_class_with_too_few_samples_is_named() -> None:
    data = arrays()
    kept = data.subset(torch.cat([torch.arange(len(data))[data.labels != 3],
                                  torch.arange(len(data))[data.labels == 3][:12]]))  # fmt: skip
    message = "5w1s episodes with 15 queries a class need 16 samples of each class, but made-0: "
    with pytest.raises(ValueError, match=re.escape(message + "class 'class-3' has 12")):
        Sampler(Pool.of(kept), None, Setting(ways=5, shots=1))


def test_features_must_be_finite() -> None:
    data = arrays()
    data.inputs[17, 3] = float("nan")
    data.inputs[30, 0] = float("inf")
    message = "made-0: features must be finite, but 2 of 320 samples .* the first is sample 17"
    with pytest.raises(ValueError, match=message):
        Pool.of(data)


def test_dimensions_must_agree() -> None:
    with pytest.raises(ValueError, match=r"same dimension, but made-0 has 64 and made-1 32"):
        Sampler(pool(), pool(size=32, seed=1), Setting())


def test_too_few_ood_samples() -> None:
    small = pool(classes=2, each=10, seed=1)
    message = r"5w1s episodes need 75 OOD queries, but made-1 has 2 classes .* 'class-0' has 10"
    with pytest.raises(ValueError, match=message):
        Sampler(pool(), small, Setting())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ways": 1}, "ways must be a whole number of at least 2, not 1"),
        ({"shots": 0}, "shots must be a whole number of at least 1, not 0"),
        ({"protocol": "own"}, "unknown protocol 'own'; known: 'code', 'paper'"),
    ],
)
def test_settings_are_checked(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Setting(**given)  # type: ignore[arg-type]
