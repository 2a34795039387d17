"""Memory of predictions."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESETS = Path("/proc/self/clear_refs")


@pytest.mark.skipif(not RESETS.exists(), reason="the peak of memory is read on Linux")
def test_large_images_are_predicted_in_little_memory(source_env):
    pytest.importorskip("PIL")
    command = [sys.executable, "-m", "benchmarks.memory", "--count", "128"]
    done = subprocess.run(
        command, cwd=ROOT, env=source_env, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 0.5  # all at once take 0.9 GB
