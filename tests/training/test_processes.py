"""Runs that are killed, run out of disk, or are several processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from dubito.data import load

JOB = Path(__file__).with_name("_job.py")
EPOCHS, DIGITS = 40, "digits.npz"


@pytest.fixture(autouse=True)
def digits(tmp_path: Path) -> None:
    """In a file, which is read sooner than scikit-learn is imported."""
    held = load("digits", "train")
    np.savez(tmp_path / DIGITS, images=held.inputs.numpy(), labels=held.labels.numpy())


def start(folder: Path, batch: int = 32, *, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    source = folder.parent / DIGITS
    command = [sys.executable, *prefix, *map(str, (JOB, source, folder, EPOCHS, batch))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def written(folder: Path) -> int:
    """The epochs that a training has told of."""
    told = folder / "metrics.jsonl"
    return told.read_text("utf-8").count("\n") if told.exists() else 0


def test_killed_at_random_moments_it_ends_with_the_same_weights(tmp_path: Path) -> None:
    whole, folder = finish(start(tmp_path / "whole")), tmp_path / "killed"
    kills, chance = 0, random.Random(time.time_ns())
    for epochs in sorted(chance.sample(range(1, EPOCHS), 4)):
        process = start(folder)
        while written(folder) < epochs and process.poll() is None:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.05))  # an epoch takes half of it
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
    assert finish(start(folder)) == whole
    assert kills


LIMITED = """
import resource, runpy, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from dubito.training import checkpoint
real, left = checkpoint.save, [3]
def save(*arguments):
    left[0] -= 1
    if left[0] < 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    return real(*arguments)
checkpoint.save, checkpoint.SHARE = save, float("inf")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    from dubito.training import checkpoint

    folder = tmp_path / "full"
    process = start(folder, prefix=("-c", LIMITED))
    _, err = process.communicate(timeout=300)
    assert process.returncode != 0
    assert "could not write" in err
    assert "an earlier checkpoint there is untouched" in err
    _, facts = checkpoint.load(folder / "checkpoint.safetensors")
    assert facts["epoch"] == 3
    assert not list(folder.glob(".*.part"))


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
def test_two_processes_are_one_with_the_doubled_batch(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    both = start(tmp_path / "two", 16, prefix=torchrun)
    one = finish(start(tmp_path / "one", 32))
    two = finish(both)
    assert float(two.split()[-1]) == pytest.approx(float(one.split()[-1]), abs=0.01)
    weights = [torch.load(tmp_path / name / "weights.pt") for name in ("one", "two")]
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)
