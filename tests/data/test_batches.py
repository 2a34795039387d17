"""Sources that give batches, ahead of the network."""

import threading
import time
from collections.abc import Sequence
from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader

from dubito import data
from dubito.formats import ArrayFormat, Encoded


class Slow(data.Source):
    """Counts what is read; reading some rows fails."""

    def __init__(self, broken: int | None = None) -> None:
        self.name, self.format, self.broken = "slow", ArrayFormat(shape=(1,)), broken
        self.read: list[int] = []

    def __len__(self) -> int:
        return 20

    def encode(self, indices: Sequence[int]) -> Encoded:
        if self.broken in indices:
            raise OSError("the disk is gone")
        self.read += indices
        return Encoded(torch.tensor(indices).float()[:, None], {}, {})

    def item(self, index: int) -> str:
        return str(index)

    def fingerprint(self) -> str:
        return ""


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "dubito-ahead" in thread.name]


@pytest.mark.parametrize("size", [1, 7, 20, 99])
def test_batches_are_all_inputs_in_order(size):
    for source in (Slow(), data.open(torch.arange(20.0)[:, None], labeled=False)):
        batches = [batch.inputs for batch in source.batches(size)]
        assert [len(batch) for batch in batches[:-1]] == [size] * (len(batches) - 1)
        assert torch.cat(batches).flatten().tolist() == [*range(20)]


def test_few_batches_are_read_ahead():
    source = Slow()
    batches = source.batches(2)
    next(batches)
    deadline = time.monotonic() + 600
    while len(source.read) < 6 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert source.read == [*range(6)]  # one in use, two ahead
    batches.close()
    assert not readers()


def test_an_error_arrives_with_its_batch_and_ends_the_reader():
    batches = Slow(broken=9).batches(4)
    assert [len(batch.inputs) for batch in islice(batches, 2)] == [4, 4]
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    assert not readers()
    assert next(batches, None) is None


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader_reads_batches_at_once(workers):
    source = Slow()
    loader = DataLoader(source, batch_size=6, shuffle=False, num_workers=workers)
    assert torch.cat([*loader]).flatten().tolist() == [*range(20)]
    if not workers:
        assert source.read == [*range(20)]
