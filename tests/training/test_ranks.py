"""Two processes that train together: one network is judged, but each has its own random numbers."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training import _ranks_job
from tests.training.forked import Job

#: what one process saw in each kind of training
Seen = dict[str, dict[str, list[torch.Tensor]]]


def launch(folder: Path) -> list[str]:
    """Run both processes to their end; what each that failed complained of."""
    both = [Job(_ranks_job.main, folder, rank) for rank in range(2)]
    try:
        said = [job.wait() for job in both]
    finally:
        for job in both:
            job.process.kill()
    return [one for job, one in zip(both, said, strict=True) if job.process.exitcode]


def assert_one_network_is_judged(one: Seen, two: Seen) -> None:
    for kind, seen in one.items():
        here, there = seen["judged"], two[kind]["judged"]
        assert len(here) == len(there) >= 2, kind
        assert all(map(torch.equal, here, there)), kind
        assert not torch.equal(here[0], here[-1]), kind  # it has learned since


def assert_no_mask_is_drawn_twice(one: Seen, two: Seen) -> None:
    for kind, seen in one.items():
        masks = [*seen["masks"], *two[kind]["masks"]]
        assert len(masks) >= 16, kind  # four steps, two epochs, two processes
        assert not any(itertools.starmap(torch.equal, itertools.combinations(masks, 2))), kind


@pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="needs gloo",
)
def test_two_processes_judge_one_network_draw_their_own_masks_and_end_together(
    tmp_path: Path,
) -> None:
    labels = np.arange(100) % 2
    inputs = np.random.default_rng(0).normal(size=(100, 4)) + labels[:, None]
    np.savez(tmp_path / "blobs.npz", x=inputs.astype(np.float32), y=labels)
    assert launch(tmp_path) == []
    one, two = (torch.load(tmp_path / f"trainings-{rank}.pt") for rank in range(2))
    assert list(one) == ["arrays 0", "arrays 2", "dataset 0", "dataset 2"]
    assert_one_network_is_judged(one, two)
    assert_no_mask_is_drawn_twice(one, two)
    states = [(tmp_path / f"state-{rank}").read_text() for rank in range(2)]
    assert states == ["stopped", "finished"]
