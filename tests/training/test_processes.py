"""Runs that are killed or run out of disk."""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import pytest

from dubito.data import load
from tests.training import _job
from tests.training.forked import Job


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """In a file, which is read sooner than scikit-learn is imported."""
    held, file = load("digits", "train"), tmp_path / "digits.npz"
    np.savez(file, images=held.inputs.numpy(), labels=held.labels.numpy())
    return file


def written(folder: Path) -> int:
    """The epochs that a training has told of."""
    told = folder / "metrics.jsonl"
    return told.read_text("utf-8").count("\n") if told.exists() else 0


def test_killed_at_random_moments_it_ends_with_the_same_weights(
    tmp_path: Path, digits: Path
) -> None:
    folder = tmp_path / "killed"
    whole = Job(_job.main, digits, tmp_path / "whole").result()
    kills, chance = 0, random.Random(time.time_ns())
    for reached in sorted(chance.sample(range(1, _job.EPOCHS), 4)):
        job = Job(_job.main, digits, folder)
        while written(folder) < reached and job.running:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.05))  # an epoch takes half of it
        if job.running:
            job.process.kill()
            kills += 1
        job.wait()
    assert Job(_job.main, digits, folder).result() == whole
    assert kills


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path: Path, digits: Path) -> None:
    from dubito.training import checkpoint

    folder = tmp_path / "full"
    job = Job(_job.on_a_disk_that_fills_up, digits, folder)
    error = job.wait()
    assert job.process.exitcode == 1
    assert "could not write" in error
    assert "an earlier checkpoint there is untouched" in error
    _, facts = checkpoint.load(folder / "checkpoint.safetensors")
    assert facts["epoch"] == 3
    assert not list(folder.glob(".*.part"))
