"""`import dubito` costs little more than the `import torch` it cannot avoid."""

from __future__ import annotations

import subprocess
import sys

LIMIT = 1.5
FEWEST, MOST = 3, 6  # rounds


def seconds_to_import(package: str, env: dict[str, str]) -> float:
    """Return the time a new process takes to import a package, its own start not counted."""
    code = (
        "from time import perf_counter\n"
        "start = perf_counter()\n"
        f"import {package}\n"
        "print(perf_counter() - start)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_import_time(source_env: dict[str, str]) -> None:
    # Other processes can only add to a time, so the least of several is the cleanest, and turns in
    # alternation see the same disturbance. A busy machine gets more rounds before it is believed.
    torch_s, dubito_s = float("inf"), float("inf")
    for turn in range(1, MOST + 1):
        torch_s = min(torch_s, seconds_to_import("torch", source_env))
        dubito_s = min(dubito_s, seconds_to_import("dubito", source_env))
        if turn >= FEWEST and dubito_s <= LIMIT * torch_s:
            break
    ratio = dubito_s / torch_s
    assert ratio <= LIMIT, f"import dubito takes {ratio:.2f} x import torch ({torch_s:.2f} s)"
