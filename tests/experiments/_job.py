"""Reproduce a folder of recipes, telling each event in a line: run by tests, and killed by them."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from dubito import experiments


def main(recipes: str, out: str, work: str, jobs: str) -> None:
    torch.set_num_threads(1)
    known = list(experiments.read_recipes(Path(recipes)).values())

    def tell(event: dict[str, object]) -> None:
        print(event["event"], event["cell"], flush=True)

    done = experiments.reproduce(
        known, out=Path(out), work=Path(work), device="cpu", jobs=int(jobs), tell=tell
    )
    print("ended", len(done.failed), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
