from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from dubito.data import Arrays, Augment, Batches, fits, from_dataset


def numbered(count: int) -> Arrays:
    """Each sample is its own index."""
    return Arrays(torch.arange(count).float()[:, None], torch.arange(count) % 2, ("even", "odd"))


def images(count: int) -> Arrays:
    pixels = torch.randint(256, (count, 3, 8, 8), dtype=torch.uint8)
    return Arrays(pixels, torch.arange(count) % 2, ("even", "odd"))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [4, 4, 2]), (True, [4, 4])])
def test_a_pass_goes_over_the_data_once(drop_last: bool, sizes: list[int]) -> None:
    batches = Batches(numbered(10), 4, generator(), drop_last=drop_last)
    passed = list(batches)
    assert len(batches) == len(sizes)
    assert [len(y) for _, y in passed] == sizes
    seen = torch.cat([x for x, _ in passed]).flatten()
    assert len(seen.unique()) == sum(sizes)
    assert torch.equal(torch.cat([y for _, y in passed]), seen.long() % 2)


def test_each_pass_has_another_order_and_a_seed_repeats_them() -> None:
    batches, again = (Batches(numbered(50), 50, generator(3)) for _ in range(2))
    first, second = (next(iter(batches))[0] for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first, next(iter(again))[0])
    assert torch.equal(second, next(iter(again))[0])


def test_without_a_generator_the_order_is_kept() -> None:
    passed = torch.cat([x for x, _ in Batches(numbered(10), 3)]).flatten()
    assert torch.equal(passed, torch.arange(10.0))


def test_pixels_come_as_fractions() -> None:
    data = images(6)
    (x, _), *_ = Batches(data, 6)
    torch.testing.assert_close(x, data.inputs / 255, rtol=0, atol=0)


def test_augmented_batches_are_the_augmented_images() -> None:
    data, augment = images(6), Augment(padding=2)
    (x, y), *_ = Batches(data, 6, generator(4), augment)
    same = generator(4)
    order = torch.randperm(6, generator=same)
    expected = augment(data.inputs[order], same) / 255
    assert torch.equal(x, expected)
    assert torch.equal(y, data.labels[order])


@pytest.mark.parametrize("drop_last", [False, True])
def test_gathering_ahead_changes_nothing(drop_last: bool) -> None:
    data = images(23)
    one, several = (
        list(Batches(data, 4, generator(5), Augment(padding=1), drop_last, ahead=ahead))
        for ahead in (1, 3)
    )
    assert [len(y) for _, y in one] == [4] * 5 + [3] * (not drop_last)
    for (x, y), (other_x, other_y) in zip(one, several, strict=True):
        assert torch.equal(x, other_x)
        assert torch.equal(y, other_y)


def test_take_gathers_any_indices() -> None:
    x, y = Batches(numbered(10), 4).take(torch.tensor([7, 2]))
    assert (x.flatten().tolist(), y.tolist()) == ([7, 2], [1, 0])


def test_batches_go_to_the_device() -> None:
    x, y = next(iter(Batches(numbered(4), 2, device="meta")))
    assert x.device.type == y.device.type == "meta"


def test_the_whole_fits_in_main_memory() -> None:
    assert fits(numbered(4), "cpu")


@pytest.mark.parametrize("make", [Batches, lambda arrays, *rest: from_dataset(flat(), *rest)])
def test_bad_arguments(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match="batch_size must be at least 1, not 0"):
        make(images(4), 0)
    with pytest.raises(ValueError, match="give a generator"):
        make(images(4), 2, None, Augment())


def test_no_batch_at_all() -> None:
    with pytest.raises(ValueError, match="4 samples make no batch of 5 with drop_last"):
        Batches(numbered(4), 5, drop_last=True)


def flat() -> TensorDataset:
    data = images(10)
    return TensorDataset(data.inputs, data.labels)


def test_a_dataset_streams_like_the_tensors() -> None:
    data = images(10)
    dataset = TensorDataset(data.inputs, data.labels)
    for streamed, held in zip(from_dataset(dataset, 4), Batches(data, 4), strict=True):
        assert torch.equal(streamed[0], held[0])
        assert torch.equal(streamed[1], held[1])


def test_a_stream_shuffles_and_augments_by_its_generator() -> None:
    dataset = flat()
    one, two, three = (
        next(iter(from_dataset(dataset, 10, generator(seed), Augment(padding=1))))
        for seed in (1, 1, 2)
    )
    assert torch.equal(one[0], two[0])
    assert not torch.equal(one[0], three[0])
    assert one[0].dtype == torch.float32
    assert len(from_dataset(dataset, 4, drop_last=True)) == 2


class Squares(Dataset):
    """Samples made as they are asked for."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(index**2)]), index % 3


def test_worker_processes() -> None:
    # Started by fork, so that a worker need not import torch again.
    stream = from_dataset(Squares(), 4, workers=1)
    for _ in range(2):
        x, y = (torch.cat(each) for each in zip(*stream, strict=True))
        assert x.flatten().tolist() == [index**2 for index in range(9)]
        assert y.tolist() == [0, 1, 2] * 3
